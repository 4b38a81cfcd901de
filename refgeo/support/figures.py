"""Axes of matplotlib, which is an extra."""

from __future__ import annotations

from typing import Any

from refgeo.support.extras import require


def make_axes(axes: Any = None, rows: int = 1, size: tuple[float, float] = (6.0, 3.6)) -> Any:
    """Return the axes given, or those of a new figure, several below each other; without a frame above and on the
    right.

    Parameters
    ----------
    axes : matplotlib axes, or a sequence of them, optional
    rows : int
        Of a new figure; for more than one the result is an array.
    size : (float, float)
        Of a new figure, in inches.
    """
    if axes is None:
        require("plot", "plot", "matplotlib")
        import matplotlib.pyplot as plt

        axes = plt.subplots(rows, 1, figsize=size, sharex=True, layout="constrained")[1]
    for ax in [axes] if hasattr(axes, "spines") else axes:
        ax.spines[["top", "right"]].set_visible(False)
    return axes
