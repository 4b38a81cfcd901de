"""check_gradient, and the check that every search makes first."""

import math

import numpy as np
import pytest

import refgeo as rg


def quartic(pair, scale=(1.0, 1.0)):
    residual = pair.product - 1.0
    cube = residual**3
    return 0.25 * float(np.sum(residual**4)), rg.Pair(scale[0] * cube @ pair.H, scale[1] * cube.T @ pair.G)


@pytest.fixture
def point():
    rng = np.random.default_rng(0)
    return rg.Pair(rng.standard_normal((4, 2)), rng.standard_normal((4, 2)))


def test_a_right_gradient_passes_block_by_block(point):
    result = rg.check_gradient(quartic, point)
    assert set(result) == {"G", "H"}
    assert max(result.values()) < 1e-2
    nested = rg.check_gradient(lambda p: (quartic(p["a"])[0], {"a": quartic(p["a"])[1]}), {"a": point, "b": np.ones(3)})
    assert set(nested) == {"a.G", "a.H"}


@pytest.mark.parametrize("seed", range(20))
def test_right_gradients_in_float32_are_never_refused(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((50, 6)).astype(np.float32)

    def loss(w):
        z = np.tanh(X @ w.astype(np.float32))
        return float(np.mean(z**2) + 10.0), (2 * X.T @ (z * (1 - z**2)) / 50).astype(float)

    for size in (1e-3, 1.0, 100.0):
        w = size * rng.standard_normal(6)
        rg.check_gradient(loss, w)
        rg.worst_case_sharpness(loss, w, rg.EuclideanMetric(), 0.1 * size, n_iter=2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda p: (quartic(p)[0], rg.Pair(*reversed(tuple(quartic(p)[1])))), "the gradient is not that of the loss"),
        (lambda p: quartic(p, (1.0, -1.0)), "H: the loss changes -1 times"),
        (lambda p: quartic(p, (2.0, 1.0)), "G: the loss changes 0.5 times"),
    ],
)
def test_a_wrong_gradient_is_refused_with_its_block(wrong, message, point):
    with pytest.raises(ValueError, match=message):
        rg.check_gradient(wrong, point)
    for search in (
        lambda: rg.worst_case_sharpness(wrong, point, rg.InvariantMetric(), 0.1),
        lambda: rg.adaptive_sharpness(wrong, point, 0.1),
    ):
        with pytest.raises(ValueError, match="gradient"):
            search()
    assert rg.worst_case_sharpness(wrong, point, rg.InvariantMetric(), 0.1, verify=False).n_evaluations > 1


def test_a_loss_that_is_not_the_same_twice_is_refused(point):
    rng = np.random.default_rng(0)

    def with_dropout(pair):
        value, gradient = quartic(pair)
        return value * (1 + 0.01 * rng.standard_normal()), gradient

    with pytest.raises(ValueError, match=r"two calls with the same parameters gave .*dropout"):
        rg.worst_case_sharpness(with_dropout, point, rg.MixedMetric(), 0.1)
    with pytest.raises(ValueError, match="dropout"):
        rg.check_gradient(with_dropout, point)


def test_rounding_of_the_loss_is_no_difference(point):
    rng = np.random.default_rng(0)

    def on_a_gpu(pair):
        value, gradient = quartic(pair)
        return value * (1 + 1e-7 * rng.standard_normal()), gradient

    rg.worst_case_sharpness(on_a_gpu, point, rg.MixedMetric(), 0.1)


def test_at_a_minimum_nothing_can_be_told_and_nothing_is_refused():
    def flat(w):
        return float(np.sum(w**2)), 2 * w

    assert rg.worst_case_sharpness(flat, np.zeros(3), rg.EuclideanMetric(), 0.1).value > 0
    result = rg.check_gradient(flat, np.zeros(3))
    assert np.isnan(result["parameters"]) or result["parameters"] < 0.1


@pytest.mark.parametrize(
    ("value_and_grad", "message"),
    [
        (lambda p: (float("nan"), p), "expected a finite loss"),
        (lambda p: (0.0, {"another": 1.0}), "expected gradients among w"),
        (lambda p: (0.0, {"w": None}), "the gradient of 'w': expected real numbers of shape"),
        (lambda p: (0.0, None), "expected a dict of gradients"),
        (3, "expected a function of the parameters"),
    ],
)
def test_no_gradient_at_all_is_an_error(value_and_grad, message):
    with pytest.raises((ValueError, TypeError), match=message):
        rg.check_gradient(value_and_grad, {"w": np.ones(2)})


def two_blocks(part=None, factor=0.0):
    """½‖a‖² + ½‖b‖² + ¼‖GHᵀ − 1‖₄⁴, with a part of the gradient scaled."""

    def value_and_grad(p):
        loss, pair = quartic(p["pair"])
        grads = {"a": p["a"].copy(), "b": p["b"].copy(), "pair": pair}
        if part in ("a", "b"):
            grads[part] = factor * grads[part]
        elif part is not None:
            grads["pair"] = rg.Pair(*(factor * x if name == part else x for name, x in zip("GH", pair, strict=True)))
        return loss + 0.5 * float(p["a"] @ p["a"] + p["b"] @ p["b"]), grads

    return value_and_grad


@pytest.mark.slow
@pytest.mark.parametrize(("part", "factor"), [("a", 0.0), ("b", 0.0), ("b", 0.3), ("G", 0.0), ("H", 0.0), ("H", 0.5)])
@pytest.mark.parametrize("seed", range(3))
def test_a_part_that_is_left_out_is_seen_although_the_rest_is_right(part, factor, seed):
    rng = np.random.default_rng(seed)
    point = rg.Pair(0.5 * rng.standard_normal((4, 2)), 0.5 * rng.standard_normal((4, 2)))
    params = {"a": rng.standard_normal(5), "b": rng.standard_normal(5), "pair": point}
    metric = rg.ProductMetric({"a": rg.EuclideanMetric(), "b": rg.EuclideanMetric(), "pair": rg.InvariantMetric()})
    wrong = two_blocks(part, factor)
    with pytest.raises(ValueError, match=f"(pair.)?{part}: the loss changes"):
        rg.check_gradient(wrong, params)
    space, (_, right) = metric.at(params), two_blocks()(params)
    missing = {name: 0.0 * block for name, block in right.items()}
    missing[part if part in "ab" else "pair"] = (
        right[part]
        if part in "ab"
        else rg.Pair(*(x * (name == part) for name, x in zip("GH", right["pair"], strict=True)))
    )
    lost, whole = (space.norm(space.horizontal_projection(space.riemannian_gradient(e))) for e in (missing, right))
    if (1.0 - factor) * lost > 0.4 * whole:  # less changes the sharpness by less than a tenth
        with pytest.raises(ValueError, match="value_and_grad"):
            rg.worst_case_sharpness(wrong, params, metric, 0.1)
    assert rg.worst_case_sharpness(two_blocks(), params, metric, 0.1).converged


@pytest.mark.parametrize("metric", [rg.InvariantMetric(), rg.MixedMetric()], ids=repr)
@pytest.mark.parametrize("rho", [1e-6, 1e-4, 1e-3])
def test_a_search_in_a_small_ball_sees_a_wrong_gradient_too(metric, rho):
    """There the loss changes by less than a float32 may be off: the differences go beyond the ball."""
    rng = np.random.default_rng(0)
    point = rg.Pair(rng.standard_normal((5, 2)), rng.standard_normal((5, 2)))
    right = quartic(point)[1]
    assert rg.worst_case_sharpness(quartic, point, metric, rho).converged
    for wrong in (rg.Pair(*tuple(right)[::-1]), -right, 0.5 * right, rg.Pair(right.G, -right.H)):
        with pytest.raises(ValueError, match="the gradient is not that of the loss"):
            rg.worst_case_sharpness(lambda p, wrong=wrong: (quartic(p)[0], wrong), point, metric, rho)


def test_no_gradient_at_all_is_no_flat_loss():
    def nothing(w):
        return 0.5 * float(w @ w), np.zeros_like(w)

    with pytest.raises(ValueError, match="the gradient is zero"):
        rg.check_gradient(nothing, np.ones(3))
    with pytest.raises(ValueError, match="the gradient is zero"):
        rg.worst_case_sharpness(nothing, np.ones(3), rg.EuclideanMetric(), 0.1)
    assert np.isnan(rg.check_gradient(lambda w: (1.0, np.zeros_like(w)), np.ones(3))["parameters"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_right_gradients_are_not_refused_near_a_minimum(seed):
    """Where the gradient is next to nothing and the third derivative is not."""
    rng = np.random.default_rng(seed)
    A, C = rng.standard_normal((2, 6, 6))
    least = float(seed % 2)  # rounding is that of the differences alone where the least loss is zero

    def cubic(w):
        z, c = A @ w, C @ w
        return least + 0.5 * float(z @ z) + float(np.sum(c**3)), A.T @ z + 3 * C.T @ c**2

    for size in (0.0, 1e-12, 1e-6, 1e-3, 1.0):
        w = size * rng.standard_normal(6)
        rg.worst_case_sharpness(cubic, w, rg.EuclideanMetric(), 0.3, n_iter=1)
        rg.check_gradient(cubic, w)


def test_of_many_wrong_blocks_some_are_named():
    def wrong(params):
        loss = float(sum(np.sum(x**2) for x in params.values()))
        return loss, {name: (2.0 + int(name) % 2) * x for name, x in params.items()}

    params = {str(i): np.linspace(1.0, 2.0, 50) for i in range(40)}
    with pytest.raises(ValueError, match="only 12 of 40 blocks were checked") as error:
        rg.check_gradient(wrong, params)
    assert len(str(error.value)) < 600


def test_maximizers_need_not_be_kept():
    def loss(w):
        return float(np.sum(w**2)), 2.0 * w

    kept, dropped = (
        rg.worst_case_sharpness(loss, np.ones(5), rg.ElementwiseMetric(), [0.1, 0.2], maximizers=keeps)
        for keeps in (True, False)
    )
    assert [result.value for result in kept.results] == [result.value for result in dropped.results]
    assert all(result.maximizer is None for result in dropped.results)


def test_one_wrong_block_of_many_is_named():
    calls = []

    def wrong(params):
        calls.append(1)
        loss = float(sum(np.sum(x**2) for x in params.values()))
        return loss, {name: (6.0 if name == "block 23" else 2.0) * x for name, x in params.items()}

    params = {f"block {i}": np.linspace(1.0, 2.0, 50) for i in range(40)}
    metric = rg.ProductMetric({name: rg.ElementwiseMetric() for name in params})
    with pytest.raises(ValueError, match=r"block 23: the loss changes 0\.333 times as much as the gradient says"):
        rg.worst_case_sharpness(wrong, params, metric, 0.1)
    assert len(calls) < 450


@pytest.mark.parametrize("rho", [1e-4, 1e-3, 1e-2, 1e-1, 1.0])
@pytest.mark.parametrize(("offset", "single"), [(0.0, False), (2.0, False), (1e3, False), (0.0, True), (2.0, True)])
def test_a_gradient_of_zeros_beside_a_loss_that_changes_is_refused(rho, offset, single):
    """However small the ball and however large the loss: beside its own noise, which is measured."""
    w = np.random.default_rng(3).standard_normal(100)

    def nothing(w):
        value = offset + float(np.sin(w).mean())
        return float(np.float32(value)) if single else value, np.zeros(100)

    for search in (
        lambda: rg.worst_case_sharpness(nothing, w, rg.EuclideanMetric(), rho),
        lambda: rg.adaptive_sharpness(nothing, w, rho),
        lambda: rg.worst_case_sharpness(nothing, w, rg.ElementwiseMetric(), rho),
    ):
        with pytest.raises(ValueError, match="the gradient is not that of the loss; parameters: the loss changes, but"):
            search()


@pytest.mark.parametrize("part", ["a", "b", "G", "H"])
@pytest.mark.parametrize("size", [1.0, 1e-6])
def test_a_part_without_a_gradient_is_found_however_little_it_does(part, size):
    """Also where the part is so small a share of the slope that no difference along it would show it."""
    rng = np.random.default_rng(0)
    point = rg.Pair(rng.standard_normal((4, 2)), rng.standard_normal((4, 2)))
    params = {"a": rng.standard_normal(5), "b": rng.standard_normal(5), "pair": point, "large": rng.standard_normal(9)}
    metric = rg.ProductMetric(
        {name: rg.InvariantMetric() if name == "pair" else rg.EuclideanMetric() for name in params}
    )

    def loss(p, spoilt):
        value, grads = two_blocks(*((part, 0.0) if spoilt else ()))({name: p[name] for name in ("a", "b", "pair")})
        scaled = {name: size * g for name, g in grads.items()}
        return size * value + float(np.sum(p["large"] ** 2)), scaled | {"large": 2.0 * p["large"]}

    assert rg.worst_case_sharpness(lambda p: loss(p, False), params, metric, 0.1, n_iter=2).value > 0.0
    with pytest.raises(ValueError, match=rf"(pair\.)?{part}: the loss changes, but the gradient is zero"):
        rg.worst_case_sharpness(lambda p: loss(p, True), params, metric, 0.1, n_iter=2)


def test_a_block_that_the_loss_ignores_is_named_and_may_be_left_out():
    params = {"w": np.ones(3), "idle": np.ones(2), "zero": np.zeros(2)}

    def loss(p):
        return float(p["w"] @ p["w"]), {"w": 2.0 * p["w"], "idle": np.zeros(2), "zero": np.zeros(2)}

    metric = rg.ProductMetric(dict.fromkeys(params, rg.ElementwiseMetric()))
    for search in (
        lambda: rg.worst_case_sharpness(loss, params, metric, 0.1),
        lambda: rg.adaptive_sharpness(loss, params, 0.1),
    ):
        with pytest.raises(ValueError, match="the loss does not depend on idle, which is to move"):
            search()
    left = rg.ProductMetric({"w": rg.ElementwiseMetric()})
    expected = rg.worst_case_sharpness(loss, params, left, 0.1).value
    assert rg.adaptive_sharpness(loss, params, 0.1, names=["w", "zero"]).value > 0.0  # zeros cannot move
    assert rg.worst_case_sharpness(loss, params, metric, 0.1, verify=False).value == pytest.approx(expected)


@pytest.mark.parametrize("value", [0.0, 1.25, np.pi])
def test_a_loss_that_is_constant_has_no_search(value):
    point = rg.Pair(np.eye(3, 2), np.eye(4, 2))
    for search in (
        lambda: rg.worst_case_sharpness(lambda p: (value, 0.0 * p), point, rg.InvariantMetric(), 0.1),
        lambda: rg.adaptive_sharpness(lambda w: (value, 0.0 * w), np.ones(3), 0.1),
        lambda: rg.worst_case_sharpness(
            lambda w: (value, 0.0 * w), np.ones(3), rg.EuclideanMetric(), 0.1, verify=False
        ),
    ):
        result = search()
        assert result.value == 0.0
        assert not result.converged
        assert "no search was made" in str(result)
        assert "converged," not in str(result).replace("not converged", "")
        assert "reached by" not in str(result)


def test_at_a_maximum_slopes_were_seen_and_the_search_has_converged():
    result = rg.worst_case_sharpness(lambda w: (-float(w @ w), -2.0 * w), np.zeros(3), rg.EuclideanMetric(), 0.1)
    assert result.value == 0.0
    assert result.converged


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("offset", "kept"), [(0.0, 10), (10.0, 10), (10.0, 1), (30.0, 1), (100.0, 0)])
def test_what_a_gradient_in_float32_leaves_out_is_found_or_it_is_said(seed, offset, kept):
    rng = np.random.default_rng(seed)
    w, a = rng.standard_normal((2, 20))

    def loss(p):
        g = 0.1 * np.cos(p) * a if kept else -0.1 * np.cos(p) * a
        g[kept or 20 :] = 0.0
        return float(np.float32(offset) + np.float32(0.1 * np.sin(p) @ a)), g

    for search in (
        lambda: rg.check_gradient(loss, w),
        lambda: rg.worst_case_sharpness(loss, w, rg.EuclideanMetric(), 0.05, n_restarts=1),
    ):
        with pytest.raises(ValueError, match="the gradient is not that of the loss"):
            search()


@pytest.mark.parametrize("offset", [1e4, 1e5, 1e6])
def test_where_noise_hides_the_slope_it_is_said(offset):
    rng = np.random.default_rng(0)
    w, a = rng.standard_normal((2, 20))

    def loss(p):
        return float(np.float32(offset) + np.float32(0.1 * np.sin(p) @ a)), 0.1 * np.cos(p) * a

    assert np.isnan(rg.check_gradient(loss, w)["parameters"])
    result = rg.worst_case_sharpness(loss, w, rg.EuclideanMetric(), 0.05)
    assert result.needs_advice
    assert ("the values of the loss have errors of about" in result.advice) == (result.value > 0.0)
    assert "it is undecided whether the gradient is right along" in result.advice
    assert result.noise > 0.05 * np.spacing(np.float32(offset))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kinks_of_a_trained_network_accuse_nobody(seed, dtype):
    """ReLU, many more neurons than points, at a minimum: steps that agree with each other may have kinks inside."""
    rng = np.random.default_rng(seed)
    X, Y = rng.standard_normal((12, 5)), rng.standard_normal((12, 2))
    params = {"a": rng.standard_normal((30, 5)), "b": rng.standard_normal((2, 30)) / 5.0}

    def loss(p):
        a, b, x, y = (z.astype(dtype) for z in (p["a"], p["b"], X, Y))
        hidden = np.maximum(x @ a.T, 0)
        residual = hidden @ b.T - y
        slope = (residual @ b) * (hidden > 0)
        grads = {"a": 2 * slope.T @ x / 24, "b": 2 * residual.T @ hidden / 24}
        return float(np.mean(residual**2)), {name: g.astype(np.float64) for name, g in grads.items()}

    for _ in range(4000):
        _, grads = loss(params)
        params = {name: x - 0.05 * grads[name] for name, x in params.items()}
    assert loss(params)[0] < 1e-3
    rg.check_gradient(loss, params)
    rg.worst_case_sharpness(
        loss, params, rg.ProductMetric(dict.fromkeys(params, rg.ElementwiseMetric())), 0.05, n_iter=2
    )


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
@pytest.mark.parametrize("fault", ["gradient", "symmetry"])
def test_every_batch_is_verified(order, fault, point):
    def loss(p, batch):
        value, grads = quartic(p)
        if batch and fault == "gradient":
            return value, rg.Pair(0.1 * grads.G, grads.H)
        return (value + 0.1 * float(np.sum(p.G**2)), rg.Pair(grads.G + 0.2 * p.G, grads.H)) if batch else (value, grads)

    with pytest.raises(ValueError, match=r"not that of the loss|the loss does not have"):
        rg.worst_case_sharpness(loss, point, rg.InvariantMetric(), 0.1, batches=order, n_restarts=1)


# Sensitivity, and false alarms --------------------------------------------------------------------------------------


def perceptron(seed, activation="tanh", dtype=np.float64, residual="square", noise=0.0, idle=False):
    """A network of two layers with its loss and gradients, by hand; all in one precision, with noise in the loss."""
    rng, chance = np.random.default_rng(seed), np.random.default_rng(seed + 1000)
    sizes = {"a": (12, 8), "b": (10, 12), "c": (3, 10), "idle": (4,)}
    params = {name: rng.standard_normal(size) / np.sqrt(size[-1]) for name, size in sizes.items()}
    x, y = rng.standard_normal((20, 8)).astype(dtype), rng.standard_normal((20, 3)).astype(dtype)
    if not idle:
        del params["idle"]

    def act(z):
        if activation == "tanh":
            return np.tanh(z), 1 - np.tanh(z) ** 2
        return np.maximum(z, 0), (z > 0).astype(dtype)

    def value_and_grad(p):
        a, b, c = (p[name].astype(dtype) for name in "abc")
        first, d_first = act(x @ a.T)
        second, d_second = act(first @ b.T)
        error = second @ c.T - y
        if residual == "square":
            value, slope = np.mean(error**2, dtype=dtype), 2 * error / error.size
        else:  # hinge
            value, slope = np.mean(np.maximum(1 - y * error, 0), dtype=dtype), -y * (y * error < 1) / error.size
        back = (slope.astype(dtype) @ c) * d_second
        grads = {"c": slope.T @ second, "b": back.T @ first, "a": ((back @ b) * d_first).T @ x}
        grads |= {"idle": np.zeros(4)} if idle else {}
        return float(value) * (1.0 + noise * chance.standard_normal()), {n: g.astype(float) for n, g in grads.items()}

    return value_and_grad, params


def spoil(kind, grads, params, rng):
    """A gradient that is wrong by 1% everywhere, by 3% in a block, by a norm that is detached, by 10% in a row."""
    name = "abc"[rng.integers(3)]
    if kind == "everywhere":
        return {n: 1.01 * g for n, g in grads.items()}
    change = {
        "block": 0.03 * grads[name],
        "norm": params[name] * np.sum(params[name] * grads[name]) / np.sum(params[name] ** 2),
        "row": 0.1 * grads[name] * (np.arange(len(params[name])) == rng.integers(len(params[name])))[:, None],
    }[kind]
    return {**grads, name: grads[name] + change}


def searches_of(value_and_grad, params, rho=0.2, **settings):
    metric = rg.ProductMetric(dict.fromkeys(params, rg.ElementwiseMetric()))
    yield lambda: rg.worst_case_sharpness(value_and_grad, params, metric, rho, **settings)
    yield lambda: rg.adaptive_sharpness(value_and_grad, params, rho, **settings)


def is_refused(search):
    try:
        search()
    except ValueError as error:
        return "value_and_grad" in str(error)
    return False


def test_small_errors_of_a_gradient_are_seen():
    """At least 90% of them: a row or a block can have next to no gradient."""
    refused = []
    for seed in range(12):
        value_and_grad, params = perceptron(seed)
        for kind in ("everywhere", "block", "norm", "row"):

            def wrong(p, kind=kind, seed=seed, right=value_and_grad):
                value, grads = right(p)
                return value, spoil(kind, grads, p, np.random.default_rng(seed))

            refused += [is_refused(search) for search in searches_of(wrong, params, n_restarts=1, n_iter=3)]
    assert len(refused) == 96
    assert np.mean(refused) >= 0.9, np.mean(refused)


@pytest.mark.parametrize("kind", ["of the first point", "too long far away", "without a block far away"])
@pytest.mark.parametrize("seed", range(4))
def test_a_gradient_that_is_right_at_the_parameters_alone_is_refused(kind, seed):
    value_and_grad, params = perceptron(seed)
    flat = np.concatenate([x.ravel() for x in params.values()])
    _, first = value_and_grad(params)

    def wrong(p):
        value, grads = value_and_grad(p)
        is_near = np.linalg.norm(np.concatenate([x.ravel() for x in p.values()]) - flat) < 0.03 * np.linalg.norm(flat)
        if kind == "of the first point":
            return value, first if not is_near else grads
        far = {"too long far away": {n: 1.2 * g for n, g in grads.items()},
               "without a block far away": {**grads, "b": 0.0 * grads["b"]}}[kind]  # fmt: skip
        return value, grads if is_near else far

    for search in searches_of(wrong, params, rho=2.0, n_restarts=1):
        with pytest.raises(ValueError, match="right at the given parameters and wrong at the maximizer"):
            search()


RIGHT = {
    "tanh": {}, "relu": {"activation": "relu"}, "hinge": {"residual": "hinge"},
    "relu and hinge": {"activation": "relu", "residual": "hinge"},
    "float32": {"dtype": np.float32}, "relu in float32": {"activation": "relu", "dtype": np.float32},
    "half precision": {"dtype": np.float16}, "relu and hinge in float32": {
        "activation": "relu", "residual": "hinge", "dtype": np.float32,
    },
    "a block without gradient": {"idle": True},
    **{f"noise {noise:g}": {"noise": noise} for noise in (1e-9, 1e-8, 1e-7, 1e-6)},
}  # fmt: skip


@pytest.mark.parametrize("kind", RIGHT)
def test_no_right_gradient_is_refused(kind):
    """208 losses: at kinks, in low precision, with noise."""
    for seed in range(16):
        value_and_grad, params = perceptron(seed, **RIGHT[kind])
        moving = {name: x for name, x in params.items() if name != "idle"}
        metric = rg.ProductMetric(dict.fromkeys(moving, rg.ElementwiseMetric()))
        rg.worst_case_sharpness(value_and_grad, params, metric, 0.2, n_restarts=1, n_iter=4)
        rg.adaptive_sharpness(value_and_grad, params, 0.2, names=list(moving), n_restarts=1, n_iter=4)
        rg.check_gradient(value_and_grad, params)


@pytest.mark.parametrize(
    "loss",
    [lambda w: float(np.sum(w)), lambda w: math.exp(w[0]), lambda w: w.sort(), lambda w: np.asarray(w, float).sum(),
     lambda w: (w.__setitem__(0, 1.0), w)[1][0]],
)  # fmt: skip
def test_a_loss_that_autograd_cannot_trace_is_told_what_to_do(loss):
    with pytest.raises(TypeError, match=r"loss: autograd cannot differentiate it: .* write it with autograd.numpy"):
        rg.value_and_grad(loss)(np.ones(3))


def test_frozen_blocks_are_names():
    with pytest.raises(TypeError, match="frozen: expected names or patterns of blocks, got None"):
        rg.networks.block_metric({"w": np.ones(3)}, "mix", rg.EuclideanMetric(), frozen=None)
