"""A report on a terminal: a table, and below it what does not pass."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from refgeo.conformance.verdict import Row, Verdict
from refgeo.support.console import as_text, needed, say

_STYLES = {"pass": "green", "WRONG": "bold red", "FAILS": "bold red", "inherits": "red", "not provided": "dim"}
_COLUMNS = ("check", "metric", "points", "worst ratio", "digits kept", "verdict", "worst case")
Line = tuple[str, str]
"""With a style."""


def show(title: str, rows: Sequence[Row], lines: Sequence[Line], file: Any = None) -> None:
    """Print a report: its title, the table of its rows, the lines below.

    Examples
    --------
    >>> import io, refgeo as rg
    >>> stream = io.StringIO()
    >>> rg.check(checks=["christoffel"], metrics=["inv"], cases=["1x1x1"]).print(stream)
    >>> stream.getvalue().splitlines()[0]
    'refgeo check · refgeo.paper · float64 · generated points · seed 0'
    """
    from rich.console import Console

    console = Console(file=file)
    tables = [table_of(rows, without) for without in ((), ("worst case",), ("worst case", "points"))]
    table = next((one for one in tables if needed(one) <= console.width), tables[-1])  # whose verdicts are folded
    if console.is_terminal:
        write(console, title, table, lines)
    else:
        shown = [as_text(table, width=console.width), ""] if table.row_count else []
        say(title, "", *shown, *(line for line, _ in lines), file=file)


def write(console: Any, title: str, table: Any, lines: Sequence[Line]) -> None:
    """In colours, on a console of rich."""
    from rich.text import Text

    console.print(Text(title, style="bold"), "", *([table, ""] if table.row_count else []), sep="\n")
    write_lines(console, lines)


def write_lines(console: Any, lines: Sequence[Line]) -> None:
    """Each in its style, however long."""
    from rich.text import Text

    for text, style in lines:
        console.print(Text(text), style=style, soft_wrap=True)


def table_of(rows: Sequence[Row], without: Collection[str] = ()) -> Any:
    """The rows that say something, as a table of rich; conduct where it is broken."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in _COLUMNS:
        if name not in without:
            numbers = name in ("points", "worst ratio", "digits kept")
            title = name.replace(" ", "\n") if numbers else name
            folds = name == "verdict" or (name == "check" and "points" in without)
            least = 12 if name == "verdict" else None
            table.add_column(
                title, justify="right" if numbers else "left", no_wrap=not folds, min_width=least, overflow="fold"
            )
    for row in rows:
        if row.is_absent or (row.kind == "contract" and row.verdict is not Verdict.CONTRACT):
            continue
        counted = row.worst_case is not None and row.points > (row.kind == "trajectory")  # one is no number
        style = _STYLES.get(row.outcome, "yellow")
        cells: dict[str, Any] = {
            "check": row.check,
            "metric": row.metric,
            "points": f"{row.decisive_points}/{row.points}" if counted else "-",
            "worst ratio": f"{row.worst_ratio:.2g}" if counted and row.worst_ratio is not None else "-",
            "digits kept": "-" if row.digits_kept is None else f"{row.digits_kept:.1f}",
            "verdict": Text(row.outcome, style=style),
            "worst case": Text(row.worst_case.location if row.worst_case and counted else "-"),
        }
        table.add_row(*(cell for name, cell in cells.items() if name not in without))
    return table
