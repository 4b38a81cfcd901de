"""How pictures of the gallery are drawn: so that they can be read in its index, too, where they are small."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

STYLE = {
    "figure.figsize": (5.6, 4.0), "figure.constrained_layout.use": True, "font.size": 13.0, "legend.fontsize": 11.0,
    "lines.linewidth": 2.5, "lines.markersize": 7.0, "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip


def set_style(gallery_conf: dict[str, Any], file: Path) -> None:
    """Set the style before each program, after Matplotlib's defaults."""
    plt.rcdefaults()
    plt.rcParams.update(STYLE)


conf = {"reset_modules": (set_style,)}
