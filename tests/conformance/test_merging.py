"""Merges of adapters, right and wrong ones: laws without a value, and the means that have one."""

from types import SimpleNamespace

import numpy as np
import pytest

import refgeo as rg
from refgeo.conformance.rows import Verdict


def truncated(X, h):
    U, s, V = np.linalg.svd(X, full_matrices=False)
    return U[:, :h] * np.sqrt(s[:h]), V[:h].T * np.sqrt(s[:h])


def mean_of_products(factors, weights):
    return truncated(sum(w * G @ H.T for w, (G, H) in zip(weights, factors, strict=True)), factors[0][0].shape[1])


def geometric(factors, weights):
    """h = 1 with common directions."""
    products = [G @ H.T for G, H in factors]
    size = np.prod([np.linalg.norm(X) ** w for X, w in zip(products, weights, strict=True)])
    return truncated(products[0] * size / np.linalg.norm(products[0]), 1)


def of_factors(power):
    def merge(factors, weights):
        return tuple(sum(w**power * pair[i] for w, pair in zip(weights, factors, strict=True)) for i in (0, 1))

    return merge


def first_one(factors, weights):
    return factors[0]


def normalised(factors, weights):
    """Weights are taken for shares of the length of the result."""
    G, H = mean_of_products(factors, weights)
    return G / np.linalg.norm(G), H / np.linalg.norm(H)


def verdicts(merge, checks=("merge",), **options):
    rows = rg.check(SimpleNamespace(merge=merge), checks=list(checks), **options).rows
    return {row.check.partition(".")[2]: row.verdict for row in rows}


WRONG = {
    "square roots": (of_factors(0.5), {"idempotent", "representation"}),
    "factors": (of_factors(1.0), {"representation"}),
    "the first one": (first_one, {"symmetric"}),
    "normalised": (normalised, {"idempotent", "weight_one"}),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_mean_of_products_passes(dtype):
    found = verdicts(mean_of_products, ("merge", "merge.products"), dtype=dtype)
    assert len(found) == 5
    assert set(found.values()) == {Verdict.PASS}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_merges_break_their_laws(name):
    merge, broken = WRONG[name]
    found = verdicts(merge)
    assert {law for law, verdict in found.items() if verdict is Verdict.WRONG} == broken


def test_means_are_told_apart_by_their_values():
    values = ("merge.products", "merge.geometric")
    assert verdicts(mean_of_products, values) == {"products": Verdict.PASS, "geometric": Verdict.WRONG}
    assert verdicts(geometric, values[1:]) == {"geometric": Verdict.PASS}


def test_closed_forms_are_the_means_of_the_metrics():
    """The mean lies on the geodesic from the first to the second, at the time that is the weight of the second."""
    G, H = np.array([[1.0], [2.0]]), np.array([[0.5], [1.0], [3.0]])
    first, second = rg.Pair(G, H), rg.Pair(4.0 * G, 0.5 * H)
    space = rg.InvariantMetric().at(first)
    v = space.horizontal_projection(rg.Pair(np.log(2.0) / 2.0 * G, np.log(2.0) / 2.0 * H))  # X grows by 2 in time 1
    np.testing.assert_allclose(space.geodesic(v, 1.0, "exact").product, second.product, rtol=1e-12)
    np.testing.assert_allclose(space.geodesic(v, 0.75, "exact").product, 2.0**0.75 * first.product, rtol=1e-12)
    rng = np.random.default_rng(0)
    square = rg.Pair(np.eye(3), np.eye(3) + 0.1 * rng.standard_normal((3, 3)))
    other = square + 0.1 * rg.Pair(*rng.standard_normal((2, 3, 3)))
    mix = rg.MixedMetric().at(square)
    step = other.product - square.product
    v = mix.horizontal_projection(rg.Pair(step @ np.linalg.inv(square.H.T), np.zeros((3, 3))))
    halfway = mix.geodesic(v, 0.75, "exact").product
    np.testing.assert_allclose(halfway, 0.25 * square.product + 0.75 * other.product, atol=1e-9)


def test_a_merge_that_raises_and_one_that_is_missing():
    def raises(factors, weights):
        raise RuntimeError("no")

    assert set(verdicts(raises).values()) == {Verdict.WRONG}
    assert [row.verdict for row in rg.check("refgeo.paper", checks=["merge"]).rows] == [Verdict.NOT_PROVIDED]
    another = SimpleNamespace(merge=lambda one: one, inner_product=rg.paper.inner_product)
    assert [row.verdict for row in rg.check(another, checks=["merge"]).rows] == [Verdict.NOT_PROVIDED]
