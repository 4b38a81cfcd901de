"""The result of a run, and what is said of it. How that is shown is in `refgeo.conformance.render`."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from refgeo.conformance.backend import TIMEOUT
from refgeo.conformance.operations import OPERATIONS
from refgeo.conformance.points import Points
from refgeo.conformance.render import data, page, terminal
from refgeo.conformance.scope import Scope
from refgeo.conformance.verdict import ANY_METRIC, FINDINGS, WHOLE_RUN_KINDS, Row, Verdict

SCHEMA = "refgeo-report/8"
_MOST_RANGES = 8
_PASSING = (Verdict.PASS, Verdict.INACCURATE, Verdict.PARTIAL)
_KINDS = {
    "value": "values", "law": "laws", "contract": "rules of conduct", "search": "searches",
    "trajectory": "checks of trajectories",
}  # fmt: skip


@dataclass(frozen=True)
class Report:
    """The report of `refgeo.check`.

    Attributes
    ----------
    backend : str
    points : Points
        Where the test points came from.
    rows : list of Row
    spec : str or None
        What `refgeo.check` loads the backend by; None for an object.
    where : str
        In which process the backend ran.
    timeout : float
        Seconds that a call could take.
    notes : tuple of str
        What else there is to say of the backend.
    files : (folder, file), optional
        The folder of vectors and the results that were graded.
    not_run : dict, optional
        The lines of the backend's own files that no decisive call has reached, as ranges, by file; None where lines
        were not watched, as of an object in this process.
    interrupted : str
        How far it had come when Ctrl-C ended it.

    Examples
    --------
    >>> import refgeo as rg
    >>> report = rg.check(metrics=["mix"], checks=["riemannian_gradient"], cases=["1x1x1"])
    >>> [(row.check, row.verdict.value) for row in report.rows if row.kind == "value"]
    [('riemannian_gradient', 'pass')]
    """

    backend: str
    points: Points
    rows: list[Row]
    spec: str | None = None
    where: str = ""
    timeout: float = TIMEOUT
    notes: tuple[str, ...] = ()
    files: tuple[str, str] | None = None
    not_run: dict[str, list[tuple[int, int]]] | None = field(default_factory=dict)
    interrupted: str = ""

    @property
    def dtype(self) -> str:
        """The precision that the backend was judged by."""
        return self.points.dtype

    @property
    def seed(self) -> int:
        """The seed of the test points."""
        return self.points.seed

    @property
    def passed(self) -> bool:
        """Something has been judged, nothing provided is wrong, undecided or out of time or memory, and no conduct
        makes a caller's numbers wrong. Other findings pass.
        """
        return bool(self.judged) and not self.interrupted and not any(row.fails for row in self.rows)

    @property
    def passed_strictly(self) -> bool:
        """Passed, without findings (inaccurate, partly provided, contract), and no line of code was left out, or not
        watched.
        """
        return self.passed and not self.findings and self.not_run == {}

    @property
    def judged(self) -> list[Row]:
        """The rows that say something of what the backend has."""
        return [row for row in self.rows if row.verdict not in (Verdict.NOT_PROVIDED, Verdict.NOT_JUDGED)]

    @property
    def failures(self) -> list[Row]:
        """The rows that are WRONG."""
        return [row for row in self.rows if row.verdict is Verdict.WRONG]

    @property
    def findings(self) -> list[Row]:
        """The rows that pass with a remark: inaccurate, partly provided, contract."""
        return self._with(*FINDINGS)

    @property
    def wrong(self) -> list[str]:
        """The wrong operations, as ``check[metric]``."""
        return list(map(str, self.failures))

    @property
    def misconduct(self) -> list[Row]:
        """The rules of conduct that are broken and make a caller's numbers wrong."""
        return [row for row in self.rows if row.kind == "contract" and row.fails]

    def _with(self, *verdicts: Verdict) -> list[Row]:
        return [row for row in self.rows if row.verdict in verdicts]

    def reproduce(self, row: Row) -> str:
        """The command that runs the example of a row alone; empty if a command line cannot."""
        if row.example is None:
            return ""
        metric = f"--metric {row.metric} " if row.has_single_metric else ""
        is_alone = row.kind not in WHOLE_RUN_KINDS and not row.needs_others and {*OPERATIONS}.issuperset(row.broken_by)
        case = f" --case {shlex.quote(row.example.case)}" if is_alone else ""
        words = {name: json.dumps(x, ensure_ascii=False) if isinstance(x, str) else repr(x)
                 for name, x in row.options.items()}  # fmt: skip
        given = "".join(f" --option {shlex.quote(f'{name}={word}')}" for name, word in words.items())
        return self._command(f"{metric}--checks {row.check}{case}{given}")

    def _command(self, selection: str) -> str:
        words = self.points.command()
        if words is None or self.spec is None:
            return ""
        backend = [] if self.spec == "refgeo.paper" else [shlex.quote(str(self.spec))]
        backend += [f"--timeout {self.timeout:g}"] if self.timeout != TIMEOUT else []
        return " ".join(["refgeo check", *backend, *words, selection, f"--seed {self.seed}"])

    def details(self, row: Row) -> list[str]:
        """What there is to say of a row that does not pass, a line each."""
        place = row.example
        has_number = place is not None and bool(np.isfinite(place.relative_error))
        is_relaxed = self.points.relaxation > 0.0 and row.kind == "value"
        of_none = "  (if ε = 0; see the section Relaxation of the mathematics)" if is_relaxed else ""
        lines = f"{row}: {row.message or row.outcome}".splitlines()
        lines += [f"yours:    {line}" for line in row.yours]
        if has_number or row.kind != "value":
            lines += [f"expected: {line}" for line in row.expected or (row.statement + of_none,)]
        lines += [f"differs:  {row.differs}"] if row.differs else []
        lines += [f"diagnosis: {row.diagnosis}"] if row.diagnosis else []
        if row.kind in ("value", "law") and place is not None and has_number:
            lines.append(f"relative error {place.relative_error:.2g} at κ = {place.condition:.2g} ({place.location})")
        return lines + ([f"reproduce: {self.reproduce(row)}"] if self.reproduce(row) else [])

    def _allowed(self) -> str:
        """What passing rows lose where points are ill-conditioned, by the labels of their remarks."""
        labels = Counter(label for row in self._with(Verdict.PASS) for label, _ in row.remarks)
        lost = {"digits": "digits", "no result": "the result"}
        said = [f"{labels[label]} of them {'loses' if labels[label] == 1 else 'lose'} {what} at a large κ, which is "
                f"allowed (see the lines '{label}')." for label, what in lost.items() if labels[label]]  # fmt: skip
        return "".join(f" {one}" for one in said)

    @property
    def summary(self) -> list[str]:
        """What the report says in a few lines: how many pass, what is missing, what is wrong."""
        lines = []
        for kind, words in _KINDS.items():
            rows = [row for row in self.judged if row.kind == kind]
            passing = [row for row in rows if row.verdict in _PASSING]
            scope = str(Scope.shared([row.scope for row in passing])) if passing else ""
            judged = f", judged at {scope}" if scope else ""
            provided = "" if kind == "contract" else "provided "
            unjudged = ", ".join(str(row) for row in self._with(Verdict.NOT_JUDGED) if row.kind == kind)
            judged += f"; not judged: {unjudged}" if unjudged else ""
            lines += [f"{len(passing)} of {len(rows)} {provided}{words} pass{judged}"] if rows or unjudged else []
        for verdict in (Verdict.NOT_PROVIDED, Verdict.PARTIAL):
            rows = self._with(verdict)
            lines += [f"{verdict.value}: " + ", ".join(_named(rows))] if rows else []
        return lines + [f"note: {note}" for note in self.notes]

    @property
    def conclusion(self) -> list[str]:
        """The answer, in a line or two.

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.check(metrics=["mix"], checks=["christoffel"], cases=["1x1x1"]).conclusion
        ['All values right.']
        """
        if not self.judged and not self.interrupted and not any(row.fails for row in self.rows):
            none = "the backend has no function that the chosen checks need at these points."
            said = [f"{row}: {row.message}" for row in self._with(Verdict.NOT_JUDGED, Verdict.NOT_PROVIDED)
                    if row.message and (row.kind in WHOLE_RUN_KINDS or not row.is_absent)]  # fmt: skip
            return [f"Nothing was checked: {'; '.join(said) or none}"]
        late = [row for row in self._with(Verdict.NOT_JUDGED) if row.fails]
        broken = [row for row in self._with(Verdict.CONTRACT) if row.kind in WHOLE_RUN_KINDS]
        bad = {
            "WRONG": self.failures, "FAILS": self.misconduct, "UNDECIDED": self._with(Verdict.UNDECIDED),
            "NOT JUDGED": late, "INACCURATE": self._with(Verdict.INACCURATE), "CONTRACT": broken,
        }  # fmt: skip
        said = [f"{word}: {', '.join(map(str, rows))}" for word, rows in bad.items() if rows]
        if self.interrupted:
            said.append(f"INTERRUPTED: {self.interrupted}")
        if self.passed:
            with_findings = {row.kind for row in self._with(Verdict.CONTRACT) if row.kind not in WHOLE_RUN_KINDS}
            right = {row.kind for row in self.judged if row.verdict in _PASSING} - with_findings
            judged = next((kind for kind in sorted(_KINDS, key="contract".__eq__) if kind in right), "")
            where = " where they are provided" if judged in {row.kind for row in self._with(Verdict.PARTIAL)} else ""
            all_of = f"All {'other ' if said else ''}{_KINDS.get(judged)}"
            said += [f"{all_of} right{where}.{self._allowed()}"] if judged else []
        return said

    @property
    def missing(self) -> str:
        """The lines that no decisive call has reached, as ``file.py:41-43, 57``: the first of each file, if they are
        many; `not_run` has all.
        """
        return "; ".join(
            f"{Path(file).name}:"
            + ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in ranges[:_MOST_RANGES])
            + f" and {len(ranges) - _MOST_RANGES} more" * (len(ranges) > _MOST_RANGES)
            for file, ranges in (self.not_run or {}).items()
        )

    @property
    def enclosed(self) -> tuple[int, int]:
        """How many of the values were judged by an enclosure, of how many; the factorised route acquits others."""
        found = [one for row in self.rows for one in row.measurements if row.kind == "value"]
        return sum(one.enclosed for one in found), sum(one.multiplicity for one in found)

    @property
    def title(self) -> str:
        """What was judged, and how."""
        return f"refgeo check · {self.backend} · {self.dtype} · {self.points} · seed {self.seed}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """What stands below the table, a line each, with a style of rich."""
        for row in self.failures:
            headline, *details = self.details(row)
            yield f"WRONG      {headline}", "red"
            for line in details:
                yield f"           {line}", "bold" if line.startswith(("diagnosis", "differs")) else ""
        yield from _remarks(self.rows)
        repeat = self._command("--metric METRIC --checks CHECK --case CASE")
        if repeat and any(row.worst_case and row.kind not in WHOLE_RUN_KINDS for row in self.rows):
            yield f"repeat one: {repeat}", "dim"
        if self.where == "this process" and not self.files:
            yield (
                "the backend ran in the process of refgeo itself, as a new process could not import it by its name; so "
                "nobody knows which of its lines did not run",
                "dim",
            )
        enclosed, values = self.enclosed
        if enclosed < values:
            yield (
                f"enclosed: {enclosed} of {values} results were compared with proved intervals, all others with "
                "results of refgeo's own, whose error is bounded; of wrong batches, the worst block with an interval",
                "dim",
            )
        if self.not_run:
            said = "these lines, or a way on from an if, did not run in any call that decides a verdict"
            yield f"not run    {self.missing}: {said}", "yellow"
        yield from ((line, "") for line in self.summary)
        yield from ((line, "bold green" if self.passed else "bold red") for line in self.conclusion)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON: infinities become strings."""
        from refgeo import __version__

        rows = [
            data.as_plain(row) | {"outcome": row.outcome, "fails": row.fails, "reproduce": self.reproduce(row)}
            for row in self.rows
        ]
        head = {
            "schema": SCHEMA, "refgeo": __version__, "passed": self.passed, "passed_strictly": self.passed_strictly,
            "wrong": self.wrong,
            "backend": self.backend, "process": self.where, "dtype": self.dtype,
            "profile": self.points.profile, "relaxation": self.points.relaxation, "seed": self.seed,
            "source": str(self.points), "not_run": data.as_plain(self.not_run), "interrupted": self.interrupted,
        }  # fmt: skip
        return head | {"rows": rows}

    def to_json(self) -> str:
        """The report as JSON text.

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.check(checks=["christoffel"], metrics=["inv"], cases=["1x1x1"]).to_json().splitlines()[1]
        '  "schema": "refgeo-report/8",'
        """
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def to_html(self) -> str:
        """The report as one self-contained page with plots; needs the extra ``html`` (matplotlib)."""
        return page.to_html(self.title, self.rows, list(self.lines()), self.dtype)

    def print(self, file: Any = None) -> None:
        """Show the report as a table, with findings below it."""
        terminal.show(self.title, self.rows, list(self.lines()), file)

    def __repr__(self) -> str:
        state = "passed" if self.passed else f"wrong: {', '.join(self.wrong)}" if self.wrong else "not passed"
        return f"<Report of {self.backend}, {self.points}, {self.dtype}: {len(self.judged)} checks, {state}>"


def _remarks(rows: Iterable[Row]) -> Iterator[tuple[str, str]]:
    """Once where several rows have the same, but for the line of code; misconduct first, lost digits last."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        for label, text in row.remarks:
            found.setdefault((label, re.sub(r" \([^()]*:\d+, in [^()]*\)", "", text)), []).append(row)
    for (label, text), several in sorted(
        found.items(), key=lambda one: (one[1][0].kind != "contract", one[0][0] == "digits")
    ):
        style = {"FAILS": "bold red", "digits": ""}.get(label, "yellow")
        first, *others = text.splitlines()
        yield f"{label:10s} {', '.join(map(str, several))}: {first}", style
        yield from ((f"           {line}", style) for line in others)


def _named(rows: list[Row]) -> list[str]:
    """What is missing, and why if it is not simply absent; once for both metrics."""
    names = []
    for check, message in {row.check: row.message for row in rows}.items():
        several = [row for row in rows if row.check == check]
        name = check if len(several) > 1 or several[0].metric == ANY_METRIC else str(several[0])
        told = several[0].is_absent or several[0].verdict is Verdict.PARTIAL  # by a remark
        names.append(name if told else f"{name} ({message})")
    return names
