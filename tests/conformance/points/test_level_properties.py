"""Every name of a test point is true of its arrays: each special level is measured from them."""

import math
from dataclasses import replace

import numpy as np
import pytest

from refgeo.conformance.points.covering_design import covering_design
from refgeo.conformance.points.scene import generate
from refgeo.geometry.pair_space import relative_speed


def singular_values(factor):
    return np.linalg.svd(factor, compute_uv=False).reshape(-1, factor.shape[-1])


def is_near(x, y, factor=8.0):
    """Return whether two positive numbers, or arrays of them, agree up to a factor."""
    return bool(np.all((np.asarray(x) < factor * np.asarray(y)) & (np.asarray(y) < factor * np.asarray(x))))


def blocks_of(x):
    return x.reshape(-1, *x.shape[-2:])


def is_leading_identity(factor):
    return np.array_equal(factor, np.broadcast_to(np.eye(*factor.shape[-2:]), factor.shape))


def size(pair):
    return math.hypot(*(float(np.linalg.norm(part / np.abs(part).max(initial=1e-300)) * np.abs(part).max(initial=0.0))
                        for part in pair))  # fmt: skip


def has_condition(f, point, rounding):
    for factor, kappa in zip(point, (f.condition_G, f.condition_H), strict=True):
        if f.uneven_condition == 1.0 and kappa > 3.0 and kappa * rounding < 0.1:
            values = singular_values(factor)
            if not is_near(values[:, 0] / values[:, -1], kappa, 3.0):
                return False
    return True


def has_gap(f, point, rounding):
    gaps = [1.0 - values[:, 1::2] / values[:, : 2 * (f.h // 2) : 2] for values in map(singular_values, point)]
    return all(np.all(gap <= 20.0 * f.gap + 1e3 * f.h * rounding * f.max_condition) for gap in gaps)


def is_shared(f, G, H):
    if f.shared == "rows":
        count = max(min(f.n, f.m) // 2, 1)
        is_conditioned = np.all(np.linalg.cond(H) < 100.0)  # square factors of two parts are not
        return is_conditioned and np.array_equal(H[..., :count, :], G[..., f.n - count :, :])
    parts = [x for part, x in (("G", G), ("H", H)) if f.shared in (part, "all")]
    return all(np.array_equal(block, blocks_of(x)[0]) for x in parts for block in blocks_of(x))


def has_sizes(f, point):
    top = [float(singular_values(x)[0, 0]) for x in point]
    factor = 1e3 if f.shared == "rows" else 30.0  # which can be small rows
    return is_near(top, (f.size_G, f.size_H), factor) and is_near(top[0] / top[1], f.size_G / f.size_H, factor)


def is_uneven(f, point):
    G = [float(values[0]) for values in singular_values(point.G)]
    return is_near(G[0] / G[1], f.uneven, 30.0)


def measure(f, scene):
    """Return for every field of `Features` whether the arrays of a point have it, as functions."""
    point, space, rounding = scene.point, scene.space, scene.precision.roundoff
    G, H = point
    a, b, v = (scene.vectors[name] for name in "abv")
    tolerance = 1e3 * rounding * float(np.max(scene.condition)) ** 2
    S, T = (x.mT @ x for x in point)

    has_vectors = (space.norm(a) > 0.0) & (space.norm(b) > 0.0)  # masks may have left no number of a block

    def norms(x):
        return space.norm(x)[has_vectors]

    def vertical_part(x):
        return norms(x - space.horizontal_projection(x)) / norms(x)

    def cosine():
        measured = space.inner_product(a, b)[has_vectors] / norms(a) / norms(b)
        return np.allclose(measured, f.cosine, atol=tolerance, rtol=0.0)

    def is_vertical():
        share = vertical_part(a)
        wanted = f.vertical if f.vertical > 0.5 else max(f.vertical, 1e-300)
        return np.all(np.abs(share - wanted) <= tolerance + 0.01 * min(wanted, 1.0 - wanted))

    def is_radial():
        along = space.inner_product(a, point)[has_vectors] / norms(a) / norms(point)
        return np.allclose(np.abs(along), f.radial, atol=tolerance + 1e-9)

    def has_part():
        top, bottom = (float(np.linalg.norm(x)) for x in a)
        if f.part in (0.0, math.inf):
            return bool(top if f.part == 0.0 else bottom) is False and bool(bottom if f.part == 0.0 else top)
        factor = 30.0 if min(G.size, H.size) > 1 else 1e3  # a single number can be small
        return is_near(top / bottom, f.part * np.linalg.norm(G) / np.linalg.norm(H), factor)

    def has_length():
        if f.length == 0.0:
            return not any(np.any(x) for vector in (a, b, v) for x in vector)
        return is_near(norms(a), f.length * norms(point), 1e3 * np.max(scene.condition))

    def has_ratio():
        if f.ratio in (0.0, math.inf):
            return not any(map(np.any, b if f.ratio == 0.0 else a)) and any(map(np.any, a if f.ratio == 0.0 else b))
        return is_near(norms(b) / norms(a), f.ratio, 1e3)

    def is_sparse():
        shares = [float(np.mean(x == 0.0)) for x in a if x.size > 20]
        return all(0.3 < share < 1.0 for share in shares)

    return {
        **dict.fromkeys(("condition_G", "condition_H"), lambda: has_condition(f, point, rounding)),
        "uneven_condition": lambda: any(
            is_near((x[-1, 0] / x[-1, -1]) / (x[0, 0] / x[0, -1]), f.uneven_condition, 3.0)
            for x in map(singular_values, point)),
        "balance": lambda: bool(np.all(np.linalg.norm(S - T, axis=(-2, -1))
                                       <= (1e3 * (1.0 - f.balance) + tolerance) * np.linalg.norm(S, axis=(-2, -1)))),
        "turn": lambda: all(
            np.all(np.abs(x - x * np.eye(*x.shape[-2:])) <= 30.0 * f.turn * np.abs(x).max())
            for x in (factor[..., f.zero_rows :, :] for factor in point)),
        "gap": lambda: has_gap(f, point, rounding),
        "alike": lambda: np.array_equal(G, H),
        "identity": lambda: all(is_leading_identity(x) for i, x in enumerate(point, 1) if f.identity in (i, 3)),
        "normed": lambda: all(np.allclose(np.linalg.norm(x, axis=-2), 1.0, atol=10.0 * rounding) for x in point),
        "zero_rows": lambda: all(not np.any(x[..., : f.zero_rows, :]) for x in point),
        "shared": lambda: is_shared(f, G, H),
        **dict.fromkeys(("size_G", "size_H"), lambda: has_sizes(f, point)), "uneven": lambda: is_uneven(f, point),
        "length": has_length, "ratio": has_ratio, "part": has_part, "sparse": is_sparse,
        "same": lambda: a is b, "cosine": cosine, "vertical": is_vertical, "radial": is_radial,
        "empty_rows": lambda: all(not np.any(x[..., : f.empty_rows, :]) for vector in (a, b) for x in vector),
        "empty_blocks": lambda: all(
            not np.any(blocks_of(x)[: f.empty_blocks]) for vector in (a, b, v) for x in vector),
        "slope": lambda: is_near(
            1e-300 + size(scene.vectors["hessian_e"]), 1e-300 + f.slope * size(scene.with_features(
                replace(f, slope=1.0)).vectors["hessian_e"]), 1e4),
        "speed": lambda: np.allclose(relative_speed(space, v) * abs(scene.t), f.speed, rtol=1e-3),
        "t": lambda: scene.t == float(scene.precision.round(np.array(f.t))) or scene.t == f.t,
        "single": lambda: scene.dtype == "float32",
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_every_special_level_of_a_name_is_true_of_its_arrays(seed):
    wrong = []
    for features in covering_design("quick", seed):
        if features.cost > 2_000:
            continue
        for metric in ("inv", "mix"):
            with np.errstate(all="ignore"):
                scene = generate(features, metric, "float64", seed)
                measured = measure(features, scene)
                wrong += [(metric, features.name, name) for name in features.non_default
                          if name in measured and not measured[name]()]  # fmt: skip
    assert not wrong, (len(wrong), wrong[:20])
