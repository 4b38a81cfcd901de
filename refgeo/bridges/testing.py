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
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from refgeo.conformance.backend import TIMEOUT, Backend
from refgeo.conformance.blame import NO_DIAGNOSIS, explained_once, worst_entries
from refgeo.conformance.checks import CHECKS, Check, chosen, functions_of, known_row, sorted_name
from refgeo.conformance.conduct import OF_WHOLE, RULES
from refgeo.conformance.evidence import DOUBTFUL, hold, units
from refgeo.conformance.operations import FUNCTIONS, OPERATIONS, ROUTINE, VALUES, Value
from refgeo.conformance.plan import values_of
from refgeo.conformance.precision import PRECISIONS
from refgeo.conformance.report import Report
from refgeo.conformance.run import check
from refgeo.conformance.scene import Scene, given
from refgeo.conformance.steps import UPDATE_RULES
from refgeo.conformance.trajectories import combinations, label_of
from refgeo.conformance.verdict import Row, Verdict
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_metrics import pair_metric
from refgeo.support.arguments import detached, listed, one_of, order_of

__all__ = ["BackendCheck", "assert_matches", "parametrize_with_checks"]


@dataclass(frozen=True)
class BackendCheck:
    """One check of one metric; calling it with a backend raises AssertionError if the backend fails it.

    Attributes
    ----------
    name, metric, dtype, profile : str
        Of what has no metric, as rules of conduct and the checks of an update rule, the metric is "".
    seed : int
    options : tuple of (str, tuple)
        The values of an update rule's keyword arguments.
    metrics, functions : tuple of str
        Of a rule of conduct, where it is tried.
    relaxation : float
        ε.

    Examples
    --------
    >>> import refgeo as rg
    >>> BackendCheck("christoffel", "mix")(rg.paper)
    """

    name: str
    metric: str
    dtype: str = "float64"
    profile: str = "quick"
    seed: int = 0
    options: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    metrics: tuple[str, ...] = ("inv", "mix")
    functions: tuple[str, ...] = tuple(OPERATIONS)
    relaxation: float = 0.0

    def __call__(self, backend: Any) -> None:
        """Run it: AssertionError with the reason, or ``pytest.skip`` for what the backend does not provide."""
        __tracebackhide__ = True
        found = [(report, row) for report in self._reports(_backend(backend)) for row in report.rows]
        found = [(report, row) for report, row in found if row.check == self.name]
        failing = [one for one in found if one[1].fails or one[1].verdict is Verdict.CONTRACT]
        failing = [one for one in failing if one[1].verdict is not Verdict.INHERITS]
        if failing:
            raise AssertionError("\n".join(line for report, row in failing for line in report.details(row)))
        silent = (Verdict.NOT_PROVIDED, Verdict.NOT_JUDGED, Verdict.INHERITS)
        rows: list[Row] = [row for _, row in found]
        if all(row.verdict in silent for row in rows):
            import pytest

            none = f"{self.name}: this check applies to no test point of the profile {self.profile}"
            if not any(map(backend.provides, self._needed)):
                none = f"not provided: {self.name} needs {' or '.join(self._needed)}"
            pytest.skip(f"{rows[0].verdict.value}: {rows[0].message}" if rows else none)

    @property
    def _needed(self) -> tuple[str, ...]:
        """Functions, of which the backend must have one."""
        one = CHECKS[self.name]
        return {"trajectory": UPDATE_RULES, "contract": self.functions}.get(one.kind, (one.function,))

    def _reports(self, backend: Backend) -> list[Report]:
        one = CHECKS[self.name]
        options = self.dtype, self.profile, self.seed, self.relaxation
        if one.kind == "value":
            return [_report(backend, one.function, self.metric, *options)]
        if one.kind == "contract":
            provided = list(filter(backend.provides, self.functions))
            values = [name for name in provided if name in OPERATIONS]
            found = [_report(backend, name, metric, *options) for name in values for metric in self.metrics]
            if values != provided:
                found.append(_conduct(backend, self.dtype, self.seed, self.options, self.relaxation))
            return found
        asked: dict[str, Any] = {
            "metrics": [self.metric or "inv"],
            "checks": [self.name],
            "options": dict(self.options),
        }
        return [check(backend, **asked, dtype=self.dtype, seed=self.seed, relaxation=self.relaxation)]

    @property
    def label(self) -> str:
        """The options of a trajectory, as its row has them."""
        is_whole = CHECKS[self.name].kind == "trajectory"
        return label_of({name: values[0] for name, values in self.options}) if is_whole else ""

    def __str__(self) -> str:
        name = f"{self.name}[{self.label}]" if self.label else self.name
        words = (self.metric, name, "" if self.dtype == "float64" else self.dtype)
        return "-".join(word for word in words if word)


def _backend(given: Any) -> Backend:
    """One process for a module or a name, however often it is given."""
    return _of_name(given) if isinstance(given, (str, ModuleType)) else Backend.of(given)


_of_name = lru_cache(maxsize=64)(Backend.of)


@lru_cache(maxsize=64)
def _report(
    backend: Backend, function: str, metric: str, dtype: str, profile: str, seed: int, relaxation: float
) -> Report:
    """All that is to be said of one function."""
    where: dict[str, Any] = {"dtype": dtype, "profile": profile, "seed": seed, "relaxation": relaxation}
    return check(backend, metrics=[metric], checks=[function], **where)


@lru_cache(maxsize=64)
def _conduct(
    backend: Backend, dtype: str, seed: int, options: tuple[tuple[str, tuple[Any, ...]], ...], relaxation: float
) -> Report:
    """The conduct of an update rule and of a search, in a short run of each."""
    checks = [name for names, name in ((UPDATE_RULES, "step.repeatable"), ((ROUTINE,), "sharpness_1"))
              if any(map(backend.provides, names))]  # fmt: skip
    where: dict[str, Any] = {"dtype": dtype, "seed": seed, "relaxation": relaxation, "options": dict(options)}
    return check(backend, metrics=["inv"], checks=[*checks, *OF_WHOLE], **where)


def parametrize_with_checks(
    backends: Iterable[Any],
    *,
    metrics: Iterable[str] = ("inv", "mix"),
    checks: Iterable[str] | None = None,
    dtype: str | Iterable[str] = "float64",
    dtypes: str | Iterable[str] | None = None,
    profile: str = "quick",
    seed: int = 0,
    timeout: float = TIMEOUT,
    relaxation: float = 0.0,
    options: Mapping[str, Sequence[Any]] | None = None,
    expected_failures: Mapping[str, str | Mapping[str, str]] | None = None,
) -> Any:
    """A pytest decorator: a test item for each backend, metric, check and dtype.

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
        The precision of the arrays that the backend gets, as for `refgeo.check`, or several; also called `dtypes`.
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
    ['refgeo.paper-inv-inner_product', 'refgeo.paper-inputs_unchanged', 'refgeo.paper-silent']
    """
    import pytest

    wanted = chosen(checks)
    if not wanted:
        raise ValueError("checks: expected at least one check, got none")
    given_options = tuple((name, tuple(values)) for name, values in values_of(options).items())
    wanted_metrics = tuple(pair_metric(metric, argument="metrics").name for metric in listed(metrics))
    wanted_dtypes = [one_of("dtype", one, PRECISIONS) for one in listed(dtype if dtypes is None else dtypes)]
    functions = tuple(name for name in FUNCTIONS if name in functions_of(checks))
    items = []
    for implementation in backends:
        backend = Backend.of(implementation, timeout)
        if functions and not any(map(backend.provides, functions)):
            raise ValueError(
                f"checks: {_short(backend)} has none of the functions of these checks, {', '.join(functions)}"
            )
        expected = _expected_of(_short(backend), expected_failures or {})
        asked = dict.fromkeys(one.function for one in wanted if one.kind in ("value", "law"))
        absent = [] if checks is not None else [function for function in asked if not backend.provides(function)]
        if absent:  # one item says it
            reason = f"not provided: {', '.join(absent)}"
            skipped = pytest.mark.skip(reason=reason)
            items.append(pytest.param(backend, None, id=f"{_short(backend)}-not provided", marks=skipped))
        watched = RULES if any(name in OPERATIONS and backend.provides(name) for name in functions) else OF_WHOLE
        for one, precision in itertools.product(wanted, wanted_dtypes):
            several = UPDATE_RULES if one.kind == "trajectory" else (one.function,) if one.kind == "search" else ()
            if several and checks is None and not any(map(backend.provides, several)):
                continue
            if one.kind in ("value", "law") and one.function in absent:
                continue
            if one.kind == "contract" and one.name not in watched:
                continue
            for item in _items(one, wanted_metrics, given_options):
                item = replace(item, dtype=precision, profile=profile, seed=seed, metrics=wanted_metrics,
                               functions=functions, relaxation=relaxation)  # fmt: skip
                name = sorted_name(f"{one.name}[{item.metric or item.label}]")
                failure = expected.get(name, expected.get(one.name))
                marks = [pytest.mark.xfail(reason=failure, raises=AssertionError, strict=True)] if failure else []
                items.append(pytest.param(backend, item, id=f"{_short(backend)}-{item}", marks=marks))
    return pytest.mark.parametrize(("backend", "check"), items)


def _items(one: Check, metrics: Sequence[str], options: tuple[tuple[str, tuple[Any, ...]], ...]) -> list[BackendCheck]:
    """One for each metric, or for each combination of the options of an update rule."""
    if one.kind == "trajectory":
        return [
            BackendCheck(one.name, "", options=tuple((name, (value,)) for name, value in chosen.items()))
            for chosen in combinations(dict(options))
        ]
    if one.kind == "contract":
        return [BackendCheck(one.name, "", options=options)]
    return [BackendCheck(one.name, metric) for metric in metrics]


def _expected_of(backend: str, given: Mapping[str, str | Mapping[str, str]]) -> dict[str, str]:
    """The expected failures of one backend, checked."""
    plain = {name: reason for name, reason in given.items() if not isinstance(reason, Mapping)}
    own = given.get(backend)
    entries: dict[str, Any] = {**plain, **(own if isinstance(own, Mapping) else {})}
    for entry, reason in entries.items():
        if not reason or not isinstance(reason, str):
            raise ValueError(f"expected_failures: expected a text that says why {entry} fails, got {reason!r}")
    return {known_row(entry, "expected_failures"): reason for entry, reason in entries.items()}


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
explains only 3.3e-15 (float64, κ = 1)...
    """
    __tracebackhide__ = True
    pair = function != "inner_product" and isinstance(actual, (tuple, list, Pair))
    parts = tuple(actual) if pair else (actual,)
    if dtype is None:
        dtypes = {np.asarray(detached(part)).dtype.name for part in parts}
        dtype = dtypes.pop() if len(dtypes) == 1 and dtypes <= {"float32", "float16"} else "float64"
    scene, value = _as_scene(function, metric, arguments, dtype, relaxation)
    backend = _backend_of_one(actual, scene, value)
    unit, kappa = units(scene, value), scene.condition
    tolerance = DOUBTFUL * unit.gram
    if not np.all(unit.decisive):
        raise ValueError(
            f"{function}: at the condition number κ = {kappa.max():.1g}, rounding in {dtype} alone can cause an error "
            "of any size; test at a point with a smaller κ"
        )
    answer = backend.call(scene.call(value))
    if answer.failure is not None:
        raise AssertionError(f"{function}[{metric}]: {answer.failure}")
    errors = {one.block: one.relative_error for one in hold(scene, value, answer)}
    if any(map(np.isnan, errors.values())):
        raise ValueError(
            f"{function}: refgeo has no right result to compare with; test with vectors and factors of usual size"
        )
    with np.errstate(over="ignore"):
        block = max(errors, key=lambda block: float(errors[block] / tolerance[block]))
    if errors[block] <= tolerance[block]:
        return
    found = explained_once(scene, value, backend)
    read = [f"yours:    {line}" for line in found.yours] + [f"differs:  {found.differs}"] * bool(found.differs)
    raise AssertionError(
        f"{function}[{metric}] does not match: the relative error is {errors[block]:.2g}"
        f"{f' in block {block}' if block else ''}, but rounding explains only {float(tolerance[block]):.2g} ({dtype}, "
        f"κ = {float(kappa[block]):.2g})\nexpected: {value.statement_of(metric)}\n"
        + "".join(f"{line}\n" for line in read)
        + f"diagnosis: {found.text or (NO_DIAGNOSIS if not read else 'see the formula')}\n"
        + worst_entries(value, backend, scene, block)
    )


def _backend_of_one(result: Any, scene: Scene, value: Value) -> Backend:
    """A backend that knows one result, and nothing else."""
    known = [factor for pair in (scene.point, *scene.inputs(value.operation)) for factor in pair]

    def answer(metric: str, *asked: Any) -> Any:
        if all(np.array_equal(x, y) for x, y in zip(known, asked, strict=False)):
            return result
        raise NotImplementedError("only one result is known")

    return Backend(SimpleNamespace(**{value.operation.name: answer}), name="actual")


def _as_scene(
    function: str, metric: str, arguments: tuple[Any, ...], dtype: str, relaxation: float
) -> tuple[Scene, Value]:
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
        name if name in ("G", "H", "t") else f"{renamed[name[:-2]]}{name[-2:]}": detached(array)
        for name, array in named.items()
    }
    scene = given("given", arrays, metric, dtype, relaxation=relaxation)
    value = VALUES[function if order is None else f"{function}_{order}"]
    if not scene.can_be_enclosed(value):
        raise ValueError(
            "order: refgeo cannot judge this exact geodesic: it has no closed form, and to enclose it takes too "
            "long; test a shorter time, a better conditioned point or smaller factors"
        )
    return scene, value


def _short(backend: Backend) -> str:
    return Path(backend.name).stem if backend.name.endswith(".py") else backend.name
