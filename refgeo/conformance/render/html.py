"""A report as one self-contained page: findings, plots of digits against conditioning, every row."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from refgeo.conformance.checks import BEYOND_DOUBT, DOUBTFUL, MANY_TIMES, SEVERAL, VALUE_CHECKS
from refgeo.conformance.precision import PRECISIONS
from refgeo.conformance.rows import FINDINGS, WHOLE, Measurement, Row, Verdict
from refgeo.support.extras import require
from refgeo.support.figures import plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from refgeo.conformance.report import Report

_COLOURS = {"inv": "#0b6fa4", "mix": "#c2571a", "adaptive": "#3d7d3d"}
_MARKERS = {"inv": "o", "mix": "^", "adaptive": "s"}


def require_html() -> None:
    """An error now, rather than after a long run, if a page cannot be made.

    Examples
    --------
    >>> require_html()
    """
    require("html", "html", "jinja2", "matplotlib")


def to_html(report: Report) -> str:
    """The page.

    Parameters
    ----------
    report : Report

    Returns
    -------
    str

    Raises
    ------
    MissingExtraError
        Jinja2 or matplotlib is not installed.

    Examples
    --------
    >>> import refgeo as rg
    >>> page = to_html(rg.check(checks=["christoffel"], cases=["1x1x1"]))
    >>> page.startswith("<!doctype html>"), "<svg" in page, "http://" in page.replace("http://www.w3.org", "")
    (True, True, False)
    """
    require_html()
    import jinja2

    from refgeo import __version__

    source = Path(__file__).with_name("report.html.jinja").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    checks = list(dict.fromkeys(row.check for row in report.rows if row.measurements))
    provided = [row for row in report.rows if row.verdict is not Verdict.NOT_PROVIDED]
    kinds = {"values": ("value", *WHOLE), "laws": ("law",), "contract": ("contract",)}
    return environment.from_string(source).render(
        report=report, version=__version__, doubtful=DOUBTFUL, beyond_doubt=BEYOND_DOUBT, many_times=MANY_TIMES,
        several=SEVERAL,
        plots=[(check, _plot(report, [row for row in report.rows if row.check == check])) for check in checks],
        **{name: [row for row in provided if row.kind in those] for name, those in kinds.items()},
        sources=[(Path(file).name, _marked(file, ranges)) for file, ranges in report.not_run.items()],
        css_class=_css_class,
        anchor=lambda row: re.sub(r"[^a-z0-9_]+", "-", str(row).lower()),
        number=lambda x: "–" if x is None else f"{x:.2g}",
    )  # fmt: skip


def _marked(file: str, ranges: list[tuple[int, int]]) -> list[tuple[int, str, bool]]:
    """The lines of a file around those that were not run."""
    lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines() if Path(file).is_file() else []
    missed = {line for first, last in ranges for line in range(first, last + 1)}
    near = {line + k for line in missed for k in range(-2, 3)}
    return [(i, text, i in missed) for i, text in enumerate(lines, 1) if i in near]


def _css_class(row: Row) -> str:
    if row.verdict is Verdict.CONTRACT and row.fails:
        return "wrong"
    return (
        "loss"
        if row.outcome != row.verdict.value or row.verdict in FINDINGS
        else row.verdict.value.lower().replace(" ", "-")
    )


def _plot(report: Report, rows: list[Row]) -> Any:
    """Digits against conditioning of one value, both metrics, as SVG."""
    from markupsafe import Markup
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "refgeo", "svg.fonttype": "none", "font.size": 11.0}):
        figure = Figure(figsize=(5.2, 3.8), layout="constrained")
        axes = figure.add_subplot()
        if rows[0].kind == "search":
            _draw_shares(axes, rows)
        elif rows[0].kind == "trajectory":
            _draw_orbits(axes, rows)
        else:
            _draw(axes, report.dtype, rows)
        figure.legend(fontsize=8.5, frameon=False, loc="outside lower center", ncols=2)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    # Every plot of a page needs identifiers of its own.
    prefix = re.sub(r"\W", "", rows[0].check)
    svg = re.sub(r'(id="|url\(#|xlink:href="#)', rf"\g<1>{prefix}-", svg)
    return Markup(svg)


def _draw(axes: Axes, dtype: str, rows: list[Row]) -> None:
    roundoff = PRECISIONS[dtype].roundoff
    most = -np.log10(roundoff)
    measured = [one for row in rows for one in row.measurements]
    largest = max(max(one.condition for one in measured), 100.0)
    kappa = np.geomspace(1.0, largest, 200)
    power = max(VALUE_CHECKS[row.check].power(row.metric, 0.0) for row in rows)

    def digits(power: float) -> Any:
        return np.clip(-np.log10(DOUBTFUL * roundoff * kappa**power), 0.0, most)

    decided = max((one.condition for one in measured if one.decisive), default=1.0)
    wrong = kappa <= decided
    axes.fill_between(kappa[wrong], 0.0, digits(power)[wrong], color="#d22", alpha=0.12, lw=0)
    axes.plot(kappa, digits(1), color="0.25", lw=1.2, label="a QR-based implementation keeps this")
    if power > 1:
        axes.plot(kappa, digits(power), color="0.25", lw=1.2, ls=":", label=f"Gram matrices keep this (κ$^{power:g}$)")
    _draw_points(axes, rows, lambda one: one.digits, ms=4.5, alpha=0.55)
    axes.set_xscale("log")
    axes.set_yticks(np.arange(0.0, most + 0.8, 2.0))
    axes.set(xlim=(0.8, 1.6 * largest), ylim=(-0.5, most + 0.8))
    axes.set(xlabel="condition number κ of the factors", ylabel="digits kept")
    axes.grid(alpha=0.25)
    plain_axes(axes)


def _draw_points(axes: Axes, rows: list[Row], height: Callable[[Measurement], float], ms: float, alpha: float) -> None:
    """A point for each measurement, in the colour of its metric."""
    for row in rows:
        points = [(one.condition, height(one)) for one in row.measurements]
        if points:
            x, y = np.array(points).T
            marker, colour = _MARKERS.get(row.metric, "D"), _COLOURS.get(row.metric, "#7a4fa3")
            axes.plot(x, y, marker, ms=ms, alpha=alpha, mew=0, color=colour, label=row.metric)


def _draw_shares(axes: Axes, rows: list[Row]) -> None:
    """The share of the proved maximum that searches find, against the radius."""
    _draw_points(axes, rows, lambda one: 1.0 - one.relative_error, ms=5.0, alpha=0.6)
    axes.set_xscale("log")
    axes.axhline(1.0, color="0.25", lw=1.2)
    axes.set(ylim=(-0.05, 1.1), xlabel="radius ρ", ylabel="share of the proved maximum")
    axes.grid(alpha=0.25)
    plain_axes(axes)


def _draw_orbits(axes: Axes, rows: list[Row]) -> None:
    """How far trajectories from a point and from its orbit come apart, and what rounding does to a right rule."""
    for row, colour in zip(rows, itertools.cycle([*_COLOURS.values(), "#7a4fa3"]), strict=False):
        steps, apart, rounding = np.array([(m.condition, m.relative_error, m.attainable) for m in row.measurements]).T
        axes.plot(steps, np.maximum(apart, 1e-17), "o-", ms=4.5, lw=1.0, color=colour, label=row.metric)
        axes.plot(steps, rounding, ":", lw=1.2, color=colour, label=f"rounding of a right rule, {row.metric}")
    axes.set(xscale="log", yscale="log", xlabel="step k", ylabel="distance of X$_k$, as a share of the way")
    axes.grid(alpha=0.25)
    plain_axes(axes)
