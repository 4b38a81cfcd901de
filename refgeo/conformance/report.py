"""The result of a run, and what is said of it. How that is shown is in `report_table.py` and `report_html.py`."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from refgeo.conformance import report_table
from refgeo.conformance.execution.backend import TIMEOUT
from refgeo.conformance.judging.scope import Scope, count_noun
from refgeo.conformance.judging.verdict import FINDINGS, WHOLE_RUN_KINDS, Row, Verdict
from refgeo.conformance.points.sources import Points
from refgeo.conformance.protocol.operations import OPERATIONS
from refgeo.conformance.report_table import Line

SCHEMA = "refgeo-report/8"
_MOST_RANGES = 8
_PASSING = (Verdict.PASS, Verdict.INACCURATE, Verdict.PARTIAL)
_ALLOWED = {"digits": "lost by", "no result": "from"}
"""Labels of remarks on what values lose where κ is large, which passes, and the words before their number."""
_STYLES = {"not run": "yellow", "enclosed": "dim", "repeat one": "dim", "more": "dim"}
_KINDS = {"value": "values", "law": "laws", "contract": "rules of conduct", "search": "searches",
          "trajectory": "checks of trajectories"}  # fmt: skip


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
        """The wrong rows, as ``check[metric]``."""
        return list(map(str, self.failures))

    def _with(self, *verdicts: Verdict) -> list[Row]:
        """Return the rows with these verdicts."""
        return [row for row in self.rows if row.verdict in verdicts]

    def reproduce(self, row: Row) -> str:
        """Return the command that repeats the example of a row; empty if no command line can."""
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
        """Return a command line for these points with a selection of checks; empty if there is none."""
        words = self.points.command()
        if words is None or self.spec is None:
            return ""
        backend = [] if self.spec == "refgeo.paper" else [shlex.quote(str(self.spec))]
        backend += [f"--timeout {self.timeout:g}"] if self.timeout != TIMEOUT else []
        return " ".join(["refgeo check", *backend, *words, selection, f"--seed {self.seed}"])

    def details(self, row: Row) -> list[str]:
        """Say all that is known of a row that does not pass, a line each."""
        return [": ".join(filter(None, (str(row), row.outcome, row.message))), *self._details(row, verbose=True)]

    def _details(self, row: Row, verbose: bool) -> Iterator[str]:
        """Yield an example, the formulas, the cause and the command that repeats it, each behind its label."""
        example, is_value = row.example, row.kind == "value"
        has_number = example is not None and row.kind in ("value", "law") and bool(np.isfinite(example.relative_error))
        details: dict[str, Sequence[str]] = {}
        if example is not None and has_number:
            error = f"relative error {example.relative_error:.2g} at κ = {example.condition:.2g}"
            numbers = "; ".join(filter(None, (example.detail, error if verbose or not example.detail else "")))
            details["example"] = (f"{example.location}: {numbers}",)
        details["yours"] = row.yours
        has_formula = has_number and (verbose or bool(row.yours)) if is_value else verbose or row.kind != "contract"
        is_relaxed = self.points.relaxation > 0.0 and is_value
        of_none = "  (if ε = 0; see the section Relaxation of the mathematics)" if is_relaxed else ""
        details["expected"] = (row.expected or (row.statement + of_none,)) if has_formula else ()
        details["differs"] = (row.differs,)
        details["cause"] = (row.diagnosis or "not found" * (is_value and has_number and not row.yours),)
        details["reproduce"] = (self.reproduce(row),)
        for label, lines in details.items():
            for i, line in enumerate(filter(None, lines)):
                yield f"  {'' if i else label:9}  {line}"

    @property
    def conclusion(self) -> list[str]:
        """The answer: PASS, or what fails, and what else is found.

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.check(metrics=["mix"], checks=["christoffel"], cases=["1x1x1"]).conclusion
        ['PASS']
        """
        if not self.judged and not self.interrupted and not any(row.fails for row in self.rows):
            none = "the backend has no function that the chosen checks need at these points."
            reasons = [f"{row}: {row.message}" for row in self._with(Verdict.NOT_JUDGED, Verdict.NOT_PROVIDED)
                       if row.message and (row.kind in WHOLE_RUN_KINDS or not row.is_absent)]  # fmt: skip
            return [f"Nothing was checked: {'; '.join(reasons) or none}"]
        named: dict[str, list[str]] = {}
        for row in sorted(self.rows, key=lambda row: list(Verdict).index(row.verdict)):
            is_broken_routine = row.verdict is Verdict.CONTRACT and row.kind in WHOLE_RUN_KINDS
            if row.fails or row.verdict is Verdict.INACCURATE or is_broken_routine:
                named.setdefault(row.outcome.upper(), []).append(str(row))
        lines = [f"{word}: {', '.join(names)}" for word, names in named.items()]
        return ["PASS"] * self.passed + lines + [f"INTERRUPTED: {self.interrupted}"] * bool(self.interrupted)

    @property
    def counts(self) -> str:
        """How many of the checks pass, by kind.

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.check(metrics=["mix"], checks=["christoffel"], cases=["1x1x1"]).counts
        '1 of 1 values and 6 of 6 rules of conduct'
        """
        numbers = {kind: [row.verdict in _PASSING for row in self.judged if row.kind == kind] for kind in _KINDS}
        return " and ".join(f"{sum(n)} of {len(n)} {_KINDS[kind]}" for kind, n in numbers.items() if n)

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
    def title(self) -> str:
        """What was judged, and how."""
        points = [str(self.points)] * (str(self.points) != str(Points()))
        return " · ".join(["refgeo check", self.backend, self.dtype, *points, f"seed {self.seed}"])

    def head(self, verbose: bool = False) -> Iterator[Line]:
        """Yield the lines above the table, each with its style: the title, the conclusion, what does not pass."""
        yield from [(self.title, "bold"), ("", "")]
        lines = self.conclusion + [f"{self.counts} pass"] * bool(self.counts and not self.passed)
        lines[0] += f": {self.counts}" * self.passed
        yield from ((line, "bold green" if self.passed else "bold red") for line in lines)
        findings = list(self._findings(verbose))
        yield from [("", ""), *findings] if findings else []

    def _findings(self, verbose: bool) -> Iterator[Line]:
        """Yield what does not simply pass, once for rows that have it in common: what fails first, with details; what
        ill-conditioning costs last.
        """
        groups: dict[tuple[Any, ...], list[tuple[Row, str]]] = {}
        for row in sorted(self.rows, key=lambda row: not row.fails):
            for label, text in row.remarks:
                without_line = re.sub(r" \([^()]*:\d+, in [^()]*\)", "", text)
                details = row.diagnosis, row.yours, row.differs, verbose and row.expected
                groups.setdefault((label, without_line, *details), []).append((row, text))
        shown = [key for key in groups if verbose or key[0] not in _ALLOWED]
        for key in sorted(shown, key=lambda key: key[0] in _ALLOWED):
            (label, without_line, *_), (row, text) = key, groups[key][0]
            texts = {text for _, text in groups[key]}
            names = ", ".join(str(row) for row, _ in groups[key])
            parts = (self.backend, names, label, text if len(texts) == 1 else without_line)
            style = "bold red" if row.fails else "" if label in _ALLOWED else "yellow"
            headline, *lines = ": ".join(filter(None, parts)).splitlines()
            yield from [(headline, style), *((f"  {line}", style) for line in lines)]
            for line in self._details(row, verbose) if row.fails and row.verdict is not Verdict.INHERITS else ():
                yield line, "bold" if line.startswith(("  differs", "  cause")) else ""

    def foot(self, verbose: bool = False) -> list[Line]:
        """List the lines below the table: digits that are lost at large κ, the scope, and what is not provided or not
        run.
        """
        losses = Counter(label for row in self._with(Verdict.PASS) for label, _ in row.remarks if label in _ALLOWED)
        allowed = {x: f"{words} {count_noun(losses[x], 'value')}" for x, words in _ALLOWED.items() if losses[x]}
        facts = [(x, f"{words} at a large κ, which is allowed") for x, words in allowed.items()]
        for kind, words in _KINDS.items():
            scope = Scope.intersection([row.scope for row in self._with(*_PASSING) if row.kind == kind])
            of_kind = f"{words}: " * bool(scope.met and kind != "value")
            facts.append(("scope", of_kind + (str(scope) if verbose else scope.summary)))
        for verdict in (Verdict.NOT_JUDGED, Verdict.PARTIAL, Verdict.NOT_PROVIDED):
            facts.append((verdict.value, ", ".join(_names(self._with(verdict), verbose))))
        if self.not_run and (verbose or self.spec != "refgeo.paper"):
            reason = ": these lines, or a branch of an if, did not run in any call that decides a verdict" * verbose
            facts.append(("not run", self.missing + reason))
        if self.where == "this process" and not self.files:
            reason = ", as a new process could not import it by its name" * verbose
            facts.append(("not run", "unknown: the backend ran in the process of refgeo itself" + reason))
        facts += [("note", note) for note in self.notes]
        evidence = [e for row in self.rows for e in row.measurements if row.kind == "value"]
        results, enclosed = sum(e.multiplicity for e in evidence), sum(e.enclosed for e in evidence)
        if verbose and enclosed < results:
            text = "results were compared with proved intervals, all others with results of refgeo's own, whose error "
            text += "is bounded; of a wrong value, three points prove it by intervals"
            facts.append(("enclosed", f"{enclosed} of {results} {text}"))
        if verbose and any(row.worst_case and row.kind not in WHOLE_RUN_KINDS for row in self.rows):
            facts.append(("repeat one", self._command("--metric METRIC --checks CHECK --case CASE")))
        more = "--verbose, --json FILE, --html FILE; in Python, report.print(verbose=True)"
        facts.append(("more", more * (not verbose)))
        return [(f"{x:12}  {text}", _STYLES.get(x, "")) for x, text in facts if text]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON: infinities become strings."""
        from refgeo import __version__

        rows = [
            as_plain(row) | {"outcome": row.outcome, "fails": row.fails, "reproduce": self.reproduce(row)}
            for row in self.rows
        ]
        head = {
            "schema": SCHEMA, "refgeo": __version__, "passed": self.passed, "passed_strictly": self.passed_strictly,
            "wrong": self.wrong, "backend": self.backend, "process": self.where, "dtype": self.dtype,
            "profile": self.points.profile, "relaxation": self.points.relaxation, "seed": self.seed,
            "source": str(self.points), "not_run": as_plain(self.not_run), "interrupted": self.interrupted,
        }  # fmt: skip
        return head | {"rows": rows}

    def to_json(self) -> str:
        """Return the report as JSON text.

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.check(checks=["christoffel"], metrics=["inv"], cases=["1x1x1"]).to_json().splitlines()[1]
        '  "schema": "refgeo-report/8",'
        """
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def to_html(self) -> str:
        """Return the report as one self-contained page with plots; this needs the extra ``html`` (matplotlib)."""
        from refgeo.conformance import report_html

        return report_html.to_html(list(self.head(verbose=True)), self.rows, self.foot(verbose=True), self.dtype)

    def print(self, file: Any = None, verbose: bool = False) -> None:
        """Show the conclusion, what does not pass, and a table.

        Parameters
        ----------
        file : file, optional
            Where to write; default: the standard output.
        verbose : bool
            Whether to show the right formulas of what is wrong, each loss of digits, and the whole scope, too.
        """
        report_table.show(list(self.head(verbose)), self.rows, self.foot(verbose), file)

    def __repr__(self) -> str:
        state = "passed" if self.passed else f"wrong: {', '.join(self.wrong)}" if self.wrong else "not passed"
        return f"<Report of {self.backend}, {self.points}, {self.dtype}: {len(self.judged)} checks, {state}>"


def _names(rows: Sequence[Row], with_reason: bool) -> Iterator[str]:
    """Name rows, with both metrics together; with the reasons why they are not judged, if requested."""
    for check in dict.fromkeys(row.check for row in rows):
        alike = [row for row in rows if row.check == check]
        name = check if len(alike) > 1 else str(alike[0])
        yield name + f" ({alike[-1].message})" * bool(with_reason and alike[-1].message and not alike[0].is_absent)


def as_plain(value: Any) -> Any:
    """Convert a value to numbers, texts, lists and dicts; infinities become texts.

    A field of a dataclass that has another name in JSON has this name in its metadata.

    Examples
    --------
    >>> as_plain({"a": (1.0, float("inf"))})
    {'a': [1.0, 'inf']}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.metadata.get("json", field.name): as_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        value = sorted(value)
    if isinstance(value, (list, tuple)):
        return [as_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if abs(value) < float("inf") else repr(float(value))
    return value if isinstance(value, (int, str, type(None))) else str(value)
