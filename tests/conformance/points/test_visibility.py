"""The estimates from the features of a point agree with the arrays: what is visible is far larger than rounding."""

import numpy as np
import pytest
import scipy.integrate

from refgeo import paper
from refgeo.conformance.judging.evidence import SURELY_WRONG_RATIO, WRONG_RATIO, compare, error_units, relative_to
from refgeo.conformance.points.covering_design import covering_design, visible_levels
from refgeo.conformance.points.scene import generate
from refgeo.conformance.points.visibility import find_visible
from refgeo.conformance.protocol.call import Answer
from refgeo.conformance.protocol.operations import VALUES


def determined_part(scene, value):
    """Compute what the formula of a value determines: its length relative to the scale of the value, per block."""
    space, vectors = scene.space, scene.inputs(value.operation)
    v = vectors[0]
    part = {
        "geodesic_1": lambda: scene.t * v,
        "geodesic_2": lambda: 0.5 * scene.t**2 * space.christoffel(v),
        "horizontal_projection": lambda: v - space.horizontal_projection(v),
        "riemannian_hessian": lambda: (
            space.riemannian_hessian(*vectors) - space.horizontal_projection(space.riemannian_gradient(vectors[1]))
        ),
    }.get(value.name)
    result = tuple(part()) if part else scene.reference(value)
    return relative_to(scene.length(result), scene.size(value))


@pytest.mark.parametrize("metric", ["inv", "mix"])
def test_a_fault_of_the_size_of_the_determined_part_is_wrong_where_the_design_counts_on_it(metric):
    counts = dict.fromkeys(VALUES, 0)
    for features in covering_design("quick", 1):
        if features.cost > 1_000:
            continue
        with np.errstate(all="ignore"):
            scene = generate(features, metric, "float64", 1)
            for name, value in VALUES.items():
                if value.order == "exact" or not all(find_visible(features, [value])):
                    continue
                units = error_units(scene, value)
                shows = units.decisive & (determined_part(scene, value) > WRONG_RATIO * units.gram)
                assert shows.any(), (name, features.name)
                counts[name] += 1
    assert all(count > 20 for name, count in counts.items() if name != "geodesic_exact")


def integrate_with_absolute_tolerance(arrays, t):
    """Integrate an exact geodesic of inv with tolerances that ignore the size of the factors; of one block."""
    shapes, cuts = [x.shape for x in arrays], np.cumsum([x.size for x in arrays])[:-1]

    def read(y):
        return [x.reshape(shape) for x, shape in zip(np.split(y, cuts), shapes, strict=True)]

    def derivative(_, y):
        G, H, v_G, v_H = read(y)
        gamma_G, gamma_H = paper.christoffel("inv", G, H, v_G, v_H, v_G, v_H)
        return np.concatenate([x.ravel() for x in (v_G, v_H, -gamma_G, -gamma_H)])

    start = np.concatenate([x.ravel() for x in arrays])
    try:
        path = scipy.integrate.solve_ivp(derivative, (0.0, t), start, "DOP853", rtol=1e-13, atol=1e-12)
    except (RuntimeWarning, np.linalg.LinAlgError):  # the wrong path runs into a singular point
        return arrays[:2]
    return read(path.y[:, -1])[:2]


@pytest.mark.parametrize("seed", range(3))
def test_an_absolute_tolerance_of_an_integrator_is_wrong_where_the_design_counts_on_small_factors(seed):
    value, wrong = VALUES["geodesic_exact"], set()
    for features in covering_design("quick", seed):
        is_small = max(features.size_G, features.size_H) < 1e-4
        if is_small and any(kind == "size" for kind, _ in visible_levels(features)["geodesic_exact"]):
            scene = generate(features, "inv", "float64", seed).first_blocks(2)
            call = scene.call(value)
            blocks = [[x[block] for x in call.arrays] for block in np.ndindex(scene.shape)]
            ends = zip(*(integrate_with_absolute_tolerance(block, call.extra[0]) for block in blocks), strict=True)
            parts = tuple(np.reshape(end, x.shape) for end, x in zip(ends, scene.point, strict=True))
            evidence = compare(scene, value, Answer(parts))
            if any(e.is_likely_wrong and e.ratio > SURELY_WRONG_RATIO for e in evidence):
                wrong.add((features.size_G, features.size_H))
    assert wrong
