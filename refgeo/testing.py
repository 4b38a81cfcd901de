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
``my_library.geometry-inv-christoffel.koszul``. One result alone:

>>> import numpy as np, refgeo as rg
>>> rng = np.random.default_rng(0)
>>> G, H, v_G, v_H = (rng.standard_normal(shape) for shape in ((5, 2), (4, 2), (5, 2), (4, 2)))
>>> mine = rg.formulas.horizontal_projection("inv", G, H, v_G, v_H)
>>> rg.testing.assert_matches(mine, "horizontal_projection", "inv", G, H, v_G, v_H)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from refgeo.conformance.backend import ARGUMENTS, TIMEOUT, Backend, BackendFailure
from refgeo.conformance.blame import diagnose
from refgeo.conformance.cases import METRICS, Case, given_case
from refgeo.conformance.checks import EXACT_GEODESIC, THRESHOLD, UNDECIDABLE, VALUES, Check
from refgeo.conformance.report import Verdict
from refgeo.conformance.runner import CHECKS, DTYPES, check, chosen_checks, one_of
from refgeo.conformance.trial import Trial
from refgeo.pair import Pair

__all__ = ["BackendCheck", "assert_matches", "parametrize_with_checks"]


@dataclass(frozen=True)
class BackendCheck:
    """One check of one metric; calling it with a backend raises AssertionError if the backend fails it.

    Attributes
    ----------
    name, metric, dtype, profile : str
    seed : int

    Examples
    --------
    >>> import refgeo as rg
    >>> BackendCheck("christoffel.symmetric", "mix")(rg.formulas)
    """

    name: str
    metric: str
    dtype: str = "float64"
    profile: str = "quick"
    seed: int = 0

    def __call__(self, backend: Any) -> None:
        """Run it: AssertionError with the reason, or ``pytest.skip`` for what the backend does not provide."""
        __tracebackhide__ = True
        needs = [value for value in CHECKS[self.name].needs if value in VALUES]
        report = check(
            backend,
            metrics=[self.metric],
            checks=[self.name, *needs],  # a law is not judged where what it uses is wrong itself
            dtype=self.dtype,
            profile=self.profile,
            seed=self.seed,
        )
        row = next((row for row in report.rows if row.check == self.name), None)
        if row is None:
            _skip(f"{self.name}: no test point of the profile {self.profile} is one for it")
        elif row.verdict in (Verdict.NOT_PROVIDED, Verdict.NOT_JUDGED):
            _skip(f"{row.verdict.value}: {row.message}")
        elif row.verdict is not Verdict.PASS:
            raise AssertionError("\n".join(report.details(row)))

    def __str__(self) -> str:
        return f"{self.metric}-{self.name}" + ("" if self.dtype == "float64" else f"-{self.dtype}")


def parametrize_with_checks(
    backends: Iterable[Any],
    *,
    metrics: Iterable[str] = ("inv", "mix"),
    checks: Iterable[str] | None = None,
    dtypes: Iterable[str] = ("float64",),
    profile: str = "quick",
    seed: int = 0,
    timeout: float = TIMEOUT,
    expected_failures: Mapping[str, str] | None = None,
) -> Any:
    """A pytest decorator: a test item for each backend, metric, check and dtype.

    The test takes ``backend`` and ``check`` and calls ``check(backend)``, as with scikit-learn's decorator of this
    name.

    Parameters
    ----------
    backends : iterable
        Modules, objects or names, as `refgeo.check` takes them.
    metrics, checks, dtypes : iterable of str, optional
        Which; all checks by default. Names of functions stand for all of their checks.
    profile, seed, timeout
        As for `refgeo.check`.
    expected_failures : mapping of str to str, optional
        Names of checks, ``"christoffel"`` or ``"christoffel[inv]"``, and the reason why each is known to fail. It is
        reported as an expected failure; when it passes, that is a failure, so that the entry gets deleted.

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
    >>> mark = parametrize_with_checks([rg.formulas], metrics=["inv"], checks=["inner_product"])
    >>> [item.id for item in mark.args[1]][:3]
    ['refgeo.formulas-inv-inner_product', 'refgeo.formulas-inv-inner_product.symmetric', \
'refgeo.formulas-inv-inner_product.bilinear']
    """
    import pytest

    names = [one.name for one in chosen_checks(checks)]
    wanted_metrics = [one_of("metrics", metric, METRICS) for metric in metrics]
    wanted_dtypes = [one_of("dtypes", dtype, DTYPES) for dtype in dtypes]
    expected = dict(expected_failures or {})
    for entry, reason in expected.items():
        name, _, metric = entry.partition("[")
        one_of("expected_failures", name, CHECKS)
        if metric:
            one_of("expected_failures", metric.removesuffix("]"), METRICS)
        if not reason:
            raise ValueError(f"expected_failures: {entry} has no reason; say why it fails")
    items = []
    for given in backends:
        backend = Backend.of(given, timeout)
        for metric in wanted_metrics:
            for name in names:
                for dtype in wanted_dtypes:
                    item = BackendCheck(name, metric, dtype, profile, seed)
                    failure = expected.get(f"{name}[{metric}]", expected.get(name))
                    marks = [] if failure is None else [_expected_failure(failure)]
                    items.append(pytest.param(backend, item, id=f"{_short(backend)}-{item}", marks=marks))
    return pytest.mark.parametrize(("backend", "check"), items)


def assert_matches(actual: Any, function: str, metric: str, *arguments: Any, dtype: str | None = None) -> None:
    """Assert that a result is right, to the precision that rounding leaves.

    Parameters
    ----------
    actual : array, or tuple of two arrays
        What your function returned.
    function : str
        Which one it is: ``"inner_product"``, ``"horizontal_projection"``, ``"riemannian_gradient"``,
        ``"riemannian_hessian"``, ``"christoffel"`` or ``"geodesic"``.
    metric : "inv" or "mix"
    *arguments
        What your function got: ``G``, ``H``, then vectors, and for a geodesic ``t`` and ``order``, as in the protocol
        of `refgeo.conformance.Backend`.
    dtype : "float64" or "float32", optional
        The precision it was computed in; default: that of `actual`.

    Raises
    ------
    AssertionError
        It does not match: by how much, where, and which common mistake gives the same numbers.
    ValueError
        The arguments do not fit, or the point is so ill-conditioned that no error could be told from rounding.

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> assert_matches(0.3125, "inner_product", "inv", 2 * one, 4 * one, one, one, one, one)
    >>> assert_matches(0.3126, "inner_product", "inv", 2 * one, 4 * one, one, one, one, one)
    Traceback (most recent call last):
    ...
    AssertionError: inner_product[inv] does not match: relative error 0.00032, where rounding explains 3.3e-15 \
(float64, κ = 1)...
    """
    __tracebackhide__ = True
    pair = function != "inner_product" and isinstance(actual, (tuple, list, Pair))
    parts = tuple(actual) if pair else (actual,)
    if dtype is None:
        single = all(np.asarray(part).dtype == np.float32 for part in parts)
        dtype = "float32" if single else "float64"
    case, one = _as_case(function, metric, arguments, dtype)
    backend = Backend(SimpleNamespace(**{function: lambda *_: actual}), name="actual")
    trial = Trial(backend, case)
    tolerance = THRESHOLD * one.unit(case)
    kappa = case.space.gauge.condition
    if np.any(tolerance > UNDECIDABLE):
        raise ValueError(
            f"{function}: at κ = {kappa.max():.1g} rounding in {dtype} explains an error of any size; test at a better "
            "conditioned point"
        )
    try:
        with np.errstate(all="ignore"):  # what overflows is no match
            errors = one.relative_errors(trial)
    except BackendFailure as failure:
        raise AssertionError(f"{function}[{metric}]: {failure}") from None
    if np.isnan(errors).any():
        raise ValueError(f"{function}: no reference value at this point; is a vector zero, or the scale extreme?")
    if np.all(errors <= tolerance):
        return
    block = np.unravel_index(np.argmax(np.log(np.maximum(errors, tolerance)) - np.log(tolerance)), errors.shape)
    where = f" in block {tuple(int(i) for i in block)}" if block else ""
    reason = diagnose(one, trial, [case], [])
    exact = case.exact_blocks[tuple(int(i) for i in block)].enclosures(one.name, lambda _: ())
    assert exact is not None  # it was judged above
    shown = [
        f"{label}: {np.array2string(np.asarray(values), precision=8, threshold=40)}"
        for index, enclosure in enumerate(exact)
        for label, values in (
            (f"expected{_suffix(index, exact)}", enclosure.mid),
            (f"actual{_suffix(index, exact)}", np.asarray(parts[index], dtype=np.float64)[block]),
        )
    ]
    raise AssertionError(
        f"{function}[{metric}] does not match: relative error {float(errors[block]):.2g}{where}, where rounding "
        f"explains {float(tolerance[block]):.2g} ({dtype}, κ = {float(kappa[block]):.2g})\n"
        f"expected: {one.statement}\ndiagnosis: {reason}\n" + "\n".join(shown)
    )


def _suffix(index: int, parts: Any) -> str:
    return f" {'GH'[index]} part" if len(parts) == 2 else ""


def _as_case(function: str, metric: str, arguments: tuple[Any, ...], dtype: str) -> tuple[Case, Check]:
    one_of("function", function, ARGUMENTS)
    one_of("metric", metric, METRICS)
    one_of("dtype", dtype, DTYPES)
    names = ["G", "H", *(f"{vector}_{part}" for vector in ARGUMENTS[function] for part in "GH")]
    expected = [*names, "t", "order"] if function == "geodesic" else names
    if len(arguments) != len(expected):
        raise ValueError(f"{function}: expected the arguments {', '.join(expected)}, got {len(arguments)} of them")
    renamed = {"riemannian_hessian": {v: f"hessian_{v}" for v in "ewv"}}.get(function, {"v": "a"})
    arrays = {}
    for name, argument in zip(expected, arguments, strict=True):
        vector, _, part = name.partition("_")
        if name != "order":
            arrays[f"{renamed.get(vector, vector)}_{part}" if part else name] = argument
    if function != "geodesic":
        return given_case("given", metric, arrays, dtype), VALUES[function]
    order = arguments[-1]
    if order == "exact" and metric == "mix":
        raise ValueError("order: an exact geodesic of mix has no closed form to compare with; expected 1 or 2")
    if isinstance(order, bool) or order not in (1, 2, "exact"):
        raise ValueError(f'order: expected 1, 2 or "exact", got {order!r}')
    one = EXACT_GEODESIC if order == "exact" else VALUES[f"geodesic_{int(order)}"]
    return given_case("given", metric, arrays, dtype), one


def _short(backend: Backend) -> str:
    return Path(backend.name).stem if backend.name.endswith(".py") else backend.name


def _expected_failure(reason: str) -> Any:
    import pytest

    return pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True)


def _skip(reason: str) -> None:
    import pytest

    pytest.skip(reason)
