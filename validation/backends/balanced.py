"""refgeo's own factorised route as a backend: what the rest of the package computes, judged like anybody's code.

refgeo check validation/backends/balanced.py
"""

import refgeo as rg

_METRICS = {"inv": rg.InvariantMetric(), "mix": rg.MixedMetric()}


def _at(metric, G, H):
    return _METRICS[metric].at(rg.Pair(G, H))


def _parts(pair, dtype):
    """float64 inside; the caller's dtype outside."""
    return pair.G.astype(dtype), pair.H.astype(dtype)


def inner_product(metric, G, H, a_G, a_H, b_G, b_H):
    return _at(metric, G, H).inner_product(rg.Pair(a_G, a_H), rg.Pair(b_G, b_H)).astype(G.dtype)


def horizontal_projection(metric, G, H, v_G, v_H):
    return _parts(_at(metric, G, H).horizontal_projection(rg.Pair(v_G, v_H)), G.dtype)


def riemannian_gradient(metric, G, H, e_G, e_H):
    return _parts(_at(metric, G, H).riemannian_gradient(rg.Pair(e_G, e_H)), G.dtype)


def riemannian_hessian(metric, G, H, e_G, e_H, w_G, w_H, v_G, v_H):
    pairs = rg.Pair(e_G, e_H), rg.Pair(w_G, w_H), rg.Pair(v_G, v_H)
    return _parts(_at(metric, G, H).riemannian_hessian(*pairs), G.dtype)


def christoffel(metric, G, H, a_G, a_H, b_G, b_H):
    return _parts(_at(metric, G, H).christoffel(rg.Pair(a_G, a_H), rg.Pair(b_G, b_H)), G.dtype)


def geodesic(metric, G, H, v_G, v_H, t, order):
    return _parts(_at(metric, G, H).geodesic(rg.Pair(v_G, v_H), t, order), G.dtype)


def retraction(metric, G, H, v_G, v_H, t):
    return _parts(_at(metric, G, H).geodesic(rg.Pair(v_G, v_H), t, 1), G.dtype)


def sharpness(metric, problem, G, H, rho, order):
    def value_and_grad(pair):
        value, grads = problem.value_and_grad(pair.G, pair.H)
        return value, rg.Pair(*grads)

    if metric == "adaptive":
        result = rg.adaptive_sharpness(value_and_grad, rg.Pair(G, H), rho)
    else:
        result = rg.worst_case_sharpness(value_and_grad, rg.Pair(G, H), _METRICS[metric], rho, order=order)
    return result.value, tuple(result.maximizer)
