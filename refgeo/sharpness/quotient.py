r"""The recipe of the paper (Sec. 1, App. B) for any symmetry: a geometry from a metric tensor and a group alone.

With g = LLᵀ (Cholesky), B = L⁻ᵀ is an orthonormal frame, a vector Bx has the coordinates x, and the vertical space has
the left singular vectors of LᵀV as a basis, where the columns of V are velocities of the group. Koszul's formula

    g(Γ(v, w), ·) = ½ (D_v g w + D_w g v − ∇(vᵀg w))

needs derivatives of g only. Complex steps, D_v g = Im g(θ + iεv)/ε, have no error but rounding. A g that they do not go
through, as through an absolute value or an eigendecomposition, is refused. Dense, for up to a few hundred numbers: a
point takes N evaluations of g, and N³ numbers of memory.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy  # whose modules load where they are used

from refgeo.geometry.blocks import ONLY, Blocks, Named, flat, reshape_like
from refgeo.geometry.groups import Symmetry
from refgeo.geometry.pair import Pair, as_pair
from refgeo.geometry.tangent_space import Metric, TangentSpace, flow
from refgeo.sharpness.symmetry import Verification, invariance, verify
from refgeo.support.arguments import Array, one_array, real_array
from refgeo.support.differences import five_point
from refgeo.support.errors import (
    NO_GEODESIC,
    GeodesicAccuracyError,
    GeodesicIncompleteError,
    NotFiniteError,
    RankDeficientError,
)

_TINY = 1e-30
"""Of complex steps."""
_STEP = 3e-4
"""Of differences, as a share of the length of the point in the metric."""
_ASIDE = 0.03
"""How far from a point it is tried whether complex steps go through, as a share of the length of the point."""
_SHORTER = 10
"""Number of steps and distances that are tried, each a fourth of the one before, until they stay in the domain."""
_DEPENDENT = 1e-9
"""Singular value of velocities of unit length, up to which they do not span a direction."""
_DRAWS = 20
"""Elements of a Lie algebra at a time: as many without a new direction are all in the span of those before."""


class QuotientTangentSpace(TangentSpace[Any]):
    """Tangent space of `QuotientMetric`; see `TangentSpace` for its members.

    Coordinates are those of a Cholesky factor. So random vectors of the same seed are not the same along an orbit, as
    those of pairs are.
    """

    metric: QuotientMetric

    def __init__(self, metric: QuotientMetric, point: Any) -> None:
        self.metric, self.point = metric, _point("point", point)
        self._numbers = flat(self.point)
        self.n_coordinates = self._numbers.size
        g = real_array("tensor", self._tensor(self._numbers))
        if g.shape != 2 * (self.n_coordinates,) or not np.allclose(g, g.T, rtol=1e-9, atol=1e-12 * np.abs(g).max()):
            reason = "one that is not symmetric" if g.shape == 2 * (self.n_coordinates,) else f"shape {g.shape}"
            raise ValueError(
                f"tensor: expected a symmetric matrix with a row for each of the {self.n_coordinates} numbers of the "
                f"point, got {reason}"
            )
        least = float(np.linalg.eigvalsh(g)[0])
        if not least > 0.0:
            raise RankDeficientError(
                f"tensor: expected a positive definite matrix, got the eigenvalue {least:g}", (), least
            )
        self.metric.refuse_no_inner_product(self.point, g)
        self._root = np.linalg.cholesky(g)
        self._frame = scipy.linalg.solve_triangular(self._root.T, np.eye(self.n_coordinates))

    @property
    def _size(self) -> float:
        return float(np.linalg.norm(self._root.T @ self._numbers)) or 1.0

    def _tensor(self, numbers: Any) -> Any:
        return np.asarray(self.metric.tensor(reshape_like(numbers, self.point)))

    @cached_property
    def dim(self) -> int:  # type: ignore[override]
        """Of the quotient."""
        return int(self.n_coordinates - self._verticals.shape[1])

    @cached_property
    def _verticals(self) -> Array:
        """An orthonormal basis of the vertical space, in coordinates."""
        return _span(self._root.T @ self.metric.velocities(self.point, self._root))

    @cached_property
    def _derivative(self) -> Callable[[Callable[[Array], Any], Array, Array], Array]:
        """The derivative by complex steps, which must agree with differences, of one step or another: here along all
        directions, and at a point beside, where no zero hides the kink of an absolute value.

        Raises
        ------
        ValueError
            They do not.
        """
        drawn = np.random.default_rng(0).standard_normal((3, self.n_coordinates))
        along, v, aside = (self._frame @ (x / np.linalg.norm(x)) for x in drawn)

        def length(numbers: Array) -> Any:
            return self.metric.square(reshape_like(numbers, self.point), v)

        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):  # outside the domain
            near = next(
                (beside for k in range(_SHORTER)
                 if _is_positive(self._tensor(beside := self._numbers + _ASIDE * 4.0**-k * self._size * aside))),
                self._numbers,
            )  # fmt: skip
            steps = [_STEP * 4.0**-k * self._size for k in range(_SHORTER)]
            for line in ((near, along), *((self._numbers, column) for column in self._frame.T)):
                self._refuse_what_is_not_analytic(length, *line, steps)
        return _complex_step

    def _refuse_what_is_not_analytic(
        self, length: Callable[[Array], Any], numbers: Array, direction: Array, steps: Iterable[float]
    ) -> None:
        """Raise an error unless a complex step agrees with differences, of one step or another."""
        quotients = [float(five_point(lambda t: length(numbers + t * direction), step)) for step in steps]
        if not np.isfinite(quotients).any():
            raise NotFiniteError("tensor: expected finite numbers near the point, so that it can be differentiated")
        try:
            slope = float(_complex_step(length, numbers, direction))
            detail = f"a complex step gives the slope {slope:.6g}, and differences give {quotients[0]:.6g}"
        except (TypeError, ValueError, np.linalg.LinAlgError) as error:
            slope, detail = math.nan, f"of a complex θ it gives {error!r}"
        while quotients[-1] == 0.0 and any(quotients):
            quotients.pop()  # of steps that a function in single precision does not notice
        if not any(abs(slope - quotient) < 1e-6 * max(abs(quotient), 1e-3 / self._size) for quotient in quotients):
            raise ValueError(
                "tensor: expected a function in double precision that can be differentiated by complex steps, made of "
                f"sums, products, powers and inverses; {detail}. Write x * x for abs(x)**2, (x @ x)**0.5 for a norm; "
                "float(), .real, comparisons and eigh lose the imaginary part, too"
            )

    @cached_property
    def _slopes(self) -> Array:
        """D g[B_p] for every vector B_p of the frame."""
        slopes = np.array([self._derivative(self._tensor, self._numbers, b) for b in self._frame.T])
        if not np.isfinite(slopes).all():
            raise NotFiniteError(
                "tensor: expected a tensor that can be differentiated, got derivatives that are not finite"
            )
        return slopes

    def _vector(self, name: str, value: Any) -> Any:
        vector = _point(name, value)
        if _form(vector) != _form(self.point):
            raise ValueError(f"{name}: expected the form of the point, {_form(self.point)}, got {_form(vector)}")
        return vector

    def _to(self, v: Any) -> Array:
        return np.asarray(self._root.T @ flat(v))

    def _back(self, x: Array) -> Any:
        return reshape_like(self._frame @ x, self.point)

    def _gradient_to(self, e: Any) -> Array:
        return np.asarray(self._frame.T @ flat(e))

    def _gradient_back(self, x: Array) -> Any:
        return reshape_like(self._root @ x, self.point)

    def _vertical(self, x: Array) -> Array:
        return np.asarray(self._verticals @ (self._verticals.T @ x))

    def _along(self, x: Array) -> Array:
        """Return D g along the vector with the coordinates x."""
        return np.tensordot(x, self._slopes, 1)

    def _gamma(self, x: Array, z: Array) -> Array:
        v, w = self._frame @ x, self._frame @ z
        bent = self._frame.T @ (self._along(x) @ w + self._along(z) @ v)
        return np.asarray(0.5 * (bent - self._slopes @ w @ v))

    def _gamma_adjoint(self, x: Array, e: Array) -> Array:
        v, u = self._frame @ x, self._frame @ e
        return np.asarray(0.5 * (self._frame.T @ (self._along(x) @ u - self._along(e) @ v) + self._slopes @ v @ u))

    def _exact(self, v: Any, t: float) -> Any:
        return self._follow(v, t)[0]

    def _arrival(self, v: Any) -> tuple[Any, Any]:
        return self._follow(v, 1.0)

    def _follow(self, v: Any, t: float) -> tuple[Any, Any]:
        """Return the end and t times the velocity there, by integration in time from 0 to 1."""
        reached, N = 0.0, self.n_coordinates
        velocity = t * flat(v)

        def field(time: float, state: Array) -> Array:
            """Return velocity and acceleration, by Koszul's formula without a derivative of the whole tensor."""
            nonlocal reached
            x, v = np.split(state, 2)
            force = self._derivative(lambda y: self.metric.lower_index(reshape_like(y, self.point), v), x, v)
            for l, unit in enumerate(np.eye(N)):  # noqa: E741
                force[l] -= 0.5 * self._derivative(
                    lambda y: self.metric.square(reshape_like(y, self.point), v), x, unit
                )
            frame = self.metric.at(reshape_like(x, self.point))._frame
            reached = max(reached, time)
            return np.concatenate([v, -frame @ (frame.T @ force)])

        start = np.concatenate([self._numbers, velocity])
        size = np.linalg.norm(self._numbers) + np.linalg.norm(velocity)
        try:
            with np.errstate(under="ignore"):  # as SciPy's own code expects
                flow = scipy.integrate.solve_ivp(field, (0.0, 1.0), start, "DOP853", rtol=1e-12, atol=1e-14 * size)
            arrived = bool(flow.success)
        except NO_GEODESIC:
            arrived = False
        if not arrived:
            raise GeodesicIncompleteError(
                f"the geodesic leaves the points with a positive definite metric at time {t * reached:.6g}, before "
                f"t = {t:g}; ask for a shorter time or a smaller velocity", t * reached, (),
            )  # fmt: skip
        end, arriving = (reshape_like(part, self.point) for part in np.split(flow.y[:, -1], 2))
        speed, before = float(self.metric.at(end).norm(arriving)), float(self.norm(reshape_like(velocity, self.point)))
        if abs(speed - before) > 1e-8 * before:
            raise GeodesicAccuracyError(
                f"along the integrated geodesic the speed changes from {before:.12g} to {speed:.12g}; ask for a "
                "shorter time or a smaller velocity"
            )
        return end, arriving


class QuotientMetric(Metric[Any]):
    r"""The quotient by any group, with any metric: the paper's recipe, from the metric tensor and the group alone.

    Everything follows from the definitions, densely, for up to a few hundred numbers: a second opinion about a faster
    geometry, and a first about a symmetry that no other metric of this package has.

    Parameters
    ----------
    tensor : callable
        ``tensor(θ)``, the symmetric positive definite N×N matrix g(θ), where N counts the numbers of θ in their order;
        or ``tensor(θ, a, b)``, the inner product of two vectors of the form of θ. It is made of sums, products, powers
        and inverses, so that it can be differentiated by complex steps (θ is complex then).
    group : callable, Symmetry, list of Symmetry, or None
        ``group(θ)``: the velocities of the group at θ, an N×k matrix or a list of vectors of the form of θ; or
        symmetries of `refgeo.symmetry`. Velocities may be linearly dependent. None: nothing is divided out.

    Notes
    -----
    θ is what `at` was given: an array, a `Pair`, or a dict of these, which all move.

    Examples
    --------
    Points of the plane modulo rotations, in the Euclidean metric. What is left is the radius:

    >>> import numpy as np, refgeo as rg
    >>> metric = rg.QuotientMetric(lambda p: np.eye(2), lambda p: np.array([[-p[1]], [p[0]]]))
    >>> space = metric.at([3.0, 4.0])
    >>> space.dim, space.horizontal_projection([5.0, 0.0]).round(12)
    (1, array([1.8, 2.4]))
    >>> metric.verify([3.0, 4.0], lambda p: float(p @ p)).holds
    True
    """

    name = "quotient"
    has_blocks = True

    def __init__(self, tensor: Callable[..., Any], group: Any = None) -> None:
        if not callable(tensor):
            raise TypeError(f"tensor: expected a function of θ, got {type(tensor).__name__}")
        symmetries = [group] if isinstance(group, Symmetry) else group
        if not (group is None or callable(group)) and not (
            isinstance(symmetries, Iterable) and all(isinstance(symmetry, Symmetry) for symmetry in symmetries)
        ):
            raise TypeError(
                "group: expected a function of θ that gives velocities, symmetries such as "
                f'refgeo.symmetry.general_linear("w"), or None, got {type(group).__name__}'
            )
        self._given, self._velocities = tensor, partial(_velocities, group) if callable(group) else None
        self._groups = list(symmetries or ()) if self._velocities is None else [_group(self._velocities, self)]
        needed = [p for p in inspect.signature(tensor).parameters.values() if p.default is p.empty]
        self._is_inner_product = len(needed) == 3

    def __repr__(self) -> str:
        return f"QuotientMetric({getattr(self._given, '__name__', self._given)})"

    def at(self, point: Any) -> QuotientTangentSpace:
        """Return the tangent space at `point`: an array, a pair or a dict of these.

        Raises
        ------
        RankDeficientError
            The metric tensor is not positive definite there.
        """
        return QuotientTangentSpace(self, point)

    def tensor(self, point: Any) -> Any:
        """Return the matrix g(θ), of a θ that may be complex."""
        if not self._is_inner_product:
            return self._given(point)
        basis = [reshape_like(unit, point) for unit in np.eye(flat(point).size)]
        rows = [[np.sum(self._given(point, a, b)) for b in basis[: i + 1]] for i, a in enumerate(basis)]
        g = np.zeros((len(basis), len(basis)), np.result_type(*rows[-1]))
        for i, row in enumerate(rows):
            g[i, : i + 1] = g[: i + 1, i] = row
        return g

    def refuse_no_inner_product(self, point: Any, g: Array) -> None:
        """Raise an error where ``tensor(θ, a, b)`` is not symmetric, or not linear in a and b."""
        if not self._is_inner_product:
            return
        a, b = np.random.default_rng(0).standard_normal((2, len(g)))
        for first, second in ((a, b), (b, a), (a, -b), (a + b, a - b)):
            value = float(np.sum(self._given(point, reshape_like(first, point), reshape_like(second, point))))
            expected, size = float(first @ g @ second), float(np.abs(first) @ np.abs(g) @ np.abs(second))
            if not abs(value - expected) <= 1e-9 * size:
                raise ValueError(
                    "tensor: expected an inner product, symmetric and linear in a and in b, got one that is not: "
                    f"it is {value:.6g} for two random vectors, where basis vectors give {expected:.6g}"
                )

    def lower_index(self, point: Any, v: Array) -> Any:
        """Return the covector gv."""
        if not self._is_inner_product:
            return self.tensor(point) @ v
        vector = reshape_like(v, point)
        return np.array([np.sum(self._given(point, vector, reshape_like(unit, point))) for unit in np.eye(v.size)])

    def square(self, point: Any, v: Array) -> Any:
        """Return the number vᵀgv."""
        if not self._is_inner_product:
            return v @ self.tensor(point) @ v
        return np.sum(self._given(point, reshape_like(v, point), reshape_like(v, point)))

    def velocities(self, point: Any, root: Array) -> Array:
        """Return columns that span the vertical space; of symmetries, drawn until the rank is that of those before."""
        if self._velocities is not None:
            return self._velocities(point)
        V, rng, rank = np.zeros((len(root), 0)), np.random.default_rng(0), -1
        while self._groups and rank < (rank := _span(root.T @ V).shape[1]):
            named = self._name_blocks(point)
            zero = 0.0 * Blocks(named)
            drawn = [
                flat({**zero, **symmetry.velocity(named, symmetry.generator(named, rng))})
                for symmetry in self._groups
                for _ in range(_DRAWS)
            ]
            V = np.hstack([V, np.array(drawn).T])
        return V

    def _name_blocks(self, point: Any) -> Mapping[str, Any]:
        """Return a point as blocks, with the names that the symmetries have for them."""
        blocks = sorted({block for symmetry in self._groups for block in symmetry.blocks})
        if isinstance(point, Mapping) and set(blocks) <= set(point):
            return point
        if isinstance(point, Mapping) or len(blocks) > 1:
            raise ValueError(f"point: expected a dict with the blocks of the symmetries, {blocks}")
        return {blocks[0] if blocks else ONLY: point}

    def symmetries(self, block: str = ONLY) -> list[Symmetry]:
        """Return the groups, as they act on parameters of which the metric measures this block, or on all of them."""
        return [self._on(block, symmetry) for symmetry in self._groups]

    def _on(self, block: str, symmetry: Symmetry) -> Symmetry:
        """Return a symmetry under the name that the block has there."""
        generator, act = partial(self._draw, block, symmetry), partial(self._carry, block, symmetry)
        return replace(symmetry, blocks=(block,), generator=generator, act=act, whole=block == ONLY)

    def _draw(self, block: str, symmetry: Symmetry, params: Named, rng: np.random.Generator) -> Any:
        return symmetry.generator(self._name_blocks(params.get(block, params)), rng)

    def _carry(self, block: str, symmetry: Symmetry, params: Named, K: Any, t: float) -> dict[str, Any]:
        moved = symmetry.act(self._name_blocks(params.get(block, params)), K, t)
        return {block: next(iter(moved.values()))} if block in params else moved

    def verify(self, point: Any, value_and_grad: Callable[[Any], Any] | None = None, *, rng: int = 0) -> Verification:
        r"""Measure whether this is a quotient: of the group, of its metric, and of a loss.

        Near the point, vectors are carried along the orbits by elements of the group. Vertical ones must stay vertical,
        or the velocities are those of no group. Horizontal parts must keep their lengths, which is what a metric on the
        quotient needs (App. B.4), and all that it needs. A loss must not change.

        Parameters
        ----------
        point : array, Pair or dict
        value_and_grad : callable, optional
            ``f(params) -> (loss, gradients)`` or ``f(params) -> loss``.
        rng : a seed

        Returns
        -------
        Verification
            With ``holds``, one finding for each question, and ``dim``, the dimension of the quotient. Printed, a table.

        Examples
        --------
        The Euclidean metric is not invariant under scalings:

        >>> import numpy as np, refgeo as rg
        >>> metric = rg.QuotientMetric(lambda w: np.eye(3), rg.symmetry.scaling("w"))
        >>> result = metric.verify([1.0, 2.0, 3.0], lambda w: float(w[0] / w[1]))
        >>> [(one.symmetry, one.verdict) for one in result], result.dim
        ([('group', 'holds'), ('metric', 'does not hold'), ('loss', 'holds')], 2)
        """
        if not self._groups:
            raise ValueError(
                "group: expected a group, so that there is a quotient to verify; this metric was made with none"
            )
        space = self.at(point)
        whole = space.point if isinstance(space.point, Mapping) else {ONLY: space.point}
        findings = invariance(self, ONLY, whole, rng=rng)
        if value_and_grad is not None:
            findings += [
                replace(f, symmetry="loss") for f in verify(value_and_grad, space.point, self.symmetries(), rng=rng)
            ]
        return Verification(tuple(findings), space.dim)


def _velocities(function: Callable[[Any], Any], point: Any) -> Array:
    """Return velocities as a checked matrix."""
    N, given = flat(point).size, function(point)
    if not isinstance(given, np.ndarray):
        given = list(given)
        for v in given:
            if _form(_point("group", v)) != _form(point):
                raise ValueError(f"group: expected velocities of the form of the point, {_form(point)}, got {_form(v)}")
    V = np.asarray(given) if isinstance(given, np.ndarray) else np.array([flat(v) for v in given]).T
    V = V[:, None] if V.shape == (N,) else V.reshape(N, 0) if V.size == 0 else V
    if V.ndim != 2 or V.shape[0] != N:
        raise ValueError(
            f"group: expected velocities as a matrix with {N} rows, one for each number of the point, or as a list of "
            f"vectors of its form, got the shape {V.shape}"
        )
    return real_array("group", V)


def _group(velocities: Callable[[Any], Array], metric: QuotientMetric) -> Symmetry:
    """Return the group whose generators move points with these velocities, by about their length in the metric at t =
    1.
    """
    drawn, carried = partial(_draw, velocities, metric), partial(_carry, velocities)
    return Symmetry("group of the metric", (), drawn, carried)


def _draw(velocities: Callable[[Any], Array], metric: QuotientMetric, params: Named, rng: np.random.Generator) -> Array:
    point = params.get(ONLY, params)
    space, V = metric.at(point), velocities(point)
    root, size = space._root.T, space._size
    K = np.linalg.lstsq(root @ V, space._vertical(rng.standard_normal(space.n_coordinates)), rcond=_DEPENDENT)[0]
    w = V @ K
    speed = float(np.linalg.norm(root @ w)) or 1.0
    step = _STEP * size / speed  # velocities that are small may turn fast, as beside a point that stays where it is
    ahead, behind = (velocities(reshape_like(flat(point) + sign * step * w, point)) @ K for sign in (1.0, -1.0))
    rate = float(np.linalg.norm(root @ (ahead - behind))) / (2.0 * step * speed)
    return np.asarray(K / max(speed / size, rate))


def _carry(velocities: Callable[[Any], Array], params: Named, K: Array, t: float) -> dict[str, Any]:
    moved: Any = flow(params.get(ONLY, params), lambda x: np.asarray(velocities(x) @ K), t)
    return {ONLY: moved} if ONLY in params else moved


def _complex_step(function: Callable[[Array], Any], numbers: Array, direction: Array) -> Array:
    return np.asarray(np.imag(function(numbers + 1j * _TINY * direction)) / _TINY)


def _is_positive(matrix: Any) -> bool:
    """Return whether a matrix is finite and positive definite."""
    return bool(np.isfinite(matrix).all()) and bool(np.linalg.eigvalsh(matrix)[0] > 0.0)


def _span(columns: Array) -> Array:
    """Return an orthonormal basis of what they span."""
    lengths = np.linalg.norm(columns, axis=0)
    U, sigma, _ = np.linalg.svd(columns[:, lengths > 0.0] / lengths[lengths > 0.0], full_matrices=False)
    return np.asarray(U[:, sigma > _DEPENDENT])


def _point(name: str, value: Any) -> Any:
    """Check a point: an array, a pair or a dict of these."""
    if isinstance(value, Mapping):
        return Blocks({block: _point(f"{name}, block {block!r}", part) for block, part in value.items()})
    is_pair = isinstance(value, Pair) or (isinstance(value, tuple) and len(value) == 2 and np.ndim(value[0]) >= 2)
    return as_pair(name, value) if is_pair else one_array(name, value)


def _form(point: Any) -> Any:
    if isinstance(point, Mapping):
        return {name: _form(block) for name, block in point.items()}
    return repr(point) if isinstance(point, Pair) else point.shape
