"""Run an update rule for several steps, and measure its sensitivity to rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from refgeo.conformance.execution.backend import Backend
from refgeo.conformance.execution.drivers import TrajectorySpec
from refgeo.conformance.judging.evidence import CheckEvidence
from refgeo.conformance.points.features import Features
from refgeo.conformance.points.sampling import rng_of
from refgeo.conformance.points.scene import generate
from refgeo.conformance.points.sources import Points
from refgeo.conformance.protocol.call import BackendError, Call, NoResult
from refgeo.conformance.protocol.precision import PRECISIONS, round_to_dtype
from refgeo.geometry.pair import Pair
from refgeo.support.arguments import Array

N_STEPS = 25
"""Number of steps of a trajectory; chosen."""
_NOISE = 16.0
"""Random change of every entry before each step, in roundings; chosen, large enough to exceed rounding itself."""
SCALES = tuple(4.0**j for j in range(-12, 13))
"""Sizes of the loss that are tried; chosen."""
_GOOD_LENGTH = 0.4
"""Length of a good trajectory relative to its start; longer ones are unstable for many right rules. Chosen."""
FEW_STEPS = 3
"""Number of steps of a trajectory before another one, or concurrent with it; chosen."""


def _draw_elements(condition: float, factor: float = 1.0) -> Callable[[int, np.random.Generator], Array]:
    """Return a function that draws a matrix with this condition number and size."""

    def draw(h: int, rng: np.random.Generator) -> Array:
        left, right = (np.linalg.qr(rng.standard_normal((h, h)))[0] for _ in range(2))
        return np.asarray(factor * (left * np.geomspace(condition**0.5, condition**-0.5, h)) @ right)

    return draw


ILL_CONDITIONED = "ill-conditioned elements"
ELEMENTS: dict[str, Callable[[int, np.random.Generator], Array]] = {
    "rotations": _draw_elements(1.0),
    "scalings": lambda h, rng: 0.3 * np.eye(h),
    "scalings by powers of 2": lambda h, rng: 4.0 * np.eye(h),
    "general elements": _draw_elements(3.0, 1.3),
    ILL_CONDITIONED: _draw_elements(100.0, 1.3),
}


@dataclass(frozen=True)
class Start:
    """The start of a trajectory, and its loss.

    Attributes
    ----------
    name : str
    G, H : ndarray
    Y : ndarray
        The target, at about the distance ‖G Hᵀ‖ from G Hᵀ.
    magnitude : float
        The size of the entries of G Hᵀ.
    sizes : tuple of int
    condition : float
    """

    name: str
    G: Array
    H: Array
    Y: Array
    magnitude: float
    sizes: tuple[int, ...]
    condition: float

    @classmethod
    def of(cls, features: Features, dtype: str, seed: int) -> Start:
        """Make the start with these features."""
        scene = generate(features, "mix", dtype, seed)
        (G, H), X = scene.point, scene.point.product
        magnitude = float(np.sqrt(np.mean(X**2)))
        Y = X + magnitude * scene.rng("trajectory").standard_normal(X.shape)
        return cls(features.name, G, H, Y, magnitude, scene.sizes, float(np.max(scene.space.gauge.condition)))

    def at(self, A: Array, dtype: str) -> Start:
        """Return the start A·θ with the same loss."""
        G, H = round_to_dtype(Pair(self.G @ np.linalg.inv(A), self.H @ A.T), dtype)
        return replace(self, G=G, H=H)

    def block(self, i: tuple[int, ...]) -> Start:
        """Return one block of a batch."""
        return replace(self, G=self.G[i], H=self.H[i], Y=self.Y[i])


@dataclass(frozen=True)
class Trajectory:
    """G and H before every step and after the last one."""

    G: Array
    H: Array

    @cached_property
    def products(self) -> Array:
        """The products X_k = G Hᵀ."""
        with np.errstate(all="ignore"):
            return np.asarray(self.G @ self.H.mT)

    @cached_property
    def end(self) -> int | None:
        """The first step after which a number is not finite; None if there is none."""
        is_finite = _finite(self.G) & _finite(self.H) & _finite(self.products)
        return None if is_finite.all() else int(np.argmin(is_finite))

    @cached_property
    def path_length(self) -> Array:
        """The length of the path to X_k; after the end of the trajectory, that of the whole path."""
        with np.errstate(all="ignore"):
            steps = _lengths(np.diff(self.products, axis=0, prepend=self.products[:1]))
            return np.asarray(np.fmax.accumulate(np.where(np.isfinite(steps), np.cumsum(steps), np.nan)))

    @cached_property
    def condition(self) -> Array:
        """The larger condition number of the factors at each step; after the end of the trajectory, the last one."""
        last = np.minimum(np.arange(len(self.G)), len(self.G) if self.end is None else max(self.end - 1, 0))
        values = [np.linalg.svd(F[last], compute_uv=False) for F in (self.G, self.H)]
        with np.errstate(all="ignore"):
            conditions = np.nan_to_num(np.max([v[..., 0] / v[..., -1] for v in values], axis=0), nan=np.inf)
        return np.asarray(conditions.reshape(len(self.G), -1).max(axis=-1))


def _lengths(matrices: Array) -> Array:
    """Return the Frobenius norm of each step."""
    with np.errstate(all="ignore"):
        return np.asarray(np.sqrt(np.sum(matrices**2, axis=tuple(range(1, matrices.ndim)))))


def _finite(matrices: Array) -> Any:
    """Return for each step whether all numbers are finite."""
    return np.isfinite(matrices).reshape(len(matrices), -1).all(axis=1)


def product_distance(trajectory: Trajectory, products: Array) -> Array:
    """Return the distance of each X_k from that of another trajectory.

    It is 0 if both are not finite, and infinite if one of them is not.
    """
    with np.errstate(all="ignore"):
        lengths = _lengths(trajectory.products - products)
    is_finite, is_other_finite = _finite(trajectory.products), _finite(products)
    return np.where(is_finite & is_other_finite, lengths, np.where(is_finite | is_other_finite, np.inf, 0.0))


class Rule:
    """An update rule of a backend, in one precision and with some options.

    Attributes
    ----------
    breaches : dict
        The broken rules of conduct, and how.
    has_result : bool
        Whether a trajectory has had a result.
    """

    def __init__(self, backend: Backend, function: str, points: Points, options: Mapping[str, Any]) -> None:
        self._backend, self.function, self.options, self.points = backend, function, dict(options), points
        self.precision, self.relaxation = PRECISIONS[points.dtype], points.relaxation
        self.breaches: dict[str, str] = {}
        self.has_result = False
        self.repeatability: CheckEvidence | None = None
        self._scales: dict[str, float] = {}

    def start(self, features: Features) -> Start:
        """Return the start with these features, in the rule's precision."""
        return Start.of(features, self.precision.name, self.points.seed)

    def at(self, start: Start, element: str) -> Start:
        """Return another point of the orbit of a start."""
        h = start.G.shape[-1]
        return start.at(ELEMENTS[element](h, rng_of(self.points.seed, f"{element} {start.name}")), self.precision.name)

    def run(
        self, start: Start, scale: float, count: int = N_STEPS, noise: float = 0.0, seed: int = 0, stream: int = 0,
        between: Sequence[Start] = (), **context: Any,
    ) -> Trajectory:  # fmt: skip
        """Run the update rule for `count` steps from a start, and return the trajectory.

        `scale` is the size of the loss, `noise` the random change before every step in roundings, `stream` the seed of
        the rule's own random numbers. Steps of trajectories from the starts `between` are made between its own.
        `context` are further fields of the call.
        """
        others = tuple(map(self._arrays, between))
        request = TrajectorySpec(
            count, scale, start.magnitude, noise * self.precision.roundoff, seed, self.options, stream, others
        )
        shapes = [(count + 1, *start.G.shape), (count + 1, *start.H.shape)]
        call = Call(self.function, "", self._arrays(start), (vars(request),), shapes, action="trajectory")
        call = replace(call, decisive=True, **context)
        answer = self._backend.call(call)
        refused = ["missing a required argument"] + ["unexpected keyword argument"] * bool(self.options)
        if any(text in str(answer.failure) for text in refused):
            expected = f"expected keyword arguments of {self.function}, and all that have no default"
            raise BackendError(f"options: {expected}, got {answer.failure}")
        self.breaches = answer.breaches | self.breaches
        self.has_result |= answer.failure is None
        return Trajectory(*answer.result())

    def _arrays(self, start: Start) -> list[Array]:
        """Return the arrays of a start as the backend gets them."""
        return [x.astype(self.precision.carrier) for x in (start.G, start.H)] + [start.Y]

    def call(self, start: Start, scale: float) -> Call:
        """Make a call of a few steps, for use before another trajectory or concurrently with it."""
        request = TrajectorySpec(FEW_STEPS, scale, start.magnitude, options=self.options)
        return Call(self.function, "", self._arrays(start), (vars(request),), action="trajectory")

    def scale(self, start: Start) -> float:
        """Find a size of the loss with which the rule moves X by about 0.4 of its length and stays well-conditioned."""
        if start.name not in self._scales:
            known = next(reversed(self._scales.values()), None)  # a rule's step size is nearly the same everywhere
            near = [scale for scale in SCALES if known is not None and known / 20.0 < scale < known * 20.0]
            best = min(near, key=lambda scale: self.scale_penalty(start, scale), default=None)
            if best is None or self.scale_penalty(start, best) == np.inf:
                best = min(SCALES, key=lambda scale: self.scale_penalty(start, scale))
            self._scales[start.name] = best
        return self._scales[start.name]

    @contextmanager
    def in_new_process(self) -> Iterator[Rule]:
        """Return a context with the rule in a new process, if it can be loaded again."""
        with self._backend.isolated() as fresh:
            yield Rule(fresh, self.function, self.points, self.options)

    def scale_penalty(self, start: Start, scale: float, count: int = N_STEPS) -> float:
        """Return how far the length of a trajectory is from a good one; infinite if it becomes ill-conditioned or not
        finite.
        """
        try:
            trajectory = self.run(start, scale, count)
        except NoResult:
            return np.inf
        if trajectory.end is not None or trajectory.condition.max() > 1e3 * start.condition:
            return np.inf
        length = trajectory.path_length[-1] / _lengths(trajectory.products[:1])[0]
        return float(abs(np.log(max(length, 1e-300) / _GOOD_LENGTH)))

    def rounding(self, start: Start, trajectory: Trajectory) -> Array:
        """Return one rounding of X_0 and of the path, as an algorithm with Gram matrices makes it."""
        rows = float(np.sqrt(max(start.sizes[:2])))
        size = float(np.linalg.norm(trajectory.products[0])) + trajectory.path_length
        with np.errstate(all="ignore"):
            return np.asarray(self.precision.roundoff * rows * size * trajectory.condition**2)

    def unit(self, start: Start, scale: float, trajectory: Trajectory) -> Array:
        """Return the effect of rounding on X_k, including the rule's own reaction to noise."""
        with np.errstate(all="ignore"):
            return self.noise(start, scale, trajectory) + self.rounding(start, trajectory)

    def noise(self, start: Start, scale: float, trajectory: Trajectory) -> Array:
        """Return how far noise of one rounding moves X_k, times κ², because only the point is perturbed."""
        count = len(trajectory.G) - 1
        noisy = [self.run(start, scale, count, _NOISE, seed) for seed in (1, 2)]
        distance = np.max([product_distance(run, trajectory.products) for run in noisy], axis=0) / _NOISE
        with np.errstate(all="ignore"):
            return np.asarray(distance * trajectory.condition**2)

    def ends_alike(self, start: Start, scale: float, trajectory: Trajectory) -> bool:
        """Return whether a trajectory ends after the same step for all noise."""
        count = len(trajectory.G) - 1
        return all(self.run(start, scale, count, _NOISE, seed).end == trajectory.end for seed in range(1, 9))
