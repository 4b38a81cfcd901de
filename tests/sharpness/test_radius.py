"""The radius that is proposed."""

import functools

import numpy as np
import pytest

import refgeo as rg

worst_case = functools.partial(rg.worst_case_sharpness, n_restarts=1)


@pytest.mark.parametrize("name", ["inv", "mix", "s=0.5"])
def test_at_the_proposed_radius_geodesics_are_nearly_straight_whatever_head_moves(name):
    """In proportion to the geometry: weights of any size, and one head alone that gets all of the radius."""
    rng = np.random.default_rng(0)
    metric = {"inv": rg.InvariantMetric, "mix": rg.MixedMetric, "s=0.5": lambda: rg.InterpolatedMetric(0.5)}[name]()
    x, y = rng.standard_normal((3, 9, 6)), rng.standard_normal((3, 9, 5))

    def loss(pair):
        residual = (x @ pair.H) @ pair.G.mT - y
        return 0.5 * float(np.sum(residual**2)), rg.Pair(residual.mT @ (x @ pair.H), x.mT @ (residual @ pair.G))

    radii = []
    for size in (1.0, 0.01):
        pair = size * rg.Pair(rng.standard_normal((3, 5, 2)), rng.standard_normal((3, 6, 2)))
        radius = rg.proposed_radius(loss, pair, metric)
        space, gradient = metric.at(pair), rg.Pair(*loss(pair)[1])
        v = space.riemannian_gradient(gradient)
        u = v / space.norm(v)
        bends = 0.5 * radius * space.norm(space.christoffel(u))
        assert 0.045 <= bends.max() <= 0.05 * (1 + 1e-9)
        assert worst_case(loss, pair, metric, radius).bend < 0.1
        radii.append(radius)
    # a homothety of the metric: ‖v‖ of mix is of the fourth order in the size of the factors, that of inv is relative
    assert radii[1] / radii[0] < {"inv": 10.0, "mix": 1e-3, "s=0.5": 0.1}[name]
    assert radii[1] / radii[0] > {"inv": 0.1, "mix": 1e-5, "s=0.5": 1e-3}[name]


def test_the_proposed_radius_where_nothing_bends():
    flat = rg.proposed_radius(lambda w: (float(w.sum()), np.ones(4)), np.full(4, 3.0), rg.EuclideanMetric(), bend=0.1)
    assert flat == 0.6
    still = rg.proposed_radius(lambda p: (0.0, rg.Pair(0 * p.G, 0 * p.H)), rg.Pair([[2.0]], [[1.0]]), rg.MixedMetric())
    assert still > 0.0
    with pytest.raises(ValueError, match="bend"):
        rg.proposed_radius(lambda w: (0.0, w), np.ones(2), rg.EuclideanMetric(), bend=0.0)
