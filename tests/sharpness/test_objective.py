"""What is given: losses, gradients and parameters, right and wrong."""

import functools
import math

import numpy as np
import pytest
from helpers import transformer

import refgeo as rg
from refgeo.sharpness.objective import ParameterSpace, check_symmetry

worst_case = functools.partial(rg.worst_case_sharpness, n_restarts=1)
adaptive_case = functools.partial(rg.adaptive_sharpness, n_restarts=1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_or_gradient_that_is_not_finite_is_rejected(bad):
    for spoil_loss in (True, False):

        def loss(w, spoil_loss=spoil_loss):
            outside = w[0] > 1.5
            return bad if outside and spoil_loss else float(w.sum()), np.array([bad if outside else 1.0, 1.0])

        result = worst_case(loss, np.ones(2), rg.EuclideanMetric(), 1.0, n_iter=60)
        assert result.n_rejected > 0
        assert 0.99 < result.value < 1.0  # the gradient leads straight to the wall at w_0 = 1.5
        assert np.isfinite(result.trace).all()
        with pytest.raises(ValueError, match=r"expected a finite (loss|gradient) at the given parameters"):
            worst_case(loss, np.full(2, 2.0), rg.EuclideanMetric(), 1.0)
    with pytest.raises(ValueError, match="a finite loss at the given parameters"):
        rg.average_case_sharpness(lambda w: bad, np.ones(2), rg.EuclideanMetric(), 1.0)
    with pytest.raises(TypeError, match=r"got a tuple; value_and_grad\(params\)\[0\] is the loss without the gradient"):
        rg.average_case_sharpness(lambda w: (1.0, w), np.ones(2), rg.EuclideanMetric(), 1.0)


def line(w):
    return float(w.sum()), np.ones_like(w)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rho": 0}, ValueError, "rho: expected a finite number > 0"),
        ({"rho": np.inf}, ValueError, "rho: expected a finite number > 0"),
        ({"rho": "1"}, ValueError, "rho: expected a finite number > 0"),
        ({"order": 3}, ValueError, 'order: expected 1, 2 or "exact"'),
        ({"gradient": "autodiff"}, ValueError, "gradient: expected one of exact, paper"),
        ({"n_iter": 0}, ValueError, "n_iter: expected an integer >= 1, got 0"),
        ({"n_restarts": 1.5}, ValueError, "n_restarts: expected an integer >= 1"),
        ({"rng": "seed"}, TypeError, "rng: expected a seed"),
        (
            {"metric": rg.EuclideanMetric},
            TypeError,
            "got the class EuclideanMetric; call it",
        ),
        ({"metric": "inv"}, TypeError, "metric: expected a metric such as"),
        ({"params": {"w": np.ones(3)}}, TypeError, "expected a refgeo.ProductMetric that names its blocks"),
        (
            {"value_and_grad": lambda w: 1.0},
            TypeError,
            r"expected a function that returns \(loss, gradients\), got float",
        ),
        ({"value_and_grad": lambda w: (w, w)}, TypeError, "expected the loss to be one real number"),
        (
            {"value_and_grad": lambda w: (1.0, np.ones(2))},
            ValueError,
            r"the gradient: expected real numbers of shape \(3,\)",
        ),
        ({"value_and_grad": lambda w: (1.0, 1j * np.ones(3))}, ValueError, "got complex128"),
        ({"batches": []}, ValueError, "batches: expected at least one batch"),
        ({"batches": 5}, TypeError, "batches: expected an iterable"),
        ({"batches": "data"}, TypeError, "batches: expected an iterable"),
    ],
)
def test_bad_arguments_are_named(change, error, message):
    arguments = {"value_and_grad": line, "params": np.ones(3), "metric": rg.EuclideanMetric(), "rho": 0.1} | change
    with pytest.raises(error, match=message):
        worst_case(**arguments)


def test_bad_gradients_of_a_dict_are_named():
    model, params, f = transformer()
    metric = model.metric("inv")

    def without(name):
        return lambda p: (1.0, {k: v for k, v in f(p)[1].items() if k != name})

    with pytest.raises(ValueError, match="gradient of 'tokens' is missing"):
        worst_case(without("tokens"), params, metric, 0.1)
    with pytest.raises(ValueError, match="gradient of 'tokens' is missing"):
        adaptive_case(without("tokens"), params, 0.1)
    with pytest.raises(TypeError, match=r"gradient of 'layer0\.query_key': expected a Pair"):
        worst_case(lambda p: (1.0, {**f(p)[1], "layer0.query_key": 3.0}), params, metric, 0.1)
    with pytest.raises(ValueError, match=r"gradient of 'layer0\.query_key', G: expected real numbers of shape"):
        worst_case(lambda p: (1.0, {**f(p)[1], "layer0.query_key": (np.ones(3), np.ones(3))}), params, metric, 0.1)
    with pytest.raises(TypeError, match="expected a dict of gradients, got ndarray"):
        worst_case(lambda p: (1.0, np.ones(3)), params, metric, 0.1)
    with pytest.raises(ValueError, match="names: expected blocks of params"):
        adaptive_case(f, params, 0.1, names=["tokenz"])
    with pytest.raises(ValueError, match="norm: expected 2 or inf, got 1"):
        adaptive_case(f, params, 0.1, norm=1)
    with pytest.raises(ValueError, match="n_samples: expected an even number >= 4"):
        rg.average_case_sharpness(lambda p: f(p)[0], params, metric, 0.1, n_samples=5)


def test_an_error_of_the_loss_is_not_swallowed():
    def loss(w):
        raise RankDeficient

    RankDeficient = rg.RankDeficientError("the user's own", (), 0.0)
    with pytest.raises(rg.RankDeficientError, match="the user's own"):
        worst_case(loss, np.ones(2), rg.EuclideanMetric(), 0.1)


def test_parameters_are_not_modified_and_frozen_ones_are_passed_on():
    model, params, f = transformer()
    before = {name: [np.array(x) for x in (b if isinstance(b, rg.Pair) else [b])] for name, b in params.items()}

    def loss(p):
        assert p["tokens"] is params["tokens"]
        return f(p)

    worst_case(loss, params, model.metric("mix", frozen="tokens"), 0.1, n_iter=3)
    for name, block in params.items():
        for now, then in zip(block if isinstance(block, rg.Pair) else [block], before[name], strict=True):
            assert np.array_equal(now, then)


def test_float32_losses_and_gradients_are_accepted():
    def loss(w):
        w = w.astype(np.float32)
        return np.float32(w @ w), 2 * w

    result = worst_case(loss, np.ones(3), rg.EuclideanMetric(), 0.1)
    assert result.value == pytest.approx(2 * 0.1 * math.sqrt(3) + 0.01, rel=1e-5)


def test_parameters_in_other_precisions_are_taken_as_the_numbers_they_are():
    w = np.random.default_rng(0).standard_normal(10000).astype(np.float32)

    def loss(p):
        return float(np.sum(p * p)), 2 * p

    results = [worst_case(loss, p, rg.EuclideanMetric(), 1e-6).value for p in (w, w.astype(np.float64))]
    assert results[0] == results[1]
    listed = worst_case(loss, [1.0, 2.0], rg.EuclideanMetric(), 0.1)
    assert listed.value == pytest.approx(0.2 * math.sqrt(5) + 0.01)
    averages = [
        rg.average_case_sharpness(lambda p: loss(p)[0], p, rg.EuclideanMetric(), 1e-5, n_samples=4).value
        for p in (w, w.astype(np.float64))
    ]
    assert averages[0] == averages[1]


def test_a_stop_iteration_of_the_loss_is_an_error():
    def loss(w, batch):
        return (next(iter([])), w) if batch == 4 else (batch * float(w.sum()), batch * np.ones_like(w))

    with pytest.raises(RuntimeError, match="value_and_grad: it raised StopIteration"):
        worst_case(loss, np.ones(2), rg.EuclideanMetric(), 0.1, batches=[1, 4, 2, 3])


def test_a_run_of_which_every_step_was_rejected_has_not_converged():
    def loss(w):
        return (0.0 if not w.any() else math.nan), np.zeros(2) if w.any() else np.ones(2)

    result = worst_case(loss, np.zeros(2), rg.EuclideanMetric(), 1.0)
    assert result.value == 0.0
    assert not result.converged


def _cliff(wrap):
    """½‖GHᵀ‖², whose gradient is NaN beyond a small step."""

    def loss(pair):
        product = pair.G @ pair.H.T
        bad = np.nan if np.abs(product - 6.0).max() > 0.5 else 1.0
        return 0.5 * float(np.sum(product**2)), wrap(bad * product @ pair.H, bad * product.T @ pair.G)

    return loss


@pytest.mark.parametrize("wrap", [lambda *g: g, lambda *g: rg.Pair(*g), lambda *g: rg.Pair.unchecked(*g)])
def test_a_gradient_that_is_not_finite_undoes_the_step(wrap):
    result = worst_case(_cliff(wrap), rg.Pair([[2.0]], [[3.0]]), rg.InvariantMetric(), 0.5, verify=False)
    assert result.n_rejected > 0
    assert 0.0 < result.value < 0.5 * 6.5**2 - 18.0


def test_autograds_gradient_that_is_not_finite_undoes_the_step():
    import autograd.numpy as anp

    loss = rg.value_and_grad(lambda pair: anp.sum(anp.sqrt(7.0 - pair.G @ pair.H.T) ** 1.0) * -1.0)
    with np.errstate(all="ignore"):
        result = worst_case(loss, rg.Pair([[2.0]], [[3.0]]), rg.InvariantMetric(), 0.5, verify=False)
    assert result.n_rejected > 0
    assert result.value > 0.0


def test_a_loss_that_changes_during_the_search_is_refused():
    evaluations = []

    def drifting(w):
        evaluations.append(1)
        return float(np.sum(w**2)) + 1e-3 * max(len(evaluations) - 10, 0), 2.0 * w

    with pytest.raises(ValueError, match="before and after the search"):
        worst_case(drifting, np.ones(3), rg.EuclideanMetric(), 0.1, n_restarts=2)
    evaluations.clear()
    assert worst_case(drifting, np.ones(3), rg.EuclideanMetric(), 0.1, verify=False).value > 0.0


@pytest.mark.parametrize("kind", ["arrays", "pairs"])
def test_a_loss_may_keep_every_point_it_is_given(kind):
    """What a user kept, even as a view, does not change afterwards."""
    rng = np.random.default_rng(0)
    if kind == "arrays":
        params, metric = {"w": rng.standard_normal((40, 30))}, rg.ProductMetric({"w": rg.ElementwiseMetric()})
    else:
        pair = rg.Pair(rng.standard_normal((2, 70, 64)), rng.standard_normal((2, 70, 64)))
        params, metric = {"w": pair}, rg.ProductMetric({"w": rg.InvariantMetric()})
    kept = []

    def loss(p):
        factors = list(p["w"]) if kind == "pairs" else [p["w"]]
        kept.append(([f[::2] for f in factors], [f[::2].copy() for f in factors]))
        if kind == "arrays":
            return float(np.sum(np.sin(factors[0]))), {"w": np.cos(factors[0])}
        G, H = factors
        slope = np.cos(G @ H.mT)
        return float(np.sum(np.sin(G @ H.mT))), {"w": (slope @ H, slope.mT @ G)}

    result = worst_case(loss, params, metric, 0.5)
    # one evaluation gives the gradient again, six measure noise, eight to twelve verify the gradient, four to six do so
    # at the maximizer, one finds that the loss has not changed, five test a symmetry
    assert 20 <= len(kept) - 21 - 5 * (kind == "pairs") <= 26
    for views, copies in kept:
        assert all(np.array_equal(view, copy) for view, copy in zip(views, copies, strict=True))
    assert np.isfinite(result.value)


@pytest.mark.parametrize("rows", [3, 2])
@pytest.mark.parametrize("kind", [list, tuple])
def test_several_arrays_are_no_array(rows, kind):
    """A list of arrays would become one array, if their shapes happen to be equal."""
    arrays = kind([np.ones((3, 4)), np.ones((rows, 4))])

    def loss(w):
        return float(sum(np.sum(x) for x in w)), w

    for call in (
        lambda: rg.adaptive_sharpness(loss, arrays, 0.1),
        lambda: worst_case(loss, arrays, rg.ScalingMetric(), 0.1),
        lambda: worst_case(loss, {"w": arrays}, rg.ProductMetric({"w": rg.TranslationMetric()}), 0.1),
        lambda: rg.check_gradient(loss, arrays),
        lambda: rg.QuotientMetric(lambda w: np.eye(12)).at(list(arrays)),
    ):
        with pytest.raises(
            TypeError, match=rf"expected one array, got a (list|{kind.__name__}) of arrays; name several by a dict"
        ):
            call()


def test_masks_are_not_dropped():
    masked, point = np.ma.masked_array([1.0, 2.0], [False, True]), np.ones(2)
    for call in (
        lambda: rg.EuclideanMetric().at(masked),
        lambda: worst_case(lambda w: (np.ma.masked, w), point, rg.EuclideanMetric(), 0.1),
        lambda: worst_case(lambda w: (1.0, masked), point, rg.EuclideanMetric(), 0.1),
        lambda: rg.average_case_sharpness(lambda w: np.ma.masked, point, rg.EuclideanMetric(), 0.1),
        lambda: rg.value_and_grad(lambda w: np.ma.masked)(point),
        lambda: rg.Pair(np.ma.masked_array(np.eye(2), np.eye(2)), np.eye(2)),
    ):
        with pytest.raises(TypeError, match=r"(?i)masked"):
            call()
    assert rg.EuclideanMetric().at(np.ma.masked_array([1.0, 2.0])).dim == 2


def test_errors_say_what_to_do():
    with pytest.raises(TypeError, match=r"got a dict; refgeo\.ProductMetric of it is one metric"):
        worst_case(lambda p: (1.0, p), {"w": np.ones(2)}, {"w": rg.EuclideanMetric()}, 0.1)
    with pytest.raises(rg.RankDeficientError, match="B of a fresh low-rank adapter is; train a step first"):
        rg.InvariantMetric().at(rg.Pair(np.zeros((4, 2)), np.ones((3, 2))))
    with pytest.raises(ValueError, match="expected a finite gradient at the given parameters; the loss is 1"):
        worst_case(lambda w: (1.0, np.nan * w), np.ones(2), rg.EuclideanMetric(), 0.1)
    for wrong, message in (
        (None, "got NoneType"),
        ("a", "got str"),
        (1j, "got complex"),
        (np.ones(2), r"the shape \(2,\)"),
    ):
        with pytest.raises(
            TypeError, match=f"^loss: expected a function that returns one real number, {message}|{message}"
        ):
            rg.value_and_grad(lambda w, wrong=wrong: wrong)(np.ones(2))


def test_symmetries_that_a_loss_has_one_by_one_but_not_together_are_refused():
    """The loss changes only if both blocks have become longer or shorter than they are near θ."""
    rng = np.random.default_rng(0)
    params = {"u": rng.standard_normal(4), "w": rng.standard_normal(4)}
    metric = rg.ProductMetric({name: rg.ScalingMetric() for name in params})

    def loss(p, is_joint):
        moved = [abs(np.log(np.linalg.norm(p[name]) / np.linalg.norm(params[name]))) > 0.2 for name in params]
        return sum(float(p[name][0] / np.linalg.norm(p[name])) for name in params) + is_joint * all(moved)

    space = ParameterSpace(params, metric)
    check_symmetry(space, lambda p: loss(p, is_joint=False))
    with pytest.raises(ValueError, match="2 symmetries, which the loss has one by one but not together"):
        check_symmetry(space, lambda p: loss(p, is_joint=True))
