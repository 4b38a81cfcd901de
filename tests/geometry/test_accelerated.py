"""The accelerated spaces against the plain one, which is their oracle."""

import numpy as np
import pytest
from helpers import FAMILY, like, random_pair

import refgeo as rg
from refgeo.geometry import accelerated
from refgeo.geometry.gauge import balance
from refgeo.geometry.pair_space import PairTangentSpace

OPERATIONS = {
    "horizontal_projection": lambda space, a, b, x: space.horizontal_projection(a),
    "christoffel of one": lambda space, a, b, x: space.christoffel(a),
    "christoffel": lambda space, a, b, x: space.christoffel(a, b),
    "christoffel_adjoint": lambda space, a, b, x: space.christoffel_adjoint(a, b),
    "riemannian_gradient": lambda space, a, b, x: space.riemannian_gradient(a),
    "riemannian_hessian": lambda space, a, b, x: space.riemannian_hessian(a, b, a),
    "geodesic": lambda space, a, b, x: space.geodesic(a, 0.1),
    "to_coordinates": lambda space, a, b, x: space.to_coordinates(a),
    "from_coordinates": lambda space, a, b, x: space.from_coordinates(x),
    "point_at 1": lambda space, a, b, x: space.point_at(x, 1),
    "point_at 2": lambda space, a, b, x: space.point_at(x, 2),
    "gradient_at 1": lambda space, a, b, x: space.gradient_at(x, b, 1),
    "gradient_at 2": lambda space, a, b, x: space.gradient_at(x, b, 2),
    "norm": lambda space, a, b, x: space.norm(a),
    "metric_tensor": lambda space, a, b, x: space.metric_tensor(),
    "energy": lambda space, a, b, x: space.momenta(a)["energy"],
    "normal_coordinates": lambda space, a, b, x: space.normal_coordinates(np.random.default_rng(0)),
}
EXACT = {
    "exact": lambda space, a, b, x: space.geodesic(a, 0.1, "exact"),
    "point_at exact": lambda space, a, b, x: space.point_at(x, "exact"),
    "gradient_at exact": lambda space, a, b, x: space.gradient_at(x, b, "exact"),
}


@pytest.mark.parametrize("condition", [1.0, 1e4])
@pytest.mark.parametrize("relaxation", [0.0, 0.1])
@pytest.mark.parametrize("name", FAMILY)
def test_the_accelerated_spaces_are_the_plain_one(name, relaxation, condition):
    rng, metric = np.random.default_rng(0), FAMILY[name](relaxation)
    point = random_pair(rng, (2, 3), 50, 40, 8)
    point = rg.Pair(point.G * np.geomspace(1.0, 1.0 / condition, 8), point.H)
    plain = PairTangentSpace(metric, point, balance(*point, relaxation))
    space = metric.at(point)
    assert type(space) is accelerated.FusedSpace
    a, b = like(point, rng), like(point, rng)
    a = a * (1.0 / plain.norm(a))
    x = 0.1 * plain.to_coordinates(plain.horizontal_projection(a))
    closed = name == "inv" and relaxation == 0.0
    for kind, operation in (OPERATIONS | EXACT if closed else OPERATIONS).items():
        result, expected = (operation(item, a, b, x) for item in (space, plain))
        parts = zip(result, expected, strict=True) if isinstance(result, (rg.Pair, tuple)) else [(result, expected)]
        for item, second in parts:
            error = np.abs(item - second).max() / np.abs(second).max()
            assert error < 1e-12 * condition, kind


def test_small_points_take_the_plain_way():
    assert type(rg.InvariantMetric().at(rg.Pair(np.eye(5, 2), np.eye(4, 2)))) is PairTangentSpace
