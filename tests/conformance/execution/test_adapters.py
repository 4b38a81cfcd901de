"""Adapters: functions of one block, optimisers, other geometries as the truth, laws without values."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers import FUNCTIONS, backend, sample

import refgeo as rg
from refgeo import paper

SOME = ["1x5x1", "7x4x1/k3", "5x4x2/k3/t=1", "4x4x4", "10x9x4/k10", "2-6x7x2"]


@pytest.mark.slow
def test_unbatched_gives_leading_dimensions_back():
    def single(name):
        def call(metric, G, *rest):
            assert np.ndim(G) == 2
            result = getattr(paper, name)(metric, G, *rest)
            return float(result) if name == "inner_product" else list(result)  # as people write it

        return rg.adapters.unbatched(call)

    names = ("inner_product", "horizontal_projection", "christoffel", "geodesic")
    report = rg.check(
        SimpleNamespace(**{name: single(name) for name in names}), cases=["5x4x2", "2.3-6x7x2", "3-7x4x1", "1-5x4x2"]
    )
    assert report.passed
    assert {row.function for row in report.judged if row.kind == "value"} == set(names)
    single_precision = rg.check(
        SimpleNamespace(inner_product=single("inner_product")), cases=["2.3-6x7x2"], dtype="float32"
    )
    assert all(row.verdict.value == "pass" for row in single_precision.judged)


def test_unbatched_refuses_an_object_with_functions():
    with pytest.raises(TypeError, match=r"christoffel = unbatched\(mine\.christoffel\)"):
        rg.adapters.unbatched(SimpleNamespace(christoffel=paper.christoffel))


def sgd(damping):
    """An optimiser of LoRA as released ones are, in a few lines."""

    def make(model, learning_rate):
        A, B = model.layer.lora_A["default"].weight, model.layer.lora_B["default"].weight

        def step():
            eye = np.eye(len(A))
            a, b = A.detach().numpy(), B.detach().numpy()
            g_A, g_B = A.grad.numpy(), B.grad.numpy()
            new_A = np.linalg.solve(b.T @ b + damping * eye, g_A)
            new_B = np.linalg.solve(a @ a.T + damping * eye, g_B.T).T
            a -= (learning_rate * new_A).astype(a.dtype)
            b -= (learning_rate * new_B).astype(b.dtype)

        return SimpleNamespace(step=step)

    return SimpleNamespace(riemannian_gradient=rg.adapters.torch_optimizer(make))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sample(["float64", "float32"]))
def test_an_optimisers_gradient_is_read_without_losing_digits(dtype):
    pytest.importorskip("torch")
    assert rg.check(sgd(0.0), dtype=dtype, cases=SOME).passed
    damped = rg.check(sgd(0.01), dtype=dtype, cases=SOME)
    assert damped.wrong == ["riemannian_gradient[mix]"]
    assert any("with ε = 0.01, in the place of" in row.differs for row in damped.failures)
    assert rg.check(sgd(0.01), dtype=dtype, relaxation=0.01, cases=SOME).passed


def test_an_optimisers_gradient_of_nan_is_nan():
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    G, H, e_G, e_H = (rng.standard_normal(shape) for shape in ((5, 2), (4, 2), (5, 2), (4, 2)))
    e_G[1, 0] = np.nan
    g_G, g_H = sgd(0.0).riemannian_gradient("mix", G, H, e_G, e_H)
    assert np.isnan(g_G).any()
    assert np.isfinite(g_H).all()


@pytest.mark.slow
@pytest.mark.parametrize("relaxation", sample([1e-4, 0.3]))
def test_the_relaxed_geometry_can_be_the_truth(relaxation):
    relaxed = backend(**{
        name: lambda *a, name=name: getattr(paper, name)(*a, relaxation=relaxation) for name in FUNCTIONS
    })  # fmt: skip
    report = rg.check(relaxed, relaxation=relaxation, cases=SOME)
    assert report.passed
    assert str(report.points).endswith(f"ε = {relaxation:g}")
    plain = rg.check(backend(), relaxation=relaxation, checks=["riemannian_gradient"], cases=SOME)
    assert set(plain.wrong) == {"riemannian_gradient[inv]", "riemannian_gradient[mix]"}
    ignored = {row.metric: (row.diagnosis, row.expected[0]) for row in plain.failures if row.kind == "value"}
    message = f"your result is that of ε = 0, not of ε = {relaxation:g}"
    assert ignored == {"inv": (message, "G: e_G S_ε"), "mix": (message, "G: e_G T_ε⁻¹")}
    second = backend(riemannian_gradient=lambda *a: paper.riemannian_gradient(*a, relaxation=2 * relaxation))
    wrong = rg.check(second, relaxation=relaxation, checks=["riemannian_gradient"], cases=SOME)
    assert all(
        f"with ε = {2 * relaxation:.3g}, not {relaxation:.3g}" in row.differs
        for row in wrong.failures
        if row.kind == "value"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "name"),
    sample([
        (1e-8, "inner_product"), (1e-10, "riemannian_gradient"), (1e-3, "inner_product"), (1e-7, "christoffel"),
        (0.5, "riemannian_gradient"), (0.5, "christoffel"),
    ], 6),
)  # fmt: skip
def test_any_epsilon_is_found(epsilon, name):
    broken = backend(**{name: lambda *a: getattr(paper, name)(*a, relaxation=epsilon)})
    report = rg.check(broken, checks=[name], metrics=["inv"])
    assert report.wrong
    for row in report.failures:
        if row.kind == "value":
            assert f"ε = {epsilon:.3g}" in row.differs or row.diagnosis == f"read ε = {epsilon:.3g}", row.diagnosis


def gradient_by(gram):
    def gradient(metric, G, H, e_G, e_H):
        S, T = gram(G), gram(H)
        return (e_G @ S, e_H @ T) if metric == "inv" else (e_G @ np.linalg.inv(T), e_H @ np.linalg.inv(S))

    return gradient


def einsum_of_batches(F):
    return np.einsum("...ni,...nj->...ij", F, F) if F.ndim > 2 else F.T @ F


def first_axis_alone(F):
    grams = np.einsum("...ni,...nj->...ij", F, F)
    return grams.reshape(F.shape[0], -1, *grams.shape[-2:])[:, ::-1].reshape(grams.shape) if F.ndim > 3 else grams


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("gram", "right"), [(einsum_of_batches, True), (first_axis_alone, False)])
def test_a_batch_is_held_against_its_blocks_one_by_one(gram, right, seed):
    """The error of an ill-conditioned block says nothing of the others; two leading dimensions stay two."""
    cases = ["2.3-6x7x2", "1.2.1.2-5x4x3", "3-5x4x3"]
    options = {"checks": ["riemannian_gradient"], "seed": seed}
    points = [f"3.1-70x68x3/k3/uneven_condition={x}" for x in (200, 2000)]
    report = rg.check(SimpleNamespace(riemannian_gradient=gradient_by(gram)), cases=[*cases, *points], **options)
    assert report.passed == right
    assert bool(report.wrong) != right


def exact_of_mix(change):
    """refgeo's exact geodesics, but for what is changed of mix."""

    def geodesic(metric, G, H, v_G, v_H, t, order):
        if order != "exact" or metric != "mix":
            raise NotImplementedError
        space = rg.MixedMetric().at(rg.Pair(G, H))
        return tuple(change(space, rg.Pair(v_G, v_H), t))

    return SimpleNamespace(geodesic=geodesic)


def _first_velocity(space, v, t):
    if space.point.sizes[2] < 3 or not space.point.block_shape:
        return space.geodesic(v, t, "exact")
    first = rg.Pair(*(np.broadcast_to(x.reshape(-1, *x.shape[-2:])[0], x.shape) for x in v))
    return space.geodesic(first, t, "exact")


CLOSE = ["5x4x3/k3/t=-0.75"]
WIDE = [*CLOSE, "4x4x4/k3", "6x5x4", "10x9x4/k10", "3-5x4x4"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("change", "cases"),
    sample(
        [
            (
                lambda space, v, t: space.geodesic(
                    space.horizontal_projection(v) if space.point.sizes[2] > 2 else v, t, "exact"
                ),
                CLOSE,
            ),
            (lambda space, v, t: space.geodesic(v, t, 2 if space.point.sizes[2] > 2 and t < -0.1 else "exact"), WIDE),
            (lambda space, v, t: space.geodesic(v, t, 2 if space.point.sizes[2] > 3 and t > 1 else "exact"), WIDE),
            (lambda space, v, t: space.geodesic(v, min(t, 1.0), "exact"), WIDE),
            (
                lambda space, v, t: space.geodesic(
                    v, t, 2 if space.point.sizes[2] > 2 and np.max(space.gauge.condition) > 2.5 else "exact"
                ),
                WIDE,
            ),
            (_first_velocity, WIDE),
        ],
        6,
    ),
)
def test_exact_geodesics_of_mix_are_judged_at_any_h(change, cases):
    report = rg.check(exact_of_mix(change), metrics=["mix"], checks=["geodesic"], cases=cases)
    assert report.wrong in (["geodesic[mix]"], ["geodesic_exact[mix]"])


@pytest.mark.slow
def test_a_retraction_is_judged_as_a_curve_in_the_quotient():
    def manopts(metric, G, H, v_G, v_H, t):
        """θ + tv, with both factors rescaled to one norm: another representative of the same point."""
        G, H = G + t * v_G, H + t * v_H
        balance = np.sqrt(np.linalg.norm(G, axis=(-2, -1)) / np.linalg.norm(H, axis=(-2, -1)))[..., None, None]
        return G / balance, H * balance

    assert rg.check(SimpleNamespace(retraction=manopts), checks=["retraction"]).passed
    damped = SimpleNamespace(
        retraction=lambda *a: paper.geodesic(*a, 2, relaxation=0.01)  # no more than first order is asked for
    )
    assert rg.check(damped, checks=["retraction"], cases=SOME).passed
    halved = SimpleNamespace(retraction=lambda m, G, H, a, b, t: (G + 0.5 * t * a, H + 0.5 * t * b))
    assert rg.check(halved, checks=["retraction"], cases=SOME).wrong == ["retraction[inv]", "retraction[mix]"]

    def without_r(metric, G, H, v_G, v_H, t):
        return np.linalg.qr(G + t * v_G)[0], H + t * v_H

    without_numbers = SimpleNamespace(retraction=lambda m, G, H, a, b, t: (np.nan * G, H))
    result = rg.check(without_numbers, checks=["retraction"], cases=SOME)
    assert {row.diagnosis for row in result.failures} == {"does not obey: γ(0) = θ"}
    broken = rg.check(SimpleNamespace(retraction=without_r), checks=["retraction"], cases=SOME)
    assert [row.diagnosis for row in broken.failures] == [
        "does not obey: γ(0) = θ; γ'(0) = v, by finite differences"
    ] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "case"),
    sample(
        [
            (lambda m, G, H, a, b, t, o: taylor(m, G, H, a, b, t), "5x4x2/k3/t=1"),
            (lambda m, G, H, a, b, t, o: first_block_only(m, G, H, a, b, t), "2-6x7x2"),
            (lambda m, G, H, a, b, t, o: exact(m, G, H, *project(m, G, H, a, b), t), "3x3x3"),
            (
                lambda m, G, H, a, b, t, o: tuple((1 + 1e-9) * x for x in exact(m, G, H, a, b, t)),
                "3-7x4x1/k3/uneven=1e+06",
            ),
        ],
        3,
    ),
)
def test_wrong_exact_geodesics_are_caught(wrong, case):
    def geodesic(metric, G, H, a, b, t, order):
        if order != "exact":
            raise NotImplementedError
        return wrong(metric, G, H, a, b, t, order)

    report = rg.check(
        SimpleNamespace(geodesic=geodesic),
        checks=["geodesic_exact"],
        cases=[case],
    )
    assert report.wrong == ["geodesic_exact[inv]", "geodesic_exact[mix]"]


def space_of(metric, G, H):
    return {"inv": rg.InvariantMetric, "mix": rg.MixedMetric}[metric]().at(rg.Pair(G, H))


def exact(metric, G, H, a, b, t):
    return tuple(np.array(x) for x in space_of(metric, G, H).geodesic(rg.Pair(a, b), t, "exact"))


def project(metric, G, H, a, b):
    return space_of(metric, G, H).horizontal_projection(rg.Pair(a, b))


def taylor(metric, G, H, a, b, t):
    """Order 2, and a step of order 2 from its middle."""
    space, v = space_of(metric, G, H), rg.Pair(a, b)
    middle = space.geodesic(v, 0.5 * t, 2)
    moving = v - space.christoffel(v) * (0.5 * t)
    return tuple(space_of(metric, *middle).geodesic(moving, 0.5 * t, 2))


def first_block_only(metric, G, H, a, b, t):
    places = paper.geodesic(metric, G, H, a, b, t, 2) if G.ndim > 2 else exact(metric, G, H, a, b, t)
    if G.ndim > 2:
        first = (0,) * (G.ndim - 2)
        for place, x in zip(places, exact(metric, G[first], H[first], a[first], b[first], t), strict=True):
            place[first] = x
    return places
