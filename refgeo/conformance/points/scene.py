"""A test point: a base point with vectors, its right results, and the attainable accuracy there."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from refgeo.conformance.points.features import MAX_ENCLOSED_SIZE, MAX_INTEGRATED_COLUMNS, Features, enclosed_size
from refgeo.conformance.points.sampling import draw_factors, draw_vectors, rng_of
from refgeo.conformance.points.visibility import EXACT_PATH, least_exact_path
from refgeo.conformance.protocol.call import Call
from refgeo.conformance.protocol.operations import COVECTORS, VECTORS, Operation, Parts, Value
from refgeo.conformance.protocol.precision import PRECISIONS, Precision, round_to_dtype
from refgeo.exact import Enclosure, EnclosureError, ExactTangentSpace
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_metrics import pair_metric
from refgeo.geometry.pair_space import PairTangentSpace, relative_speed
from refgeo.support.arguments import ENDS, Array, number
from refgeo.support.errors import about

ARRAY_NAMES = (*(f"{vector}_{part}" for vector in VECTORS for part in "GH"), "t")
"""The names of a point's arrays in addition to G and H."""
N_SIZES = 5
"""Number of different sizes of sign-flipped points."""
_MAX_PATH = 8.0
"""The length of an exact geodesic in closed form, relative to the factors, up to which it is enclosed; chosen."""
_MAX_EFFORT = 1.0
"""The effort of the integration of an exact geodesic that takes a short time; measured."""
_ENCLOSURE_LOCK = threading.Lock()
"""Held while enclosures are computed, because the precision of python-flint is global to the process."""


@dataclass(frozen=True)
class Scene:
    """A base point with the vectors that the operations need, all rounded to the dtype under test.

    Attributes
    ----------
    name : str
    metric, dtype : str
    space : PairTangentSpace
        The tangent space at the base point, for sizes and condition numbers, and as a pseudo-oracle.
    vectors : dict of Pair
        ``a, b, v`` tangent vectors, ``e`` a covector of no particular loss; ``hessian_e, hessian_w, hessian_v`` the
        Euclidean gradient of an invariant loss, its Euclidean Hessian applied to a horizontal vector, the vector.
    t : float
    seed : int
        The seed of the run, for further random numbers.
    features : Features, optional
        The features from which it was generated.
    """

    name: str
    metric: str
    dtype: str
    space: PairTangentSpace
    vectors: dict[str, Pair]
    t: float
    seed: int = 0
    features: Features | None = None
    _cache: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def cached(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the value of a key, which is made once."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    @property
    def point(self) -> Pair:
        """The base point."""
        return self.space.point

    @property
    def shape(self) -> tuple[int, ...]:
        """The leading dimensions."""
        return self.point.block_shape

    @property
    def sizes(self) -> tuple[int, ...]:
        """n, m, h, and the number of blocks."""
        return (*self.point.sizes, math.prod(self.shape))

    @property
    def precision(self) -> Precision:
        """The precision of the arrays that the backend gets."""
        return PRECISIONS[self.dtype]

    @property
    def relaxation(self) -> float:
        """ε of the geometry with which results are compared."""
        return float(self.space.metric.relaxation)

    @property
    def has_generic_vectors(self) -> bool:
        """Whether the vectors are random and not zero."""
        return self.features is None or self.features.has_generic_vectors

    @property
    def is_generic(self) -> bool:
        """Whether the point has no special level."""
        return self.features is None or self.features.is_generic

    @cached_property
    def entries(self) -> int:
        """The number of entries of the base point."""
        return int(self.point.G.size + self.point.H.size)

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a generator that depends on the point and the purpose only."""
        return rng_of(self.seed, f"{self.name} {purpose}")

    def inputs(self, operation: Operation) -> list[Pair]:
        """Return the vectors that an operation gets after the point."""
        return [self.vectors[name] for name in operation.sources]

    def arrays(self) -> dict[str, Any]:
        """Return the point, the vectors and the time by name, as `from_arrays` takes them."""
        parts = {f"{name}_{part}": x for name, pair in self.vectors.items() for part, x in zip("GH", pair, strict=True)}
        return {"G": self.point.G, "H": self.point.H, **parts, "t": self.t}

    # What is asked there

    def call(self, value: Value, vectors: Iterable[Pair] | None = None, t: float | None = None) -> Call:
        """Return the call for a value; a vector that is given twice is the same array twice."""
        operation = value.operation

        def make() -> Call:
            pairs = [self.point, *(self.inputs(operation) if vectors is None else vectors)]
            factors, carrier = [factor for pair in pairs for factor in pair], self.precision.carrier
            converted = {id(factor): factor.astype(carrier, copy=False) for factor in factors}
            for array in converted.values():
                array.flags.writeable = False  # so that it is sent to a backend's process once
            return Call(
                operation.name, self.metric, [converted[id(factor)] for factor in factors],
                value.extra(self.time(value) if t is None else t), operation.shapes(self.point), self.precision.dtypes,
            )  # fmt: skip

        call: Call = self.cached(("call", value.name), make) if vectors is None and t is None else make()
        return call

    # What is right there

    def enclosures(self, value: Value, block: tuple[int, ...]) -> tuple[Enclosure, ...] | None:
        """Return the enclosures of one block; None if there is no narrow enclosure."""
        block = tuple(map(int, block))

        def enclose() -> tuple[Enclosure, ...] | None:
            G, H = _select_block(self.point, block)
            space = self.cached(("exact", block), lambda: ExactTangentSpace(self.space.metric.s, G, H, self.relaxation))
            vectors = [_select_block(vector, block) for vector in self.inputs(value.operation)]
            try:
                with _ENCLOSURE_LOCK:
                    return value.expected(space, vectors, self.time(value))
            except EnclosureError:
                return None

        enclosures: tuple[Enclosure, ...] | None = self.cached(("enclosure", value.name, block), enclose)
        return enclosures

    def midpoints(self, value: Value, block: tuple[int, ...]) -> Parts | None:
        """Return the midpoints of the enclosures of one block, and zeros for all others; None without enclosures."""
        enclosures = self.enclosures(value, block)
        if enclosures is None:
            return None
        parts = tuple(np.zeros((*self.shape, *x.mid.shape)) for x in enclosures)
        for part, enclosure in zip(parts, enclosures, strict=True):
            part[block] = enclosure.mid
        return parts

    def reference(self, value: Value) -> Parts | None:
        """Return the value by the factorised route, in double precision, with integrated exact geodesics if they have
        no closed form; None without such a route.
        """
        if not hasattr(self.space, value.operation.name):
            return None

        def compute() -> Parts | None:
            with np.errstate(all="ignore"):
                try:
                    function = getattr(self.space, value.operation.name)
                    parts = function(*self.inputs(value.operation), *value.extra(self.time(value)))
                except (ValueError, ArithmeticError):
                    return None
                return tuple(parts) if isinstance(parts, Pair) else (np.asarray(parts),)

        parts: Parts | None = self.cached(("reference", value.name), compute)
        return parts

    @property
    def is_closed(self) -> bool:
        """Whether exact geodesics have a closed form for any velocity."""
        return self.relaxation == 0.0 and (self.metric == "inv" or self.point.sizes[2] == 1)

    @cached_property
    def _speed(self) -> float:
        """The speed of the geodesic relative to the factors, in the block in which it is largest."""
        return float(np.max(relative_speed(self.space, self.vectors["v"]), initial=0.0))

    @cached_property
    def _max_time(self) -> float:
        """The largest time up to which an exact geodesic is enclosed in a short time."""
        h = self.point.sizes[2]
        if self._speed == 0.0 or self.is_closed:
            return _MAX_PATH / self._speed if self._speed else math.inf
        is_long = self.enclosed_size > MAX_ENCLOSED_SIZE or h > MAX_INTEGRATED_COLUMNS
        if is_long or self.space.metric.s not in (0.0, 1.0):
            return 0.0
        # of bend = κ·t·speed, it takes about 20 bend steps of h²/400 s; beyond 3.5 − h/4, its boxes grow too fast
        kappa, blocks = float(np.max(self.condition, initial=1.0)), math.prod(self.shape)
        usual = min(1.0, (3.5 - h / 4) / kappa, (24.0 if self.is_generic else 12.0) / (blocks * h * h * kappa))
        if usual >= abs(self.t) * self._speed or self.features is None:
            return usual / self._speed
        return min(usual, _MAX_EFFORT / (blocks * h * h * kappa)) / self._speed

    def time(self, value: Value) -> float:
        """Return the time of a value; that of an exact geodesic of a generated point may differ from the point's own.

        In inv, whose geodesics have a closed form and do not end, it is changed so that errors of integrators are seen;
        otherwise, so that an enclosure takes a short time.
        """
        if value.order != "exact" or self.features is None or not 0.0 < self._speed < math.inf:
            return self.t
        t = abs(self.t)
        if not self.is_closed:
            t = min(self._max_time or t, t)  # 0: it is not enclosed at all, which `can_be_enclosed` says
        elif self.metric == "inv":
            is_long = t * self._speed > _MAX_PATH
            t = EXACT_PATH / self._speed if is_long else max(least_exact_path(self.features) / self._speed, t)
        return math.copysign(t, self.t)

    def can_be_enclosed(self, value: Value) -> bool:
        """Return whether the enclosure of a value takes a short time."""
        return value.order != "exact" or abs(self.time(value)) <= self._max_time

    @cached_property
    def enclosed_size(self) -> int:
        """The `enclosed_size` of a block."""
        return enclosed_size(*self.point.sizes)

    # What may be lost there

    def size(self, value: Value) -> Array:
        """Return the scale of a value per block: the size of its terms before they cancel."""

        def compute() -> Array:
            with np.errstate(all="ignore"):
                return np.asarray(value.size(self.space, self.inputs(value.operation), self.time(value)))

        size: Array = self.cached(("size", value.name), compute)
        return size

    @cached_property
    def condition(self) -> Array:
        """κ, the larger condition number of the factors, per block; between inv and mix that of G Hᵀ.

        A metric between them depends on powers of the singular values of G Hᵀ.
        """
        gauge = self.space.gauge
        return np.asarray(gauge.condition if self.space.metric.s in (0.0, 1.0) else gauge.condition_of_product)

    @cached_property
    def length_ratio(self) -> Array:
        """The ratio of the lengths of a and b, at least 1, per block; 1 if one of them is zero."""
        a, b = (self.space.norm(self.vectors[name]) for name in "ab")
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.where((a > 0.0) & (b > 0.0), np.maximum(a, b) / np.minimum(a, b), 1.0))

    def is_in_range(self, factors: float) -> bool:
        """Return whether products of this number of factors, vectors and a time stay within the range of the dtype."""
        return bool(factors * self._log_sizes[0] + self._log_sizes[1] <= np.log(self.precision.largest))

    @cached_property
    def _log_sizes(self) -> tuple[float, float]:
        """|log| of the largest entries of the factors, and how much vectors and the time add to it."""

        def largest(pair: Pair) -> list[Array]:
            return [np.abs(factor).max(axis=(-2, -1)) for factor in pair]

        sizes = largest(self.point)
        of_point = max(float(np.max(np.abs(np.log(size)), initial=0.0)) for size in sizes)
        of_vectors = 0.0
        for name, vector in self.vectors.items():
            for part, size in zip(largest(vector), sizes, strict=True):
                with np.errstate(divide="ignore", over="ignore", under="ignore"):
                    ratios = np.log(part) + (np.log(size) if name in COVECTORS else -np.log(size))
                of_vectors = max(of_vectors, float(np.max(np.abs(ratios[np.isfinite(ratios)]), initial=0.0)))
        return of_point, 4.0 * max(0.0, of_vectors - 12.0) + 4.0 * float(np.log(max(abs(self.t), 1.0)))

    def length(self, parts: Parts) -> Array:
        """Return the length of a vector in the metric, or the absolute value of a number; infinite unless finite."""
        if len(parts) == 1:
            return np.where(np.isfinite(parts[0]), np.abs(parts[0]), np.inf)
        finite: Any = True
        if not all(np.isfinite(part).all() for part in parts):
            finite = np.all([np.isfinite(part).all(axis=(-2, -1)) for part in parts], axis=0)
            parts = tuple(np.where(np.isfinite(part), part, 0.0) for part in parts)
        lengths = self.space.norm(Pair.unchecked(*(part[...] for part in parts)))
        return np.where(finite & np.isfinite(lengths), lengths, np.inf)

    # Other scenes

    def map_factors(self, change: Callable[[Array], Array]) -> Scene:
        """Apply a function to all factors of the point and of the vectors."""
        mapped: dict[int, Pair] = {}
        for pair in (self.point, *self.vectors.values()):
            mapped.setdefault(id(pair), Pair(*map(change, pair)))
        vectors = {key: mapped[id(pair)] for key, pair in self.vectors.items()}
        space = self.space.metric.at(mapped[id(self.point)])
        return replace(self, space=space, vectors=vectors)

    def with_features(self, features: Features) -> Scene:
        """Generate a point with these features, in this point's metric and the run's precision."""
        dtype = "float64" if self.features is not None and self.features.single else self.dtype
        return generate(features, self.metric, dtype, self.seed, self.relaxation)

    def sign_flipped(self, k: int, size: int = 0) -> Scene:
        """Return the point with some rows of all arrays negated, those whose bit is set in k, and a power of two as a
        factor.

        The exponent of two is chosen by `size`. The result is as well-conditioned as this point, and has other contents
        and lengths.
        """

        def flip(x: Array) -> Array:
            rows = np.arange(min(x.shape[-2], 30))
            bits = 1 + (k - 1) % (2 ** len(rows) - 1)
            x = 2.0 ** (size % N_SIZES - N_SIZES // 2) * x
            x[..., rows[bits >> rows & 1 == 1], :] *= -1.0
            return x

        flipped: Scene = self.cached(("turned", k, size), lambda: self.map_factors(flip))
        return flipped

    def perturb(self, t: float, k: int) -> Scene:
        """Return the k-th of several points at which all inputs, and the time t, are changed at random by one unit in
        the last place.
        """
        rng, perturb = self.rng(f"perturbation {k}"), self.precision.perturb

        def make() -> Scene:
            scene = self.map_factors(lambda x: perturb(x, rng))
            return replace(scene, t=float(perturb(np.array(t), rng)), features=None)

        perturbed: Scene = self.cached(("perturbed", t, k), make)
        return perturbed

    def in_metric(self, metric: str) -> Scene:
        """Return the same point and vectors in another metric, in which vectors need not be horizontal."""
        return replace(self, metric=metric, space=pair_metric(metric, self.relaxation).at(self.point))

    @property
    def other_metric(self) -> str:
        """The other one of the paper's two metrics."""
        return next(metric for metric in ENDS if metric != self.metric)

    def first_blocks(self, count: int, rows: int | None = None) -> Scene:
        """Return the first blocks of a larger batch, with all leading dimensions, and their first rows."""
        if math.prod(self.shape) <= count and (rows is None or rows >= max(self.point.sizes[:2])):
            return self
        counts: list[int] = []
        for i, size in reversed([*enumerate(self.shape)]):
            counts.insert(0, min(size, count // math.prod(counts), 2 if i else count))
        selection = (*map(slice, counts), slice(rows))
        part: Scene = self.cached(("first", count, rows), lambda: self.map_factors(lambda x: x[selection]))
        return part


def _select_block(pair: Pair, block: tuple[int, ...]) -> Pair:
    """Return one block of a pair."""
    return Pair.unchecked(pair.G[block], pair.H[block])


# From features -------------------------------------------------------------------------------------------------------


def generate(features: Features, metric: str, dtype: str, seed: int = 0, relaxation: float = 0.0) -> Scene:
    """Generate the point with these features, with its vectors.

    Examples
    --------
    >>> generate(Features(h=2), "inv", "float32").name
    '5x4x2/k3'
    """
    rng, dtype = rng_of(seed, features.name), "float32" if features.single else dtype
    point = round_to_dtype(draw_factors(features, rng), dtype)
    _refuse_extremes(point)
    space = pair_metric(metric, relaxation).at(point)
    t = float(features.t)
    vectors = _round_vectors(draw_vectors(space, features, rng, t), dtype)
    return Scene(features.name, metric, dtype, space, vectors, t, seed, features)


def _round_vectors(vectors: Mapping[str, Pair], dtype: str) -> dict[str, Pair]:
    """Round vectors to the dtype; vectors that are the same object stay the same."""
    rounded = {id(pair): round_to_dtype(pair, dtype) for pair in vectors.values()}
    return {key: rounded[id(pair)] for key, pair in vectors.items()}


# From somebody's arrays -----------------------------------------------------------------------------------------------


def from_arrays(
    name: str, arrays: Mapping[str, npt.ArrayLike], metric: str, dtype: str, seed: int = 0, relaxation: float = 0.0
) -> Scene:
    """Make a point of named arrays: ``G``, ``H`` and any of `ARRAY_NAMES`; missing vectors are drawn at random.

    An entry ``metric`` is ignored.

    Raises
    ------
    ValueError
        An array is missing, unknown, of the wrong shape or not real.

    Examples
    --------
    >>> arrays = {"G": [[2.0]], "H": [[3.0]], "a_G": [[1.0]], "a_H": [[0.0]]}
    >>> from_arrays("mine", arrays, "inv", "float64").vectors["a"].G.item()
    1.0
    """
    unknown = sorted(set(arrays) - {"G", "H", "metric", *ARRAY_NAMES})
    if unknown:
        raise ValueError(
            f"point {name}: unknown array {unknown[0]!r}; expected G, H and any of {', '.join(ARRAY_NAMES)}"
        )
    if "G" not in arrays or "H" not in arrays:
        raise ValueError(f"point {name}: expected the arrays G and H, got {', '.join(sorted(arrays)) or 'nothing'}")
    with about(f"point {name}"):
        point = Pair(arrays["G"], arrays["H"])
        vectors = _read_vectors(point, arrays)
        t = float(PRECISIONS[dtype].round(np.array(number("t", arrays.get("t", Features.t)))))
        point = round_to_dtype(point, dtype)
        _refuse_extremes(point)
        space = pair_metric(metric, relaxation).at(point)
        random_vectors = draw_vectors(space, Features(point.block_shape), rng_of(seed, name), t)
        if "a" in vectors:
            vectors.setdefault("v", vectors["a"])
        scene = Scene(name, metric, dtype, space, _round_vectors(random_vectors | vectors, dtype), t, seed)
        slack = 200 * PRECISIONS[dtype].roundoff * np.max(scene.condition, initial=1.0)
        if "hessian_v" in vectors and not np.all(space.is_horizontal(scene.vectors["hessian_v"], float(slack))):
            raise ValueError(f"hessian_v: expected a horizontal vector of {metric}; horizontal_projection makes one")
    return scene


def _read_vectors(point: Pair, arrays: Mapping[str, npt.ArrayLike]) -> dict[str, Pair]:
    """Return the vectors that are given, checked."""
    read = {}
    for vector in VECTORS:
        parts = [arrays[f"{vector}_{part}"] for part in "GH" if f"{vector}_{part}" in arrays]
        if len(parts) == 1:
            raise ValueError(f"expected both {vector}_G and {vector}_H, or neither, got one of them")
        if parts:
            read[vector] = point.require_shapes(f"{vector}_G and {vector}_H", Pair(*parts))
    hessian = [vector for vector in read if vector.startswith("hessian")]
    if len(hessian) not in (0, 3):
        raise ValueError(f"expected all of hessian_e, hessian_w and hessian_v, or none, got {' and '.join(hessian)}")
    if "a" in read and "b" in read and all(np.array_equal(x, y) for x, y in zip(read["a"], read["b"], strict=True)):
        same = all(arrays[f"a_{part}"] is arrays[f"b_{part}"] for part in "GH")
        read["b"] = read["a"] if same else read["b"]
    return read


def _refuse_extremes(point: Pair) -> None:
    """Raise an error if a factor is empty, or if products of its entries could leave the range of double precision."""
    for part, factor in zip("GH", point, strict=True):
        size = np.abs(factor).max(initial=0.0)
        if factor.size == 0:
            raise ValueError(f"{part}: expected at least one number, got the empty shape {factor.shape}")
        if not 1e-75 < size < 1e75:
            raise ValueError(
                f"{part}: expected a largest absolute value between 1e-75 and 1e75, so that double precision can hold "
                f"products, got {size:.1g} in shape {factor.shape}; multiply {part} by a power of two, which "
                "multiplies each result by a known power of two"
            )
