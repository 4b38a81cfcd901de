"""A report on a terminal: a table, and below it what does not pass."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from refgeo.conformance.rows import WHOLE, Row, Verdict
from refgeo.support.console import as_text, needed

if TYPE_CHECKING:
    from refgeo.conformance.report import Report

_STYLES = {Verdict.PASS: "green", Verdict.WRONG: "bold red", Verdict.INHERITS: "red", Verdict.NOT_PROVIDED: "dim"}
_GROUPS = {"law": "laws", "contract": "contract"}
_FEW_LAWS = 1


def show(report: Report, file: Any = None) -> None:
    """Print the report.

    Examples
    --------
    >>> import io, refgeo as rg
    >>> stream = io.StringIO()
    >>> show(rg.check(checks=["christoffel"], metrics=["inv"], cases=["1x1x1"]), stream)
    >>> stream.getvalue().splitlines()[0]
    'refgeo check · refgeo.paper · float64 · generated points · seed 0'
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file)
    tables = [_table(report, without) for without in ((), ("worst case",), ("worst case", "points"))]
    table = next((one for one in tables if needed(one) <= console.width), tables[-1])  # whose verdicts are folded
    title = f"refgeo check · {report.backend} · {report.dtype} · {report.points} · seed {report.seed}"
    if console.is_terminal:
        console.print(Text(title, style="bold"), "", table, "", sep="\n")
        for text, style in _lines(report):
            console.print(Text(text), style=style, soft_wrap=True)
    else:
        text = as_text(table, width=console.width)
        print(title, "", text, "", *(line for line, _ in _lines(report)), sep="\n", file=file)


def _table(report: Report, without: Collection[str] = ()) -> Any:
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
    for row in _table_rows(report):
        counted = row.kind in ("value", "law") and row.points
        style = _STYLES.get(row.verdict, "yellow") if row.outcome == row.verdict.value else "yellow"
        cells: dict[str, Any] = {
            "check": row.check,
            "metric": row.metric,
            "points": f"{row.decisive_points}/{row.points}" if counted else "-",
            "worst ratio": f"{row.worst_ratio:.2g}" if counted and row.worst_ratio is not None else "-",
            "digits kept": "-" if row.digits_kept is None or row.kind != "value" else f"{row.digits_kept:.1f}",
            "verdict": Text(row.outcome, style=style),
            "worst case": Text("-" if row.worst_case is None or not counted else str(row.worst_case)),
        }
        table.add_row(*(cell for name, cell in cells.items() if name not in without))
    return table


_COLUMNS = ("check", "metric", "points", "worst ratio", "digits kept", "verdict", "worst case")


def _table_rows(report: Report) -> list[Row]:
    """Every value and search; the laws of a function and metric in one row, and the contract where it is broken."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    rows = [row for row in report.rows if not row.is_absent]
    for row in rows:
        if row.kind in _GROUPS:
            groups.setdefault((row.kind, row.function, row.metric), []).append(row)
    single = [row for row in rows if row.kind not in _GROUPS]
    together = map(_together, groups.values())
    return [*single, *(row for row in together if row.kind == "law" or row.verdict is Verdict.CONTRACT)]


def _together(laws: list[Row]) -> Row:
    """One row for many: the gravest verdict, the worst ratio."""
    provided = [law for law in laws if law.verdict not in (Verdict.NOT_PROVIDED, Verdict.NOT_JUDGED)]
    verdict = min((law.verdict for law in provided or laws), key=list(Verdict).index)
    passing = sum(law.verdict in (Verdict.PASS, Verdict.INACCURATE, Verdict.PARTIAL) for law in provided)
    worst = max(provided, key=lambda law: law.worst_ratio or 0.0, default=laws[0])
    return replace(
        worst,
        check=f"{worst.function} ({passing}/{len(provided)} {_GROUPS[worst.kind]})",
        verdict=verdict,
        points=sum(law.points for law in laws),
        decisive_points=sum(law.decisive_points for law in laws),
    )


def _lines(report: Report) -> Iterator[tuple[str, str]]:
    for row in report.failures:
        headline, *details = report.details(row)
        yield f"WRONG      {headline}", "red"
        for line in details:
            yield f"           {line}", "bold" if line.startswith(("diagnosis", "differs")) else ""
    yield from _remarks(report)
    if report.reproduce_any() and any(row.worst_case and row.kind not in WHOLE for row in report.rows):
        yield f"repeat one: {report.reproduce_any()}", "dim"
    if report.where == "this process" and not report.files:
        yield (
            "the backend ran in the process of refgeo itself, because a new process could not import it by its name",
            "dim",
        )
    enclosed, values = report.enclosed
    if enclosed < values:
        yield (
            f"enclosed: refgeo compared {enclosed} of {values} results with an enclosure, and the others with its own "
            "QR-based computation",
            "dim",
        )
    if report.not_run:
        yield f"not run    {report.missing}: these lines did not run in any call that decides a verdict", "yellow"
    for line in report.summary:
        if not line.startswith("not run"):
            yield line, ""
    yield from ((line, "bold green" if report.passed else "bold red") for line in report.conclusion)


def _remarks(report: Report) -> Iterator[tuple[str, str]]:
    """Once where several rows have the same, but for the line of code; misconduct first, lost digits last."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in report.rows:
        for label, text in row.remarks:
            found.setdefault((label, re.sub(r" \([^()]*:\d+, in [^()]*\)", "", text)), []).append(row)
    for (label, text), rows in sorted(
        found.items(), key=lambda one: (one[1][0].kind != "contract", one[0][0] == "digits")
    ):
        if rows[0].kind == "contract":
            functions = ", ".join(dict.fromkeys(row.function for row in rows))
            yield f"{label:10s} {text} ({functions})", "bold red" if rows[0].fails else "yellow"
        else:
            yield f"{label:10s} {_names(rows)}: {text}", "" if label == "digits" else "yellow"


def _names(rows: list[Row]) -> str:
    """Of many laws only whose they are."""
    laws = [row for row in rows if row.kind == "law"]
    if len(laws) <= _FEW_LAWS:
        return ", ".join(map(str, rows))
    others = [str(row) for row in rows if row.kind != "law"]
    return ", ".join([*others, f"{len(laws)} laws of {', '.join(dict.fromkeys(law.function for law in laws))}"])
