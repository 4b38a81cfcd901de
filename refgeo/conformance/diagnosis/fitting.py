"""Find the formula that a backend computes from its results: which terms, with which coefficients, give its numbers.

Every operation is linear in each of its vectors. At a given point it is a sum of *terms*: products of G or H or a
vector, of S = GᵀG, T = HᵀH, their inverses, and of one small matrix that contains the other vectors, such as ``a_G S⁻¹
b_GᵀG``. Least squares over the values of the terms at random points give the coefficients. A formula is accepted only
if the coefficients are fractions of small numbers, and if the formula reproduces the backend's numbers to rounding at
*other* points of *other* shapes. Otherwise no formula is reported.

The smallest dictionary that explains the numbers is used. Its tiers are: the parts of a value's definition
(`definition_terms`), such as Γ(v, v); terms with small matrices of the same factor, of the other factor, and of both.
Terms of the numbers' degree in G and in H come first; the degree is exact, because rescaling by powers of two is. Last,
or if fewer terms suffice, S + εI and T + εI replace S and T, where a one-dimensional search finds ε. A geodesic is read
power by power of t, and an optimiser by its first step. The formula of a projection may be implicit: r = (v_G + GΛ, v_H
− HΛᵀ); then the linear equation for Λ is found, as the one null vector of the terms of an equation. The Hessian is
horizontal, so its terms are projected.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy  # its modules load where they are used

from refgeo.conformance.diagnosis.formulas import (
    GRAMS,
    Coefficients,
    Formula,
    SampleBatch,
    Term,
    add_epsilon,
    concatenate,
    definition_terms,
    dictionary,
    reference_functions,
    small_with,
    vector_choices,
)
from refgeo.conformance.execution.backend import Backend
from refgeo.conformance.points.scene import Scene
from refgeo.conformance.protocol.call import Call, NoResult
from refgeo.conformance.protocol.operations import OPERATIONS, VALUES, Operation, Parts, Value
from refgeo.conformance.protocol.precision import PRECISIONS, round_to_dtype
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_metrics import PAIR_METRICS, pair_metric
from refgeo.support.arguments import Array

SHAPES = (((7, 6, 3), 32), ((9, 5, 4), 3), ((5, 7, 2), 3))
"""Shapes and numbers of points: the first are for the fit, the others for validation."""
_SCALAR_FACTOR = 4
"""Factor of the number of points if a result is one number."""
_TIMES = (0.5, -0.75, 1.25, 2.0, -1.5, 0.25)
_POWERS = np.array(_TIMES)[:, None] ** np.arange(5)
_EPSILON_RANGE = (1e-13, 3.0)
"""The range in which ε is searched; chosen."""


Exact = Callable[[Array, float], list[float] | None]
"""A function that rounds fitted coefficients to numbers that people write; None if they are not near such numbers."""


class _Fitter:
    """The results of one function of a backend, at points of several shapes, and the tolerances of a fit."""

    def __init__(
        self,
        backend: Backend | None,
        operation: Operation,
        metric: str,
        dtype: str,
        relaxation: float,
        samples: Sequence[SampleBatch] = (),
    ) -> None:
        self.backend, self.operation, self.metric, self.precision = backend, operation, metric, PRECISIONS[dtype]
        self.relaxation = relaxation
        self.samples = list(samples) or [self._draw_batch(*shape, count) for shape, count in SHAPES]
        self.made: list[str] = []
        for sample in self.samples:
            functions = [reference_functions(sample.space)] * 2
            pieces = definition_terms(operation, metric, sample.space.point, sample.vectors, *functions)
            sample.vectors, self.made = sample.vectors | pieces, [*pieces]
        letters = ("", *GRAMS) if not relaxation else ("", *map(add_epsilon, GRAMS), *GRAMS)
        self.letters = letters if metric in PAIR_METRICS else (*letters, "M_G", "M_H", "M_G⁻¹", "M_H⁻¹")
        # relative error up to which terms explain numbers
        roundoff = self.precision.roundoff
        self.tolerance = float(min(2e4 * roundoff, 300.0 * roundoff**0.9, 0.02))
        self.digits = int(-np.log10(self.tolerance) + 1.5)
        self.exact: Exact = _as_fractions

    def _draw_batch(self, n: int, m: int, h: int, count: int) -> SampleBatch:
        """Draw well-conditioned points with random vectors."""
        rng, dtype = np.random.default_rng([n, m, h]), self.precision.name
        count = count * _SCALAR_FACTOR if self.operation.scalar else count
        factors = [
            np.linalg.qr(rng.standard_normal((count, rows, h)))[0]
            @ (rng.uniform(0.6, 1.7, (count, h, 1)) * np.linalg.qr(rng.standard_normal((count, h, h)))[0])
            for rows in (n, m)
        ]
        space = pair_metric(self.metric, self.relaxation).at(round_to_dtype(Pair(*factors), dtype))
        vectors = {
            name: round_to_dtype(Pair(*(0.6 * rng.standard_normal(F.shape) for F in space.point)), dtype)
            for name in self.operation.vectors
        }
        return SampleBatch(space, vectors)

    def numbers(self, sample: SampleBatch, extra: tuple[Any, ...] = ()) -> Parts:
        """Call the backend at every point of a batch."""
        assert self.backend is not None
        results = []
        pairs = [sample.space.point, *(sample.vectors[name] for name in self.operation.vectors)]
        for i in range(sample.space.point.block_shape[0]):
            arrays = [factor[i].astype(self.precision.carrier) for pair in pairs for factor in pair]
            shapes = self.operation.shapes(Pair(*arrays[:2]))
            call = Call(self.operation.name, self.metric, arrays, extra, shapes)
            results.append(self.backend.call(call).result())
        return tuple(np.array(part) for part in zip(*results, strict=True))

    def results(self, part: int) -> list[Array]:
        """Return one part of the results for each batch."""
        return [sample.results[part] for sample in self.samples]

    def explains(self, predicted: Any, numbers: Array) -> bool:
        """Return whether two arrays are equal up to rounding."""
        size = float(np.linalg.norm(numbers))
        return bool(np.linalg.norm(predicted - numbers) <= self.tolerance * size) if size else not np.any(predicted)

    def degrees(self) -> list[tuple[int, int] | None]:
        """Return the exact degrees of each part in G and in H; None for a part that has none."""
        if self.backend is None:  # those of the right formula, which a wrong one has as a rule
            right = formula_of_paper(self.operation.name, self.metric, self.relaxation)
            parts = [] if right is None else [right.G] if self.operation.scalar else [right.G, right.H]
            terms = (next(iter(part)).removeprefix("tr(").removesuffix(")") for part in parts)
            return [Term(tuple(term.split(" ")), "G").degrees for term in terms]
        sample = self.samples[0]
        results = self.numbers(sample)
        rescaled_results = [self.numbers(sample.rescale(*scales)) for scales in ((2.0, 1.0), (1.0, 2.0))]
        degrees = []
        for x, *others in zip(results, *rescaled_results, strict=True):
            sizes = [float(np.linalg.norm(y)) for y in (x, *others)]
            powers = [round(np.log2(size / sizes[0])) if all(sizes) else 0 for size in sizes[1:]]
            same = all(self.explains(2.0**power * x, y) for power, y in zip(powers, others, strict=True))
            degrees.append((powers[0], powers[1]) if same and self.metric in PAIR_METRICS else None)
        return degrees


# Least squares over terms --------------------------------------------------------------------------------------------


def _solve(columns: Array, numbers: Array, tolerance: float, exact: Exact) -> dict[int, float] | None:
    """Find exact coefficients of the columns that give the numbers; None if there are none.

    Columns come in order of preference: a column that depends on earlier ones is left out.
    """
    if not np.any(numbers):
        return {}
    sizes = np.linalg.norm(columns, axis=0)
    kept = np.flatnonzero(sizes > 0.0)
    R = np.linalg.qr(columns[:, kept] / sizes[kept], mode="r")
    kept = kept[: len(R)][np.abs(np.diagonal(R)) > 1e-7][: len(numbers) // 2]
    x = np.zeros(0)
    for _ in range(4):  # what is next to nothing beside the others is left out, and the rest fitted again
        if not len(kept):
            return None
        A = columns[:, kept] / sizes[kept]
        x = np.linalg.lstsq(A, numbers, rcond=None)[0]
        if np.linalg.norm(A @ x - numbers) > 3.0 * tolerance * np.linalg.norm(numbers):
            return None
        large = np.abs(x) > 1e-3 * np.max(np.abs(x))
        x, kept = x[large], kept[large]
        if large.all():
            break
    coefficients = exact(x / sizes[kept], tolerance)
    return None if coefficients is None else dict(zip(map(int, kept), coefficients, strict=True))


def _as_fractions(numbers: Array, tolerance: float) -> list[float] | None:
    """Round numbers to fractions with small denominators; None if they are not near such fractions."""
    max_denominator, slack = (1000, 1e-9) if tolerance < 1e-9 else (24, 0.1 / 24**2)
    fractions = [float(Fraction(float(c)).limit_denominator(max_denominator)) for c in numbers]
    close = all(abs(x - c) <= slack * max(1.0, abs(c)) for x, c in zip(fractions, numbers, strict=True))
    return fractions if close else None


def _as_decimals(numbers: Array, tolerance: float) -> list[float] | None:
    """Round numbers to decimals of few digits, as step lengths are written; None if they are not near such decimals."""
    digits = 5 if tolerance < 1e-9 else 2
    decimals = [float(f"{c:.{digits}g}") for c in numbers]
    return decimals if np.allclose(decimals, numbers, rtol=10.0**-digits / 50.0, atol=0.0) else None


def _columns(terms: Sequence[Term], sample: SampleBatch, epsilon: float) -> Array:
    """Return the values of terms as columns."""
    return np.array([term.value(sample, epsilon) for term in terms]).T


Fit = tuple[Coefficients, float]
"""Terms with coefficients, and ε."""


def _read_part(
    reader: _Fitter, results: Sequence[Array], terms: Sequence[Term], degrees: Any = None, damping: bool = True
) -> Fit | None:
    """Fit one part of the results with the smallest dictionary that explains it.

    `degrees` are those of the part, or of each part by its name, if it has any.
    """
    known = degrees if isinstance(degrees, dict) else dict.fromkeys("GH", degrees)
    definitions, products = ([term for term in terms if term.is_definition_term is flag] for flag in (True, False))
    fitting = [term for term in products if term.degrees == known[term.part]]
    single, short = ([term for term in products if term.kind == "projected" or len(term.matrices) < n] for n in (2, 3))
    tiers = [
        [*definitions, *(term for term in tier if term.sides <= sides)]
        for tier in (fitting, single, short)
        for sides in ({"own"}, {"other"}, {"own", "other"})
    ]
    if definitions:
        fit = _fit_tiers(reader, results, [[*(term for term in products if len(term.names) == 1), *definitions]])
        if fit is not None:
            return fit
    fit_plain = _fit_tiers(reader, results, tiers)
    if not damping or (fit_plain is not None and None not in known.values()):
        return fit_plain
    fit_shifted = _fit_with_epsilon(reader, results, tiers[6:])  # e_G S + ½ e_G, which has no degree, is e_G S_ε
    return min(filter(None, (fit_plain, fit_shifted)), key=lambda fit: len(fit[0]), default=None)


def _fit_tiers(reader: _Fitter, results: Sequence[Array], tiers: Sequence[list[Term]]) -> Fit | None:
    """Fit the first tier of terms that explains the results."""
    for tier in filter(None, tiers):
        fit = _fit_exactly(reader, results, tier, reader.relaxation)
        if fit is not None:
            return fit, reader.relaxation * any("ε" in term for term in fit)
    return None


def _fit_with_epsilon(reader: _Fitter, results: Sequence[Array], tiers: Sequence[list[Term]]) -> Fit | None:
    """Fit terms with one Gram matrix plus εI.

    To first order, ε adds a term with T⁻¹T⁻¹ to T⁻¹, and a term with I to T.
    """
    for tier in tiers:
        plain = [term for term in tier if len(term.matrices) == 1 and term.matrices[0] in GRAMS]
        fit = _fit_exactly(reader, results, plain, 0.0) if plain else None
        if fit is not None:  # so an ε would not be seen
            return fit, 0.0
        shifted = [term.with_epsilon() for term in plain]
        epsilon = _find_epsilon(reader.samples[0], results[0], shifted) if shifted else 0.0
        fit = _fit_exactly(reader, results, shifted, epsilon) if epsilon else None
        if fit is not None:
            return fit, epsilon
    return None


def _fit_exactly(reader: _Fitter, results: Sequence[Array], terms: list[Term], epsilon: float) -> Coefficients | None:
    """Fit coefficients on the first batch, and validate them on the others."""
    fit = _solve(_columns(terms, reader.samples[0], epsilon), results[0].ravel(), reader.tolerance, reader.exact)
    if fit is None:
        return None
    for sample, part in zip(reader.samples[1:], results[1:], strict=True):
        if not reader.explains(sum(c * terms[i].value(sample, epsilon) for i, c in fit.items()), part.ravel()):
            return None
    return {str(terms[i]): c for i, c in fit.items()}


def _find_epsilon(sample: SampleBatch, part: Array, terms: list[Term]) -> float:
    """Return the ε of S + εI and T + εI for which least squares over the terms fits the results best."""

    def misfit(x: float) -> float:
        columns = _columns(terms, sample, 10.0**x)
        columns = columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
        fit = np.linalg.lstsq(columns, part.ravel(), rcond=1e-9)[0]
        return float(np.linalg.norm(columns @ fit - part.ravel()))

    low, high = np.log10(_EPSILON_RANGE[0]), np.log10(_EPSILON_RANGE[1])
    grid = np.linspace(low, high, 40)
    best, step = float(grid[int(np.argmin([misfit(x) for x in grid]))]), (high - low) / 39
    bounds = (best - step, best + step)
    optimum = scipy.optimize.minimize_scalar(misfit, bounds=bounds, method="bounded", options={"xatol": 1e-13})
    short = float(f"{10.0**optimum.x:.4g}")  # what somebody has written
    return short if misfit(np.log10(short)) <= 2.0 * optimum.fun else float(10.0**optimum.x)


# Each kind of result -------------------------------------------------------------------------------------------------


def _make_formula(reader: _Fitter, fits: Sequence[Fit | None], **options: Any) -> Formula | None:
    """Return the formula of the G and H parts of a result, or None unless both were fitted."""
    if None in fits:
        return None
    (G, of_G), (H, of_H) = (fit for fit in fits if fit is not None)
    return Formula(G, H, epsilon=max(of_G, of_H), digits=reader.digits, **options)


def _fit_parts(reader: _Fitter, damping: bool = True) -> Formula | None:
    """Fit a formula to the results: to the G and H parts of a vector one by one, to a number all terms at once."""
    scalar, fits = reader.operation.scalar, []
    for i, degrees in enumerate(reader.degrees()):
        terms = [
            term
            for vectors in vector_choices(reader.operation.vectors)
            for part in ("GH" if scalar else "GH"[i])
            for term in dictionary(part, vectors, reader.letters, "trace" if scalar else "tall")
        ]
        fits.append(_read_part(reader, reader.results(i), terms, degrees, damping))
    if scalar and fits[0] is not None:
        fitted, epsilon = fits[0]
        fits = [({term: c for term, c in fitted.items() if term.endswith(f"{part})")}, epsilon) for part in "GH"]
    return _make_formula(reader, fits)


def _fit_projection(reader: _Fitter) -> Formula | None:
    """Fit a projection explicitly, by an implicit equation, or with ε."""
    return _fit_parts(reader, damping=False) or _fit_implicit_equation(reader) or _fit_parts(reader)


def _fit_implicit_equation(reader: _Fitter) -> Formula | None:
    """Fit a projection by means of Λ, the solution of a Sylvester equation, and fit this equation; None if either
    fails.
    """
    (v,) = reader.operation.vectors
    for sample in reader.samples:
        L = np.linalg.pinv(sample.factor("G")) @ (sample.results[0] - sample.factor(f"{v}_G"))
        sample._cached["Λ", 0.0], sample._cached["Λᵀ", 0.0] = L, L.mT
    fits = []
    for i, part in enumerate("GH"):
        terms = [Term((f"{v}_{part}",), part), Term((part, "Λ"), part), Term((part, "Λᵀ"), part)]
        fits.append(_fit_exactly(reader, reader.results(i), terms, 0.0))
    for products in (_equation(v, reader.letters), _any_equation(v)):
        relation = _null_vector(reader, [Term(names, "G") for names in products])
        if relation is not None and any("Λ" in term for term in relation):
            return _make_formula(reader, [None if fit is None else (fit, 0.0) for fit in fits], relation=relation)
    return None


def _equation(v: str, letters: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the products in an equation for Λ, all of one degree."""
    if "M_G" in letters:  # S Λ M_G + M_H Λ T, between inv and mix
        weights = ("M_G", "M_H")
        products = [names for M in weights for N in ("S", "T") for names in ((M, "Λ", N), (N, "Λ", M))]
        return products + [names for M in weights for C in small_with(v) for names in ((M, C), (C, M))]
    of_G, of_H = ([name for name in letters if name[:1] == kind and "⁻¹" not in name] for kind in "ST")
    pairs = [pair for S, T in itertools.product(of_G, of_H) for pair in ((S, T), (T, S))]
    products = [names for M, N in pairs for names in ((M, N, "Λᵀ"), (M, "Λᵀ", N), ("Λᵀ", M, N))]
    partners = {"G": of_H, "H": of_G}
    return products + [names for C in small_with(v) for M in partners[C[-1]] for names in ((M, C), (C, M))]


def _any_equation(v: str) -> list[tuple[str, ...]]:
    """Return products of all degrees up to two Gram matrices."""
    pairs = itertools.product(("", "S", "T"), repeat=2)
    products = [names for M, N in pairs for names in ((M, N, "Λᵀ"), (M, "Λᵀ", N), ("Λᵀ", M, N))]
    products += [(M, C, N) for C in small_with(v) for M, N in (("", ""), ("S", ""), ("T", ""), ("", "S"), ("", "T"))]
    return list(dict.fromkeys(tuple(filter(None, names)) for names in products))


def _null_vector(reader: _Fitter, terms: list[Term]) -> Coefficients | None:
    """Return the unique combination of terms that vanishes, as fractions of which one is 1; None if there is none."""
    A = _columns(terms, reader.samples[0], reader.relaxation)
    sizes, slack = np.maximum(np.linalg.norm(A, axis=0), 1e-300), 100.0 * reader.tolerance
    _, s, V = np.linalg.svd(A / sizes, full_matrices=False)
    if not s[-1] <= slack * s[0] < 1e3 * slack * s[0] < s[-2]:
        return None
    c = V[-1] / sizes
    c = c / np.max(np.abs(c))
    exact = _as_fractions(c / c[np.argmax(np.abs(c) > 1e-3)], max(reader.tolerance, 1e-8))
    if exact is None:
        return None
    for sample in reader.samples:
        A = _columns(terms, sample, reader.relaxation) * exact
        if np.linalg.norm(np.sum(A, axis=1)) > slack * np.linalg.norm(A):
            return None
    return {str(term): c for term, c in zip(terms, exact, strict=True) if c}


def _fit_hessian(reader: _Fitter) -> Formula | None:
    """Fit both parts of a Hessian: terms of w, and of e and v together, unprojected or projected."""
    e, w, v = reader.operation.vectors
    degrees = dict(zip("GH", reader.degrees(), strict=True))

    def terms(part: str, kind: str) -> list[Term]:
        candidates = [*dictionary(part, [w], reader.letters), *dictionary(part, [e, v], reader.letters)]
        return [Term((f"{name}_{part}",), part, kind) for name in reader.made] + [
            Term(x.names, part, kind)
            for x in candidates
            if (x.names[0] != part or f"{e}_" in str(x)) and (degrees[part] is not None or len(x.matrices) < 3)
        ]

    fits = [_read_part(reader, reader.results(i), terms(part, "tall"), degrees, False) for i, part in enumerate("GH")]
    if None not in fits:
        return _make_formula(reader, fits)
    both = [term for part in "GH" for term in terms(part, "projected")
            if term.is_definition_term or degrees[part] in (None, term.degrees)]  # fmt: skip
    fit = _read_part(reader, [concatenate(sample.results) for sample in reader.samples], both, degrees, False)
    if fit is None:
        return None
    split = [{term: c for term, c in fit[0].items() if term.split(" ")[0][-1] == part} for part in "GH"]
    return _make_formula(reader, [(x, 0.0) for x in split], projected=True)


_SPECIAL_FITS = {"horizontal_projection": _fit_projection, "riemannian_hessian": _fit_hessian}


def _fit_curve(reader: _Fitter, order: Any) -> Formula | None:
    """Fit the coefficient of every power of t."""
    rest = (order,) if "order" in reader.operation.extra else ()
    series = []
    for sample in reader.samples:
        points = [np.stack(parts) for parts in zip(*(reader.numbers(sample, (t, *rest)) for t in _TIMES), strict=True)]
        powers = [np.tensordot(np.linalg.pinv(_POWERS), point, 1) for point in points]
        if not all(reader.explains(np.tensordot(_POWERS, x, 1), y) for x, y in zip(powers, points, strict=True)):
            return None
        series.append(powers)
    (v,) = reader.operation.vectors
    fits: list[Fit] = [({}, 0.0), ({}, 0.0)]
    for (i, part), power in itertools.product(enumerate("GH"), range(_POWERS.shape[1])):
        numbers = [s[i][power] for s in series]
        if np.linalg.norm(numbers[0]) <= 30.0 * reader.tolerance * np.linalg.norm(series[0][i]):
            continue
        terms = [Term((f"{name}_{part}",), part) for name in reader.made]
        terms += [term for vectors in ([], [v], [v, v]) for term in dictionary(part, vectors, reader.letters)]
        fit = _read_part(reader, numbers, terms)
        if fit is None:
            return None
        time = ("", "t ", "t² ", "t³ ", "t⁴ ")[power]
        fits[i] = {**fits[i][0], **{time + term: c for term, c in fit[0].items()}}, max(fits[i][1], fit[1])
    return _make_formula(reader, fits)


def _fit_point_of_curve(reader: _Fitter, times: Sequence[float]) -> Formula | None:
    """Fit a point of a curve with θ, tv and t²Γ(v, v)."""
    for sample, t in zip(reader.samples, times, strict=True):
        sample.vectors |= {"t v": t * sample.vectors["v"], "t² Γ(v,v)": t * t * sample.vectors["Γ(v,v)"]}
    terms = {part: [Term((name,), part) for name in (part, f"t v_{part}", f"t² Γ(v,v)_{part}")] for part in "GH"}
    fits = [_fit_exactly(reader, reader.results(i), terms[part], 0.0) for i, part in enumerate("GH")]
    return _make_formula(reader, [None if fit is None else (fit, 0.0) for fit in fits])


def fit_step(samples: Sequence[SampleBatch], dtype: str) -> Formula | None:
    """Fit the formula of an optimiser's step to changes of the factors; None if no terms explain them."""
    reader = _Fitter(None, OPERATIONS["riemannian_gradient"], "mix", dtype, 0.0, samples)
    reader.exact = _as_decimals
    fits: list[Fit | None] = []
    for i, part in enumerate("GH"):
        terms = [term for vectors in ([], ["e"]) for term in dictionary(part, vectors, reader.letters)]
        change = _read_part(reader, reader.results(i), terms)
        fits.append(change and ({part: 1.0 + change[0].pop(part, 0.0), **change[0]}, change[1]))
    return _make_formula(reader, fits)


def read_one(
    backend: Backend, name: str, metric: str, dtype: str = "float64", relaxation: float = 0.0
) -> Formula | None:
    """Fit the formula of one value (``"geodesic_2"``) or function; None if no terms explain its numbers."""
    reader = _Fitter(backend, OPERATIONS[function_of(name)], metric, dtype, relaxation)
    with np.errstate(all="ignore"):
        if reader.operation.extra:
            return _fit_curve(reader, VALUES[name].order if name in VALUES else None)
        for sample in reader.samples:
            sample.results = reader.numbers(sample)
            if not all(np.isfinite(part).all() for part in sample.results):
                return None
        return _SPECIAL_FITS.get(reader.operation.name, _fit_parts)(reader)


def read_at(value: Value, scenes: Sequence[Scene], results: Iterable[Parts]) -> Formula | None:
    """Fit a formula to the results at several points; return None if none of them fits, or if they cannot tell.

    They cannot tell for numbers, which are fewer than the terms of a formula, and if a part of a vector is zero at all
    of the points, so that nobody sees whether its terms are missing.
    """
    scene = scenes[0]
    inputs = [[factor for pair in x.inputs(value.operation) for factor in pair] for x in scenes]
    is_seen = all(any(map(np.any, factors)) for factors in zip(*inputs, strict=True))
    if value.operation.scalar or scene.metric not in PAIR_METRICS or scene.point.sizes[2] < 2 or not is_seen:
        return None
    samples = [_flat_sample(value, *x) for x in zip(scenes, results, strict=True)]
    reader = _Fitter(None, value.operation, scene.metric, scene.dtype, scene.relaxation, samples)
    with np.errstate(all="ignore"):
        if value.operation.extra:
            return _fit_point_of_curve(reader, [x.time(value) for x in scenes])
        return _SPECIAL_FITS.get(value.name, _fit_parts)(reader)


def _flat_sample(value: Value, scene: Scene, result: Parts) -> SampleBatch:
    """Make a `SampleBatch` of the blocks of one test point, with the backend's results there."""

    def flatten(pair: Iterable[Array]) -> Pair:
        return Pair.unchecked(*(x.reshape(-1, *x.shape[-2:]) for x in pair))

    inputs = map(flatten, scene.inputs(value.operation))
    vectors = dict(zip(value.operation.vectors, inputs, strict=True))
    return SampleBatch(scene.space.metric.at(flatten(scene.point)), vectors, tuple(flatten(result)))


@cache
def formula_of_paper(name: str, metric: str, relaxation: float = 0.0) -> Formula | None:
    """Fit the formula of `refgeo.paper`, in the same way; None if there is none."""
    from refgeo import paper

    function = function_of(name)
    relaxed = SimpleNamespace(**{function: lambda *a: getattr(paper, function)(*a, relaxation=relaxation)})
    try:
        return read_one(Backend(relaxed, "paper"), name, metric, relaxation=relaxation)
    except NoResult:
        return None


def function_of(name: str) -> str:
    """Return the function of a value."""
    return VALUES[name].operation.name if name in VALUES else name
