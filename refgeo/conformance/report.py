"""The result of a run: rows, verdicts, and how they are shown."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from refgeo.conformance.backend import TIMEOUT

SCHEMA = "refgeo-report/1"
ABSENT = "no function"
_WIDTH = 160


class Verdict(Enum):
    """What is said of one check of one metric."""

    PASS = "pass"
    WRONG = "WRONG"
    UNDECIDED = "undecided"
    NOT_PROVIDED = "not provided"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Measurement:
    """One check of one block of a case.

    Attributes
    ----------
    case : str
    block : tuple of int
    condition : float
        κ, the larger condition number of the factors.
    relative_error : float
        Beside the natural size of the result; infinite where there was no usable result.
    attainable, gram : float
        The relative errors of ratio 1: of a factorised route, and with Gram matrices.
    decisive : bool
        Whether the verdict rests on it.
    """

    case: str
    block: tuple[int, ...]
    condition: float
    relative_error: float
    attainable: float
    gram: float
    decisive: bool

    @property
    def ratio(self) -> float:
        """The error in units of what Gram matrices cost."""
        return self.relative_error / self.gram

    @property
    def attainable_ratio(self) -> float:
        """The error in units of what a factorised route costs."""
        return self.relative_error / self.attainable

    def digits(self, dtype: str) -> float:
        """Decimal digits that are right, at most those of the dtype."""
        return float(np.clip(-np.log10(max(self.relative_error, 1e-300)), 0.0, -np.log10(np.finfo(dtype).eps / 2)))

    def __str__(self) -> str:
        return self.case + (f"[{','.join(map(str, self.block))}]" if self.block else "")


@dataclass(frozen=True)
class Row:
    """One check of one metric.

    Attributes
    ----------
    check, metric, statement : str
    verdict : Verdict
    points, decisive_points : int
        Blocks judged, and those well enough conditioned to count towards the verdict.
    worst_ratio : float or None
        Over the decisive points, against `threshold`.
    digits_kept : float or None
        The fewest, over the decisive points.
    worst_case : Measurement or None
    example : Measurement or None
        Where to look first: the simplest point that fails (they come in that order), else the worst case.
    digits_lost : float
        The most digits that the conditioning of a point leaves and the backend does not keep, over all points.
    lossy_case : Measurement or None
    message : str
    measurements : tuple of Measurement
        Of a value: everything that was judged, for plots of digits against conditioning.
    diagnosis : str
        For a wrong value: which common mistake gives the same numbers.
    """

    check: str
    metric: str
    statement: str
    verdict: Verdict
    points: int
    decisive_points: int
    worst_ratio: float | None
    threshold: float
    digits_kept: float | None
    worst_case: Measurement | None
    example: Measurement | None
    digits_lost: float
    lossy_case: Measurement | None
    message: str
    measurements: tuple[Measurement, ...] = ()
    diagnosis: str = ""

    @property
    def is_law(self) -> bool:
        """Whether the row is a law rather than a value."""
        return "." in self.check

    @property
    def function(self) -> str:
        """The backend's function."""
        return self.check.split(".")[0].removesuffix("_1").removesuffix("_2")

    @property
    def is_absent(self) -> bool:
        """Whether the backend has no such function at all."""
        return self.verdict is Verdict.NOT_PROVIDED and self.message.startswith(ABSENT)

    @property
    def outcome(self) -> str:
        """The verdict in words; right with lost digits is not the same as right.

        Examples
        --------
        >>> import refgeo as rg
        >>> rg.check(checks=["horizontal_projection"], metrics=["inv"], cases=["tall"]).rows[0].outcome
        'loses 9 digits at κ=1e+04'
        """
        if self.verdict is Verdict.PASS and self.lossy_case is not None:
            return f"loses {_count(self.digits_lost)} at κ={self.lossy_case.condition:.0e}"
        return self.verdict.value

    def __str__(self) -> str:
        return f"{self.check}[{self.metric}]"


@dataclass(frozen=True)
class Report:
    """The report of `refgeo.check`.

    Attributes
    ----------
    backend, dtype, profile, source : str
    seed : int
    rows : list of Row
    spec : str or None
        What `refgeo.check` loads the backend by; None for an object.
    network : dict
        The options that select the checkpoint, if any.
    timeout : float
        Seconds that a call could take.
    given : bool
        Whether the test points were the caller's own.
    failing_points : dict
        The arrays of points that a search has found, by name.
    files : (folder, file), optional
        Of vectors and results, if they were graded.

    Examples
    --------
    >>> import refgeo as rg
    >>> report = rg.check(metrics=["mix"], checks=["riemannian_gradient"], cases=["scalar"])
    >>> [(row.check, row.verdict.value) for row in report.rows if not row.is_law]
    [('riemannian_gradient', 'pass')]
    """

    backend: str
    dtype: str
    profile: str
    seed: int
    source: str
    rows: list[Row]
    spec: str | None = None
    network: dict[str, Any] = field(default_factory=dict)
    timeout: float = TIMEOUT
    given: bool = False
    failing_points: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: tuple[str, str] | None = None

    @property
    def passed(self) -> bool:
        """Every provided check passes, and there is at least one."""
        return bool(self.provided) and all(row.verdict is Verdict.PASS for row in self.provided)

    @property
    def provided(self) -> list[Row]:
        """The rows of what the backend has."""
        return [row for row in self.rows if row.verdict is not Verdict.NOT_PROVIDED]

    @property
    def failures(self) -> list[Row]:
        """The rows that are WRONG, values and laws."""
        return [row for row in self.rows if row.verdict is Verdict.WRONG]

    @property
    def wrong(self) -> list[str]:
        """The wrong operations, as ``check[metric]``: values, and functions of which only a law is broken."""
        values = [row for row in self.failures if not row.is_law]
        named = {(row.function, row.metric) for row in values}
        laws = {
            f"{row.function}[{row.metric}]": None
            for row in self.failures
            if row.is_law and (row.function, row.metric) not in named
        }
        return [*map(str, values), *laws]

    def reproduce(self, row: Row) -> str:
        """The command that runs the example of a row alone; empty if a command line cannot."""
        if not self._has_command or row.example is None:
            return ""
        words = ["refgeo check", *self._selection(), f"--metric {row.metric}", f"--checks {row.check}"]
        return " ".join([*words, f"--case {shlex.quote(row.example.case)}", f"--seed {self.seed}"])

    def reproduce_in_python(self, row: Row) -> str:
        """The line of Python that does the same; ``backend`` stands for an object that has no name to load it by,
        ``points`` for the points that were given.

        Examples
        --------
        >>> import refgeo as rg
        >>> report = rg.check(metrics=["mix"], checks=["christoffel"], cases=["scalar"])
        >>> print(report.reproduce_in_python(report.rows[0]))
        rg.check('refgeo.formulas', metrics=['mix'], checks=['christoffel'], cases=['scalar/k1/s1,1'], seed=0).print()
        """
        if self.files is not None and row.example is not None:
            case = row.example.case.split(" ")[0]
            return f"rg.conformance.vectors.assert_case{(*self.files, case, row.check)!r}"
        words = ["backend" if self.spec is None else repr(self.spec)]
        words += [f"metrics={[row.metric]!r}", f"checks={[row.check]!r}"]
        if self.dtype != "float64":
            words.append(f"dtype={self.dtype!r}")
        if self.profile not in ("quick", "fuzz"):
            words.append(f"profile={self.profile!r}")
        if self.network:
            words.append("checkpoint=state_dict" if self.network["checkpoint"] is None else "")
            words += [f"{name}={value!r}" for name, value in self.network.items() if value is not None]
        if self.timeout != TIMEOUT:
            words.append(f"timeout={self.timeout!r}")
        if row.example is not None:
            case = row.example.case
            if self.given:
                words.append(f"points={{{case!r}: points[{case!r}]}}")
            elif case in self.failing_points:
                words.append(f"points={{{case!r}: {_literal(_used(row, self.failing_points[case]))}}}")
            elif self.profile == "fuzz":
                words += ["profile='fuzz'"]  # a point among many that passed: search again
            else:
                words.append(f"cases={[case]!r}")
        return f"rg.check({', '.join(filter(None, words))}, seed={self.seed}).print()"

    @property
    def _has_command(self) -> bool:
        """Whether a command line can load the backend and make the test points."""
        generated = not self.given and self.profile != "fuzz" and self.files is None
        return self.spec is not None and generated and self.network.get("checkpoint", "") is not None

    def _selection(self) -> list[str]:
        """The words that select the backend, its dtype and the kind of test points."""
        words = [] if self.spec == "refgeo.formulas" else [shlex.quote(str(self.spec))]
        if self.dtype != "float64":
            words.append(f"--dtype {self.dtype}")
        if self.profile != "quick":
            words.append(f"--profile {self.profile}")
        if self.timeout != TIMEOUT:
            words.append(f"--timeout {self.timeout:g}")
        words += [f"--{name} {shlex.quote(str(value))}" for name, value in self.network.items() if value is not None]
        return words

    def details(self, row: Row) -> list[str]:
        """What there is to say of a row that does not pass, a line each."""
        lines = [f"{row}: {row.message or row.verdict.value}", f"expected: {row.statement}"]
        if row.diagnosis:
            lines.append(f"diagnosis: {row.diagnosis}")
        if row.example is not None:
            place = row.example
            lines.append(f"relative error {place.relative_error:.2g} at κ = {place.condition:.2g} ({place})")
        if self.reproduce(row):
            lines.append(f"reproduce: {self.reproduce(row)}")
        return [*lines, f"in Python: {self.reproduce_in_python(row)}"]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON: what ``refgeo/conformance/report.schema.json`` describes; infinities become strings."""
        from refgeo import __version__

        rows = []
        for row in self.rows:
            data = asdict(row)
            data["verdict"] = row.verdict.value
            data["outcome"] = row.outcome
            data["measurements"] = {
                key: [getattr(one, key) for one in row.measurements]
                for key in ("case", "block", "condition", "relative_error", "decisive")
            }
            data["reproduce"] = self.reproduce(row)
            data["reproduce_in_python"] = self.reproduce_in_python(row)
            rows.append(data)
        head = {"schema": SCHEMA, "refgeo": __version__, "passed": self.passed, "wrong": self.wrong}
        run = {key: getattr(self, key) for key in ("backend", "dtype", "profile", "seed", "source")}
        plain: dict[str, Any] = _finite({**head, **run, "rows": rows})
        return plain

    def to_json(self) -> str:
        """The report as JSON text (schema ``refgeo-report/1``)."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def to_junit(self) -> str:
        """The report as JUnit XML, which continuous integration understands: a test case per row."""
        from refgeo.conformance.junit import to_junit

        return to_junit(self)

    def to_html(self) -> str:
        """The report as one self-contained page with plots; needs the extra ``html`` (Jinja2 and matplotlib)."""
        from refgeo.conformance.html import to_html

        return to_html(self)

    def print(self, file: Any = None) -> None:
        """Show the report as a table, with findings below it."""
        from rich.console import Console

        console = Console(file=file)
        # A narrower table would break words and numbers; a narrow terminal wraps its lines.
        if not console.is_terminal or console.width < _WIDTH:
            console = Console(file=file, width=_WIDTH)
        self._print(console)

    def _print(self, console: Any) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        title = f"refgeo check · {self.backend} · {self.dtype} · {self.source} · seed {self.seed}"
        table = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
        for name, justify in (
            ("check", "left"), ("metric", "left"), ("points", "right"), ("worst ratio", "right"),
            ("threshold", "right"), ("digits kept", "right"), ("verdict", "left"), ("worst case", "left"),
        ):  # fmt: skip
            table.add_column(name, justify=justify, overflow="fold", no_wrap=name == "verdict")  # type: ignore[arg-type]
        for row in self._table_rows():
            table.add_row(
                row.check,
                row.metric,
                f"{row.decisive_points}/{row.points}" if row.points else "-",
                "-" if row.worst_ratio is None else f"{row.worst_ratio:.2g}",
                f"{row.threshold:g}",
                "-" if row.digits_kept is None or row.is_law else f"{row.digits_kept:.1f}",
                Text(row.outcome, style="yellow" if row.lossy_case else _STYLES.get(row.verdict, "dim")),
                Text("-" if row.worst_case is None else str(row.worst_case)),
            )
        console.print(table)

        def say(text: str, style: str = "") -> None:
            console.print(Text(text), style=style, soft_wrap=True)

        told = [row for row in self.failures if not (row.is_law and self._value_fails(row))]
        for row in told:
            headline, *details = self.details(row)
            say(f"WRONG      {headline}", "red")
            for line in details:
                say(f"           {line}", "bold" if line.startswith("diagnosis") else "")
            laws = [
                law
                for law in self.failures
                if law not in told and (law.function, law.metric) == (row.function, row.metric)
            ]
            if laws and not row.is_law:
                names = ", ".join(law.check.split(".")[1] for law in laws)
                say(f"           breaks the laws, too: {names}")
        for row in self.rows:
            if row.verdict in (Verdict.UNDECIDED, Verdict.NOT_JUDGED):
                say(f"{row.verdict.value:10s} {row}: {row.message}", "yellow")
            elif row.verdict is Verdict.PASS and row.message:
                say(f"note       {row}: {row.message}", "yellow")
        for row in self.rows:
            if row.lossy_case is not None:
                place = row.lossy_case
                say(
                    f"digits     {row}: right, but keeps {_count(row.digits_lost)} fewer than a factorised route at "
                    f"κ = {place.condition:.1g} ({place})"
                )
        if self._has_command and any(row.worst_case for row in self.rows):
            words = ["refgeo check", *self._selection(), "--metric METRIC --checks CHECK --case CASE"]
            say(f"repeat one: {' '.join(words)} --seed {self.seed}", "dim")
        for line in self.summary:
            say(line, "bold")

    def _value_fails(self, law: Row) -> bool:
        """Whether a law fails because its function gives wrong values."""
        return any(not row.is_law and (row.function, row.metric) == (law.function, law.metric) for row in self.failures)

    def _table_rows(self) -> list[Row]:
        """Every value, and the laws of a function and metric in one row; without functions that are simply absent."""
        groups: dict[tuple[str, str], list[Row]] = {}
        rows = [row for row in self.rows if not row.is_absent]
        for row in rows:
            if row.is_law:
                groups.setdefault((row.function, row.metric), []).append(row)
        return [*(row for row in rows if not row.is_law), *map(_together, groups.values())]

    @property
    def summary(self) -> list[str]:
        """What the report says in a few lines: how many pass, what is missing, what is wrong."""
        lines = []
        for kind, rows in (
            ("values", [row for row in self.provided if not row.is_law]),
            ("laws", [row for row in self.provided if row.is_law]),
        ):
            if rows:
                passing = sum(row.verdict is Verdict.PASS for row in rows)
                lines.append(f"{passing} of {len(rows)} provided {kind} pass")
        missing = [row for row in self.rows if row.verdict is Verdict.NOT_PROVIDED and not row.is_law]
        if missing:
            lines.append("not provided: " + ", ".join(_missing(missing)))
        if self.wrong:
            lines.append("wrong: " + ", ".join(self.wrong))
        return lines


_STYLES = {
    Verdict.PASS: "green",
    Verdict.WRONG: "bold red",
    Verdict.UNDECIDED: "yellow",
    Verdict.NOT_JUDGED: "yellow",
}
_BY_GRAVITY = (Verdict.WRONG, Verdict.UNDECIDED, Verdict.NOT_JUDGED, Verdict.PASS, Verdict.NOT_PROVIDED)


def _together(laws: list[Row]) -> Row:
    """One row for the laws of a function and metric: the gravest verdict, the worst ratio."""
    provided = [law for law in laws if law.verdict is not Verdict.NOT_PROVIDED]
    verdict = min((law.verdict for law in laws), key=_BY_GRAVITY.index)
    passing = sum(law.verdict is Verdict.PASS for law in provided)
    worst = max(provided, key=lambda law: law.worst_ratio or 0.0, default=laws[0])
    return replace(
        worst,
        check=f"{worst.function}. ({passing}/{len(provided)} laws)",
        verdict=verdict,
        points=sum(law.points for law in laws),
        decisive_points=sum(law.decisive_points for law in laws),
    )


def _count(digits: float) -> str:
    return f"{digits:.0f} digit" + ("" if round(digits) == 1 else "s")


def _missing(rows: list[Row]) -> list[str]:
    """What is not provided, and why if it is not simply absent; once for both metrics."""
    reasons = {row.check: row.message for row in rows}
    names = []
    for check, message in reasons.items():
        metrics = [row.metric for row in rows if row.check == check]
        name = check if len(metrics) > 1 else f"{check}[{metrics[0]}]"
        names.append(name if message.startswith(ABSENT) else f"{name} ({message})")
    return names


def _used(row: Row, arrays: dict[str, Any]) -> dict[str, Any]:
    """What the check of a row uses, of a case's arrays; the others are drawn again, or not looked at."""
    prefixes = {"riemannian_gradient": "abe", "riemannian_hessian": ("a", "b", "hessian")}.get(row.function, "ab")
    return {name: x for name, x in arrays.items() if name in ("G", "H", "t") or name.startswith(tuple(prefixes))}


def _literal(arrays: dict[str, Any]) -> str:
    """Arrays as nested lists that give the same numbers back."""
    return repr({name: np.asarray(array).tolist() for name, array in arrays.items()})


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return repr(value)
    return value
