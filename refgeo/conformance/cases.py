"""Test points: generated ones of many shapes, conditionings and scales, and the heads of real networks."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.errors import RankDeficientError
from refgeo.exact import Enclosure, EnclosureError, ExactTangentSpace
from refgeo.metrics.invariant import InvariantMetric
from refgeo.metrics.mixed import MixedMetric
from refgeo.metrics.pair_space import PairMetric, PairTangentSpace
from refgeo.pair import Array, Pair, transpose

METRICS: dict[str, type[PairMetric]] = {"inv": InvariantMetric, "mix": MixedMetric}

# name: leading dimensions, n, m, h
_SHAPES: dict[str, tuple[tuple[int, ...], int, int, int]] = {
    "scalar": ((), 1, 1, 1),
    "diagonal": ((20,), 1, 1, 1),
    "vectors": ((3,), 7, 4, 1),
    "square": ((), 4, 4, 4),
    "tall": ((), 10, 9, 4),
    "wide-H": ((), 5, 12, 3),
    "heads": ((4,), 25, 24, 6),
    "nested": ((2, 2), 6, 7, 2),
}
_LARGE_SHAPES: dict[str, tuple[tuple[int, ...], int, int, int]] = {
    "layer": ((12,), 65, 64, 16),
    "big-head": ((2,), 257, 256, 64),
}
_CONDITIONS = (1.0, 3.0, 10.0, 1e2, 1e3, 1e4, 1e6)
GIVEN = ("a_G", "a_H", "b_G", "b_H", "e_G", "e_H", *(f"hessian_{v}_{part}" for v in "ewv" for part in "GH"), "t")
"""The names of a case's arrays beside G and H."""

_SCALES = ((1.0, 1.0), (1e6, 1e-6), (1e-6, 1e6), (1e6, 1e6), (1e-6, 1e-6))


class InvariantLoss:
    """f(θ) = ½‖GHᵀ − Y‖²/s² per block, s the typical size of GHᵀ at `point`, and Y as far away as GHᵀ is large.

    Examples
    --------
    >>> point = Pair([[2.0]], [[3.0]])
    >>> loss = InvariantLoss(point, np.random.default_rng(0))
    >>> bool(loss.value(point) == loss.value(Pair([[1.0]], [[6.0]])))
    True
    """

    def __init__(self, point: Pair, rng: np.random.Generator) -> None:
        self.size = _typical_size(point.product)  # divided by twice rather than squared, which could overflow
        self.target = point.product - self.size * rng.standard_normal(point.product.shape)

    def value(self, place: Pair) -> Array:
        """The loss, per block."""
        return np.asarray(0.5 * np.sum(((place.product - self.target) / self.size) ** 2, axis=(-2, -1)))

    def gradient(self, place: Pair) -> Pair:
        """The Euclidean gradient (RH, RᵀG), R = (GHᵀ − Y)/s²."""
        residual = (place.product - self.target) / self.size / self.size
        return Pair._of(residual @ place.H, transpose(residual) @ place.G)

    def hessian(self, place: Pair, v: Pair) -> Pair:
        """The Euclidean Hessian applied to v."""
        residual = (place.product - self.target) / self.size / self.size
        change = (v.G @ transpose(place.H) + place.G @ transpose(v.H)) / self.size / self.size
        return Pair._of(change @ place.H + residual @ v.H, transpose(change) @ place.G + transpose(residual) @ v.G)


class ExactBlock:
    """One block of a case for the enclosures: made once, shared by all checks and runs."""

    def __init__(self, case: Case, block: tuple[int, ...]) -> None:
        self._case, self._block = case, block
        self.space = ExactTangentSpace(case.metric, *_block_of(case.point, block))
        self._vectors: dict[str, tuple[Pair, ...]] = {}
        self._enclosures: dict[str, tuple[Enclosure, ...] | None] = {}

    def vectors(self, function: str) -> tuple[Pair, ...]:
        """What `function` gets after the point; the same objects every time, which the space recognises."""
        if function not in self._vectors:
            self._vectors[function] = tuple(_block_of(v, self._block) for v in self._case.vectors(function))
        return self._vectors[function]

    def enclosures(
        self, name: str, compute: Callable[[ExactBlock], tuple[Enclosure, ...]]
    ) -> tuple[Enclosure, ...] | None:
        """The value called `name`, computed on first use; None if there is no narrow enclosure."""
        if name not in self._enclosures:
            try:
                self._enclosures[name] = compute(self)
            except EnclosureError:
                self._enclosures[name] = None
        return self._enclosures[name]


def _block_of(pair: Pair, block: tuple[int, ...]) -> Pair:
    return Pair(pair.G[block], pair.H[block])


@dataclass(frozen=True)
class Case:
    """A base point with the vectors that the checks need, all representable in the dtype under test.

    Attributes
    ----------
    name : str
        ``shape/condition/scale`` or the name of a network's block.
    metric, dtype : str
    space : PairTangentSpace
        At the base point; used for sizes and condition numbers, never for expected values.
    a, b : Pair
        Tangent vectors, neither horizontal nor vertical.
    e : Pair
        A covector, of no particular loss.
    hessian : tuple of Pair
        The Euclidean gradient of an invariant loss, its Euclidean Hessian applied to a horizontal vector, the vector.
    t : float
    seed : int
        Of the run, for whatever else a check draws.
    generated : bool
        Whether the point was generated, not taken from a network.
    """

    name: str
    metric: str
    dtype: str
    space: PairTangentSpace
    a: Pair
    b: Pair
    e: Pair
    hessian: tuple[Pair, Pair, Pair]
    t: float
    seed: int
    generated: bool = True

    def arrays(self) -> dict[str, Array | float]:
        """The point, the vectors and the time by name, as `given_case` takes them."""
        named = {"a": self.a, "b": self.b, "e": self.e}
        named |= {f"hessian_{name}": pair for name, pair in zip("ewv", self.hessian, strict=True)}
        parts = {
            f"{name}_{part}": factor for name, pair in named.items() for part, factor in zip("GH", pair, strict=True)
        }
        return {"G": self.point.G, "H": self.point.H, **parts, "t": self.t}

    def vectors(self, function: str) -> tuple[Pair, ...]:
        """What a function of a backend gets after the point."""
        given = {
            "inner_product": (self.a, self.b),
            "riemannian_gradient": (self.e,),
            "riemannian_hessian": self.hessian,
            "christoffel": (self.a, self.b),
        }
        return given.get(function, (self.a,))

    @cached_property
    def exact_blocks(self) -> dict[tuple[int, ...], ExactBlock]:
        """Every block, for enclosures."""
        return {block: ExactBlock(self, block) for block in np.ndindex(self.point.block_shape)}

    @property
    def point(self) -> Pair:
        """The base point."""
        return self.space.point


@lru_cache(maxsize=8)
def generated_cases(metric: str, profile: str, seed: int, dtype: str) -> tuple[Case, ...]:
    """The points of a profile; kept, with their enclosures, for the next run in the same process.

    Parameters
    ----------
    metric : "inv" or "mix"
    profile : "quick" or "full"
    seed : int
    dtype : "float64" or "float32"

    Returns
    -------
    tuple of Case

    Examples
    --------
    >>> generated_cases("inv", "quick", 0, "float64")[0].name
    'scalar/k1/s1,1'
    """
    return tuple(_generate(metric, profile, seed, dtype))


def _generate(metric: str, profile: str, seed: int, dtype: str) -> Iterator[Case]:
    shapes = _SHAPES if profile == "quick" else _SHAPES | _LARGE_SHAPES
    for shape_name, (batch, n, m, h) in shapes.items():
        for condition in _CONDITIONS if h > 1 else (1.0,):
            for scale_G, scale_H in _SCALES:
                name = f"{shape_name}/k{condition:g}/s{scale_G:g},{scale_H:g}"
                plain = (scale_G, scale_H) == (1.0, 1.0)
                if profile == "quick" and not plain and (shape_name not in ("tall", "vectors") or condition > 10.0):
                    continue
                if profile == "full" and shape_name in _LARGE_SHAPES and not plain:
                    continue
                rng = _case_rng(seed, name)
                point = Pair(
                    scale_G * _factor(rng, batch, n, h, condition), scale_H * _factor(rng, batch, m, h, condition)
                )
                yield make_case(name, metric, point, rng, dtype, seed)


def network_cases(blocks: Mapping[str, Pair], metric: str, seed: int, dtype: str) -> Iterator[Case]:
    """Every block of a network as a test point, with random vectors.

    Examples
    --------
    >>> blocks = {"layer.0.query_key": Pair(np.eye(3, 2), np.eye(4, 2))}
    >>> [case.name for case in network_cases(blocks, "mix", 0, "float64")]
    ['layer.0.query_key']
    """
    for name, point in blocks.items():
        try:
            METRICS[metric]().at(point)
        except RankDeficientError as error:
            raise RankDeficientError(f"{name}: {error}", error.block, error.smallest_singular_value) from error
        yield replace(make_case(name, metric, point, _case_rng(seed, name), dtype, seed), generated=False)


def _case_rng(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _factor(rng: np.random.Generator, batch: tuple[int, ...], n: int, h: int, condition: float) -> Array:
    """Random factors with singular values from 1 down to 1/condition, in random directions."""
    left = np.linalg.qr(rng.standard_normal((*batch, n, h)))[0]
    right = np.linalg.qr(rng.standard_normal((*batch, h, h)))[0]
    # Singular values that coincide would make every basis of the whole space as good as any other and hide mistakes.
    spread = max(condition, 1.0) ** (-np.linspace(0.0, 1.0, h)) * (1.0 + 0.05 * rng.standard_normal((*batch, h)))
    return np.asarray((left * spread[..., None, :]) @ np.swapaxes(right, -1, -2))


def make_case(name: str, metric: str, point: Pair, rng: np.random.Generator, dtype: str, seed: int = 0) -> Case:
    """A case at `point`, with random vectors, all rounded to `dtype`.

    Examples
    --------
    >>> make_case("mine", "inv", Pair([[2.0]], [[3.0]]), np.random.default_rng(0), "float32").point.G.item()
    2.0
    """
    return _case(name, metric, point, rng, dtype, seed, {})


def given_case(name: str, metric: str, arrays: Mapping[str, npt.ArrayLike], dtype: str, seed: int = 0) -> Case:
    """A case from named arrays: ``G``, ``H`` and any of `GIVEN`; the vectors that are missing are drawn.

    Raises
    ------
    ValueError
        An array is missing, unknown, of the wrong shape or not real.

    Examples
    --------
    >>> given_case("mine", "inv", {"G": [[2.0]], "H": [[3.0]], "a_G": [[1.0]], "a_H": [[0.0]]}, "float64").a.G.item()
    1.0
    """
    unknown = sorted(set(arrays) - {"G", "H", *GIVEN})
    if unknown:
        raise ValueError(f"point {name}: unknown array {unknown[0]!r}; expected G, H and any of {', '.join(GIVEN)}")
    if "G" not in arrays or "H" not in arrays:
        raise ValueError(f"point {name}: expected the arrays G and H, got {', '.join(sorted(arrays)) or 'nothing'}")
    try:
        point = Pair(arrays["G"], arrays["H"])
        given: dict[str, Any] = {} if "t" not in arrays else {"t": _time(arrays["t"], dtype)}
        for vector in ("a", "b", "e", "hessian_e", "hessian_w", "hessian_v"):
            parts = [arrays[f"{vector}_{part}"] for part in "GH" if f"{vector}_{part}" in arrays]
            if len(parts) == 1:
                raise ValueError(f"{vector}_G and {vector}_H go together, got one of them")
            if parts:
                given[vector] = _tangent(vector, Pair(*parts), point)
        hessian = [vector for vector in given if vector.startswith("hessian")]
        if len(hessian) not in (0, 3):
            raise ValueError(f"hessian_e, hessian_w and hessian_v go together, got {' and '.join(hessian)}")
        case = _case(name, metric, point, _case_rng(seed, name), dtype, seed, given)
        slack = 100 * np.finfo(dtype).eps * np.max(case.space.gauge.condition, initial=1.0)
        if hessian and not np.all(case.space.is_horizontal(case.hessian[2], float(slack))):
            raise ValueError(f"hessian_v: expected a horizontal vector of {metric}; use horizontal_projection")
    except ValueError as error:
        raise ValueError(f"point {name}: {error}") from error
    return case


def _time(value: npt.ArrayLike, dtype: str) -> float:
    time = np.asarray(value, dtype=dtype)
    if time.shape != () or not np.isfinite(time):
        raise ValueError(f"t: expected one finite number, got {value!r}")
    return float(time)


def _tangent(name: str, v: Pair, point: Pair) -> Pair:
    if (v.G.shape, v.H.shape) != (point.G.shape, point.H.shape):
        raise ValueError(
            f"{name}_G and {name}_H: expected the shapes of G and H, {point.G.shape} and {point.H.shape}, got "
            f"{v.G.shape} and {v.H.shape}"
        )
    if not all(np.any(v.G[i]) or np.any(v.H[i]) for i in np.ndindex(point.block_shape)):
        raise ValueError(f"{name}_G and {name}_H: a vector is zero, at which nothing can be tested")
    return v


def _case(
    name: str, metric: str, point: Pair, rng: np.random.Generator, dtype: str, seed: int, given: Mapping[str, Any]
) -> Case:
    point = representable(point, dtype)
    space = METRICS[metric]().at(point)
    drawn = {
        "a": _curvature_sized(space, _like(point, rng)),
        "b": _curvature_sized(space, _like(point, rng)),
        "e": _reciprocal(point, rng),
    }
    a, b, e = (representable(given.get(vector, drawn[vector]), dtype) for vector in "abe")
    loss = InvariantLoss(point, rng)
    # of b, not of a: the projection of a is a value that is asked for
    v = representable(given.get("hessian_v", horizontal_like(space, b, rng)), dtype)
    hessian_e = representable(given.get("hessian_e", loss.gradient(point)), dtype)
    hessian_w = representable(given.get("hessian_w", loss.hessian(point, v)), dtype)
    t = given.get("t", float(np.float32(0.7)))
    return Case(name, metric, dtype, space, a, b, e, (hessian_e, hessian_w, v), t, seed)


def _typical_size(factor: Array) -> Array:
    """Root mean square of the entries, per block."""
    largest = np.abs(factor).max(axis=(-2, -1), keepdims=True)  # whose square can overflow
    unit = np.where(largest > 0, largest, 1.0)
    return np.asarray(unit * np.sqrt(np.mean((factor / unit) ** 2, axis=(-2, -1), keepdims=True)))


def _like(point: Pair, rng: np.random.Generator) -> Pair:
    """Gaussian, with the size of each factor."""
    return Pair(*(_typical_size(factor) * rng.standard_normal(factor.shape) for factor in point))


def _reciprocal(point: Pair, rng: np.random.Generator) -> Pair:
    """Gaussian, with the reciprocal size: what the gradient of a loss of G Hᵀ looks like."""
    return Pair(*(rng.standard_normal(factor.shape) / _typical_size(factor) for factor in point))


def horizontal_like(space: PairTangentSpace, v: Pair, rng: np.random.Generator) -> Pair:
    """The horizontal part of `v`; another horizontal vector where that is next to nothing.

    Examples
    --------
    >>> space = InvariantMetric().at(Pair([[1.0]], [[1.0]]))
    >>> bool(space.is_horizontal(horizontal_like(space, space.vertical_vector([[1.0]]), np.random.default_rng(0))))
    True
    """
    part, length = space.horizontal_projection(v), space.norm(v)
    drawn = space.random_tangent_vector(rng) * length
    nearly_vertical = (space.norm(part) < 0.1 * length)[..., None, None]
    return Pair._of(*(np.where(nearly_vertical, y, x) for x, y in zip(part, drawn, strict=True)))


def _curvature_sized(space: PairTangentSpace, v: Pair) -> Pair:
    """Scaled so that Γ(v, v) is as long as v, and an error in Γ cannot hide in a geodesic."""
    bend = space.norm(space.christoffel(v))
    return v * (space.norm(v) / np.where(bend > 0, bend, 1.0))


def representable(pair: Pair, dtype: str) -> Pair:
    """Rounded to `dtype` and back to float64.

    Examples
    --------
    >>> float(representable(Pair([[0.1]], [[1.0]]), "float32").G.item() - 0.1) != 0.0
    True
    """
    return Pair(*(factor.astype(dtype).astype(np.float64) for factor in pair))
