"""Operations of a pair metric, beside six tall products and beside a loop with SciPy's Sylvester solver.

Six tall products, (h, n)·(n, h) twice and (n, h)·(h, h) four times a block, are what a projection contains that is
written directly in the balanced gauge.
"""

import numpy as np
import scipy.linalg

import refgeo as rg

from .in_turn import durations_of, ratio

METRICS = {"inv": rg.InvariantMetric(), "mix": rg.MixedMetric()}
FIRST_CALLS = [(1, 20, 20, 4), (1, 385, 385, 32), (144, 385, 385, 32)]
SHAPE = (48, 384, 384, 32)
PRODUCTS = "six products"


def a_point(blocks, n, m, h):
    rng = np.random.default_rng(0)
    point, v, e = (rg.Pair(rng.standard_normal((blocks, n, h)), rng.standard_normal((blocks, m, h))) for _ in range(3))
    return point, v, e, rng.standard_normal((blocks, h, h))


def operations(metric, shape):
    """Functions without arguments."""
    point, v, e, small = a_point(*shape)
    space = metric.at(point)
    v = 0.3 * space.horizontal_projection(v) / space.norm(v)
    x = space.to_coordinates(v)

    def six_products():
        for F in point:
            F.mT @ F
            for _ in range(2):
                F @ small

    made = {
        PRODUCTS: six_products,
        "at": lambda: metric.at(point).gauge.columns,  # which are computed on first use
        "projection": lambda: space.horizontal_projection(v),
        "gradient": lambda: space.riemannian_gradient(e),
        "Γ(v, v)": lambda: space.christoffel(v),
        "Γ(a, b)": lambda: space.christoffel(v, e),
        "Γ(a, ·)*": lambda: space.christoffel_adjoint(v, e),
        "geodesic 2": lambda: space.geodesic(v),
        "point_at": lambda: space.point_at(x),
        "gradient_at": lambda: space.gradient_at(x, e),
    }
    if metric.s == 0.0:
        made["geodesic exact"] = lambda: space.geodesic(v, 1.0, "exact")
        made["gradient exact"] = lambda: space.geodesic_gradient(v, e, "exact")
    return made


def sylvester_loop(point, v):
    """Projection in inv, a block at a time: S T Λᵀ + Λᵀ S T = S Hᵀv_H − v_GᵀG T."""
    result = []
    for G, H, v_G, v_H in zip(*point, *v, strict=True):
        S, T = G.T @ G, H.T @ H
        product = S @ T
        L = scipy.linalg.solve_sylvester(product, product, S @ (H.T @ v_H) - (v_G.T @ G) @ T).T
        result.append((v_G + G @ L, v_H - H @ L.T))
    return result


def first_call(shape):
    """``at`` and one projection, the loop, and ``at`` alone; and how often each is repeated."""
    point, v, _, _ = a_point(*shape)
    metric = rg.InvariantMetric()
    repeat = 50 if shape[0] == 1 else 1

    def repeated(function):
        return lambda: [function() for _ in range(repeat)]

    return {
        "refgeo": repeated(lambda: metric.at(point).horizontal_projection(v)),
        "loop": repeated(lambda: sylvester_loop(point, v)),
        "at": repeated(lambda: metric.at(point)),
    }, repeat


class Operations:
    """In units of six tall products, at 48 blocks of 384×32."""

    params = (list(METRICS), [name for name in operations(METRICS["inv"], (1, 4, 4, 2)) if name != PRODUCTS])
    param_names = ("metric", "operation")
    unit = "six products"
    timeout = 600

    def setup(self, metric, operation):
        self.functions = operations(METRICS[metric], SHAPE)
        if operation not in self.functions:
            raise NotImplementedError

    def track_ratio(self, metric, operation):
        functions = {name: self.functions[name] for name in (PRODUCTS, operation)}
        return ratio(durations_of(functions, 9), operation, PRODUCTS)


class FirstCall:
    """Factorisation and projection for inv, beside the loop."""

    params = tuple(map(str, FIRST_CALLS))
    param_names = ("blocks, n, m, h",)
    unit = "loops"

    def track_ratio(self, shape):
        functions, _ = first_call(dict(zip(self.params, FIRST_CALLS, strict=True))[shape])
        return ratio(durations_of(functions, 5), "refgeo", "loop")
