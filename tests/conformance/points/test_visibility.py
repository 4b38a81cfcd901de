"""The estimates from the features of a point agree with the arrays: what is visible is far larger than rounding."""

import numpy as np
import pytest

from refgeo.conformance.judging.evidence import WRONG_RATIO, error_units, relative_to
from refgeo.conformance.points.covering_design import covering_design
from refgeo.conformance.points.scene import generate
from refgeo.conformance.points.visibility import is_fault_visible
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
                if value.order == "exact" or not is_fault_visible(features, value):
                    continue
                units = error_units(scene, value)
                shows = units.decisive & (determined_part(scene, value) > WRONG_RATIO * units.gram)
                assert shows.any(), (name, features.name)
                counts[name] += 1
    assert all(count > 20 for name, count in counts.items() if name != "geodesic_exact")
