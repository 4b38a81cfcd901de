"""Formulas read from numbers: the right ones, wrong ones term by term, and none that is not there."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg
from helpers import FUNCTIONS, METRICS, backend, sample

import refgeo as rg
from refgeo import paper
from refgeo.cli import main
from refgeo.conformance.diagnosis import fitting as reading
from refgeo.conformance.protocol.operations import OPERATIONS
from validation.mutants import formulas as formula_mutants

HALF_OF_CHRISTOFFEL = {
    "inv": {"a_G S⁻¹ b_GᵀG": -0.5, "a_G S⁻¹ Gᵀb_G": -0.5, "b_G S⁻¹ a_GᵀG": -0.5, "b_G S⁻¹ Gᵀa_G": -0.5,
            "G S⁻¹ a_Gᵀb_G": 0.5, "G S⁻¹ b_Gᵀa_G": 0.5},
    "mix": {"a_G b_HᵀH T⁻¹": 0.5, "a_G Hᵀb_H T⁻¹": 0.5, "b_G a_HᵀH T⁻¹": 0.5, "b_G Hᵀa_H T⁻¹": 0.5,
            "G a_Hᵀb_H T⁻¹": -0.5, "G b_Hᵀa_H T⁻¹": -0.5},
}  # fmt: skip
"""Eq. (11) and (12), polarised."""


def other_half(words):
    exchange = str.maketrans("GHST", "HGTS")
    return {word.translate(exchange): c for word, c in words.items()}


@pytest.mark.parametrize("metric", METRICS)
def test_the_papers_christoffel_term_is_read_as_it_is_printed(metric):
    result = rg.read(paper, functions=["christoffel"], metrics=[metric])["christoffel", metric]
    assert HALF_OF_CHRISTOFFEL[metric] == result.G
    assert other_half(HALF_OF_CHRISTOFFEL[metric]) == result.H
    assert result.relation is None


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
def test_what_is_read_gives_the_numbers_at_other_points(metric):
    """Evaluated by hand, at a shape that the reading has not seen; all functions."""
    rng = np.random.default_rng(5)
    G, H, *vectors = (rng.standard_normal((rows, 4)) for _ in range(4) for rows in (8, 6))
    result = rg.read(paper, metrics=[metric])
    named = {"G": G, "H": H, "S": G.T @ G, "T": H.T @ H}
    named |= {f"{name}⁻¹": np.linalg.inv(named[name]) for name in "ST"}

    def value(words, arrays):
        total = 0.0
        for word, c in words.items():
            trace, product = word.startswith("tr("), None
            for name in word.removeprefix("tr(").removesuffix(")").split():
                parts = [arrays[x] for x in name.split("ᵀ")]
                factor = parts[0].T @ parts[1] if len(parts) == 2 else parts[0]
                product = factor if product is None else product @ factor
            total = total + c * (np.trace(product) if trace else product)
        return total

    for name in FUNCTIONS:
        key = {"geodesic": "geodesic_2"}.get(name, name)
        if key == "geodesic_2" or (key, metric) == ("horizontal_projection", "inv"):
            continue
        letters = OPERATIONS[name].vectors
        given = vectors[: 2 * len(letters)]
        arrays = named | {f"{x}_{part}": v for (x, part), v in zip(
            ((x, part) for x in letters for part in "GH"), given, strict=True)}  # fmt: skip
        pairs = {x: rg.Pair(*given[2 * i : 2 * i + 2]) for i, x in enumerate(letters)}

        def of_the_paper(name, *pairs):
            return rg.Pair(*getattr(paper, name)(metric, G, H, *(factor for pair in pairs for factor in pair)))

        pieces = reading.definition_terms(OPERATIONS[name], metric, rg.Pair(G, H), pairs, of_the_paper, of_the_paper)
        arrays |= {f"{x}_{part}": factor for x, pair in pieces.items() for part, factor in zip("GH", pair, strict=True)}
        right = getattr(paper, name)(metric, G, H, *given)
        formula = result[key, metric]
        parts = [value(formula.G, arrays), value(formula.H, arrays)]
        if formula.projected:
            parts = paper.horizontal_projection(metric, G, H, *parts)
        mine = parts if isinstance(right, tuple) else [parts[0] + parts[1]]
        for x, y in zip(mine, right if isinstance(right, tuple) else [right], strict=True):
            assert np.allclose(x, y, rtol=1e-9, atol=1e-9 * np.abs(y).max()), key


def test_the_equation_for_lambda_is_read():
    result = rg.read(paper, functions=["horizontal_projection"])
    inv, mix = result["horizontal_projection", "inv"], result["horizontal_projection", "mix"]
    assert inv.G == {"v_G": 1.0, "G Λ": 1.0}
    assert inv.H == {"v_H": 1.0, "H Λᵀ": -1.0}
    assert inv.relation == {"S T Λᵀ": 1.0, "Λᵀ S T": 1.0, "v_GᵀG T": 1.0, "S Hᵀv_H": -1.0}
    assert mix.relation is None
    assert mix.G == {"v_G": 1.0, "G S⁻¹ Gᵀv_G": -0.5, "G v_HᵀH T⁻¹": 0.5}


def sylvester(equation):
    def projection(metric, G, H, v_G, v_H):
        L = equation(G.T @ G, H.T @ H, G, H, v_G, v_H)
        return v_G + G @ L, v_H - H @ L.T

    return SimpleNamespace(horizontal_projection=projection)


solve = scipy.linalg.solve_sylvester


@pytest.mark.slow
@pytest.mark.parametrize(
    ("equation", "differs"),
    [
        (lambda S, T, G, H, v, w: solve(S @ T, T @ S, S @ H.T @ w - v.T @ G @ T),
         "Λᵀ T S + T Gᵀv_G − v_HᵀH S stands where Λᵀ S T + v_GᵀG T − S Hᵀv_H belongs; this is the equation as the "
         "paper prints it, whose Λ gives no horizontal vector"),
        (lambda S, T, G, H, v, w: solve(S @ T, S @ T, S @ H.T @ w + v.T @ G @ T).T, "the sign of v_GᵀG T"),
        (lambda S, T, G, H, v, w: solve(T @ S, T @ S, S @ H.T @ w - v.T @ G @ T).T,
         "T S Λᵀ + Λᵀ T S stands where S T Λᵀ + Λᵀ S T belongs"),
        (lambda S, T, G, H, v, w: solve(S @ T, S @ T, 2 * (S @ H.T @ w - v.T @ G @ T)).T,
         "the factor of v_GᵀG T: 2, not 1; the factor of S Hᵀv_H: −2, not −1"),
    ],
)  # fmt: skip
def test_a_wrong_sylvester_equation_is_read(equation, differs):
    wrong = sylvester(equation)
    assert rg.read(wrong, metrics=["inv"])["horizontal_projection", "inv"].relation is not None
    report = rg.check(wrong, metrics=["inv"], cases=["5x4x3", "6x6x3", "4x4x4"], checks=["horizontal_projection"])
    (row,) = (row for row in report.failures if row.kind == "value")
    assert row.differs == differs


def test_an_optimiser_that_nobody_has_written_down_is_read():
    def update(metric, G, H, e_G, e_H):
        S, T = np.swapaxes(G, -1, -2) @ G, np.swapaxes(H, -1, -2) @ H
        return 0.75 * e_G @ S @ np.linalg.inv(T) - G @ np.swapaxes(e_H, -1, -2) @ H, e_H

    result = rg.read(SimpleNamespace(riemannian_gradient=update), metrics=["inv"])["riemannian_gradient", "inv"]
    assert result.G == {"e_G S T⁻¹": 0.75, "G e_HᵀH": -1.0}
    assert result.H == {"e_H": 1.0}
    assert str(result.lines()[0]) == "G: ¾ e_G S T⁻¹ − G e_HᵀH"


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1e-6, 0.02])
def test_epsilon_is_found(epsilon):
    damped = backend(christoffel=lambda *a: paper.christoffel(*a, relaxation=epsilon))
    result = rg.read(damped, functions=["christoffel"], metrics=["mix"])["christoffel", "mix"]
    assert result.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert result.G["a_G b_HᵀH T_ε⁻¹"] == 0.5


def test_no_epsilon_is_read_where_a_formula_has_no_degree():
    def christoffel(metric, G, H, a_G, a_H, b_G, b_H):
        G_part, _ = paper.christoffel(metric, G, H, a_G, a_H, b_G, b_H)
        back, second, inner = np.linalg.inv(H.mT @ H), np.linalg.inv(G.mT @ G), a_H.mT @ b_H
        turned = sum(x @ back @ (y.mT @ H + H.mT @ y) for x, y in ((a_H, b_H), (b_H, a_H)))
        return G_part, 0.5 * (H @ second @ (inner + inner.mT) - turned)

    result = rg.read(SimpleNamespace(christoffel=christoffel), metrics=["inv"])["christoffel", "inv"]
    assert result.epsilon == 0.0
    assert result.H["H S⁻¹ a_Hᵀb_H"] == 0.5
    assert len(result.H) == 6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_small_formats_are_read_as_far_as_their_digits_go(dtype):
    result = rg.read(paper, functions=["riemannian_gradient"], metrics=["inv"], dtype=dtype)
    formula = result["riemannian_gradient", "inv"]
    assert formula.G == {"e_G S": 1.0}
    assert formula.digits < 7
    assert f"to {formula.digits} digits" in str(result)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    sample([
        lambda x: np.abs(x), lambda x: np.tanh(x), lambda x: x * (1.0 + 1e-7), lambda x: x + 1e-8, lambda x: np.nan * x,
        lambda x: x / len(x), lambda x: np.round(x, 4),
    ]),
)  # fmt: skip
def test_what_is_no_such_formula_is_not_read(change):
    strange = backend(christoffel=lambda *a: tuple(map(change, paper.christoffel(*a))))
    assert rg.read(strange, functions=["christoffel"])["christoffel", "inv"] is None


def test_geodesics_are_read_by_powers_of_time():
    def geodesic(metric, G, H, v_G, v_H, t, order):
        c_G, c_H = paper.christoffel(metric, G, H, v_G, v_H, v_G, v_H)
        return G + t * v_G - 0.5 * t * c_G, H + t * v_H - 0.5 * t**2 * c_H

    result = rg.read(SimpleNamespace(geodesic=geodesic), functions=["geodesic_2"], metrics=["inv"])
    formula = result["geodesic_2", "inv"]
    assert formula.lines() == ["G: G + t v_G − ½ t Γ(v,v)_G", "H: H + t v_H − ½ t² Γ(v,v)_H"]
    exact = SimpleNamespace(geodesic=lambda m, G, H, v, w, t, o: (G @ scipy.linalg.expm(t * v.T @ G), H))
    assert rg.read(exact, functions=["geodesic_2"], metrics=["inv"])["geodesic_2", "inv"] is None


def test_the_command_prints_formulas(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text("def riemannian_gradient(metric, G, H, e_G, e_H):\n    return 2 * e_G, -e_H @ (H.T @ H)\n")
    assert main(["read", str(file), "--metric", "inv"]) == 0
    assert capsys.readouterr().out == "riemannian_gradient[inv]\n    G: 2 e_G\n    H: −e_H T\n"
    assert main(["read", str(file), "--checks", "curvature"]) == 2


# The formulas, changed by machine ------------------------------------------------------------------------------------


@cache  # and not while tests are collected
def mutants():
    return list(formula_mutants.mutants())


def test_every_formula_is_changed_in_many_ways():
    assert {name for name, *_ in mutants()} >= set(FUNCTIONS)
    kinds = {"operator", "transpose left out", "another operand", "term left out", "number", "no inverse", "transposed"}
    assert {kind for _, _, kind, _ in mutants()} >= kinds
    assert len(mutants()) > 480


@pytest.mark.slow
@pytest.mark.parametrize("place", sample([(i,) for i in range(3, 480, 29)], 12))
def test_a_changed_formula_is_wrong_or_equal(place):
    """A sample; all of them: python -m validation formulas."""
    assert formula_mutants.judge(mutants()[place])[3] in ("equal", "WRONG", "WRONG, read")


def test_the_first_step_of_an_optimiser_is_read():
    def step(state, G, H, e_G, e_H):
        return state, G - 0.1 * e_G @ np.linalg.inv(H.mT @ H), H - 0.1 * e_H @ np.linalg.inv(G.mT @ G)

    assert str(rg.read(SimpleNamespace(step=step))) == "step\n    G: G − 0.1 e_G T⁻¹\n    H: H − 0.1 e_H S⁻¹"
    assert not rg.read(SimpleNamespace(step=step), functions=["christoffel"])
    assert str(rg.read(SimpleNamespace(sharpness=lambda *a: None))).startswith("nothing to read")
