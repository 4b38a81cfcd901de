"""A report on a terminal: what does not pass, and a table."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from refgeo.conformance.judging.verdict import Row, Verdict
from refgeo.support.console import as_text, needed, say

_STYLES = {"pass": "green", "WRONG": "bold red", "FAILS": "bold red", "inherits": "red", "not provided": "dim"}
_NUMBERS = ("points", "worst ratio", "digits kept")
"""The columns that are aligned on the right."""
_NARROWER: tuple[tuple[str, ...], ...] = ((), ("worst case",), ("worst case", "points"))
"""The columns that are left out, one step after the other, where a terminal is too narrow."""
Line = tuple[str, str]
"""A line of text, and its style as rich names it."""


def show(head: Sequence[Line], rows: Sequence[Row], foot: Sequence[Line], file: Any = None) -> None:
    """Print a report: the lines above the table of its rows, the table, and the lines below.

    Examples
    --------
    >>> import io, refgeo as rg
    >>> stream = io.StringIO()
    >>> rg.check(checks=["christoffel"], metrics=["inv"], cases=["1x1x1"]).print(stream)
    >>> stream.getvalue().splitlines()[0]
    'refgeo check · refgeo.paper · float64 · seed 0'
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file)
    tables = [_make_table(rows, without) for without in _NARROWER]
    table = next((table for table in tables if needed(table) <= console.width), tables[-1])  # whose verdicts are folded
    if not console.is_terminal:
        lines = ["", as_text(table, width=console.width)] if table.row_count else []
        say(*(text for text, _ in head), *lines, "", *(text for text, _ in foot), file=file)
        return
    for line in [*head, ("", ""), table, ("", ""), *foot]:
        if line is not table:
            console.print(Text(line[0]), style=line[1], soft_wrap=True)
        elif table.row_count:
            console.print(table)


def cells_of(rows: Sequence[Row]) -> Iterator[tuple[dict[str, str], str]]:
    """Yield the cells of each row of the table by column, with a style; failing rows come first."""
    for row in sorted(rows, key=lambda row: not row.fails):
        if row.is_absent or (row.kind == "contract" and row.verdict is not Verdict.CONTRACT):
            continue
        is_counted = row.worst_case is not None and row.points > (row.kind == "trajectory")
        cells = {
            "check": row.check,
            "metric": row.metric,
            "points": f"{row.decisive_points}/{row.points}" if is_counted else "-",
            "worst ratio": f"{row.worst_ratio:.2g}" if is_counted and row.worst_ratio is not None else "-",
            "digits kept": "-" if row.digits_kept is None else f"{row.digits_kept:.1f}",
            "verdict": row.outcome,
            "worst case": str(row.worst_case) if row.worst_case and is_counted else "-",
        }
        yield cells, _STYLES.get(row.outcome, "yellow")


def _make_table(rows: Sequence[Row], without: Collection[str]) -> Any:
    """Make a table of rich, without some of its columns."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    lines = list(cells_of(rows))
    columns = [name for name in (lines[0][0] if lines else ()) if name not in without]
    for name in columns:
        is_number, is_verdict = name in _NUMBERS, name == "verdict"
        table.add_column(
            name.replace(" ", "\n") if is_number else name, justify="right" if is_number else "left", overflow="fold",
            no_wrap=not (is_verdict or (name == "check" and "points" in without)), min_width=12 * is_verdict or None,
        )  # fmt: skip
    for cells, style in lines:
        table.add_row(*(Text(cells[name], style=style if name == "verdict" else "") for name in columns))
    return table
