"""Which symmetries a loss has: what is there is found, and what is not there is refused."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import product_loss, sample

import refgeo as rg
from refgeo import symmetry
from refgeo.geometry.tangent_space import Metric

SEEDS = range(5)


def softmax(x):
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


def attention_scores(G, H, x, cap=None):
    """The scores of one head with biases; with a cap, those of a network that bounds them by tanh."""
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    scores = (x @ G) @ (x @ H).T
    return scores if cap is None else cap * np.tanh(scores / cap)


def rotate(x, angles):
    """The rotation of planes (i, i + h/2) by position times frequency."""
    a, b = np.split(x, 2, axis=-1)
    c, s = np.cos(angles), np.sin(angles)
    return np.concatenate([a * c - b * s, a * s + b * c], axis=-1)


def verdicts(found):
    return [finding.verdict for finding in found]


@pytest.mark.parametrize("seed", SEEDS)
def test_products_have_gl_h_and_a_penalty_takes_it_away(seed):
    rng = np.random.default_rng(seed)
    point = rg.Pair(rng.standard_normal((3, 5, 2)), rng.standard_normal((3, 4, 2)))
    A = rng.standard_normal((3, 5, 4))

    def loss(pair, penalty=0.0):
        residual = pair.product - A
        grads = residual @ pair.H + penalty * pair.G, residual.mT @ pair.G
        return 0.5 * float(np.sum(residual**2) + penalty * np.sum(pair.G**2)), rg.Pair(*grads)

    for metric in (rg.InvariantMetric(), rg.MixedMetric()):
        (result,) = symmetry.verify(loss, point, metric, rng=seed)
        assert result.verdict == "holds"
        assert result.digits > 10
        assert result.evaluations == 8
    for penalty in (1e-2, 1.0):
        (result,) = symmetry.verify(lambda p, c=penalty: loss(p, c), point, rg.InvariantMetric(), rng=seed)
        assert result.verdict == "does not hold"
        assert result.evaluations == 15, "counted with the noise along the orbit"
        # the loss alone tells as well
        (of_values,) = symmetry.verify(lambda p, c=penalty: loss(p, c)[0], point, rg.InvariantMetric(), rng=seed)
        assert of_values.verdict == "does not hold"
        assert np.isnan(of_values.gradient)
    (little,) = symmetry.verify(lambda p: loss(p, 1e-6), point, rg.InvariantMetric(), rng=seed)
    assert 5 < little.digits < 8, "a small break is measured, not rounded away"
    assert little.verdict != "holds"
    single, broken = (
        symmetry.verify(lambda p, c=c: float(np.float32(loss(p, c)[0])), point, rg.InvariantMetric(), rng=seed)
        for c in (0.0, 0.1)
    )
    assert verdicts(single) == ["holds"], "as far as float32 can say"
    assert verdicts(broken) == ["does not hold"]


def test_one_broken_head_of_many_is_found():
    rng = np.random.default_rng(0)
    point = rg.Pair(rng.standard_normal((8, 5, 3)), rng.standard_normal((8, 4, 3)))

    def loss(pair):
        return float(np.sum(np.tanh(pair.product))) + 0.1 * float(np.sum(pair.G[5] ** 3))

    (result,) = symmetry.verify(loss, point, rg.InvariantMetric())
    assert result.verdict == "does not hold"


@pytest.mark.parametrize("seed", SEEDS)
def test_elements_of_groups_are_what_they_say(seed):
    """exp(tK) one after the other is exp of the sum, and the velocity is the derivative."""
    rng = np.random.default_rng(seed)
    params = {
        "pair": rg.Pair(rng.standard_normal((2, 5, 3)), rng.standard_normal((2, 4, 3))),
        "even": rg.Pair(rng.standard_normal((2, 5, 4)), rng.standard_normal((2, 6, 4))),
        "up": rng.standard_normal((7, 5)),
        "bias": rng.standard_normal(7),
        "down": rng.standard_normal((3, 7)),
    }
    for item in (
        symmetry.general_linear("pair"),
        symmetry.commutant("even"),
        symmetry.scaling("up"),
        symmetry.rescaling("up", "down"),
        symmetry.neurons({"up": 0, "bias": 0}, {"down": 1}),
    ):
        K = item.generator(params, rng)
        once = {**params, **item.act(params, K, 0.7)}
        twice, whole = item.act(once, K, -0.2), item.act(params, K, 0.5)
        for name in whole:
            for a, b in zip(parts(twice[name]), parts(whole[name]), strict=True):
                assert np.allclose(a, b, rtol=1e-12, atol=1e-12)
        h = 1e-6
        for name, velocity in item.velocity(params, K).items():
            ahead, behind = item.act(params, K, h)[name], item.act(params, K, -h)[name]
            for v, a, b in zip(parts(velocity), parts(ahead), parts(behind), strict=True):
                assert np.allclose(v, (a - b) / (2 * h), atol=1e-8)


def parts(block):
    return tuple(block) if isinstance(block, rg.Pair) else (np.asarray(block),)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_key_bias_is_free_unless_scores_are_capped(seed):
    rng = np.random.default_rng(seed)
    params = {"qk": rg.Pair(rng.standard_normal((5, 3)), rng.standard_normal((5, 3)))}
    x, v = rng.standard_normal((6, 4)), rng.standard_normal((6, 2))
    groups = [symmetry.general_linear("qk"), symmetry.key_bias("qk")]

    def loss(p, cap=None):
        return float(np.sum((softmax(attention_scores(*p["qk"], x, cap)) @ v) ** 2))

    assert verdicts(symmetry.verify(loss, params, groups, rng=seed)) == ["holds", "holds"]
    capped = symmetry.verify(lambda p: loss(p, 2.0), params, groups, rng=seed)
    assert verdicts(capped) == ["holds", "does not hold"]


@pytest.mark.parametrize("seed", SEEDS)
def test_rotary_positions_leave_the_commutant_and_a_norm_of_queries_not_even_that(seed):
    """Grouped: four query heads on two keys."""
    rng = np.random.default_rng(seed)
    h, keys, n = 4, 2, 6
    items = 2  # the queries of a key's heads are stacked; the last row of each is its bias
    params = {"qk": rg.Pair(rng.standard_normal((keys, items * (n + 1), h)), rng.standard_normal((keys, n + 1, h)))}
    x, v = np.c_[rng.standard_normal((7, n)), np.ones(7)], rng.standard_normal((7, 3))
    angles = np.arange(7)[:, None] * np.array([1.0, 0.1])

    def loss(p, rope=True, norm=False):
        total = 0.0
        for G, H in zip(*p["qk"], strict=True):
            for part in np.split(G, items):
                q, k = x @ part, x @ H
                if norm:
                    sizes = np.array([1.0, 2.0, 3.0, 4.0])
                    q, k = (y / np.linalg.norm(y, axis=1, keepdims=True) * sizes for y in (q, k))
                if rope:
                    q, k = rotate(q, angles), rotate(k, angles)
                total += float(np.sum((softmax(q @ k.T) @ v) ** 2))
        return total

    groups = [symmetry.general_linear("qk"), symmetry.commutant("qk")]
    assert verdicts(symmetry.verify(loss, params, groups, rng=seed)) == ["does not hold", "holds"]
    assert verdicts(symmetry.verify(lambda p: loss(p, rope=False), params, groups, rng=seed)) == ["holds", "holds"]
    assert verdicts(symmetry.verify(lambda p: loss(p, norm=True), params, groups, rng=seed)) == ["does not hold"] * 2


@pytest.mark.parametrize("seed", SEEDS)
def test_relu_neurons_can_be_rescaled_and_gelu_neurons_cannot(seed):
    rng = np.random.default_rng(seed)
    params = {"up": rng.standard_normal((7, 5)), "bias": rng.standard_normal(7), "down": rng.standard_normal((3, 7))}
    x = rng.standard_normal((20, 5))
    group = symmetry.neurons({"up": 0, "bias": 0}, {"down": 1})

    def loss(p, activation):
        return float(np.sum((activation(x @ p["up"].T + p["bias"]) @ p["down"].T) ** 2))

    relu = symmetry.verify(lambda p: loss(p, lambda z: np.maximum(z, 0.0)), params, group, rng=seed)
    assert verdicts(relu) == ["holds"]
    assert verdicts(symmetry.verify(lambda p: loss(p, np.tanh), params, group, rng=seed)) == ["does not hold"]
    # and without the bias a ReLU layer as a whole
    without = {"up": params["up"], "down": params["down"]}
    whole = symmetry.verify(
        lambda p: float(np.sum((np.maximum(x @ p["up"].T, 0.0) @ p["down"].T) ** 2)),
        without,
        symmetry.rescaling("up", "down"),
    )
    assert whole.holds


@pytest.mark.parametrize("seed", range(3))
def test_tied_weights_and_relaxed_metrics_have_no_symmetry(seed):
    """A factor that is used a second time, and a metric that changes along the orbit although the loss does not."""
    rng = np.random.default_rng(seed)
    point = rg.Pair(rng.standard_normal((2, 5, 3)), rng.standard_normal((2, 4, 3)))
    x = rng.standard_normal((6, 4))

    def tied(p, again=1.0):
        return float(np.sum(np.tanh(p.product @ x.T)) + again * np.sum(np.tanh(p.G[0] @ p.G[1].T)))

    assert verdicts(symmetry.verify(tied, point, rg.InvariantMetric())) == ["does not hold"]
    free = symmetry.verify(lambda p: tied(p, 0.0), point, rg.InvariantMetric(1e-3))
    assert verdicts(free) == ["holds", "does not hold"]
    assert free.findings[1].symmetry == "the metric, of InvariantMetric(relaxation=0.001)"
    assert not free.holds
    even = rg.Pair(rng.standard_normal((5, 4)), rng.standard_normal((4, 4)))
    turned = symmetry.verify(lambda p: float(np.sum(np.tanh(p.product))), even, rg.RotaryMetric(rg.MixedMetric(0.1)))
    assert verdicts(turned) == ["holds", "does not hold"]
    assert turned.findings[1].symmetry == "the metric, of RotaryMetric(MixedMetric(relaxation=0.1))"
    with pytest.raises(ValueError, match=r"expected an even number.*, got h = 3"):
        symmetry.verify(lambda p: 1.0, point, symmetry.commutant(symmetry.ONLY))


def test_norm_scales_translations_and_scalings():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((9, 5))
    x = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    params = {
        "norm.weight": rng.standard_normal(5),
        "norm.bias": rng.standard_normal(5),
        "linear": rng.standard_normal((4, 5)),
        "out": rng.standard_normal((3, 4)),
    }

    def loss(p):
        hidden = (x * p["norm.weight"] + p["norm.bias"]) @ p["linear"].T
        hidden = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
        return float(np.sum(softmax(hidden @ p["out"].T)[:, 0] ** 2))

    groups = [
        symmetry.neurons({"norm.weight": 0, "norm.bias": 0}, {"linear": 1}),
        symmetry.scaling("linear"),
        symmetry.translation("out", axis=0),
        symmetry.translation("out"),
        symmetry.scaling("out"),
        symmetry.neurons({"norm.weight": 0}, {"linear": 1}),
    ]
    result = symmetry.verify(loss, params, groups)
    assert verdicts(result)[:3] == ["holds"] * 3
    assert verdicts(result)[4:] == ["does not hold"] * 2
    assert not result.holds
    assert "does not hold" in str(result)
    assert [row["verdict"] for row in result.to_dict()] == verdicts(result)


def test_at_a_minimum_the_gradient_still_tells():
    """Where the gradient is nothing, that it is horizontal says nothing."""
    target = np.array([[2.0, 1.0], [0.0, 1.0], [1.0, 1.0]])

    def loss(pair):
        residual = pair.G - target
        return 0.5 * float(np.sum(residual**2)) + 1.0, rg.Pair(residual, 0.0 * pair.H)

    (result,) = symmetry.verify(loss, rg.Pair(target, np.eye(2)), rg.InvariantMetric())
    assert result.gradient > 0.1


def penalised(pair, of_G=0.0, of_H=0.0):
    """½‖GHᵀ − 1‖² with weight decay."""
    residual = pair.product - 1.0
    value = 0.5 * float(np.sum(residual**2) + of_G * np.sum(pair.G**2) + of_H * np.sum(pair.H**2))
    return value, rg.Pair(residual @ pair.H + of_G * pair.G, residual.mT @ pair.G + of_H * pair.H)


@pytest.mark.parametrize("spread", [1.0, 1e2, 1e5])
def test_the_gauge_that_is_given_does_not_matter(spread):
    rng = np.random.default_rng(0)
    point = rg.Pair(rng.standard_normal((5, 2)), rng.standard_normal((4, 2))).transform(np.diag([spread, 1 / spread]))
    (target,) = symmetry.verify(penalised, point, rg.InvariantMetric())
    assert target.verdict == "holds"
    (broken,) = symmetry.verify(lambda p: penalised(p, 0.1), point, rg.InvariantMetric())
    assert broken.verdict == "does not hold"
    with pytest.raises(ValueError, match="which the loss does not have"):
        rg.worst_case_sharpness(lambda p: penalised(p, 0.1), point, rg.InvariantMetric(), 0.1)
    assert rg.worst_case_sharpness(penalised, point, rg.InvariantMetric(), 0.1).value > 0.0


def test_weight_decay_is_found_where_it_leads():
    """At the balanced point the gradient of ‖G‖² + ‖H‖² is horizontal."""
    rng = np.random.default_rng(0)
    point, _ = rg.Pair(rng.standard_normal((5, 2)), rng.standard_normal((4, 2))).balanced()

    def loss(pair):
        return penalised(pair, 1.0, 1.0)

    space = rg.InvariantMetric().at(point)
    assert space.is_horizontal(space.riemannian_gradient(loss(point)[1]))
    assert not symmetry.verify(loss, point, rg.InvariantMetric()).holds
    with pytest.raises(ValueError, match="which the loss does not have"):
        rg.worst_case_sharpness(loss, point, rg.InvariantMetric(), 0.1)


def test_low_rank_adapters_are_verified_at_their_start():
    """B = 0, where no element of the group moves B."""
    rng = np.random.default_rng(0)
    point = rg.Pair(np.zeros((5, 2)), rng.standard_normal((4, 2)))
    group = symmetry.general_linear("parameters")
    assert symmetry.verify(penalised, point, group).holds
    assert not symmetry.verify(lambda p: penalised(p, 1.0), point, group).holds


def test_a_small_break_in_one_head_is_not_averaged_away():
    rng = np.random.default_rng(0)
    point = rg.Pair(rng.standard_normal((12, 5, 2)), rng.standard_normal((12, 4, 2)))

    def loss(pair):
        value, gradient = penalised(pair)
        G = gradient.G.copy()
        G[3] += 0.3 * pair.G[3]
        return value + 0.15 * float(np.sum(pair.G[3] ** 2)), rg.Pair(G, gradient.H)

    (result,) = symmetry.verify(loss, point, rg.InvariantMetric())
    assert result.verdict == "does not hold"
    with pytest.raises(ValueError, match="which the loss does not have"):
        rg.worst_case_sharpness(loss, point, rg.InvariantMetric(), 0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_losses_of_less_precision_are_not_accused(seed):
    """float32 with a mean in double, float32 throughout, half precision; and no break passes for rounding."""
    rng = np.random.default_rng(seed)
    point = rg.Pair(rng.standard_normal((2, 8, 4)), rng.standard_normal((2, 6, 4)))

    def loss(pair, dtype, last, penalty):
        G, H = (factor.astype(dtype) for factor in pair)
        return float(np.mean(np.sin(G @ H.mT), dtype=last)) + penalty * float(np.mean(G.astype(last) ** 2))

    kinds = (np.float32, np.float64), (np.float32, np.float32), (np.float16, np.float64), (np.float64, np.float64)
    for dtype, last in kinds:
        (target,) = symmetry.verify(
            lambda p, d=dtype, m=last: loss(p, d, m, 0.0), point, rg.InvariantMetric(), rng=seed
        )
        few = target.verdict == "undecided" and "too little to tell" in target.reason and dtype is np.float16
        assert target.verdict == "holds" or few, (dtype, last, target)
        (broken,) = symmetry.verify(
            lambda p, d=dtype, m=last: loss(p, d, m, 0.5), point, rg.InvariantMetric(), rng=seed
        )
        assert broken.verdict == "does not hold", (dtype, last, broken.digits)


def round_loss(loss, dtype):
    """The loss in less precision, and its gradient."""

    def value_and_grad(p):
        value, gradient = loss(p)
        return float(dtype(value)), gradient

    return value_and_grad


def of_the_product(p):
    """Invariant under GL(h), with its gradient."""
    slope = np.cos(p.product)
    return float(np.sum(np.sin(p.product))), rg.Pair(slope @ p.H, slope.T @ p.G)


def of_a_factor(p):
    """Not invariant, with its gradient."""
    return float(np.sum(p.G**3)), rg.Pair(3.0 * p.G**2, 0.0 * p.H)


def faint(loss, size):
    """A loss of 0.7 that hardly moves."""
    return lambda p: (0.7 + size * loss(p)[0], size * loss(p)[1])


UNSEEN = {
    "a constant": lambda p: (1.25, 0.0 * p),
    "a constant of many digits": lambda p: (np.pi, 0.0 * p),
    "zero": lambda p: (0.0, 0.0 * p),
    "a step": lambda p: (float(p.G[0, 0] > 100.0), 0.0 * p),
    "float32, broken, hardly moves": round_loss(faint(of_a_factor, 1e-8), np.float32),
    "float32, broken by its last digit": round_loss(faint(of_a_factor, 1e-9), np.float32),
    "float32, invariant, hardly moves": round_loss(faint(of_the_product, 1e-8), np.float32),
    "noise of float32 alone": lambda p: (0.7 + 1e-7 * float(np.sin(1e9 * float(np.sum(p.G)))), 0.0 * p),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", UNSEEN)
def test_what_nothing_could_have_broken_is_undecided(name, seed):
    """Neither a loss that keeps still, nor one whose noise is as large as what it does, says what it has."""
    rng = np.random.default_rng(seed)
    point = rg.Pair(rng.standard_normal((5, 2)), rng.standard_normal((4, 2)))
    result = symmetry.verify(UNSEEN[name], point, rg.InvariantMetric(), rng=seed)
    assert verdicts(result) == ["undecided"], result
    assert result.findings[0].reason
    assert result.findings[0].reason in str(result)
    assert not result.holds
    (row,) = result.to_dict()
    assert row["reason"] == result.findings[0].reason
    searches = [
        lambda: rg.average_case_sharpness(lambda p: UNSEEN[name](p)[0], point, rg.InvariantMetric(), 0.1, n_samples=4),
        lambda: rg.worst_case_sharpness(UNSEEN[name], point, rg.InvariantMetric(), 0.1, n_iter=2),
        lambda: rg.spectrum.RiemannianHessian(UNSEEN[name], point, rg.InvariantMetric()),
    ]
    flat = not UNSEEN[name](point)[1].G.any() and UNSEEN[name](1.01 * point)[0] == UNSEEN[name](point)[0]
    for search in searches[:1] if flat else searches:  # a function that is constant has no Hessian and no sharpness
        with pytest.raises(
            ValueError, match=r"it is undecided whether the loss has it|gradient is zero|not depend on H"
        ):
            search()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_losses_in_float64_are_decided(seed):
    rng = np.random.default_rng(seed)
    point = rg.Pair(rng.standard_normal((5, 2)), rng.standard_normal((4, 2)))
    small = symmetry.verify(
        lambda p: 0.7 + 1e-8 * float(np.sum(np.sin(p.product))), point, rg.InvariantMetric(), rng=seed
    )
    assert verdicts(small) == ["holds"]
    broken = symmetry.verify(lambda p: 0.7 + 1e-8 * float(np.sum(p.G**3)), point, rg.InvariantMetric(), rng=seed)
    assert verdicts(broken) == ["does not hold"]


def test_a_gradient_of_another_loss_is_not_laid_to_the_loss():
    point, invariant, _ = pair_losses()

    def wrong(p):
        value, gradient = invariant(p)
        return value, rg.Pair(gradient.G, 0.0 * gradient.H)

    (result,) = symmetry.verify(wrong, point, rg.InvariantMetric())
    assert result.verdict == "undecided"
    assert "is it the gradient of this loss" in result.reason


class Borrowed(Metric):
    """A metric of a user's own, which says nothing but what its tangent spaces are."""

    name = "borrowed"

    def __init__(self, metric):
        self.metric = metric

    def at(self, point):
        return self.metric.at(point)


DIVIDING = {
    "embedded": rg.EmbeddedMetric(),
    "inv": rg.InvariantMetric(),
    "s=0.5": rg.InterpolatedMetric(0.5),
    "mix": rg.MixedMetric(),
    "rotary": rg.RotaryMetric("inv"),
}


def pair_losses(seed=0):
    """A point, a loss of the product, which has what rotary positions leave of GL(h), too, and one that has neither."""
    rng = np.random.default_rng(seed)
    point = rg.Pair(rng.standard_normal((5, 2)), rng.standard_normal((4, 2)))
    invariant = product_loss(rng.standard_normal((5, 4)))

    def broken(p):
        value, grads = invariant(p)
        return value + 0.05 * float(np.sum(p.G**2)), grads + rg.Pair(0.1 * p.G, 0.0 * p.H)

    return point, invariant, broken


OWN = [name for name in DIVIDING if name != "Euclidean norm"]  # whose horizontal vectors are not orthogonal to orbits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "own"), [*((name, False) for name in DIVIDING), *sample([(name, True) for name in OWN], 3)]
)
def test_every_metric_says_what_it_divides_out_and_everything_asks_it(name, own):
    metric = Borrowed(DIVIDING[name]) if own else DIVIDING[name]
    point, invariant, broken = pair_losses()
    order = 1 if name == "embedded" else 2
    assert_asked(invariant, broken, point, metric, order)
    named = [lambda p, f=f: (f(p["qk"])[0], {"qk": f(p["qk"])[1]}) for f in (invariant, broken)]
    assert_asked(*named, {"qk": point}, rg.ProductMetric({"qk": metric}), order)


@pytest.mark.parametrize(("share", "offset"), [(1.0, 1e4), (1e-3, 1.0), (1.0, -1e3)])
def test_a_large_loss_hides_no_missing_symmetry(share, offset):
    point, invariant, broken = pair_losses()

    def shifted(f):
        return lambda p: (share * f(p)[0] + offset, share * f(p)[1])

    for metric in (rg.InvariantMetric(), rg.MixedMetric(), rg.EmbeddedMetric()):
        rg.average_case_sharpness(lambda p: shifted(invariant)(p)[0], point, metric, 0.1, order=1, n_samples=4)
        with pytest.raises(ValueError, match="which the loss does not have"):
            rg.average_case_sharpness(lambda p: shifted(broken)(p)[0], point, metric, 0.1, order=1, n_samples=4)


def assert_asked(invariant, broken, params, metric, order):
    message = "the metric divides out the symmetry .*, which the loss does not have"
    searches = (
        lambda f, **s: rg.worst_case_sharpness(f, params, metric, 0.1, order=order, n_iter=2, **s),
        lambda f, **s: rg.average_case_sharpness(lambda p: f(p)[0], params, metric, 0.1, order=order, n_samples=4, **s),
        lambda f, **s: rg.spectrum.RiemannianHessian(f, params, metric, **s),
    )
    assert symmetry.verify(invariant, params, metric).holds
    assert [item.verdict for item in symmetry.verify(broken, params, metric)] == ["does not hold"]
    for search in searches:
        search(invariant)
        search(broken, verify=False)
        with pytest.raises(ValueError, match=message):
            search(broken)


@pytest.mark.parametrize("metric", [rg.InvariantMetric(), rg.MixedMetric(), rg.EmbeddedMetric()])
def test_the_orbits_of_a_metric_are_those_of_its_group(metric):
    """They keep the product, and lead to any other point of the orbit, whatever the metric."""
    point, _, _ = pair_losses(1)
    (group,), rng = Borrowed(metric).symmetries("qk"), np.random.default_rng(0)
    for t in (0.3, -1.0):
        moved = group.act({"qk": point}, group.generator({"qk": point}, rng), t)["qk"]
        assert np.allclose(moved.product, point.product, rtol=1e-9, atol=1e-9)
        assert np.linalg.norm((moved - point).G) > 0.1


def test_a_metric_that_divides_out_nothing_has_orbits_that_are_points():
    """There is nothing that could be broken, so nothing holds, and a search needs nothing."""
    metric = Borrowed(rg.EuclideanMetric())
    f = lambda w: (float(w @ w), 2 * w)  # noqa: E731
    result = symmetry.verify(f, np.ones(3), metric)
    assert not result.holds
    assert result.findings[0].reason == "the group moves nothing here"
    assert rg.worst_case_sharpness(f, np.ones(3), metric, 0.1).value > 0.0


def test_pairs_may_be_tuples():
    rng = np.random.default_rng(0)
    G, H = rng.standard_normal((5, 2)), rng.standard_normal((4, 2))
    assert symmetry.verify(lambda p: penalised(p["w"])[0], {"w": (G, H)}, symmetry.general_linear("w")).holds


def test_a_search_refuses_to_divide_by_what_is_not_there():
    rng = np.random.default_rng(0)
    params = {
        "qk": rg.Pair(rng.standard_normal((2, 5, 2)), rng.standard_normal((2, 4, 2))),
        "other": rg.Pair(rng.standard_normal((5, 2)), rng.standard_normal((4, 2))),
    }

    def loss(p, broken):
        second = p["other"].product
        value = float(np.sum(np.tanh(p["qk"].product))) + 0.5 * float(np.sum(second**2))
        slope = 1.0 / np.cosh(p["qk"].product) ** 2
        grads = {
            "qk": rg.Pair(slope @ p["qk"].H, slope.mT @ p["qk"].G),
            "other": rg.Pair(second @ p["other"].H, second.T @ p["other"].G),
        }
        if broken:
            value += 0.5 * float(np.sum(p["qk"].G ** 2))
            grads["qk"] = rg.Pair(grads["qk"].G + p["qk"].G, grads["qk"].H)
        return value, grads

    metric = rg.ProductMetric({"qk": rg.MixedMetric(), "other": rg.InvariantMetric()})
    assert rg.worst_case_sharpness(lambda p: loss(p, False), params, metric, 0.1).value > 0.0
    with pytest.raises(
        ValueError, match=r"metric: the metric divides out the symmetry GL\(h\) of 'qk', which the loss does not have"
    ):
        rg.worst_case_sharpness(lambda p: loss(p, True), params, metric, 0.1)
    assert rg.worst_case_sharpness(lambda p: loss(p, True), params, metric, 0.1, verify=False).value > 0.0
    # what is not divided by is not asked for
    flat = rg.ProductMetric({"other": rg.InvariantMetric()})
    assert rg.worst_case_sharpness(lambda p: loss(p, True), params, flat, 0.1).value > 0.0


def test_bad_arguments_are_named():
    point = np.ones(3)
    with pytest.raises(
        ValueError, match=r"geometry: expected a metric that divides out a symmetry, got .*, which divides out none"
    ):
        symmetry.verify(lambda w: 1.0, point, rg.ElementwiseMetric())
    with pytest.raises(TypeError, match="geometry: expected a metric, a network"):
        symmetry.verify(lambda w: 1.0, point, "inv")
    with pytest.raises(ValueError, match="the block 'a' of the geometry as a key"):
        symmetry.verify(lambda w: 1.0, {"b": point}, symmetry.scaling("a"))
    with pytest.raises(ValueError, match="sizes: "):
        symmetry.verify(lambda w: 1.0, point, rg.ScalingMetric(), sizes=(0.0,))
    with pytest.raises(ValueError, match="expected a finite loss"):
        symmetry.verify(lambda w: float("nan"), point, rg.ScalingMetric())
    with pytest.raises(ValueError, match="sizes: expected at least one"):
        symmetry.verify(lambda w: 1.0, point, rg.ScalingMetric(), sizes=())
    with pytest.raises(ValueError, match="geometry: expected at least one symmetry, got none"):
        symmetry.verify(lambda w: 1.0, point, [])
    with pytest.raises(TypeError, match=r'incoming: expected blocks and axes such as .*, got "?\'W1'):
        symmetry.neurons("W1", "W2")
    assert symmetry.verify(lambda w: float(w[0] / w[1]), point, rg.ScalingMetric(), sizes=0.5).holds


BIASES = ("key bias", "value bias")
NETWORKS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", "llama", {}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", "llama", {}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", "llama", {"head_dim": 8}),
    "bert": ("BertModel", "BertConfig", "bert", {}),
    "gpt2": ("GPT2Model", "GPT2Config", "gpt2", {}),
}
"""What transformers builds, and as which layout it is read."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_real_architectures_have_what_they_have(name):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model, config, layout, more = NETWORKS[name]
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    if layout == "llama":
        sizes["num_key_value_heads"] = 2
    made = (
        getattr(transformers, config)(**sizes, **more, intermediate_size=48, attn_implementation="eager")
        if name != "gpt2"
        else transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=4, attn_implementation="eager")
    )
    torch.manual_seed(0)
    module = getattr(transformers, model)(made).double().eval()
    for parameter in module.parameters():  # not what training starts at, where a symmetry can be there by accident
        parameter.data = (
            parameter.data * 4.0 if parameter.ndim > 1 else parameter.data + 0.3 * torch.randn_like(parameter)
        )
    key_heads = 2 if layout == "llama" else None
    network = rg.networks.read({k: t.numpy() for k, t in module.state_dict().items()}, layout, 4, key_heads)
    ids = torch.randint(0, 64, (3, 7))

    def loss(call, ids):
        out = call(input_ids=ids)
        return torch.sin(out.logits if hasattr(out, "logits") else out.last_hidden_state).sum()

    evaluate = rg.adapters.torch_value_and_grad(module, network, loss, dtype=np.float64)
    result = symmetry.verify(lambda blocks: evaluate(blocks, ids), network.blocks, network)
    message = {
        (item.blocks[0].split(".")[-1] if item.symmetry == "GL(h)" else item.symmetry): item.verdict for item in result
    }
    assert {item.name for item in network.symmetries()} == ({"GL(h)"} if layout == "llama" else {"GL(h)", *BIASES})
    if layout == "llama":
        assert message == {"value_out": "holds"}
    else:
        assert message == dict.fromkeys(("query_key", "value_out", *BIASES), "holds")
    # as many digits as are seen: Llama's norms and rotations are computed in float32 in a network of float64, too
    assert all(item.digits > (5.5 if layout == "llama" else 10) for item in result if item.holds), result.findings
    if name in ("llama", "qwen2"):  # and with the pairs that the smaller group is divided out of
        network = rg.networks.read({k: t.numpy() for k, t in module.state_dict().items()}, "llama_rotary", 4, key_heads)
        evaluate = rg.adapters.torch_value_and_grad(module, network, loss, dtype=np.float64)
        pair = next(block for block in network.blocks if block.endswith("query_key"))
        assert isinstance(network.metric("mix").metrics[pair], rg.RotaryMetric)
        message = symmetry.verify(lambda blocks: evaluate(blocks, ids), network.blocks, network)
        verdicts = {(item.symmetry, item.blocks[0].split(".")[-1]): item.verdict for item in message}
        assert list(verdicts.values()) == ["holds", "holds"]
        group = symmetry.general_linear(pair)
        assert not symmetry.verify(lambda blocks: evaluate(blocks, ids), network.blocks, group).holds
        only = rg.ProductMetric({pair: rg.RotaryMetric("mix")})
        values = []
        for angle in (0.0, 1.0):
            half = network.blocks[pair].sizes[2] // 2
            turn = np.kron([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]], np.eye(half))
            moved = network.blocks | {pair: network.blocks[pair].transform(np.exp(angle) * turn)}
            values.append(rg.worst_case_sharpness(lambda b: evaluate(b, ids), moved, only, 0.1, n_iter=5).value)
        assert values[1] == pytest.approx(values[0], rel=1e-8)
    if name == "qwen3":
        with pytest.raises(rg.networks.LayoutError, match="the layout does not know"):
            rg.networks.read({k: t.numpy() for k, t in module.state_dict().items()}, "llama_rotary", 4, key_heads)


@pytest.mark.parametrize("s", [1.0, 1e3, 1e5, 1e7])
@pytest.mark.parametrize("metric", [rg.InvariantMetric(), rg.MixedMetric()], ids=repr)
def test_a_badly_scaled_pair_accuses_nobody(s, metric):
    rng = np.random.default_rng(0)
    point = rg.Pair(rng.standard_normal((6, 2)), rng.standard_normal((5, 2)))
    loss = product_loss(rng.standard_normal((6, 5)))
    moved = point.transform(np.array([[s, 0.0], [0.3 * s, 1.0]]))
    assert verdicts(symmetry.verify(loss, moved, metric)) == ["holds"]
    values = [rg.worst_case_sharpness(loss, p, metric, 0.1, n_restarts=1).value for p in (point, moved)]
    assert values[1] == pytest.approx(values[0], rel=1e-6)
    broken = lambda p: (loss(p)[0] + 0.1 * float(np.sum(p.G**2)), loss(p)[1] + rg.Pair(0.2 * p.G, 0.0 * p.H))  # noqa: E731
    assert verdicts(symmetry.verify(broken, moved, metric)) == ["does not hold"]
