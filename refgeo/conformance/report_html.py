"""A report as one self-contained page: what the terminal shows, and plots of digits against conditioning."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from refgeo.conformance.judging.evidence import MAX_RATIO, Evidence
from refgeo.conformance.judging.verdict import Row
from refgeo.conformance.protocol.operations import VALUES
from refgeo.conformance.protocol.precision import PRECISIONS
from refgeo.conformance.report_table import Line, cells_of
from refgeo.support.extras import require
from refgeo.support.figures import make_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"inv": "#0b6fa4", "mix": "#c2571a", "adaptive": "#3d7d3d"}
_MARKERS = {"inv": "o", "mix": "^", "adaptive": "s"}
_CSS = """body { font-family: Menlo, Consolas, monospace; font-size: 13px }
h1 { font-size: 15px }
div { white-space: pre-wrap; overflow-wrap: anywhere; min-height: 1.3em }
section { overflow-x: auto; white-space: nowrap; margin: 1.3em 0 }
th, td { text-align: left; padding: 1px 1.5em 1px 0 }
:is(th, td):is(:nth-child(4), :nth-child(5), :nth-child(6)) { text-align: right }
figure { display: inline-block; margin: 0 1em 1.3em 0; max-width: 100% }
svg { max-width: 100%; height: auto }
.bold { font-weight: bold }
.red { color: #b3121d }
div.green { color: #13702f }
.yellow { color: #8a5a00 }
.dim { color: #666 }"""
"""The style sheet; its classes have the names of styles of rich."""
_CAPTIONS = {"search": "a mark for each search", "trajectory": "a line for each choice of options"}
"""What a mark in a plot of a kind of check stands for."""


def require_html() -> None:
    """Raise an error before a long run if a page cannot be made after it.

    Examples
    --------
    >>> require_html()
    """
    require("html", "html", "matplotlib")


def to_html(head: Sequence[Line], rows: Sequence[Row], foot: Sequence[Line], dtype: str) -> str:
    """Make the page.

    Raises
    ------
    MissingExtraError
        Matplotlib is not installed.

    Examples
    --------
    >>> import refgeo as rg
    >>> page = rg.check(checks=["christoffel"], cases=["1x1x1"]).to_html()
    >>> page.startswith("<!DOCTYPE html>"), "<svg" in page
    (True, True)
    """
    require_html()
    plotted = [replace(row, measurements=e) for row in rows if (e := _measurements_to_plot(row, dtype))]
    captions = {row.check: f"{row.check}: {_CAPTIONS.get(row.kind, 'a mark for each block')}" for row in plotted}
    plots = {check: _plot(dtype, [row for row in plotted if row.check == check]) for check in captions}
    figures = "".join(f"<figure><figcaption>{captions[x]}</figcaption>{plots[x]}</figure>\n" for x in plots)
    meta = '<meta charset="UTF-8"><meta name="viewport" content="width=device-width"><title>refgeo check</title>'
    heading = f"<h1>{html.escape(head[0][0])}</h1>\n" if head else ""
    body = f"{heading}{_lines(head[1:])}{_table(rows)}{_lines(foot)}{figures}"
    page = f"<!DOCTYPE html>\n<html lang='en'><head>{meta}<style>{_CSS}</style></head>\n<body>\n{body}</body></html>\n"
    return page.encode("utf-8", "replace").decode("utf-8")


def _lines(lines: Sequence[Line]) -> str:
    """Format lines of text, each with its style."""
    return "".join(f'<div class="{style}">{html.escape(text)}</div>\n' for text, style in lines)


def _table(rows: Sequence[Row]) -> str:
    """Make the table, with check, metric and verdict in the first columns, which a narrow page shows."""
    lines = list(cells_of(rows))
    names = sorted(lines[0][0] if lines else (), key=lambda name: name not in ("check", "metric", "verdict"))
    titles = "".join(f"<th>{name}</th>" for name in names)
    cells = ["".join(f"<td>{html.escape(row[name])}</td>" for name in names) for row, _ in lines]
    body = "".join(f'<tr class="{style}">{row}</tr>\n' for row, (_, style) in zip(cells, lines, strict=True))
    return f"<section><table>\n<thead><tr>{titles}</tr></thead>\n<tbody>\n{body}</tbody></table></section>\n"


def _measurements_to_plot(row: Row, dtype: str) -> tuple[Evidence, ...]:
    """Select the evidence of a row that a plot shows.

    Of a value, this is the evidence in the precision of the run; of trajectories, the steps of the worst one.
    """
    if row.kind == "trajectory":
        return tuple(e for e in row.measurements if not e.multiplicity)
    return tuple(e for e in row.measurements if e.dtype == dtype or row.kind == "search")


def _plot(dtype: str, rows: list[Row]) -> str:
    """Plot the measurements of one check, in all metrics, as SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "refgeo", "svg.fonttype": "none", "font.size": 11.0}):
        is_orbit = rows[0].kind == "trajectory"
        figure = Figure(figsize=(5.2, 3.8 + 0.17 * len(rows) * is_orbit), layout="constrained")
        axes = figure.add_subplot()
        if rows[0].kind == "search":
            _draw_shares(axes, rows)
        elif is_orbit:
            _draw_invariance(axes, rows)
        else:
            _draw(axes, dtype, rows)
        figure.legend(fontsize=8.5, frameon=False, loc="outside lower center", ncols=1 if is_orbit else 2)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    # Every plot of a page needs identifiers of its own.
    prefix = re.sub(r"\W", "", rows[0].check)
    return re.sub(r'(id="|url\(#|xlink:href="#)', rf"\g<1>{prefix}-", svg)


def _draw(axes: Axes, dtype: str, rows: list[Row]) -> None:
    """Draw the measurements of one dtype, and the digits that rounding permits."""
    roundoff = PRECISIONS[dtype].roundoff
    most = -np.log10(roundoff)
    evidence = [e for row in rows for e in row.measurements]
    largest = max(max(e.condition for e in evidence), 100.0)
    kappa = np.geomspace(1.0, largest, 200)
    power = max((VALUES[row.check].loss(row.metric, 0.0) for row in rows if row.check in VALUES), default=1.0)

    def digits(power: float) -> Any:
        return np.clip(-np.log10(MAX_RATIO * roundoff * kappa**power), 0.0, most)

    doubtful = [(e.condition, e.digits) for e in evidence if e.is_failure]
    if doubtful:
        label = f"decisive, and ratio above {MAX_RATIO:g}"
        axes.plot(*np.transpose(doubtful), "o", ms=9.0, mfc="none", mec="#d22", mew=1.0, label=label)
    axes.plot(kappa, digits(1), color="0.25", lw=1.2, label="a QR-based implementation keeps this")
    if power > 1:
        axes.plot(kappa, digits(power), color="0.25", lw=1.2, ls=":", label=f"Gram matrices keep this (κ$^{power:g}$)")
    _draw_points(axes, rows, lambda e: e.digits, ms=4.5, alpha=0.55)
    axes.set_xscale("log")
    axes.set_yticks(np.arange(0.0, most + 0.8, 2.0))
    axes.set(xlim=(0.8, 1.6 * largest), ylim=(-0.5, most + 0.8))
    axes.set(xlabel="condition number κ of the factors", ylabel="digits kept")
    axes.grid(alpha=0.25)
    make_axes(axes)


def _draw_points(axes: Axes, rows: list[Row], height: Callable[[Evidence], float], ms: float, alpha: float) -> None:
    """Draw a point for each measurement, in the colour of its metric."""
    for row in rows:
        points = [(e.condition, height(e)) for e in row.measurements]
        if points:
            x, y = np.array(points).T
            marker, colour = _MARKERS.get(row.metric, "D"), _COLOURS.get(row.metric, "#7a4fa3")
            axes.plot(x, y, marker, ms=ms, alpha=alpha, mew=0, color=colour, label=row.metric)


def _draw_shares(axes: Axes, rows: list[Row]) -> None:
    """Draw the share of the reference value that searches find, against the radius."""
    _draw_points(axes, rows, lambda e: 1.0 - e.relative_error, ms=5.0, alpha=0.6)
    axes.set_xscale("log")
    axes.axhline(1.0, color="0.25", lw=1.2)
    axes.set(ylim=(-0.05, 1.1), xlabel="radius ρ", ylabel="share of the reference")
    axes.grid(alpha=0.25)
    make_axes(axes)


def _draw_invariance(axes: Axes, rows: list[Row]) -> None:
    """Draw the distance of trajectories from points of an orbit, and the effect of rounding on a right rule."""
    for i, row in enumerate(rows):
        colour, label = f"C{i % 10}", "rounding of a right rule" if row is rows[-1] else None
        steps, apart, rounding = np.array([(m.condition, m.relative_error, m.attainable) for m in row.measurements]).T
        axes.plot(steps, np.maximum(apart, 1e-17), "o-", ms=4.5, lw=1.0, color=colour, label=row.metric)
        axes.plot(steps, rounding, ":", lw=1.2, color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlabel="step k", ylabel="distance of X$_k$, share of the way")
    axes.grid(alpha=0.25)
    make_axes(axes)
