"""For your own test suite: the checks as pytest items, and one assertion for one result.

Examples
--------
A file of tests that holds an implementation to every check::

    import refgeo as rg
    import my_library.geometry

    @rg.testing.parametrize_with_checks([my_library.geometry])
    def test_geometry(backend, check):
        check(backend)

``pytest -k "christoffel and inv"`` selects among the items, which are called like
``my_library.geometry-inv-christoffel``. One result alone:

>>> import numpy as np, refgeo as rg
>>> rng = np.random.default_rng(0)
>>> G, H, v_G, v_H = (rng.standard_normal(shape) for shape in ((5, 2), (4, 2), (5, 2), (4, 2)))
>>> mine = rg.paper.horizontal_projection("inv", G, H, v_G, v_H)
>>> rg.testing.assert_matches(mine, "horizontal_projection", "inv", G, H, v_G, v_H)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from refgeo.conformance.diagnosis.causes import NO_FORMULA_FROM_ONE, diagnose_result
from refgeo.conformance.execution.backend import TIMEOUT, Backend
from refgeo.conformance.judging.checks import (
    CHECKS,
    Check,
    functions_of,
    normalise_row_name,
    parse_row_name,
    select_checks,
)
from refgeo.conformance.judging.evidence import MAX_RATIO, compare
from refgeo.conformance.judging.verdict import Verdict
from refgeo.conformance.optimisers.invariance import combinations, label_of
from refgeo.conformance.plan import option_values
from refgeo.conformance.points.scene import Scene, from_arrays
from refgeo.conformance.protocol.call import UPDATE_RULES
from refgeo.conformance.protocol.conduct import RULES, WHOLE_RUN_RULES
from refgeo.conformance.protocol.operations import FUNCTIONS, OPERATIONS, VALUES, Value
from refgeo.conformance.protocol.precision import PRECISIONS
from refgeo.conformance.report import Report
from refgeo.conformance.run import check
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_metrics import pair_metric
from refgeo.support.arguments import as_list, detach, one_of, order_of

__all__ = ["BackendCheck", "assert_matches", "parametrize_with_checks"]


Arguments = tuple[tuple[str, Any], ...]
"""Of `refgeo.check`, by name."""


@dataclass(frozen=True)
class BackendCheck:
    """Some rows of a report; calling it with a backend raises AssertionError if the backend fails one of them.

    Attributes
    ----------
    name : str
        Of the check.
    metric : str
        Or the options of an update rule, as its row has them; "" stands for any.
    arguments : tuple of (str, value)
        What `refgeo.check` gets beside the function that is judged.

    Examples
    --------
    >>> import refgeo as rg
    >>> BackendCheck("christoffel", "mix")(rg.paper)
    """

    name: str
    metric: str = ""
    arguments: Arguments = ()

    def __call__(self, backend: Any) -> None:
        """Run the check: raise AssertionError with the reason, or skip what the backend does not provide."""
        __tracebackhide__ = True
        rows = [(report, row) for report in self._reports(_backend(backend)) for row in report.rows]
        rows = [entry for entry in rows if entry[1].check == self.name and self.metric in ("", entry[1].metric)]
        failing = [entry for entry in rows if entry[1].fails or entry[1].verdict is Verdict.CONTRACT]
        failing = [entry for entry in failing if entry[1].verdict is not Verdict.INHERITS]
        if failing:
            raise AssertionError("\n".join(line for report, row in failing for line in report.details(row)))
        silent = (Verdict.NOT_PROVIDED, Verdict.NOT_JUDGED, Verdict.INHERITS)
        if all(row.verdict in silent for _, row in rows):
            import pytest

            reasons = [f"{row.verdict.value}: {row.message}" for _, row in rows]
            pytest.skip(reasons[0] if reasons else f"{self.name}: not provided, or it applies to no test point")

    def _reports(self, backend: Backend) -> list[Report]:
        """Return the reports that contain this check.

        A function is run once for all of its rows of a metric. For a rule of conduct, the reports of all functions and
        metrics are returned.
        """
        entry, options = CHECKS[self.name], dict(self.arguments)
        if entry.kind != "contract":
            function = next(filter(backend.provides, _functions_of(entry)), entry.function)
            return [_report(backend, function, "inv" if entry.kind == "trajectory" else self.metric, self.arguments)]
        provided = filter(backend.provides, (name for name in FUNCTIONS if name in functions_of(options.get("checks"))))
        metrics = options.get("metrics", ("inv", "mix"))
        return [
            _report(backend, name, metric, self.arguments)
            for name in provided for metric in (metrics if name in OPERATIONS else metrics[:1])
        ]  # fmt: skip

    def __str__(self) -> str:
        of_rule, dtype = CHECKS[self.name].kind == "trajectory" and self.metric, dict(self.arguments).get("dtype")
        words = (f"{self.name}[{self.metric}]",) if of_rule else (self.metric, self.name)
        return "-".join(filter(None, [*words, "" if dtype == "float64" else dtype]))


def _functions_of(check: Check) -> tuple[str, ...]:
    """Return the functions that a check is about, of which a backend must have one."""
    return UPDATE_RULES if check.kind == "trajectory" else (check.function,)


def _backend(given: Any) -> Backend:
    """Return a backend; a module or a name gets one process, however often it is given."""
    return _of_name(given) if isinstance(given, (str, ModuleType)) else Backend.of(given)


_of_name = lru_cache(maxsize=64)(Backend.of)


@lru_cache(maxsize=64)
def _report(backend: Backend, function: str, metric: str, arguments: Arguments) -> Report:
    """Run all checks of one function in one metric, once."""
    options = dict(arguments)
    names = {function} | {name for name, entry in CHECKS.items() if function in _functions_of(entry)}
    checks = [name for name in options.pop("checks", None) or () if name in names]
    options |= {"metrics": [metric], "options": dict(options.get("options", ()))}
    return check(backend, checks=checks or [function], **options)


def parametrize_with_checks(
    backends: Iterable[Any],
    *,
    metrics: Iterable[str] = ("inv", "mix"),
    checks: Iterable[str] | None = None,
    dtype: str | Iterable[str] = "float64",
    profile: str = "quick",
    seed: int = 0,
    timeout: float = TIMEOUT,
    relaxation: float = 0.0,
    options: Mapping[str, Sequence[Any]] | None = None,
    expected_failures: Mapping[str, str | Mapping[str, str]] | None = None,
) -> Any:
    """Make a pytest decorator: a test item for each backend, metric, check and dtype.

    The test takes ``backend`` and ``check`` and calls ``check(backend)``, as with scikit-learn's decorator of this
    name.

    Parameters
    ----------
    backends : iterable
        Modules, objects or names, as `refgeo.check` takes them.
    metrics, checks : iterable of str, optional
        Which; all checks by default. Names of functions stand for all of their checks, conduct included. Those of
        searches and update rules are items of backends that have such functions.
    dtype : str or iterable of str
        The precision of the arrays that the backend gets, as for `refgeo.check`, or several.
    profile, seed, timeout, relaxation, options
        As for `refgeo.check`; each combination of options is an item.
    expected_failures : mapping of str to str, optional
        Names of rows, ``"christoffel[inv]"`` or ``"step.invariant[eps=0.1]"``, or without the brackets of all rows of
        a check, and the reason why each is known to fail; or the name of a backend, and such a mapping for it alone.
        It is reported as an expected failure; when it passes, that is a failure, so that the entry gets deleted. Laws
        of a function that gives wrong values are skipped, and what inherits its mistake, so that one entry is enough.

    Returns
    -------
    A ``pytest.mark.parametrize`` decorator.

    Raises
    ------
    BackendError, ValueError
        A backend, metric, check or dtype is unknown; an expected failure has no reason.

    Examples
    --------
    >>> import refgeo as rg
    >>> mark = parametrize_with_checks([rg.paper], metrics=["inv"], checks=["inner_product"])
    >>> [item.id for item in mark.args[1]][:3]
    ['refgeo.paper-inv-inner_product', 'refgeo.paper-inputs_unchanged', 'refgeo.paper-dtype_kept']
    """
    import pytest

    wanted = select_checks(checks)
    if not wanted:
        raise ValueError("checks: expected at least one check, got none")
    labels = [label_of(choice) for choice in combinations(option_values(options))]
    options_given = tuple((name, tuple(values)) for name, values in option_values(options).items())
    metric_names = tuple(pair_metric(metric, argument="metrics").name for metric in as_list(metrics))
    names = None if checks is None else tuple(as_list(checks))
    arguments = {"metrics": metric_names, "checks": names, "profile": profile, "seed": seed,
                 "relaxation": relaxation, "options": options_given}  # fmt: skip
    functions, precisions = functions_of(checks), [one_of("dtype", name, PRECISIONS) for name in as_list(dtype)]
    items = []
    for implementation in backends:
        backend = Backend.of(implementation, timeout)
        if not any(map(backend.provides, functions)):
            missing = ", ".join(name for name in FUNCTIONS if name in functions)
            raise ValueError(f"checks: {_short(backend)} has none of the functions of these checks, {missing}")
        expected = _parse_expected_failures(_short(backend), expected_failures or {})
        functions_of_values = dict.fromkeys(entry.function for entry in wanted if entry.kind in ("value", "law"))
        absent = (
            []
            if checks is not None
            else [function for function in functions_of_values if not backend.provides(function)]
        )
        if absent:  # one item says it
            reason = f"not provided: {', '.join(absent)}"
            skipped = pytest.mark.skip(reason=reason)
            items.append(pytest.param(backend, None, id=f"{_short(backend)}-not provided", marks=skipped))
        rules = RULES if any(name in OPERATIONS and backend.provides(name) for name in functions) else WHOLE_RUN_RULES
        for entry, precision in itertools.product(wanted, precisions):
            is_provided = (
                entry.name in rules if entry.kind == "contract" else any(map(backend.provides, _functions_of(entry)))
            )
            if not is_provided and (checks is None or entry.kind == "contract"):
                continue
            for metric in {"contract": [""], "trajectory": labels}.get(entry.kind, metric_names):
                item = BackendCheck(entry.name, metric, (("dtype", precision), *arguments.items()))
                name = normalise_row_name(f"{entry.name}[{metric}]")
                failure = expected.get(name, expected.get(entry.name))
                marks = [pytest.mark.xfail(reason=failure, raises=AssertionError, strict=True)] if failure else []
                items.append(pytest.param(backend, item, id=f"{_short(backend)}-{item}", marks=marks))
    return pytest.mark.parametrize(("backend", "check"), items)


def _parse_expected_failures(backend: str, given: Mapping[str, str | Mapping[str, str]]) -> dict[str, str]:
    """Return the expected failures of one backend, by row; raise an error if one is unknown or has no reason."""
    plain = {name: reason for name, reason in given.items() if not isinstance(reason, Mapping)}
    own = given.get(backend)
    entries: dict[str, Any] = {**plain, **(own if isinstance(own, Mapping) else {})}
    for entry, reason in entries.items():
        if not reason or not isinstance(reason, str):
            raise ValueError(f"expected_failures: expected a text that says why {entry} fails, got {reason!r}")
    return {parse_row_name(entry, "expected_failures"): reason for entry, reason in entries.items()}


def assert_matches(
    actual: Any, function: str, metric: str, *arguments: Any, dtype: str | None = None, relaxation: float = 0.0
) -> None:
    """Assert that a result is right, to the precision that rounding leaves.

    Parameters
    ----------
    actual : array, or tuple of two arrays
        What your function returned.
    function : str
        Which one it is: ``"inner_product"``, ``"horizontal_projection"``, ``"riemannian_gradient"``,
        ``"riemannian_hessian"``, ``"christoffel"`` or ``"geodesic"``.
    metric : "inv", "mix", or "s=0.5" between them
    *arguments
        What your function got: ``G``, ``H``, then vectors, and for a geodesic ``t`` and ``order``, as in the protocol
        of `refgeo.conformance.Backend`.
    dtype : str, optional
        The precision it was computed in; default: that of `actual`, float64, float32 or float16.
    relaxation : float
        ε of App. H.2.

    Raises
    ------
    AssertionError
        It does not match: by how much, where, and what explains the numbers.
    ValueError
        The arguments do not fit, or the point is so ill-conditioned that no error could be told from rounding.

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> assert_matches(0.3125, "inner_product", "inv", 2 * one, 4 * one, one, one, one, one)
    >>> assert_matches(0.3126, "inner_product", "inv", 2 * one, 4 * one, one, one, one, one)
    Traceback (most recent call last):
    ...
    AssertionError: inner_product[inv] does not match: the relative error is 0.00032, but rounding \
explains only 1.1e-14 (float64, κ = 1)...
    """
    __tracebackhide__ = True
    pair = function != "inner_product" and isinstance(actual, (tuple, list, Pair))
    parts = tuple(actual) if pair else (actual,)
    if dtype is None:
        dtypes = {np.asarray(detach(part)).dtype.name for part in parts}
        dtype = dtypes.pop() if len(dtypes) == 1 and dtypes <= {"float32", "float16"} else "float64"
    scene, value = _as_scene(function, metric, arguments, dtype, relaxation)
    backend = _backend_of_one(actual, scene, value)
    answer = backend.call(scene.call(value))
    if answer.failure is not None:
        raise AssertionError(f"{function}[{metric}]: {answer.failure}")
    with np.errstate(over="ignore"):
        worst = max(compare(scene, value, answer), key=lambda e: (not e.decisive, np.isnan(e.ratio), e.ratio))
    where = f" in block {worst.block}" if worst.block else ""
    if not worst.decisive:
        raise ValueError(
            f"{function}: at the condition number κ = {worst.condition:.1g}{where}, rounding in {dtype} alone can "
            "cause an error of any size; test at another point"
        )
    if np.isnan(worst.relative_error):
        raise ValueError(
            f"{function}: refgeo has no right result to compare with; test with vectors and factors of usual size"
        )
    if not worst.is_inaccurate:
        return
    bounds = diagnose_result(scene, value, backend)
    read = [f"yours:    {line}" for line in bounds.yours] + [f"differs:  {bounds.differs}"] * bool(bounds.differs)
    raise AssertionError(
        f"{function}[{metric}] does not match: the relative error is {worst.relative_error:.2g}"
        f"{where}, but rounding explains only {MAX_RATIO * worst.gram:.2g} ({dtype}, "
        f"κ = {worst.condition:.2g})\nexpected: {value.statement_of(metric)}\n"
        + "".join(f"{line}\n" for line in read)
        + f"diagnosis: {bounds.text or ('see the formula' if read else NO_FORMULA_FROM_ONE)}\n"
        + worst.detail
    )


def _backend_of_one(result: Any, scene: Scene, value: Value) -> Backend:
    """Make a backend that returns one given result, and has no other."""
    known = [factor for pair in (scene.point, *scene.inputs(value.operation)) for factor in pair]

    def answer(metric: str, *asked: Any) -> Any:
        if all(np.array_equal(x, y) for x, y in zip(known, asked, strict=False)):
            return result
        raise NotImplementedError("only one result is known")

    return Backend(SimpleNamespace(**{value.operation.name: answer}), name="actual")


def _as_scene(
    function: str, metric: str, arguments: tuple[Any, ...], dtype: str, relaxation: float
) -> tuple[Scene, Value]:
    """Make a test point of the arguments of a call."""
    judged = {value.operation.name for value in VALUES.values()}
    operation = OPERATIONS[one_of("function", function, judged)]
    pair_metric(metric)
    one_of("dtype", dtype, PRECISIONS)
    if len(arguments) != len(operation.arguments):
        raise ValueError(
            f"{function}: expected the arguments {', '.join(operation.arguments)}, got {len(arguments)} of them"
        )
    named = dict(zip(operation.arguments, arguments, strict=True))
    order = order_of(named.pop("order")) if "order" in operation.extra else None
    renamed = dict(zip(operation.vectors, operation.sources, strict=True))
    arrays = {
        name if name in ("G", "H", "t") else f"{renamed[name[:-2]]}{name[-2:]}": detach(array)
        for name, array in named.items()
    }
    scene = from_arrays("given", arrays, metric, dtype, relaxation=relaxation)
    value = VALUES[function if order is None else f"{function}_{order}"]
    if not scene.can_be_enclosed(value):
        raise ValueError(
            "order: refgeo cannot judge this exact geodesic: it has no closed form, and to enclose it takes too "
            "long; test a shorter time, a better conditioned point or smaller factors"
        )
    return scene, value


def _short(backend: Backend) -> str:
    """Return the name of a backend without its folder."""
    return Path(backend.name).stem if backend.name.endswith(".py") else backend.name
