"""Update rules with state, right and wrong ones: invariance, from which step on, starts at zero, the first step."""

import io
import itertools
import re
import shlex
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg
from helpers import sample

import refgeo as rg
from refgeo.conformance.judging.checks import TRAJECTORY
from refgeo.conformance.judging.verdict import Row, Verdict
from refgeo.conformance.optimisers import invariance as trajectories
from refgeo.conformance.optimisers.invariance import starts
from refgeo.conformance.points.sources import Points
from refgeo.conformance.report import Report


@pytest.fixture
def every_start():
    """For tests of verdicts: where a rule is really judged."""


@pytest.fixture(autouse=True)
def use_few_starts(request, monkeypatch):
    """For all other tests, a fifth of the starts."""
    if "every_start" not in request.fixturenames:
        monkeypatch.setattr(trajectories, "starts", lambda *of: starts(*of)[::5])


def grams(G, H):
    return G.mT @ G, H.mT @ H


def of_metric(metric):
    def step(state, G, H, e_G, e_H, rate=0.1):
        g = metric.at(rg.Pair(G, H)).riemannian_gradient(rg.Pair(e_G, e_H))
        return state, (G - rate * g.G).astype(G.dtype), (H - rate * g.H).astype(H.dtype)

    return step


def preconditioned(G, H, e_G, e_H):
    S, T = grams(G, H)
    return e_G @ np.linalg.inv(T), e_H @ np.linalg.inv(S)


def preconditioned_step(state, G, H, e_G, e_H):
    g_G, g_H = preconditioned(G, H, e_G, e_H)
    return state, G - 0.1 * g_G, H - 0.1 * g_H


def momentum(state, G, H, e_G, e_H):
    """Heavy ball on covectors: A·θ has the covectors of θ, moved by one A for all steps."""
    m_G, m_H = (0.0, 0.0) if state is None else state
    m_G, m_H = 0.8 * m_G + e_G, 0.8 * m_H + e_H
    g_G, g_H = preconditioned(G, H, m_G, m_H)
    return (m_G, m_H), G - 0.05 * g_G, H - 0.05 * g_H


def adam_of_lengths(state, G, H, e_G, e_H):
    """A second moment of the gradient's length in the metric, with bias correction: one invariant number."""
    k, v = state or (0, 0.0)
    g_G, g_H = preconditioned(G, H, e_G, e_H)
    k, v = k + 1, 0.9 * v + 0.1 * (np.sum(g_G * e_G) + np.sum(g_H * e_H))
    size = np.sqrt(v / (1 - 0.9**k))
    return (k, v), G - 0.05 * g_G / size, H - 0.05 * g_H / size


def decayed_on_one_factor(state, G, H, e_G, e_H):
    g_G, g_H = preconditioned(G, H, e_G, e_H)
    return state, 0.98 * G - 0.1 * g_G, H - 0.1 * g_H


def one_after_the_other(state, G, H, e_G, e_H):
    """Gauss–Seidel: H's Gram matrix is that of the new G."""
    G = G - 0.1 * preconditioned(G, H, e_G, e_H)[0]
    return state, G, H - 0.1 * preconditioned(G, H, e_G, e_H)[1]


def orthonormalise(G, H):
    """Another gauge: H gets orthonormal columns."""
    Q, R = np.linalg.qr(H)
    return G @ R.T, Q, R


def transport_moments(right):
    """Moments that follow the change of gauge, by the right matrix or by its transpose."""

    def step(state, G, H, e_G, e_H):
        m_G, m_H = (0.0 * G, 0.0 * H) if state is None else state
        m_G, m_H = 0.8 * m_G + e_G, 0.8 * m_H + e_H
        g_G, g_H = preconditioned(G, H, m_G, m_H)
        G, H, R = orthonormalise(G - 0.05 * g_G, H - 0.05 * g_H)
        inverse = np.linalg.inv(R)
        return ((m_G @ inverse, m_H @ R.T) if right else (m_G @ inverse.T, m_H @ R)), G, H

    return step


def forgotten(state, G, H, e_G, e_H):
    """The gauge changes, and the moments stay."""
    m_G, m_H = (0.0 * G, 0.0 * H) if state is None else state
    m_G, m_H = 0.8 * m_G + e_G, 0.8 * m_H + e_H
    g_G, g_H = preconditioned(G, H, m_G, m_H)
    G, H, _ = orthonormalise(G - 0.05 * g_G, H - 0.05 * g_H)
    return (m_G, m_H), G, H


def clipped(of_the_whole):
    def step(state, G, H, e_G, e_H):
        g_G, g_H = preconditioned(G, H, e_G, e_H)
        sizes = np.sum(g_G * e_G), np.sum(g_H * e_H)
        if not of_the_whole:
            sizes = np.sum(g_G**2), np.sum(g_H**2)
        a, b = (0.3 / max(np.sqrt(size), 0.3) for size in sizes)
        return state, G - 0.1 * a * g_G, H - 0.1 * b * g_H

    return step


def spectral(state, G, H, e_G, e_H):
    S, T = grams(G, H)

    def part(e, gram):
        root = np.linalg.inv(np.real(scipy.linalg.sqrtm(gram)))
        U, _, V = np.linalg.svd(e @ root, full_matrices=False)
        return U @ V @ root

    return state, G - 0.02 * part(e_G, T), H - 0.02 * part(e_H, S)


def spectral_in_orthonormal_coordinates(state, G, H, e_G, e_H):
    """The core of LoRA-RITE: with H = Q R, the polar factor of e_G R⁻¹, times R⁻ᵀ."""

    def part(e, factor):
        R = np.linalg.qr(factor)[1]
        return scipy.linalg.polar(e @ np.linalg.inv(R))[0] @ np.linalg.inv(R).T

    return state, G - 0.02 * part(e_G, H), H - 0.02 * part(e_H, G)


def spectron(state, G, H, e_G, e_H):
    """The polar factors of the gradients, over the sum of the lengths of the factors."""
    rate = 0.1 / (np.linalg.norm(G, 2) + np.linalg.norm(H, 2) + 1)
    return state, G - rate * scipy.linalg.polar(e_G)[0], H - rate * scipy.linalg.polar(e_H)[0]


def in_turn(state, G, H, e_G, e_H):
    """G moves at even steps, H at odd ones."""
    g_G, g_H = preconditioned(G, H, e_G, e_H)
    odd = bool(state)
    return not odd, G - (not odd) * 0.1 * g_G, H - odd * 0.1 * g_H


def decayed_by_its_own_length(state, G, H, e_G, e_H):
    """Decay of a factor by its Frobenius norm, which depends on the representation."""
    g_G, g_H = preconditioned(G, H, e_G, e_H)
    return state, G * (1 - 0.02 * np.linalg.norm(G)) - 0.1 * g_G, H - 0.1 * g_H


def adam_of_entries(state, G, H, e_G, e_H):
    g = preconditioned(G, H, e_G, e_H)
    v = (0.0, 0.0) if state is None else state
    v = tuple(0.9 * old + 0.1 * x**2 for old, x in zip(v, g, strict=True))
    G, H = (F - 0.02 * x / (np.sqrt(y) + 1e-9) for F, x, y in zip((G, H), g, v, strict=True))
    return v, G, H


def shampoo(state, G, H, e_G, e_H):
    """The inverse root of Σ eᵀe is that of the moved one only under rotations."""
    v_G, v_H = (1e-6 * np.eye(G.shape[-1]),) * 2 if state is None else state
    v_G, v_H = v_G + e_G.T @ e_G, v_H + e_H.T @ e_H
    roots = [np.linalg.inv(np.real(scipy.linalg.sqrtm(v))) for v in (v_G, v_H)]
    return (v_G, v_H), G - 0.02 * e_G @ roots[0], H - 0.02 * e_H @ roots[1]


def late(state, G, H, e_G, e_H):
    """Right for four steps, then plain descent on one factor."""
    k = 1 if state is None else state + 1
    g_G, g_H = preconditioned(G, H, e_G, e_H)
    return k, G - 0.1 * (e_G if k > 4 else g_G), H - 0.1 * g_H


def wide_only(state, G, H, e_G, e_H):
    """Right but for n < m, where moments stay behind when the gauge changes."""
    if len(G) >= len(H):
        return momentum(state, G, H, e_G, e_H)
    return forgotten(state, G, H, e_G, e_H)


def clipped_when_huge(state, G, H, e_G, e_H):
    """Clips the gradients of the factors, at a size that a comfortable loss does not reach."""
    size = np.sqrt(np.sum(e_G**2) + np.sum(e_H**2))
    e_G, e_H = (min(1.0, 1000.0 / size) * e for e in (e_G, e_H))
    g_G, g_H = preconditioned(G, H, e_G, e_H)
    return state, G - 1e-4 * g_G, H - 1e-4 * g_H


def not_a_number(state, G, H, e_G, e_H):
    """Overflows, as a half-precision number would, in some representations only."""
    with np.errstate(all="ignore"):
        bad = np.where((np.linalg.norm(G) > 3.0) | (np.linalg.norm(G) < 0.4), np.nan, 1.0)
    k, G, H = of_metric(rg.MixedMetric())(state, G, H, e_G, e_H)
    return k, G * bad, H


def root_of_a_singular_matrix(state, G, H, e_G, e_H):
    """Right, but for NaN where rounding makes an eigenvalue of Σ e T⁻¹ eᵀ, n×n of rank h, negative."""
    S, T = grams(G, H)
    parts = [e @ np.linalg.inv(gram) @ e.T for e, gram in ((e_G, T), (e_H, S))]
    old = (0.0, 0.0) if state is None else state
    V = [x + y for x, y in zip(old, parts, strict=True)]
    with np.errstate(all="ignore"):
        roots = [(U / np.sqrt(values + 1e-16)) @ U.T for values, U in map(np.linalg.eigh, V)]
    g_G, g_H = preconditioned(G, H, roots[0] @ e_G, roots[1] @ e_H)
    return V, G - 1e-3 * g_G, H - 1e-3 * g_H


def decay_in_the_gradient(state, G, H, e_G, e_H):
    return preconditioned_step(state, G, H, e_G + 0.001 * G, e_H + 0.001 * H)


def decay_of_the_factors(state, G, H, e_G, e_H):
    g_G, g_H = preconditioned(G, H, e_G, e_H)
    return state, 0.99 * G - 0.1 * g_G, 0.99 * H - 0.1 * g_H


def momentum_of_tangent_vectors(state, G, H, e_G, e_H):
    g_G, g_H = preconditioned(G, H, e_G, e_H)
    m_G, m_H = (0.0, 0.0) if state is None else state
    m_G, m_H = 0.8 * m_G + g_G, 0.8 * m_H + g_H
    return (m_G, m_H), G - 0.05 * m_G, H - 0.05 * m_H


def clipped_by_euclidean_length(state, G, H, e_G, e_H):
    return preconditioned_step(state, G, H, *(e * min(1.0, 1.0 / np.linalg.norm(e)) for e in (e_G, e_H)))


def gradient_step(state, G, H, e_G, e_H):
    return state, G - 0.1 * e_G, H - 0.1 * e_H


RIGHT = {
    "inv": of_metric(rg.InvariantMetric()),
    "mix": of_metric(rg.MixedMetric()),
    "s=0.5": of_metric(rg.InterpolatedMetric(0.5)),
    "embedded": of_metric(rg.EmbeddedMetric()),
    "spectral": spectral,
    "spectral in orthonormal coordinates": spectral_in_orthonormal_coordinates,
    "in turn": in_turn,
    "momentum": momentum,
    "momentum of tangent vectors": momentum_of_tangent_vectors,
    "adam_of_lengths": adam_of_lengths,
    "decayed_on_one_factor": decayed_on_one_factor,
    "decay of the factors": decay_of_the_factors,
    "one_after_the_other": one_after_the_other,
    "transported": transport_moments(right=True),
    "clipped": clipped(of_the_whole=True),
}
WRONG = {  # with the step from which on, and what is kept
    "plain": (gradient_step, 1, {"rotations"}),
    "transposed transport": (transport_moments(right=False), 2, {"scalings"}),
    "forgotten": (forgotten, 2, set()),
    "clipped": (clipped(of_the_whole=False), 1, {"rotations"}),
    "decayed": (decayed_by_its_own_length, 1, {"rotations"}),
    "decay in the gradient": (decay_in_the_gradient, 1, {"rotations"}),
    "clipped by Euclidean length": (clipped_by_euclidean_length, 1, {"rotations"}),
    "adam": (adam_of_entries, 1, set()),
    "spectron": (spectron, 1, {"rotations"}),
    "shampoo": (shampoo, 1, {"rotations"}),
    "late": (late, 5, {"rotations"}),
    "wide only": (wide_only, 2, set()),
    "clipped when huge": (clipped_when_huge, 1, {"rotations"}),
    "not a number": (not_a_number, 1, {"rotations"}),
}


def in_both(names):
    """In turn one precision first: of every rule one is tried by default, the other with ``pytest -m slow``."""
    dtypes = ("float64", "float32")
    return [(name, dtype) for i, name in enumerate(names) for dtype in (dtypes if i % 2 else dtypes[::-1])]


def judge(step, checks=("step.invariant",), **options):
    report = rg.check(SimpleNamespace(step=step), checks=list(checks), **options)
    return {row.check: row for row in report.rows}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), sample(in_both(RIGHT), every=26))
def test_right_rules_pass(name, dtype, every_start):
    row = judge(RIGHT[name], dtype=dtype)["step.invariant"]
    assert row.verdict is Verdict.PASS, row.message
    assert "invariant under GL(h)" in row.message


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), sample(in_both(WRONG), every=26))
def test_wrong_rules_do_not_with_the_step_and_what_they_keep(name, dtype, every_start):
    step, first, kept = WRONG[name]
    row = judge(step, dtype=dtype)["step.invariant"]
    assert row.verdict is Verdict.WRONG, row.message
    assert f"from step {first} on" in row.message
    (message,) = (line for line in row.message.splitlines() if line.startswith("the optimiser is invariant"))
    for element in ("rotations", "scalings", "general elements"):
        assert (element in message) == (element in kept), row.message


READ = {
    "inv": ("G: G − 0.1 e_G S", "H: H − 0.1 e_H T"),
    "mix": ("G: G − 0.1 e_G T⁻¹", "H: H − 0.1 e_H S⁻¹"),
    "embedded": ("G: G − 0.1 e_G T⁻¹ + 0.05 G S⁻¹ Gᵀe_G T⁻¹", "H: H − 0.1 e_H S⁻¹ + 0.05 H T⁻¹ e_GᵀG S⁻¹"),
    "in turn": ("G: G − 0.1 e_G T⁻¹", "H: H"),
    "decay of the factors": ("G: 0.99 G − 0.1 e_G T⁻¹", "H: 0.99 H − 0.1 e_H S⁻¹"),
    "decay in the gradient": ("G: G − 0.0001 G T⁻¹ − 0.1 e_G T⁻¹", "H: H − 0.0001 H S⁻¹ − 0.1 e_H S⁻¹"),
    "damped": ("G: G − 0.1 e_G T_ε⁻¹", "H: H − 0.1 e_H S_ε⁻¹"),
    "spectral": None,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", READ)
def test_the_first_step_is_read(name):
    rules = RIGHT | {name: step for name, (step, *_) in WRONG.items()} | {"damped": damped(1e-6)}
    result = rg.read(SimpleNamespace(step=rules[name]))["step", ""]
    assert (result and tuple(result.lines())) == READ[name]
    assert result is None or result.epsilon == (1e-6 if name == "damped" else 0.0)


def damped(eps):
    def step(state, G, H, e_G, e_H):
        shift = eps * np.eye(G.shape[-1])
        S, T = (gram + shift for gram in grams(G, H))
        return state, G - 0.1 * e_G @ np.linalg.inv(T), H - 0.1 * e_H @ np.linalg.inv(S)

    return step


@pytest.mark.exhaustive
@pytest.mark.parametrize(("eps", "seed"), [(1e-6, 0), (1e-2, 6)])  # at seed 6, both trajectories reach the minimum
def test_damping_is_wrong_and_what_declaring_it_would_leave_is_said(eps, seed):
    row = judge(damped(eps), seed=seed)["step.invariant"]
    assert row.verdict is Verdict.WRONG
    assert "invariant only under rotations\nwith --relaxation ε, rotations alone are asked for" in row.message


@pytest.mark.slow
def test_with_relaxation_a_damped_rule_passes():
    assert judge(damped(1e-6), relaxation=1e-6)["step.invariant"].verdict is Verdict.PASS  # O(h) alone is asked for


@pytest.mark.slow
def test_a_class_of_elements_is_named_only_if_fresh_starts_confirm_it(monkeypatch):
    """All planned starts are narrow; wide heads, which fresh starts have, contradict rotations."""
    few = [(trajectories._GENERIC, trajectories.Comparison(name)) for name in trajectories.ELEMENTS]
    monkeypatch.setattr(trajectories, "plan_comparisons", lambda rule: few)
    narrow = trajectories.starts("quick", 0)
    monkeypatch.setattr(trajectories, "starts", lambda *_: [trajectories._GENERIC, *narrow])

    def step(state, G, H, e_G, e_H):
        if G.shape[-1] < 5:
            return damped(1e-2)(state, G, H, e_G, e_H)
        return state, G - 0.01 * np.sign(e_G), H - 0.01 * np.sign(e_H)

    row = judge(step)["step.invariant"]
    assert row.verdict is Verdict.WRONG
    assert "invariant under none of the matrices" in row.message


@pytest.mark.slow
def test_a_difference_that_large_weights_only_hide_is_no_damping():
    def floored(state, G, H, e_G, e_H):
        g_G, g_H = preconditioned(G, H, e_G, e_H)
        return state, G - 0.1 * max(1.0, 2.0 / np.sum(H**2)) * g_G, H - 0.1 * g_H

    assert judge(floored)["step.invariant"].verdict is Verdict.WRONG


def test_a_rule_that_ends_with_nan_everywhere_does_not_pass():
    def ends(state, G, H, e_G, e_H):
        k = 1 if state is None else state + 1
        g_G, g_H = preconditioned(G, H, e_G, e_H)
        return k, G - 0.1 * g_G * (np.nan if k == 4 else 1.0), H - 0.1 * g_H

    rows = judge(ends, ["step.invariant", "step.repeatable"])
    assert (
        rows["step.invariant"].message
        == "after step 4, G, H or G Hᵀ is not finite, for every size of the loss that was tried"
    )
    assert rows["step.invariant"].verdict is Verdict.WRONG
    assert rows["step.repeatable"].verdict is Verdict.PASS


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_what_rounding_makes_nan_is_no_dependence_on_the_representation(seed):
    row = judge(root_of_a_singular_matrix, seed=seed)["step.invariant"]
    assert "no longer finite" not in row.message


@pytest.mark.slow
def test_random_numbers_of_the_caller_stay_as_they_are():
    def noisy(state, G, H, e_G, e_H):
        g_G, g_H = preconditioned(G, H, e_G, e_H)
        size = 0.1 * (1.0 + 1e-3 * np.random.standard_normal())  # noqa: NPY002
        return state, G - size * g_G, H - size * g_H

    np.random.seed(7)  # noqa: NPY002
    expected = np.random.standard_normal(3)  # noqa: NPY002
    np.random.seed(7)  # noqa: NPY002
    row = judge(noisy)["step.invariant"]
    assert np.array_equal(np.random.standard_normal(3), expected)  # noqa: NPY002
    assert row.verdict in (Verdict.PASS, Verdict.INACCURATE), row.message


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda state, G, H, e_G, e_H: (G, H), "step must return (state, G, H), got 2 values"),
        (lambda state, G, H, e_G, e_H: None, "step must return (state, G, H), got NoneType"),
        (lambda state, G, H, e_G, e_H: (state, G.T, H), "expected shape"),
    ],
)
def test_what_a_rule_must_return(rule, message):
    row = judge(rule)["step.invariant"]
    assert row.verdict is Verdict.WRONG
    assert message in row.message


def test_a_step_with_other_arguments_is_told_which():
    with pytest.raises(
        ValueError, match=r"step must take the arguments state, G, .* but the step here takes model, data"
    ):
        rg.check(SimpleNamespace(step=lambda model, data: None))


@pytest.mark.slow
def test_a_step_may_have_to_get_more_by_options():
    rule = SimpleNamespace(step=lambda state, G, H, e_G, e_H, rate: (state, G - rate * e_G, H - rate * e_H))
    assert rg.check(rule, checks=["step.repeatable"], options={"rate": [0.5]}).passed
    assert rg.read(rule, functions=["step"], options={"rate": 0.25})["step", ""].G == {"G": 1.0, "e_G": -0.25}
    with pytest.raises(ValueError, match=r"all that have no default, got TypeError: missing .* 'rate'"):
        rg.check(rule, checks=["step.repeatable"])


@pytest.mark.exhaustive
def test_options_are_tried_in_one_run():
    def step(state, G, H, e_G, e_H, adam=False):
        return adam_of_entries(state, G, H, e_G, e_H) if adam else momentum(state, G, H, e_G, e_H)

    report = rg.check(SimpleNamespace(step=step), checks=["step.invariant"], options={"adam": [False, True]})
    assert [(row.metric, row.verdict) for row in report.rows] == [
        ("adam=False", Verdict.PASS),
        ("adam=True", Verdict.WRONG),
    ]


@pytest.mark.slow
def test_options_are_in_the_line_that_repeats_a_row():
    def step(state, G, H, e_G, e_H, names=("a",), rate=0.1):
        return state, G - rate * e_G, H - rate * e_H

    options = {"names": [("a", "b")], "rate": [0.5]}
    report = rg.check(SimpleNamespace(step=step), checks=["step.invariant"], options=options)
    report = replace(report, spec="mine.py")
    assert "--option 'names=('\"'\"'a'\"'\"', '\"'\"'b'\"'\"')' --option rate=0.5" in report.reproduce(report.rows[0])
    with pytest.raises(ValueError, match=r"options: expected keyword arguments of step, .* got .*'speed'"):
        rg.check(SimpleNamespace(step=step), checks=["step.invariant"], options={"speed": [1]})


@pytest.mark.slow
def test_few_trajectories_that_agree_are_no_pass():
    """What counts its calls moves so little after a while that rounding explains all of it."""
    calls = itertools.count(1)

    def step(state, G, H, e_G, e_H):
        rate = 0.1 / next(calls) ** 2
        return state, G - rate * e_G, H - rate * e_H

    row = judge(step, ["step.invariant"])["step.invariant"]
    assert row.verdict is Verdict.NOT_JUDGED, row.message


def test_starts_at_zero():
    def guarded(state, G, H, e_G, e_H):
        shift = 1e-3 * np.eye(G.shape[-1])
        S, T = (gram + shift for gram in grams(G, H))
        return state, G - 0.1 * e_G @ np.linalg.inv(T), H - 0.1 * e_H @ np.linalg.inv(S)

    def scaled(state, G, H, e_G, e_H):
        return state, G - 0.1 * e_G @ (G.T @ G), H - 0.1 * e_H @ (H.T @ H)

    def divided(state, G, H, e_G, e_H):
        with np.errstate(all="ignore"):
            return state, G - 0.1 * e_G / np.linalg.norm(H), H - 0.1 * e_H / np.linalg.norm(G)

    result = {
        item.__name__: judge(item, ["step.starts"])["step.starts"] for item in (guarded, scaled, divided, momentum)
    }
    assert result["guarded"].verdict is Verdict.PASS
    assert result["guarded"].message == (
        "from G = 0, G Hᵀ depends on the representation; from H = 0, G Hᵀ depends on the representation"
    )
    assert (
        result["scaled"].message
        == "from G = 0, G Hᵀ does not move in 10 steps; from H = 0, G Hᵀ does not move in 10 steps"
    )
    assert (
        result["divided"].message
        == "from G = 0, G, H or G Hᵀ is not finite after step 1; from H = 0, G, H or G Hᵀ is not finite after step 1"
    )
    assert "from H = 0, there is no result: LinAlgError" in result["momentum"].message


@pytest.mark.slow
def test_a_rule_that_leaves_out_large_steps_is_said_to_stand_still():
    def skipping(state, G, H, e_G, e_H):
        S, T = grams(G, H)
        length = np.sqrt(np.sum(e_G @ np.linalg.inv(T) * e_G) + np.sum(e_H @ np.linalg.inv(S) * e_H))
        return momentum(state, G, H, e_G, e_H) if length < 1.0 else (state, G, H)

    rows = judge(skipping, ["step.starts", "step.invariant"])
    assert rows["step.starts"].message.endswith("with a large loss, G Hᵀ does not move in 10 steps")
    assert rows["step.invariant"].verdict is Verdict.PASS


@pytest.mark.slow
def test_a_mistake_beside_a_damping_is_named_with_its_own_step():
    def step(state, G, H, e_G, e_H):
        shift = 1e-9 * np.eye(G.shape[-1])
        S, T = (gram + shift for gram in grams(G, H))
        m_G, m_H = (0.0 * G, 0.0 * H) if state is None else state
        m_G, m_H = 0.8 * m_G + e_G, 0.8 * m_H + e_H
        G, H, R = orthonormalise(G - 0.05 * m_G @ np.linalg.inv(T), H - 0.05 * m_H @ np.linalg.inv(S))
        return (m_G @ np.linalg.inv(R).T, m_H @ R), G, H

    row = judge(step)["step.invariant"]
    assert row.verdict is Verdict.WRONG
    assert "from step 2 on" in row.message


@pytest.mark.slow
def test_what_an_optimiser_does_to_its_parameters_when_it_is_made_counts():
    """A pair is balanced first: then even plain descent sees no scalings, but is not finite from zero."""
    torch = pytest.importorskip("torch")

    def make(params):
        with torch.no_grad():
            G, H = params
            factor = (H.norm() / G.norm()).sqrt()
            G *= factor
            H /= factor
        return torch.optim.SGD(params, lr=0.1)

    rows = {row.check: row for row in rg.check(make, checks=["step.invariant", "step.starts"]).rows}
    assert "\nthe optimiser is invariant only under rotations and scalings\n" in rows["step.invariant"].message
    assert "from G = 0, G, H or G Hᵀ is not finite after step 0" in rows["step.starts"].message
    changed = SimpleNamespace(
        riemannian_gradient=rg.adapters.torch_optimizer(
            lambda model, lr: make([p for name, p in sorted(model.named_parameters())][::-1])
        )
    )
    (row,) = rg.check(changed, checks=["riemannian_gradient"], metrics=["mix"], cases=["5x4x2"]).rows
    assert row.verdict is Verdict.NOT_PROVIDED
    assert "changes the factors when it is made" in row.message


@pytest.mark.slow
def test_by_how_much_a_rule_is_not_invariant_is_said_of_each_class_of_elements():
    def single(state, G, H, e_G, e_H):
        return state, *(x - 0.1 * (e.astype(np.float32) * 1.0) for x, e in ((G, e_G), (H, e_H)))

    message = judge(single)["step.invariant"].message
    assert "under none of the matrices A that were tried" in message
    assert re.search(r"the largest differences, .* of at most 1: rotations \de-0\d, scalings (0\.\d|1)", message)


def test_what_earlier_runs_left_is_seen():
    kept = {}

    def step(state, G, H, e_G, e_H):
        key = G.shape
        kept[key] = 0.5 * kept.get(key, 0.0) + e_G
        return state, G - 0.05 * kept[key], H - 0.05 * e_H

    row = judge(step, ["step.repeatable"])["step.repeatable"]
    assert row.verdict is Verdict.WRONG
    assert "what another run left" in row.message


@pytest.mark.slow
def test_blocks():
    def coupled(state, G, H, e_G, e_H):
        size = np.sqrt(np.sum(e_G**2))
        return state, G - 0.05 * e_G / size, H - 0.05 * e_H / size

    def single(state, G, H, e_G, e_H):
        return gradient_step(state, G, H, e_G.T.T, e_H.T.T) if G.ndim == 2 else 1 / 0

    result = [judge(item, ["step.blocks"])["step.blocks"] for item in (gradient_step, coupled, single)]
    assert [row.verdict for row in result] == [Verdict.PASS, Verdict.CONTRACT, Verdict.PARTIAL]
    assert "takes no leading dimensions: ZeroDivisionError" in result[2].message


@pytest.mark.slow
def test_a_rule_that_raises_or_never_moves_is_not_passed():
    def raises(state, G, H, e_G, e_H):
        raise RuntimeError("no")

    rows = judge(raises, ["step.invariant"])
    assert rows["step.invariant"].verdict is Verdict.WRONG
    rows = judge(lambda state, G, H, e_G, e_H: (state, G, H), ["step.invariant"])
    assert rows["step.invariant"].verdict is Verdict.NOT_JUDGED


def test_a_module_that_is_not_installed_is_no_mistake_of_the_rule():
    def lacking(state, G, H, e_G, e_H):
        import no_such_module_anywhere

        return no_such_module_anywhere.step(state, G, H, e_G, e_H)

    rows = judge(lacking, ["step.invariant", "step.repeatable", "step.starts"])
    assert {row.verdict for row in rows.values()} == {Verdict.NOT_PROVIDED}
    assert all("no_such_module_anywhere" in row.no_result + row.message for row in rows.values())


@pytest.mark.slow
def test_what_is_no_rule_is_not_taken_for_one():
    missing = rg.check("refgeo.paper", checks=["step"]).rows
    assert [row.verdict for row in missing] == [Verdict.NOT_PROVIDED]
    tool = SimpleNamespace(make=lambda a, b: None, step=lambda x: x, inner_product=lambda *a: None)
    assert not any(row.check.startswith("step.") for row in rg.check(tool, checks=["step"]).rows)


@pytest.mark.slow
def test_optimisers_of_pytorch():
    torch = pytest.importorskip("torch")

    class Scaled(torch.optim.Optimizer):
        def __init__(self, params, lr=0.1):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                G, H = group["params"]
                g = G.grad @ torch.linalg.inv(H.T @ H), H.grad @ torch.linalg.inv(G.T @ G)
                for F, x in zip((G, H), g, strict=True):
                    F -= group["lr"] * x

    closure = rg.check(torch.optim.LBFGS, checks=["step.invariant"]).rows[0]
    assert (closure.verdict, "closure" in closure.message) == (Verdict.NOT_PROVIDED, True)
    assert "make must return an optimiser" in rg.check(lambda params: None, checks=["step.invariant"]).rows[0].message
    for make, verdict in ((Scaled, Verdict.PASS), (torch.optim.SGD, Verdict.WRONG)):
        rows = {row.check: row for row in rg.check(make, checks=["step"]).rows}
        assert rows["step.invariant"].verdict is verdict
        assert rows["step.blocks"].verdict is Verdict.NOT_JUDGED
    assert rg.read(torch.optim.SGD)["step", ""].G == {"G": 1.0, "e_G": -0.001}


@pytest.mark.slow
def test_the_plot_the_plain_data_and_the_table(tmp_path):
    report = rg.check(SimpleNamespace(step=gradient_step), checks=["step.invariant"])
    assert "distance of X" in report.to_html()
    (row,) = report.to_dict()["rows"]
    assert row["points"] == row["decisive_points"] == sum(item["blocks"] for item in row["measurements"])
    report.print(printed := io.StringIO())
    points, ratio = re.search(r"^step.invariant +any metric +(\S+) +(\S+) +-  WRONG", printed.getvalue(), re.M).groups()
    assert points == f"{row['points']}/{row['points']}"
    assert float(ratio) == pytest.approx(row["worst_ratio"], rel=0.05)
    assert "\n  the optimiser is invariant only under rotations\n" in printed.getvalue()
    assert row["kind"] == "trajectory"
    steps = [item["condition"] for item in row["measurements"] if "/step" in item["case"]]
    assert {1.0, 2.0, 5.0, 10.0, 25.0} <= set(steps)


@pytest.mark.slow
def test_the_command_line(capsys, tmp_path):
    from refgeo import cli

    file = tmp_path / "rule.py"
    file.write_text(
        "import numpy as np\n"
        "def step(state, G, H, e_G, e_H, scaled=True):\n"
        "    T, S = (H.mT @ H, G.mT @ G) if scaled else (np.eye(G.shape[-1]),) * 2\n"
        "    return state, G - 0.1 * e_G @ np.linalg.inv(T), H - 0.1 * e_H @ np.linalg.inv(S)\n"
    )
    status = cli.main(["check", str(file), "--checks", "step.invariant", "--option", "scaled=True,False", "--quiet"])
    message = capsys.readouterr().out
    assert status == 1
    assert "WRONG: step.invariant[scaled=False]" in message
    cli.main(["check", "--list", "--checks", "step"])
    listed = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("trajectory")]
    assert listed == list(TRAJECTORY)
    assert cli.main(["check", str(file), "--option", "scaled"]) == 2
    assert "expected name=value,value, got scaled" in capsys.readouterr().err
    assert cli.main(["check", str(file), "--option", "scaled=true"]) == 2
    assert "True, False or None, got true" in capsys.readouterr().err
    assert cli.main(["check", str(file), "--checks", "step.invariant", "--option", "scale=1", "--quiet"]) == 2
    assert "unexpected keyword argument 'scale'" in capsys.readouterr().err
    assert cli._option("betas=(0.9, 0.99),None,adam") == ("betas", ["(0.9", " 0.99)", None, "adam"])
    assert cli._option("betas=(0.9, 0.99),None") == ("betas", [(0.9, 0.99), None])


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "seed"), list(itertools.product(RIGHT, range(1, 21))))
def test_right_rules_pass_at_twenty_seeds(name, seed, every_start):
    for dtype in ("float64", "float32"):
        row = judge(RIGHT[name], dtype=dtype, seed=seed)["step.invariant"]
        assert row.verdict in (Verdict.PASS, Verdict.INACCURATE), row.message


@pytest.mark.slow
def test_random_numbers_of_an_unseeded_generator_are_a_reason_not_to_judge():
    rng = np.random.default_rng()

    def noisy(state, G, H, e_G, e_H):
        return state, G - 0.1 * (e_G + rng.standard_normal(G.shape)), H - 0.1 * (e_H + rng.standard_normal(H.shape))

    row = judge(noisy, ["step.invariant"])["step.invariant"]
    assert row.verdict is Verdict.NOT_JUDGED
    assert "a run from the same start differs" in row.message
    assert "random numbers of a generator of its own" in row.message


@pytest.mark.slow
def test_no_difference_is_larger_than_the_largest():
    row = judge(gradient_step, ["step.invariant"])["step.invariant"]
    message = re.search(r"differ by (\S+) of both .* and by (\S+) after (?s:.*)of at most 1: (.*)\n", row.message)
    assert message, row.message
    largest = max(float(item.split()[-1]) for item in message[3].split(", "))
    assert max(float(message[1]), float(message[2])) <= 1.06 * largest, "to one digit"


@pytest.mark.exhaustive
def test_the_last_line_is_about_trajectories_and_says_what_was_not_judged():
    def still(state, G, H, e_G, e_H):
        return state, 1.0 * G, 1.0 * H

    report = rg.check(SimpleNamespace(step=RIGHT["inv"]), checks=["step"])
    assert report.conclusion == ["PASS", "CONTRACT: step.starts"]
    report = rg.check(SimpleNamespace(step=still), checks=["step"])
    assert any(line.startswith("not judged    step.invariant") for line, _ in report.foot())


@pytest.mark.slow
def test_a_class_of_optimisers_gets_what_it_must_get_from_options():
    torch = pytest.importorskip("torch")

    class Needy(torch.optim.SGD):
        def __init__(self, params, rate):
            super().__init__(params, lr=rate)

    assert rg.read(Needy, options={"rate": 0.1})["step", ""].G == {"G": 1.0, "e_G": -0.1}
    with pytest.raises(ValueError, match=r"all that have no default, got TypeError: missing .* 'rate'"):
        rg.check(Needy, checks=["step.starts"])


@pytest.mark.slow
def test_a_mistake_inside_a_rule_is_none_of_options_that_nobody_gave():
    def step(state, G, H, e_G, e_H):
        return state, np.sum(G, axis=0, size=3), H

    row = judge(step)["step.invariant"]
    assert row.verdict is Verdict.WRONG
    assert "unexpected keyword argument 'size'" in row.message


@pytest.mark.parametrize("value", ["plain", "true", "None", "it's", 'a "b"', True, None, 0.5, (0.9, 0.99)])
def test_an_option_in_a_command_is_read_as_what_it_was(value):
    from refgeo.cli import _option
    from refgeo.conformance.judging.evidence import Evidence

    row = Row("step.invariant", "trajectory", "step", "", "", Verdict.PASS, example=Evidence("x"), options={"o": value})
    words = shlex.split(Report("mine", Points(), [row], spec="mine.py").reproduce(row))
    assert _option(words[words.index("--option") + 1]) == ("o", [value])


@pytest.mark.slow
def test_a_page_of_options_of_which_one_has_no_numbers():
    def step(state, G, H, e_G, e_H, fails=False):
        if fails:
            raise ArithmeticError
        return state, G - 0.1 * e_G, H - 0.1 * e_H

    page = rg.check(SimpleNamespace(step=step), checks=["step"], options={"fails": [True, False]}).to_html()
    assert page.count("<svg") == 1


@pytest.mark.slow
def test_float32_is_offered_only_where_rotations_round_too():
    assert "--dtype float32" not in judge(damped(1e-4))["step.invariant"].message


@pytest.mark.slow
def test_a_closure_is_said_to_be_why_nothing_is_checked():
    pytest.importorskip("torch")
    report = rg.check("torch.optim:LBFGS", checks=["step.invariant"])
    assert not report.passed
    assert "needs a closure" in report.conclusion[0]


@pytest.mark.slow
def test_float32_is_offered_only_where_it_was_tried_at_the_point_that_fails(every_start):
    def step(state, G, H, e_G, e_H):
        S, T = grams(G, H)
        T = T * np.eye(len(T)) if min(len(G), len(H)) >= 100 else T
        return state, G - 0.02 * e_G @ np.linalg.inv(T), H - 0.02 * e_H @ np.linalg.inv(S)

    row = judge(step, seed=1)["step.invariant"]
    assert row.verdict is Verdict.WRONG
    assert "--dtype float32" not in row.message
