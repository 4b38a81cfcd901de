"""The result of a run. How it is shown is in `refgeo.conformance.render`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from refgeo.conformance.backend import TIMEOUT
from refgeo.conformance.points import Points
from refgeo.conformance.rows import ABSENT, EVERY, FINDINGS, NOT_RIGHT, WHOLE, Row, Verdict

_SAID = {"UNDECIDED": Verdict.UNDECIDED, "INACCURATE": Verdict.INACCURATE}


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
    not_run : dict
        The lines of the backend's own files that no decisive call has reached, as ranges, by file.
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
    not_run: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
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
        """Something has been judged, nothing provided is wrong or undecided, and no conduct makes a caller's numbers
        wrong. Other findings pass.
        """
        return bool(self.judged) and not self.interrupted and not any(row.fails for row in self.rows)

    @property
    def passed_strictly(self) -> bool:
        """Passed, without findings (inaccurate, partly provided, contract), and no line of code was left out."""
        return self.passed and not any(row.verdict in FINDINGS for row in self.rows) and not self.not_run

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
        return [row for row in self.rows if row.verdict in FINDINGS]

    @property
    def wrong(self) -> list[str]:
        """The wrong operations, as ``check[metric]``: values, and those of which only a law is broken."""
        values = [row for row in self.failures if row.kind in ("value", *WHOLE)]
        named = {(row.about, row.metric) for row in self.rows if row.kind == "value" and row.verdict in NOT_RIGHT}
        laws = {
            f"{row.about}[{row.metric}]": None
            for row in self.failures
            if row.kind == "law" and (row.about, row.metric) not in named
        }
        return [*map(str, values), *laws]

    @property
    def misconduct(self) -> list[Row]:
        """The rules of conduct that are broken and make a caller's numbers wrong."""
        return [row for row in self.rows if row.kind == "contract" and row.fails]

    def reproduce(self, row: Row) -> str:
        """The command that runs the example of a row alone; empty if a command line cannot."""
        if row.example is None:
            return ""
        metric = f"--metric {row.metric} " if row.of_one_metric else ""
        case = f" --case {shlex.quote(row.example.case)}" if row.kind not in WHOLE else ""
        given = "".join(f" --option {shlex.quote(f'{name}={value!r}')}" for name, value in row.options.items())
        return self._command(f"{metric}--checks {row.check}{case}{given}")

    def reproduce_any(self) -> str:
        """The command that runs any one case, with words to replace; empty if a command line cannot."""
        return self._command("--metric METRIC --checks CHECK --case CASE")

    def _command(self, selection: str) -> str:
        words = self.points.command()
        if words is None or self.spec is None:
            return ""
        return " ".join(["refgeo check", *self._backend_words(), *words, selection, f"--seed {self.seed}"])

    def reproduce_in_python(self, row: Row) -> str:
        """The line of Python that does the same; ``backend`` stands for an object that has no name to load it by,
        ``points`` for the points that were given.

        Examples
        --------
        >>> import refgeo as rg
        >>> report = rg.check(metrics=["mix"], checks=["christoffel"], cases=["1x1x1"])
        >>> print(report.reproduce_in_python(report.rows[0]))
        rg.check('refgeo.paper', metrics=['mix'], checks=['christoffel'], cases=['1x1x1/k3'], seed=0).print()
        """
        case = None if row.example is None or row.kind in WHOLE else row.example.case
        if self.files is not None and case is not None:
            files, name = ", ".join(map(repr, self.files)), case.split(" ")[0]
            return f"rg.conformance.vectors.grade({files}, cases={[name]!r}, checks={[row.check]!r}).print()"
        words = ["backend" if self.spec is None else repr(self.spec)]
        words += [f"metrics={[row.metric]!r}"] if row.of_one_metric else []
        words += [f"checks={[row.check]!r}"]
        several = {name: [value] for name, value in row.options.items()}
        words += [f"options={several!r}"] if several else []
        words += [f"timeout={self.timeout!r}"] if self.timeout != TIMEOUT else []
        words += self.points.python(case)
        return f"rg.check({', '.join(words)}, seed={self.seed}).print()"

    def _backend_words(self) -> list[str]:
        words = [] if self.spec == "refgeo.paper" else [shlex.quote(str(self.spec))]
        return words + ([f"--timeout {self.timeout:g}"] if self.timeout != TIMEOUT else [])

    def details(self, row: Row) -> list[str]:
        """What there is to say of a row that does not pass, a line each."""
        lines = [f"{row}: {row.message or row.outcome}"]
        lines += [f"yours:    {line}" for line in row.yours]
        lines += [f"expected: {line}" for line in row.expected or (row.statement,)]
        lines += [f"differs:  {row.differs}"] if row.differs else []
        lines += [f"diagnosis: {row.diagnosis}"] if row.diagnosis else []
        if row.kind in ("value", "law") and row.example is not None and np.isfinite(row.example.relative_error):
            place = row.example
            lines.append(f"relative error {place.relative_error:.2g} at κ = {place.condition:.2g} ({place})")
        lines += [f"reproduce: {self.reproduce(row)}"] if self.reproduce(row) else []
        return [*lines, f"in Python: {self.reproduce_in_python(row)}"]

    @property
    def summary(self) -> list[str]:
        """What the report says in a few lines: how many pass, what is missing, what is wrong."""
        lines = []
        for kind, words in (
            ("value", "values"),
            ("law", "laws"),
            ("contract", "rules of conduct"),
            ("search", "searches"),
            ("trajectory", "checks of trajectories"),
        ):
            rows = [row for row in self.judged if row.kind == kind]
            if rows:
                right = (Verdict.PASS, Verdict.INACCURATE, Verdict.PARTIAL, *[Verdict.CONTRACT] * (kind in WHOLE))
                passing = sum(row.verdict in right for row in rows)
                lines.append(f"{passing} of {len(rows)} provided {words} pass")
        for verdict, words in ((Verdict.NOT_PROVIDED, "not provided"), (Verdict.PARTIAL, "partly provided")):
            rows = [row for row in self._leading if row.verdict is verdict]
            if rows:
                lines.append(f"{words}: " + ", ".join(_named(rows)))
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"not run: {self.missing}"] if self.not_run else []
        return lines

    @property
    def conclusion(self) -> list[str]:
        """The answer, in a line or two.

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.check(metrics=["mix"], checks=["christoffel"], cases=["1x1x1"]).conclusion
        ['All values right.']
        """
        if not self.judged and not self.interrupted:
            return ["Nothing was checked: the backend has no function that the chosen checks need at these points."]
        rows = {word: [str(row) for row in self.rows if row.verdict is verdict] for word, verdict in _SAID.items()}
        broken = [str(row) for row in self.rows if row.kind in WHOLE and row.verdict is Verdict.CONTRACT]
        bad = {"WRONG": self.wrong, "FAILS": list(map(str, self.misconduct)), **rows, "CONTRACT": broken}
        said = [f"{word}: {', '.join(names)}" for word, names in bad.items() if names]
        if self.interrupted:
            said.append(f"INTERRUPTED: {self.interrupted}")
        if self.passed:
            kinds = {"value": "values", "search": "searches", "law": "laws", "contract": "conduct",
                     "trajectory": "trajectories"}  # fmt: skip
            judged = next(words for kind, words in kinds.items() if any(row.kind == kind for row in self.judged))
            lossy = sum(row.lossy_case is not None and row.verdict is Verdict.PASS for row in self.rows)
            lost = (
                f" {lossy} of them lose digits at a large κ, which is allowed (see the lines 'digits')."
                if lossy
                else ""
            )
            said.append(f"All {'other ' if said else ''}{judged} right.{lost}")
        return said

    @property
    def missing(self) -> str:
        """The lines that no decisive call has reached, as ``file.py:41-43, 57``."""
        return "; ".join(
            f"{Path(file).name}:" + ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in ranges)
            for file, ranges in self.not_run.items()
        )

    @property
    def enclosed(self) -> tuple[int, int]:
        """How many of the values were judged by an enclosure, of how many; the factorised route acquits others."""
        found = [one.enclosed for row in self.rows for one in row.measurements if row.kind == "value"]
        return sum(found), len(found)

    @property
    def _leading(self) -> list[Row]:
        """The values and searches; of a function that has none, its first law in the name of all."""
        leading = [row for row in self.rows if row.kind in ("value", *WHOLE)]
        known = {row.function for row in leading}
        first: dict[tuple[str, str], Row] = {}
        for row in self.rows:
            if row.kind == "law" and row.function not in known:
                first.setdefault((row.function, row.metric), replace(row, check=row.function))
        return [*leading, *first.values()]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON: what ``refgeo/conformance/report.schema.json`` describes; infinities become strings."""
        from refgeo.conformance.render.plain import to_dict

        return to_dict(self)

    def to_json(self) -> str:
        """The report as JSON text."""
        from refgeo.conformance.render.plain import to_json

        return to_json(self)

    def to_html(self) -> str:
        """The report as one self-contained page with plots; needs the extra ``html`` (Jinja2 and matplotlib)."""
        from refgeo.conformance.render.html import to_html

        return to_html(self)

    def print(self, file: Any = None) -> None:
        """Show the report as a table, with findings below it."""
        from refgeo.conformance.render.terminal import show

        show(self, file)

    def __repr__(self) -> str:
        state = "passed" if self.passed else f"wrong: {', '.join(self.wrong)}" if self.wrong else "not passed"
        return f"<Report of {self.backend}, {self.points}, {self.dtype}: {len(self.judged)} checks, {state}>"


def _named(rows: list[Row]) -> list[str]:
    """What is missing, and why if it is not simply absent; once for both metrics."""
    reasons = {row.check: row.message for row in rows}
    names = []
    for check, message in reasons.items():
        metrics = [row.metric for row in rows if row.check == check]
        name = check if len(metrics) > 1 or metrics == [EVERY] else f"{check}[{metrics[0]}]"
        names.append(name if message.startswith(ABSENT) else f"{name} ({message})")
    return names
