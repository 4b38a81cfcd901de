"""The profile fuzz: finds what the generated points do not show, shrinks it, and accuses nobody else."""

import shlex

import numpy as np
import pytest
from helpers import backend, sampled

import refgeo as rg
from refgeo import paper
from refgeo.cli import main
from refgeo.conformance.rows import Verdict


def wrong_for_ten_columns(metric, G, H, v_G, v_H):
    """No generated point has h = 10."""
    result = paper.horizontal_projection(metric, G, H, v_G, v_H)
    return (v_G, v_H) if G.shape[-1] == 10 and np.any(v_G) else result


def test_a_mistake_that_the_generated_points_do_not_show_is_found_and_shrunk():
    broken = backend(horizontal_projection=wrong_for_ten_columns)
    options = {"checks": ["horizontal_projection"], "metrics": ["mix"]}
    assert rg.check(broken, **options).passed
    report = rg.check(broken, **options, profile="fuzz", examples=200)
    row = next(row for row in report.rows if row.check == "horizontal_projection")
    assert row.verdict is Verdict.WRONG
    assert row.example.case == "10x10x10/k1", "the plainest point"
    again = eval(report.reproduce_in_python(row).removesuffix(".print()"), {"rg": rg, "backend": broken})
    assert str(row) in map(str, again.failures)
    assert again.rows[0].worst_ratio == row.worst_ratio


def test_the_point_that_was_found_is_found_again_by_its_name(tmp_path, capsys):
    file = tmp_path / "ten.py"
    file.write_text(
        "from refgeo import paper\n\n\ndef inner_product(metric, G, *a):\n"
        "    return paper.inner_product(metric, G, *a) * (1 + (G.shape[-1] == 10))\n"
    )
    report = rg.check(str(file), metrics=["inv"], profile="fuzz", examples=100)
    command = report.reproduce(report.failures[0])
    assert "--case 10x10x10/k1 " in command
    assert "fuzz" not in command
    assert main(shlex.split(command)[1:]) == 1
    assert "inner_product[inv]" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", sampled(["float64", "float32"]))
def test_right_backends_are_not_accused_at_degenerate_points_and_laws_and_conduct_run(dtype):
    report = rg.check(profile="fuzz", examples=12, dtype=dtype)
    assert report.passed
    assert report.wrong == []
    kinds = {row.kind for row in report.judged}
    assert kinds == {"value", "law", "contract"}
    assert all(row.points > 5 for row in report.judged if row.kind == "value")


def test_each_broken_check_is_found_not_only_the_first():
    broken = backend(
        inner_product=lambda *a: 2 * paper.inner_product(*a),
        christoffel=lambda *a: tuple(-x for x in paper.christoffel(*a)),
    )
    report = rg.check(broken, checks=["inner_product", "christoffel"], metrics=["inv"], profile="fuzz", examples=40)
    assert set(report.wrong) == {"inner_product[inv]", "christoffel[inv]"}
    values = {row.check: row for row in report.failures if row.kind == "value"}
    assert "the sign of" in values["christoffel"].differs or "-1 times" in values["christoffel"].diagnosis


@pytest.mark.parametrize("every", [2, 5])
def test_a_backend_that_is_wrong_now_and_then_does_not_pass(every):
    calls = [0]

    def unreliable(*arguments):
        calls[0] += 1
        end = paper.geodesic(*arguments)
        return end if calls[0] % every else tuple(2 * x for x in end)

    report = rg.check(backend(geodesic=unreliable), checks=["geodesic_2"], metrics=["inv"], profile="fuzz", examples=60)
    assert report.wrong == ["geodesic_2[inv]"]


def test_the_points_of_both_metrics_are_kept_apart():
    def wrong(metric, G, H, v_G, v_H, t, order):
        end = paper.geodesic(metric, G, H, v_G, v_H, t, order)
        return tuple(2 * x for x in end) if (t > 0) == (metric == "inv") else end

    broken = backend(geodesic=wrong)
    report = rg.check(broken, checks=["geodesic_2"], profile="fuzz", examples=100)
    assert len(report.failures) == 2
    for row in report.failures:
        again = eval(report.reproduce_in_python(row).removesuffix(".print()"), {"rg": rg, "backend": broken})
        assert [str(x) for x in again.failures] == [str(row)]


def test_an_interrupted_search_keeps_what_it_has():
    def interrupting(done, total, what):
        if "1 failing" in what:
            raise KeyboardInterrupt

    broken = backend(riemannian_gradient=lambda m, G, H, *e: e)
    report = rg.check(
        broken, checks=["riemannian_gradient"], metrics=["inv"], profile="fuzz", examples=10**6, progress=interrupting
    )
    assert report.wrong == ["riemannian_gradient[inv]"]


def test_the_same_seed_tries_the_same_points_and_no_more_than_asked():
    tried = []

    def counting(done, total, what):
        tried.append((done, total))

    first, again = (
        rg.check(profile="fuzz", checks=["christoffel"], examples=8, seed=4, progress=counting) for _ in range(2)
    )
    assert first.to_dict() == again.to_dict()
    assert max(done for done, _ in tried) <= max(total for _, total in tried)


def test_bad_options_are_named(monkeypatch):
    for options, message in (
        ({"examples": 0}, "examples: expected an integer >= 1"),
        ({"cases": ["10x9x4"]}, "cases: expected no names with profile='fuzz'"),
        ({"points": {"x": {"G": [[1.0]], "H": [[1.0]]}}}, "expected at most one of these three"),
    ):
        with pytest.raises(ValueError, match=message):
            rg.check(profile="fuzz", **options)
    monkeypatch.setitem(__import__("sys").modules, "hypothesis", None)
    with pytest.raises(ValueError, match="profile fuzz: expected the package hypothesis"):
        rg.check(profile="fuzz", examples=1)
