"""Neurons as pairs: what re-scaling leaves alone in ReLU networks, gated networks and layer norms."""

import numpy as np
import pytest

import refgeo as rg

METRICS = {"inv": rg.InvariantMetric(), "mix": rg.MixedMetric(), "s=0.4": rg.InterpolatedMetric(0.4)}
metrics = pytest.mark.parametrize("name", METRICS)


def relu_network(seed, inputs=5, hidden=7, outputs=3):
    rng = np.random.default_rng(seed)
    params = {
        "up": rng.standard_normal((hidden, inputs)),
        "bias": rng.standard_normal(hidden),
        "down": rng.standard_normal((outputs, hidden)),
        "shift": rng.standard_normal(outputs),
    }
    x, y = rng.standard_normal((11, inputs)), rng.standard_normal((11, outputs))

    def value_and_grad(p):
        before = x @ p["up"].T + p["bias"]
        after = np.maximum(before, 0.0)
        error = after @ p["down"].T + p["shift"] - y
        back = (error @ p["down"]) * (before > 0)
        grads = {"up": back.T @ x, "bias": back.sum(0), "down": error.T @ after, "shift": error.sum(0)}
        return 0.5 * float(np.sum(error**2)), grads

    return params, value_and_grad


def pairs(params):
    return rg.networks.NeuronPairs(params, {"up": 0, "bias": 0}, {"down": 1}, "hidden")


def rescale(params, c):
    return params | {"up": c[:, None] * params["up"], "bias": c * params["bias"], "down": params["down"] / c}


def test_blocks_hold_every_entry_of_a_neuron_once_and_lead_back():
    rng = np.random.default_rng(0)
    params = {
        "conv": rng.standard_normal((4, 3, 2, 2)),
        "b": rng.standard_normal(4),
        "next": rng.standard_normal((5, 4, 3)),
    }
    group = rg.networks.NeuronPairs(params, {"conv": 0, "b": -1}, {"next": 1})
    pair = group.blocks(params)["neurons"]
    assert pair.G.shape == (4, 13, 1)
    assert pair.H.shape == (4, 15, 1)
    assert np.array_equal(pair.G[2, :12, 0], params["conv"][2].ravel())
    assert pair.G[2, 12, 0] == params["b"][2]
    assert np.array_equal(pair.H[2, :, 0], params["next"][:, 2].ravel())
    back = group.params(group.blocks(params))
    assert all(np.array_equal(back[name], params[name]) for name in params)


@pytest.mark.slow
@metrics
@pytest.mark.parametrize("seed", range(3))
def test_sharpness_of_a_relu_network_ignores_the_scales_of_its_neurons(name, seed):
    params, f = relu_network(seed)
    metric = rg.ProductMetric({"hidden": METRICS[name], "shift": rg.EuclideanMetric()})
    rng, values, euclidean = np.random.default_rng(seed), [], []
    for spread in (0.0, 1.0, 6.0):
        moved = rescale(params, 10.0 ** rng.uniform(-spread, spread, 7))
        group = pairs(moved)
        values.append(rg.worst_case_sharpness(group.value_and_grad(f), group.blocks(moved), metric, 0.05).value)
        euclidean.append(np.sqrt(sum(np.sum(g**2) for g in f(moved)[1].values())))
    assert np.ptp(values) <= 1e-8 * values[0]
    assert euclidean[2] > 10 * euclidean[0]


@metrics
def test_the_group_is_found_and_another_one_is_not(name):
    params, f = relu_network(1)
    group = pairs(params)
    metric = rg.ProductMetric({"hidden": METRICS[name]})
    result = rg.symmetry.verify(group.value_and_grad(f), group.blocks(params), metric)
    assert [finding.verdict for finding in result.findings] == ["holds"]

    def squashed(p):  # a network without the symmetry: the loss of tanh(bias)
        loss, grads = f(p | {"bias": np.tanh(p["bias"])})
        return loss, grads | {"bias": grads["bias"] / np.cosh(p["bias"]) ** 2}

    result = rg.symmetry.verify(group.value_and_grad(squashed), group.blocks(params), metric)
    assert [finding.verdict for finding in result.findings] == ["does not hold"]


@metrics
@pytest.mark.parametrize("order", [1, 2, "exact"])
def test_what_is_pruned_stays_zero(name, order):
    params, f = relu_network(4)
    mask = np.random.default_rng(5).random((7, 5)) < 0.6
    params["up"] *= mask
    group = pairs(params)

    def masked(p):
        loss, grads = f(p)
        return loss, grads | {"up": grads["up"] * mask}

    space = METRICS[name].at(group.blocks(params)["hidden"])
    egrad = group.blocks(masked(params)[1])["hidden"]
    v = space.horizontal_projection(space.riemannian_gradient(egrad))
    v = v * (0.05 / space.norm(v).max())
    moved = group.params({"hidden": space.geodesic(v, 1.0, order), "shift": params["shift"]})
    assert np.all(moved["up"][~mask] == 0)
    assert np.any(moved["up"] != params["up"])
    assert np.all(egrad.G[:, :5, 0][~mask] == 0)


def test_the_scale_of_a_layer_norm_is_shared_with_all_that_follow():
    rng = np.random.default_rng(6)
    params = {
        "scale": rng.standard_normal(4), "shift": rng.standard_normal(4),
        "gate": rng.standard_normal((6, 4)), "up": rng.standard_normal((6, 4)),
    }  # fmt: skip
    x = rng.standard_normal((9, 4))
    group = rg.networks.NeuronPairs(params, {"scale": 0, "shift": 0}, {"gate": 1, "up": 1})

    def value(blocks):
        p = group.params(blocks)
        y = x * p["scale"] + p["shift"]
        return float(np.sum(np.tanh(y @ p["gate"].T) * (y @ p["up"].T)))

    (result,) = rg.symmetry.verify(
        value, group.blocks(params), rg.ProductMetric({"neurons": rg.InvariantMetric()})
    ).findings
    assert result.verdict == "holds"


def test_batches_and_losses_without_gradient_pass_through():
    params, f = relu_network(3)
    group = pairs(params)
    scaled = group.value_and_grad(lambda p, c: (c * f(p)[0], {name: c * g for name, g in f(p)[1].items()}))
    metric = rg.ProductMetric({"hidden": rg.InvariantMetric()})
    result = rg.worst_case_sharpness(scaled, group.blocks(params), metric, 0.05, batches=[1.0, 2.0])
    assert result.batches[1].value == pytest.approx(2 * result.batches[0].value, rel=1e-9)
    assert group.value_and_grad(lambda p: f(p)[0])(group.blocks(params)) == f(params)[0]


def test_bad_arguments_are_named():
    params, _ = relu_network(0)
    group = pairs(params)
    with pytest.raises(ValueError, match=r"params\['up'\]: expected an array of shape \(7, 5\), got \(7, 9\)"):
        group.blocks(params | {"up": np.ones((7, 9))})
    with pytest.raises(ValueError, match=r"params\['bias'\]: .*no such array"):
        group.blocks({name: array for name, array in params.items() if name != "bias"})
    with pytest.raises(
        ValueError, match="name: expected a name that is not the name of an array in params, got 'shift'"
    ):
        rg.networks.NeuronPairs(params, {"up": 0}, {"down": 1}, "shift")
    params = {"up": np.ones((3, 2)), "down": np.ones((4, 3))}
    for incoming, outgoing, message in [
        ({"up": 0}, {"down": 0}, "same number of neurons"),
        ({"up": 2}, {"down": 1}, "up: expected an axis"),
        ({"upp": 0}, {"down": 1}, "expected an array 'upp'"),
        ({"up": 0}, {}, "at least one"),
        ({"up": 0}, {"up": 0}, "no array in both"),
    ]:
        with pytest.raises(ValueError, match=message):
            rg.networks.NeuronPairs(params, incoming, outgoing)
