"""A JAX backend in the functional style: one block written plainly, `vmap` for the leading dimensions, `jit` for speed.

Γ is not transcribed but derived: the Levi-Civita connection from automatic differentiation of the metric itself (the
Koszul identity), so this backend is also an independent opinion about equations (11) and (12). The projection solves a
dense system of size h²: right for a check, too large for real heads.

    refgeo check validation/backends/jax_backend.py
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)


def asarray(array):
    return jnp.asarray(array)


def to_numpy(array):
    return np.asarray(array)


def inner_product(metric, G, H, a_G, a_H, b_G, b_H):
    return _over_blocks(_inner, metric)((G, H), (a_G, a_H), (b_G, b_H))


def horizontal_projection(metric, G, H, v_G, v_H):
    return _over_blocks(_project, metric)((G, H), (v_G, v_H))


def riemannian_gradient(metric, G, H, e_G, e_H):
    return _over_blocks(_raise, metric)((G, H), (e_G, e_H))


def riemannian_hessian(metric, G, H, e_G, e_H, w_G, w_H, v_G, v_H):
    return _over_blocks(_hessian, metric)((G, H), (e_G, e_H), (w_G, w_H), (v_G, v_H))


def christoffel(metric, G, H, a_G, a_H, b_G, b_H):
    return _over_blocks(_christoffel, metric)((G, H), (a_G, a_H), (b_G, b_H))


def geodesic(metric, G, H, v_G, v_H, t, order):
    if order not in (1, 2):
        raise NotImplementedError(f"order {order!r}")
    straight = (G + t * v_G, H + t * v_H)
    if order == 1:
        return straight
    bend = christoffel(metric, G, H, v_G, v_H, v_G, v_H)
    return tuple(place - 0.5 * t**2 * part for place, part in zip(straight, bend, strict=True))


@functools.cache
def _compile(function, metric, n_leading):
    mapped = functools.partial(function, metric)
    for _ in range(n_leading):
        mapped = jax.vmap(mapped)
    return jax.jit(mapped)


def _over_blocks(function, metric):
    return lambda point, *vectors: _compile(function, metric, point[0].ndim - 2)(point, *vectors)


def _weights(metric, point):
    S, T = (factor.T @ factor for factor in point)
    return (jnp.linalg.inv(S), jnp.linalg.inv(T)) if metric == "inv" else (T, S)


def _inner(metric, point, a, b):
    return sum(jnp.sum((x @ W) * y) for W, x, y in zip(_weights(metric, point), a, b, strict=True))


def _raise(metric, point, e):
    """Return the vector that represents the covector e."""
    S, T = (factor.T @ factor for factor in point)
    if metric == "inv":
        return e[0] @ S, e[1] @ T
    return jnp.linalg.solve(T, e[0].T).T, jnp.linalg.solve(S, e[1].T).T


def _project(metric, point, v):
    """Normal equations of the vertical space, one basis vector at a time; no Sylvester solver."""
    G, H = point
    h = G.shape[1]

    def vertical(K):
        return G @ K, -H @ K.T

    basis = jnp.eye(h * h, dtype=G.dtype).reshape(h * h, h, h)
    verticals = jax.vmap(vertical)(basis)
    gram = jax.vmap(lambda x: jax.vmap(lambda y: _inner(metric, point, x, y))(verticals))(verticals)
    right_side = jax.vmap(lambda x: _inner(metric, point, x, v))(verticals)
    K = jnp.linalg.solve(gram, right_side).reshape(h, h)
    return v[0] - G @ K, v[1] + H @ K.T


def _christoffel(metric, point, a, b):
    """2⟨Γ(a, b), c⟩ = D⟨b, c⟩[a] + D⟨a, c⟩[b] − D⟨a, b⟩[c] for constant fields a, b, c."""

    def along(direction, x, y):
        return jax.jvp(lambda p: _inner(metric, p, x, y), (point,), (direction,))[1]

    def koszul(c):
        return 0.5 * (along(a, b, c) + along(b, a, c)) - 0.5 * along(c, a, b)

    zero = jax.tree.map(jnp.zeros_like, a)
    return _raise(metric, point, jax.grad(koszul)(zero))


def _hessian(metric, point, e, w, v):
    """D grad f[v] + Γ(grad f, v), the derivative of g⁻¹e by differentiating in the point."""
    gradient, moved = jax.jvp(lambda p: _raise(metric, p, e), (point,), (v,))
    bend = _christoffel(metric, point, gradient, v)
    covariant = jax.tree.map(lambda x, y, z: x + y + z, _raise(metric, point, w), moved, bend)
    return _project(metric, point, covariant)
