r"""The spectrum of the Riemannian Hessian: eigenvalues and trace of a loss modulo its symmetries.

The Hessian of a loss on the quotient is the map of horizontal vectors

    v ↦ P^H ( D grad f [v] + Γ(grad f, v) ),

self-adjoint in the metric. In orthonormal coordinates of the tangent space (`TangentSpace.to_coordinates`) it is a
symmetric matrix with zeros for vertical directions, and the same along an orbit, where the Euclidean Hessian is not.
`RiemannianHessian` is that matrix as a `scipy.sparse.linalg.LinearOperator`, so that everything in SciPy takes it. At a
critical point its largest eigenvalue is sharpness for small balls: max L − L(θ) = ½ρ²λ_max + O(ρ³).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from refgeo.geometry.tangent_space import Metric
from refgeo.sharpness.gradient_check import compare_slope
from refgeo.sharpness.noise import FINE_STEP, noise_along
from refgeo.sharpness.objective import Objective, ParameterSpace, check_symmetry
from refgeo.sharpness.parameters import Calls, LossAndGradient, unpack_evaluation
from refgeo.support.arguments import Array, integer, number, one_of
from refgeo.support.threads import one_thread

__all__ = ["Eigenvalues", "RiemannianHessian", "Trace", "eigenvalues", "trace"]

_SHORTEST, _LONGEST = 6e-7, 0.05
"""Of steps, as shares of a typical block: 0.1 eps^⅓, and what is near enough to θ."""
_SMALL = 64
"""Up to this size the matrix is assembled densely."""


class RiemannianHessian(LinearOperator):  # type: ignore[misc]  # SciPy has no types
    r"""The Riemannian Hessian in orthonormal coordinates, with zeros for vertical directions.

    Without a Hessian-vector product it takes central differences of the gradient of :math:`ξ ↦ L(γ_ξ(1))` along
    second-order geodesics, which have the Hessian at ξ = 0 that the exact ones have:
    :math:`(\nabla(hx) - \nabla(-hx))/2h`, two gradients a product, with an error of O(h²) from the fourth derivative
    and of the noise of the gradient over h (`error` says both). Ten gradients are taken before, for noise and step.

    Parameters
    ----------
    value_and_grad : callable
        ``value_and_grad(params) -> (loss, gradients)``, see `refgeo.worst_case_sharpness`.
    params : Pair, array or dict
    metric : Metric
        For a dict, a `ProductMetric`; parameters that it does not name stay fixed.
    hessian_vector_product : callable, optional
        ``hessian_vector_product(params, v) -> w``, the Euclidean Hessian applied to v, of autograd, PyTorch or JAX;
        v and w are like the parameters, of the blocks that the metric names. One call a product, exact to rounding.
    step : float, optional
        Length h in the metric. Default: about where the two errors are equal, by the noise of the gradient, which is
        measured: as long for float32 as it has to be.
    verify : bool
        Whether the loss is evaluated at θ and where random elements of the groups that the metric divides out carry θ:
        an error says which symmetry it does not have, or that this is undecided. Before the first product, a
        Hessian-vector product is compared with differences of the gradient, which takes 11 gradients or more.

    Attributes
    ----------
    shape : (int, int)
        Number of coordinates, twice.
    gradient : ndarray
        The Riemannian gradient in coordinates.
    step, noise : float
        Of differences, and what a gradient is off by, as the length of a vector; 0 with a Hessian-vector product.

    Examples
    --------
    The loss ½(GH)² of two numbers has Hessian 4(GH)² in the direction (G, H)/√2, and no other on the quotient:

    >>> import numpy as np, refgeo as rg
    >>> loss = rg.value_and_grad(lambda p: 0.5 * (p.G @ p.H.T)[0, 0] ** 2)
    >>> hessian = rg.spectrum.RiemannianHessian(loss, rg.Pair([[2.0]], [[3.0]]), rg.InvariantMetric())
    >>> np.linalg.eigvalsh(hessian @ np.eye(2)).round(6).tolist()
    [0.0, 144.0]
    """

    def __init__(
        self,
        value_and_grad: LossAndGradient,
        params: Any,
        metric: Metric[Any],
        hessian_vector_product: Callable[[Any, Any], Any] | None = None,
        *,
        step: float | None = None,
        verify: bool = True,
    ) -> None:
        self._space = ParameterSpace(params, metric)
        self._calls = Calls("value_and_grad", value_and_grad)
        with self._calls:
            self._objective = Objective(value_and_grad, self._space, 2, 2)
            if verify and not self._objective.is_flat:  # which has every symmetry
                check_symmetry(self._space, value_and_grad)
        self._product, self._verifies = hessian_vector_product, verify and hessian_vector_product is not None
        self.gradient: Array = self._objective.gradient_at_origin
        n = self._space.length
        super().__init__(np.dtype(np.float64), (n, n))
        self.noise, longest = 0.0, _LONGEST * (self._space.size or 1.0)
        if self._product is None:
            with self._calls:
                self.noise, longest = self._measure_noise(longest)
        self.step = number("step", longest if step is None else step, "a length in the metric", above=0.0)
        if self._product is not None:
            with self._calls:
                _, grads = unpack_evaluation(value_and_grad(params))
            self._egrad = self._space.gradients(grads)

    @cached_property
    def resolution(self) -> float:
        """The relative accuracy of a product: smaller tolerances mean nothing."""
        return 1e-10 if self._product is not None else max(1e-6, self.error())

    def _measure_noise(self, longest: float) -> tuple[float, float]:
        """Return the noise of the gradient, and the step at which it does as much as the third derivative may.

        With the curvature c of a line, noise ν/h and an error of c (h/l)² are equal at h = l (ν/cl)^⅓.
        """
        unit = self.horizontal(np.random.default_rng(0).standard_normal(self.shape[0]))
        length = float(np.linalg.norm(unit))
        if length == 0.0:
            return 0.0, longest
        unit /= length
        scale = longest / _LONGEST

        def slope(t: float) -> Array:
            value, gradient = self._objective((t * scale) * unit)
            return gradient if np.isfinite(value) else np.full_like(gradient, np.nan)

        off = noise_along(slope, FINE_STEP)
        apart = slope(longest / scale) - slope(-longest / scale)
        curvature = float(np.hypot.reduce(np.abs(apart))) / (2.0 * longest)  # also where squares leave the range
        if not (np.isfinite(off) and np.isfinite(curvature) and curvature > 0.0):
            return off if np.isfinite(off) else 0.0, longest
        best = 0.1 * scale * (off / (curvature * scale)) ** (1 / 3)
        return off, float(np.clip(best, _SHORTEST * scale, longest))

    def horizontal(self, x: npt.ArrayLike) -> Array:
        """Return the horizontal part of coordinates."""
        return self._space.horizontal(np.asarray(x, dtype=np.float64))

    def tangent_vector(self, x: npt.ArrayLike) -> Any:
        """Return coordinates, of an eigenvector for example, as a tangent vector of the type of the parameters."""
        return self._space.tangent_vector(np.asarray(x, dtype=np.float64))

    def error(self, rng: np.random.Generator | int | None = 0) -> float:
        """Return the relative error of a product with a random unit vector, which is 0 with a Hessian-vector product:
        how far products for the steps h and 2h are apart, or what the noise of the gradient makes, whichever is more.
        """
        x = self.horizontal(np.random.default_rng(rng).standard_normal(self.shape[0]))
        length = float(np.linalg.norm(self @ x))
        return self.error_along(x) / max(length, float(np.finfo(np.float64).tiny))

    def error_along(self, x: Array) -> float:
        """Return the absolute error of the product with x; 0 with a Hessian-vector product.

        Examples
        --------
        >>> import numpy as np, refgeo as rg
        >>> loss = rg.value_and_grad(lambda w: np.sum(w**4))
        >>> hessian = RiemannianHessian(loss, np.ones(2), rg.EuclideanMetric())
        >>> 0.0 < hessian.error_along(np.array([1.0, 0.0])) < 1e-6
        True
        """
        if self._product is not None:
            return 0.0
        x = self.horizontal(x)
        once, twice = self._difference(x, self.step), self._difference(x, 2.0 * self.step)
        return max(float(np.linalg.norm(once - twice)), self.rounding * float(np.linalg.norm(x)))

    @property
    def rounding(self) -> float:
        """What the noise of the gradient makes of a product with a unit vector, as a length."""
        return float(self.noise / (2.0**0.5 * self.step))

    def _matvec(self, x: Array) -> Array:
        x = self.horizontal(np.ravel(x))
        if self._product is None:
            return self._difference(x, self.step)
        if self._verifies:
            self._verifies = False
            self._verify_product()
        return self._exact_product(x)

    def _exact_product(self, x: Array) -> Array:
        """Return the product that the Hessian-vector product gives."""
        space = self._space
        v = space.tangent_vector(x)
        w, tangent = space.gradients(self._product(space.parameters.given, v)), space.tangent  # type: ignore[misc]
        with one_thread(len(x)):
            product = tangent.riemannian_hessian(self._egrad, w, tangent.from_coordinates(space.coordinates(x)))
            return np.asarray(tangent.to_coordinates(product).reshape(-1))

    def _verify_product(self) -> None:
        """Compare a product with differences of the gradient, and raise an error if it is wrong.

        The vector has random signs, in every block as many times as long as the block itself. Of the product, every
        block contributes equally, by its part along itself and along random signs, so that a wrong part is visible.
        """
        space, rng = self._space, np.random.default_rng(0)
        x = space.random_signs(space.block_lengths, 0)
        x = x * (1.0 / (float(np.linalg.norm(x)) or 1.0))
        product, signs = self._exact_product(x), rng.choice((-1.0, 1.0), len(x))
        y, blocks = np.zeros_like(x), [s for s in space.slices if product[s].any()]
        for s in blocks:
            length = float(np.linalg.norm(product[s]))
            turn = math.copysign(1.0, float(signs[s] @ product[s])) / math.sqrt(signs[s].size)
            y[s] = (product[s] / length + turn * signs[s]) / length
        with self._calls:

            def slope(s: float) -> float:
                value, gradient = self._objective(s * x)
                return float((gradient - self.gradient) @ y) if np.isfinite(value) else math.nan

            scale = space.size or 1.0
            noise = noise_along(lambda t: slope(t * scale), FINE_STEP)
            steps = 1e-2 * scale, _LONGEST * scale
            comparison = compare_slope(slope, float(product @ y), math.sqrt(2.0 * len(blocks)), noise, *steps)
        if comparison.is_wrong:
            raise ValueError(
                "hessian_vector_product: it is not what differences of the gradient give: a product with random signs "
                f"differs by {comparison.error:.2g}, relative to its blocks. Is it the product with the Euclidean "
                "Hessian? verify=False turns this check off"
            )

    def _adjoint(self) -> RiemannianHessian:
        return self

    def _difference(self, x: Array, step: float) -> Array:
        length = float(np.linalg.norm(x))
        if length == 0.0:
            return np.zeros_like(x)
        h = step / length
        with self._calls:
            loss_ahead, gradient_ahead = self._objective(h * x)
            loss_behind, gradient_behind = self._objective(-h * x)
        if not (np.isfinite(loss_ahead) and np.isfinite(loss_behind)):
            raise ValueError(f"step: expected a step after which the loss is finite, got {step:g}; try a smaller step")
        return np.asarray((gradient_ahead - gradient_behind) / (2.0 * h))


class Eigenvalues(NamedTuple):
    """Eigenvalues, the outermost first.

    Attributes
    ----------
    values : ndarray, shape ``(k,)``
    residuals : ndarray, shape ``(k,)``
        ‖Hx − λx‖ for a unit vector x, with the error of differences along x: there is an eigenvalue of H within this
        distance of λ.
    vectors : ndarray, shape ``(n, k)``
        Orthonormal, in coordinates; `RiemannianHessian.tangent_vector` makes a tangent vector of one.

    Examples
    --------
    >>> import numpy as np, refgeo as rg
    >>> loss = rg.value_and_grad(lambda w: w[0] ** 2 + 2 * w[1] ** 2)
    >>> result = eigenvalues(RiemannianHessian(loss, np.ones(2), rg.EuclideanMetric()))
    >>> result.values.round(8), np.abs(result.vectors[:, 0]).round(8), bool(result.residuals[0] < 1e-7)
    (array([4.]), array([0., 1.]), True)
    >>> result._replace(residuals=np.array([2e-9]))
    Eigenvalues(4 ± 2e-09; vectors of length 2)
    """

    values: Array
    residuals: Array
    vectors: Array

    def __repr__(self) -> str:
        entries = ", ".join(f"{value:.6g} ± {off:.1g}" for value, off in zip(self.values, self.residuals, strict=True))
        return f"Eigenvalues({entries}; vectors of length {len(self.vectors)})"


def eigenvalues(
    hessian: RiemannianHessian,
    k: int = 1,
    which: Literal["largest", "smallest"] = "largest",
    *,
    tolerance: float | None = None,
    rng: np.random.Generator | int | None = 0,
) -> Eigenvalues:
    """Return the k extreme eigenvalues on the horizontal space with their multiplicities, by SciPy's Lanczos method
    (ARPACK).

    A Krylov space of one vector has one direction of every eigenspace. So what has been found is deflated, and the
    method begins again at a new random vector, until the best that it finds is no better than the k values that are
    there.

    Parameters
    ----------
    hessian : RiemannianHessian
    k : int
        How many.
    which : "largest" or "smallest"
        Algebraically: the most negative are the smallest.
    tolerance : float, optional
        Residual that Lanczos' method stops at, in units of the eigenvalue that is largest in absolute value. With exact
        products, the error of a single eigenvalue is of the order of its square. Default: 1e-10, or for differences
        their relative error, at least 1e-6.
    rng : numpy Generator, or a seed

    Returns
    -------
    Eigenvalues

    Raises
    ------
    scipy.sparse.linalg.ArpackNoConvergence
        Lanczos' method has not converged, or after 2k + 8 new beginnings the last one still found a better value; a
        larger `tolerance` may help.

    Examples
    --------
    >>> import numpy as np, refgeo as rg
    >>> loss = rg.value_and_grad(lambda w: np.sum(np.array([3.0, -1.0, 2.0]) * w**2) / 2)
    >>> hessian = rg.spectrum.RiemannianHessian(loss, np.ones(3), rg.EuclideanMetric())
    >>> rg.spectrum.eigenvalues(hessian, 2).values.round(8)
    array([3., 2.])
    >>> rg.spectrum.eigenvalues(hessian, 1, "smallest").values.round(8)
    array([-1.])
    """
    one_of("which", which, ("largest", "smallest"))
    if not isinstance(hessian, RiemannianHessian):
        raise TypeError(f"hessian: expected a RiemannianHessian, got {type(hessian).__name__}")
    n = hessian.shape[0]
    if integer("k", k) > hessian._space.dim:
        raise ValueError(f"k: expected at most {hessian._space.dim}, the dimension of the quotient, got {k}")
    sign = 1.0 if which == "largest" else -1.0
    if n <= max(_SMALL, 3 * k):
        values, vectors = _whole(hessian, sign)
    else:
        tolerance = hessian.resolution if tolerance is None else number("tolerance", tolerance, above=0.0)
        values, vectors = _deflate(hessian, k, sign, tolerance, np.random.default_rng(rng))
    values, vectors = values[:k], vectors[:, :k]
    products = np.stack([hessian @ vector for vector in vectors.T], axis=1)
    off = np.linalg.norm(products - sign * values * vectors, axis=0)
    return Eigenvalues(sign * values, off + np.array([hessian.error_along(x) for x in vectors.T]), vectors)


def _whole(hessian: RiemannianHessian, sign: float) -> tuple[Array, Array]:
    """Return all eigenvalues and vectors of sign·H on the horizontal space, descending."""
    n = hessian.shape[0]
    projector = np.stack([hessian.horizontal(e) for e in np.eye(n)], axis=1)
    U, kept, _ = np.linalg.svd(projector)
    basis = U[:, kept > 0.5]
    matrix = basis.T @ np.stack([hessian @ column for column in basis.T], axis=1)
    values, vectors = np.linalg.eigh(0.5 * sign * (matrix + matrix.T))
    return values[::-1], (basis @ vectors)[:, ::-1]


def _deflate(
    hessian: RiemannianHessian, k: int, sign: float, tolerance: float, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return the k largest eigenvalues of sign·H or more, descending, with vectors: those found are deflated.

    Lanczos' method sees sign·H + 2‖H‖ I on the horizontal vectors orthogonal to those that were found, and zero on all
    others: so these are the smallest, and an eigenvalue 0 of H is as good as any other.
    """
    n, dim = hessian.shape[0], hessian._space.dim
    start = hessian.horizontal(rng.standard_normal(n))
    if not np.any(hessian @ start):  # a random vector: the Hessian is zero
        columns = [start, *(hessian.horizontal(rng.standard_normal(n)) for _ in range(k - 1))]
        return np.zeros(k), np.linalg.qr(np.stack(columns, axis=1))[0]
    shift = 2.0 * float(np.abs(eigsh(hessian, 1, v0=start, tol=1e-2, return_eigenvectors=False)[0]))
    vectors, products = np.zeros((n, 0)), np.zeros((n, 0))

    def admissible(x: Array) -> Array:
        x = hessian.horizontal(np.ravel(x))
        return np.asarray(x - vectors @ (vectors.T @ x))

    def shift_and_multiply(x: Array) -> Array:
        x = admissible(x)
        return admissible(sign * hessian.matvec(x)) + shift * x

    operator = LinearOperator(hessian.shape, matvec=shift_and_multiply, dtype=np.float64)
    least, wanted = -np.inf, k
    for _ in range(2 * k + 8):
        start = admissible(rng.standard_normal(n))
        _, new = eigsh(operator, wanted, which="LA", v0=start, tol=tolerance / 3.0, ncv=min(n - 1, max(40, 3 * wanted)))
        # horizontal and orthonormal to rounding, also where two of them are copies of one eigenvalue
        new = np.linalg.qr(np.stack([admissible(x) for x in new.T], axis=1))[0]
        vectors = np.hstack([vectors, new])
        products = np.hstack([products, np.stack([sign * hessian.matvec(x) for x in new.T], axis=1)])
        best = np.sum(new * products[:, -wanted:], axis=0).max()
        is_worse, left = best <= least + tolerance * shift, dim - vectors.shape[1]
        ritz, rotation = np.linalg.eigh(0.5 * (vectors.T @ products + products.T @ vectors))
        vectors, products, ritz = vectors @ rotation[:, ::-1], products @ rotation[:, ::-1], ritz[::-1]
        if is_worse or left == 0:
            return ritz, vectors
        least, wanted = ritz[k - 1], max(1, min(wanted // 2, left))
    raise ArpackNoConvergence(
        f"{k} eigenvalues with their multiplicities were not reached: after {2 * k + 8} new beginnings, Lanczos' "
        "method still found a better one; give a larger tolerance, or fewer eigenvalues", ritz[:k], vectors[:, :k],
    )  # fmt: skip


class Trace(NamedTuple):
    """The trace of a Hessian.

    Attributes
    ----------
    value, standard_error : float
        The error has that of differences in it, also where the trace is summed exactly.
    products : int
        Hessian-vector products that it took, but for those that measure their error.
    """

    value: float
    standard_error: float
    products: int

    def __repr__(self) -> str:
        return f"Trace({self.value:.6g} ± {self.standard_error:.2g}, {self.products} products)"


def trace(hessian: LinearOperator, products: int = 30, rng: np.random.Generator | int | None = 0) -> Trace:
    r"""Return the trace by Hutch++ (Meyer et al. 2021).

    With Q an orthonormal basis of H times a third of the random vectors,
    :math:`\mathrm{tr}\,Q^\top H Q + \mathrm{mean}\, g^\top (I - QQ^\top) H (I - QQ^\top) g`: what is large is summed
    exactly, and only the rest is estimated. Its standard error is that of the mean. Where a third is enough for all
    directions, the trace is summed exactly.

    Parameters
    ----------
    hessian : LinearOperator
        Symmetric; a `RiemannianHessian`.
    products : int, at least 12
        A third each for the basis, its trace, and the rest.
    rng : numpy Generator, or a seed

    Returns
    -------
    Trace

    Examples
    --------
    >>> import numpy as np, refgeo as rg
    >>> loss = rg.value_and_grad(lambda w: np.sum(np.arange(9.0) * w**2) / 2)
    >>> hessian = rg.spectrum.RiemannianHessian(loss, np.ones(9), rg.EuclideanMetric())
    >>> round(rg.spectrum.trace(hessian, 27).value, 8)
    36.0
    """
    third = integer("products", products) // 3
    if third < 4:
        raise ValueError(f"products: expected at least 12, got {products}")
    n, generator = hessian.shape[0], np.random.default_rng(rng)

    def times(vectors: Array) -> Array:
        return np.stack([hessian @ vector for vector in vectors.T], axis=1)

    def off(vectors: Array, products: Array) -> float:
        """Return the error that differences may cause in a trace over some vectors: how far twice the step moves it."""
        if not isinstance(hessian, RiemannianHessian) or hessian.rounding == 0.0:
            return 0.0
        twice = np.stack([hessian._difference(hessian.horizontal(x), 2.0 * hessian.step) for x in vectors.T], axis=1)
        return abs(float(np.sum(vectors * (products - twice)))) + hessian.rounding

    if third >= n:
        whole = times(np.eye(n))
        return Trace(float(np.trace(whole)), off(np.eye(n), whole), n)
    Q, _ = np.linalg.qr(times(generator.standard_normal((n, third))))
    of_large = times(Q)
    rest = generator.choice([-1.0, 1.0], (n, third))
    rest -= Q @ (Q.T @ rest)
    samples = np.sum(rest * times(rest), axis=0)
    error = float(np.hypot(np.std(samples, ddof=1) / third**0.5, off(Q, of_large)))
    return Trace(float(np.sum(Q * of_large) + np.mean(samples)), error, 3 * third)
