"""What a report concludes: who is blamed, what fails, what is said of a backend that does more than compute."""

import json
import subprocess
import sys

import numpy as np
import pytest
from helpers import backend, sample

import refgeo as rg
from refgeo import paper
from refgeo.cli import main
from refgeo.conformance.judging.verdict import Verdict
from refgeo.conformance.points.features import Features
from refgeo.conformance.points.scene import generate
from refgeo.conformance.protocol.operations import OPERATIONS

HEAD = "import os, random, sys, warnings\nimport numpy as np\nfrom refgeo import paper\n"
ONE = ["5x4x2/k3"]


def write_backend(tmp_path, body, name="mine.py"):
    file = tmp_path / name
    file.write_text(HEAD + body)
    return str(file)


def row_of(report, name):
    return next(row for row in report.rows if str(row) == name)


# Who is blamed -------------------------------------------------------------------------------------------------------


TWO_MISTAKES = """
import refgeo as rg


def geodesic(metric, G, H, v_G, v_H, t, order):
    if order == 1:
        return G + t * v_G, H + t * v_H
    if order == 2:
        c_G, c_H = paper.christoffel(metric, G, H, v_G, v_H, v_G, v_H)
        return G + t * v_G - t * t * c_G, H + t * v_H - t * t * c_H
    if metric == "inv":
        raise NotImplementedError
    at = rg.MixedMetric().at(rg.Pair(G, H))
    return tuple(at.geodesic((1.01 if G.shape[-1] > 5 else 1.0) * rg.Pair(v_G, v_H), t, "exact"))
"""


@pytest.mark.exhaustive
def test_a_wrong_order_does_not_excuse_another_one(tmp_path):
    """Exact geodesics that are wrong for h > 5 alone, where laws see it and no value is enclosed."""
    file = write_backend(tmp_path, TWO_MISTAKES)
    cases = ["5x4x2/k3", "9x8x7/k3"]
    report = rg.check(file, checks=["geodesic"], metrics=["mix"], cases=cases)
    assert report.wrong == ["geodesic_2[mix]", "geodesic_exact[mix]"]
    message = row_of(report, "geodesic_exact[mix]").diagnosis
    assert message.startswith(("does not obey: γ'(0) = v", "not found: no formula gives these numbers")), message


def test_the_example_is_the_first_point_that_fails():
    report = rg.check(
        backend(inner_product=lambda metric, G, *a: (1 + (G.shape[-1] > 1)) * paper.inner_product(metric, G, *a)),
        checks=["inner_product"], metrics=["inv"], cases=["7x4x1", "6x6x3", "2-6x7x2", "5x4x2"],
    )  # fmt: skip
    assert row_of(report, "inner_product[inv]").example.case == "6x6x3/k3"


# What fails ----------------------------------------------------------------------------------------------------------


WRITES = """
def horizontal_projection(metric, G, H, v_G, v_H):
    p_G, p_H = paper.horizontal_projection(metric, G, H, v_G, v_H)
    if v_G.flags.writeable:
        v_G[...] = p_G
    return p_G, p_H
"""
OVERWRITES = """
kept = {}

def horizontal_projection(*a):
    parts = paper.horizontal_projection(*a)
    buffers = kept.setdefault(tuple((x.shape, x.dtype) for x in parts), tuple(map(np.empty_like, parts)))
    for buffer, part in zip(buffers, parts):
        buffer[...] = part
    return buffers
"""


@pytest.mark.slow
@pytest.mark.parametrize(("body", "rule"), [(WRITES, "inputs_unchanged"), (OVERWRITES, "keeps_its_results")])
def test_conduct_that_makes_a_callers_numbers_wrong_fails(body, rule, tmp_path, capsys):
    file = write_backend(tmp_path, body)
    options = ["--checks", "horizontal_projection", "--case", "5x4x2/k3", "--quiet"]
    assert main(["check", file, *options, "--json", str(tmp_path / "r.json")]) == 1
    out = capsys.readouterr().out
    assert f"mine.py: {rule}: FAILS: " in out
    assert "(horizontal_projection; 5x4x2/k3)" in out
    assert f"FAILS: {rule}" in out.splitlines()
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert {row["check"] for row in rows if row["fails"]} == {rule}


def test_masked_arrays_are_no_arrays(tmp_path):
    body = "def riemannian_gradient(*a):\n    return tuple(np.ma.masked_array(x, x > 1e9) for x in " \
           "paper.riemannian_gradient(*a))\n"  # fmt: skip
    report = rg.check(write_backend(tmp_path, body), checks=["riemannian_gradient"], metrics=["inv"], cases=ONE)
    assert "expected an array without a mask, got a masked array" in row_of(report, "riemannian_gradient[inv]").message
    assert report.wrong == ["riemannian_gradient[inv]"]


SWALLOWS = """
def christoffel(metric, G, H, *a):
    try:
        if G.ndim > 2:
            return G @ H, H
        return paper.christoffel(metric, G, H, *a)
    except Exception:
        raise NotImplementedError
"""


LOOKS_UP = """
def christoffel(metric, *a):
    try:
        {"inv": 1}[metric]
    except KeyError:
        raise NotImplementedError(metric)
    return paper.christoffel(metric, *a)
"""


@pytest.mark.slow
def test_a_failure_that_is_called_not_implemented_is_a_failure(tmp_path):
    file = write_backend(tmp_path, SWALLOWS)
    report = rg.check(file, checks=["christoffel"], metrics=["inv"], cases=[*ONE, "2-6x7x2/k3"])
    assert report.wrong == ["christoffel[inv]"]
    assert "NotImplementedError, after ValueError: matmul" in row_of(report, "christoffel[inv]").message
    everywhere = rg.check(file, checks=["christoffel"], metrics=["inv"], cases=["2-6x7x2/k3"])
    assert row_of(everywhere, "christoffel[inv]").verdict is Verdict.NOT_PROVIDED
    honest = SWALLOWS.replace("return G @ H, H", "raise NotImplementedError('one block at a time')")
    report = rg.check(write_backend(tmp_path, honest, "other.py"), checks=["christoffel"], metrics=["inv"],
                      cases=[*ONE, "2-6x7x2/k3"])  # fmt: skip
    assert row_of(report, "christoffel[inv]").verdict is Verdict.PARTIAL
    report = rg.check(write_backend(tmp_path, LOOKS_UP, "third.py"), checks=["christoffel"], cases=ONE)
    assert report.passed
    assert row_of(report, "christoffel[mix]").verdict is Verdict.NOT_PROVIDED


LEAKS = """
kept, calls = [], []

def inner_product(*a):
    calls.append(1)
    if len(calls) > 40:
        raise MemoryError
    return paper.inner_product(*a)
"""


@pytest.mark.slow
def test_a_backend_that_leaks_is_not_wrong_and_one_that_asks_for_too_much_is_not_judged(tmp_path):
    assert rg.check(write_backend(tmp_path, LEAKS), checks=["inner_product"], cases=ONE).passed
    hungry = "def inner_product(*a):\n    raise MemoryError\n"
    report = rg.check(write_backend(tmp_path, hungry, "hungry.py"), checks=["inner_product"], cases=ONE)
    assert report.wrong == []
    assert not report.passed
    assert {row.verdict for row in report.rows if row.kind == "value"} == {Verdict.NOT_JUDGED}


REFUSES = """
def riemannian_gradient(metric, G, *a):
    if np.linalg.cond(G).max() > 500:
        raise ValueError('ill')
    return paper.riemannian_gradient(metric, G, *a)
"""


def test_only_a_backend_that_says_so_is_not_thread_safe(tmp_path):
    options = {"checks": ["riemannian_gradient"], "metrics": ["inv"]}
    rng = np.random.default_rng(0)

    def factor(rows, kappa):
        return np.linalg.qr(rng.standard_normal((rows, 3)))[0] * np.geomspace(1.0, 1.0 / kappa, 3)

    points = {"mine": {"G": np.stack([factor(5, 2.0), factor(5, 900.0)]), "H": np.stack([factor(4, 2.0)] * 2)}}
    report = rg.check(write_backend(tmp_path, REFUSES), points=points, **options)
    assert not any("says that it is not" in row.message for row in report.rows)
    message = row_of(report, "riemannian_gradient[inv]").message
    assert "the whole batch failed because of an ill-conditioned block" in message
    report = rg.check(write_backend(tmp_path, "thread_safe = False\n" + REFUSES, "other.py"), cases=ONE, **options)
    assert "says that it is not" in row_of(report, "thread_safe").message


@pytest.mark.slow
@pytest.mark.parametrize("case", ["5x4x2/k3", "34x40x32/k1"])
def test_what_depends_on_the_size_of_numbers_is_laid_to_no_circumstance(tmp_path, case):
    """Calls in threads, and after other calls, have numbers of other sizes than the plain call beside them."""
    largest = float(np.abs(generate(Features.parse(case), "inv", "float64").point.G).max())
    small = f"(1.01 if np.abs(G).max() < {0.9 * largest!r} else 1.0)"
    source = f"def inner_product(metric, G, *a): return {small} * paper.inner_product(metric, G, *a)"
    report = rg.check(write_backend(tmp_path, source), metrics=["inv"], cases=[case], profile="full")
    row = row_of(report, "inner_product[inv]")
    assert row.verdict.value == "WRONG"
    assert "all numbers times a power of two" in row.diagnosis
    assert "after a call" not in row.diagnosis
    assert not any(second.fails for second in report.rows if second is not row)


# What may be lost ----------------------------------------------------------------------------------------------------


TRUNCATED = """
def horizontal_projection(metric, G, H, v_G, v_H):
    if metric == "inv":
        raise NotImplementedError
    S, T = np.swapaxes(G, -1, -2) @ G, np.swapaxes(H, -1, -2) @ H
    S_inverse, T_inverse = np.linalg.pinv(S, rcond=1e-6), np.linalg.pinv(T, rcond=1e-6)
    L = 0.5 * (np.swapaxes(v_H, -1, -2) @ H @ T_inverse - S_inverse @ np.swapaxes(G, -1, -2) @ v_G)
    return v_G + G @ L, v_H - H @ np.swapaxes(L, -1, -2)


def riemannian_hessian(metric, G, H, e_G, e_H, w_G, w_H, v_G, v_H):
    r_G, r_H = paper.riemannian_hessian(metric, G, H, e_G, e_H, w_G, w_H, v_G, v_H)
    return horizontal_projection(metric, G, H, r_G, r_H)
"""


@pytest.mark.slow
def test_a_truncated_inverse_of_mix_is_wrong(tmp_path):
    """It loses all digits at κ of some thousands, where inv's Sylvester equation may and mix's Λ may not."""
    report = rg.check(
        write_backend(tmp_path, TRUNCATED), metrics=["mix"], checks=["horizontal_projection", "riemannian_hessian"]
    )
    assert row_of(report, "horizontal_projection[mix]").verdict is Verdict.WRONG
    assert row_of(report, "riemannian_hessian[mix]").verdict in (Verdict.WRONG, Verdict.INHERITS)


def test_a_bilinear_form_by_polarisation_is_told_the_digits_that_it_loses():
    def polarised(metric, G, H, a_G, a_H, b_G, b_H):
        def square(x_G, x_H):
            return paper.inner_product(metric, G, H, x_G, x_H, x_G, x_H)

        return 0.25 * (square(a_G + b_G, a_H + b_H) - square(a_G - b_G, a_H - b_H))

    report = rg.check(backend(inner_product=polarised), checks=["inner_product"], metrics=["inv"],
                      cases=["10x9x4/k3", "10x9x4/k3/ratio=1e-10"])  # fmt: skip
    row = row_of(report, "inner_product[inv]")
    assert row.verdict is Verdict.PASS
    assert row.digits_lost > 4
    assert row.outcome.startswith("loses")


# The referee reaches its end ------------------------------------------------------------------------------------------


MIXED_UP = """
def christoffel(metric, G, H, a_G, a_H, b_G, b_H):
    if metric == "inv":
        return paper.christoffel(metric, G, H, a_G, a_H, b_G, b_H)
    t = lambda x: np.swapaxes(x, -1, -2)
    S, T = t(G) @ G, t(H) @ H
    def part(F, x, y, K, u, w, M):
        terms = x @ (t(w) @ K + t(K) @ w) + y @ (t(u) @ K + t(K) @ u) - F @ (t(u) @ w + t(w) @ u)
        return 0.5 * terms @ np.linalg.inv(M)
    return part(G, a_G, b_G, H, a_H, b_H, S), part(H, a_H, b_H, G, a_G, b_G, T)


def geodesic(metric, G, H, v_G, v_H, t, order):
    if order == "exact":
        raise NotImplementedError
    c_G, c_H = christoffel(metric, G, H, v_G, v_H, v_G, v_H) if order == 2 else (0.0, 0.0)
    return G + t * v_G - 0.5 * t * t * c_G, H + t * v_H - 0.5 * t * t * c_H
"""


@pytest.mark.slow
def test_a_diagnosis_that_cannot_be_evaluated_is_skipped(tmp_path, capsys):
    """The literal formulas have a singular matrix at an ill-conditioned point of a batch."""
    file = write_backend(tmp_path, MIXED_UP)
    few = ["--checks", "christoffel,geodesic_2", "--case", "5x4x2/k3", "--case", "10x9x4/k3", "--case", "2.2-7x4x2"]
    assert main(["check", file, "--dtype", "float32", "--metric", "mix", *few, "--quiet"]) == 1
    assert "WRONG: christoffel[mix]" in capsys.readouterr().out


@pytest.mark.slow
def test_a_failure_of_the_referee_is_no_matter_of_usage(monkeypatch, capsys):
    from refgeo.conformance.judge import Judge

    def broken(*arguments, **options):
        raise ValueError("of its own")

    monkeypatch.setattr(Judge, "rows", broken)
    assert main(["check", "--checks", "inner_product", "--case", "10x9x4/k1", "--quiet"]) == 1
    assert "refgeo itself failed (ValueError: of its own)" in capsys.readouterr().err


CARELESS = {
    "zeros": "0.0 * x", "nan": "x * np.nan", "infinite": "x * np.inf", "huge": "1e200 * x", "tiny": "1e-200 * x",
    "float16": "x.astype('f2')", "integers": "x.astype(int)", "complex": "x + 0j", "objects": "x.astype(object)",
    "lists": "x.tolist()", "strings": "str(x)", "none": "None", "transposed": "np.swapaxes(x, -1, -2)",
    "cut": "x[..., :1]", "first block": "x.reshape(-1, *x.shape[-2:])[0] if x.ndim > 1 else x",
    "rank one": "x[..., :1] + 0 * x",
    "noise": "x + 1e-3 * np.random.default_rng().standard_normal(x.shape)", "masked": "np.ma.masked_array(x)",
    "clipped": "np.clip(x, -1, 1)", "shifted": "x + 1.0", "sorted": "np.sort(x, -1)", "rounded": "np.round(x, 2)",
    "absolute": "np.abs(x)", "a generator": "(y for y in x)", "memory error": "(_ for _ in ()).throw(MemoryError())",
}  # fmt: skip
SOMETIMES = ("True", "G.ndim > 2", "G.shape[-1] > 2", "np.linalg.cond(G).max() > 50", "G.dtype != np.float64")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deed", "when", "dtype"),
    sample(
        [
            (deed, SOMETIMES[i % len(SOMETIMES)], ("float64", "float32", "float16", "bfloat16")[(i + k) % 4])
            for k in range(4)
            for i, deed in enumerate(CARELESS)
        ],
        100,
    ),
)
def test_a_hundred_half_wrong_backends_never_end_the_referee(deed, when, dtype, tmp_path, capsys):
    body = "".join(
        f"def {name}(metric, G, *a):\n    found = paper.{name}(metric, G, *a)\n"
        f"    if not ({when}):\n        return found\n"
        f"    return tuple(map(broken, found)) if isinstance(found, tuple) else broken(np.asarray(found))\n\n\n"
        for name in OPERATIONS
        if hasattr(paper, name)
    )
    file = write_backend(tmp_path, f"def broken(x):\n    return {CARELESS[deed]}\n\n\n{body}")
    few = ["--case", "5x4x2/k3", "--case", "2-6x7x2", "--case", "10x9x4/k120", "--case", "9x8x7/k3"]
    assert main(["check", file, "--dtype", dtype, *few, "--quiet"]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err


def test_frames_of_an_installed_backend_are_its_own_also_without_a_virtual_environment(tmp_path):
    """Installed packages lie below the folder of the standard library there."""
    program = """
import site, sys, sysconfig
packages = sysconfig.get_path("stdlib") + "/site-packages"
site.getsitepackages = lambda: [packages]
sysconfig.get_path = lambda name, get=sysconfig.get_path: packages if name in ("purelib", "platlib") else get(name)
from refgeo.conformance.execution import host
code = compile("def christoffel(*a):\\n    return a[0] + 1\\n", packages + "/theirs/geometry.py", "exec")
names = {}
exec(code, names)
try:
    names["christoffel"]("inv")
except TypeError as error:
    assert host._their_frames(error)[-1].filename.startswith(packages), host._their_frames(error)
    print("theirs")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "theirs\n"


# Words, options, points ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_several_values_are_given_in_one_way(capsys):
    assert main(["check", "--metric", "inv,mix", "--checks", "inner_product", "--case", "10x9x4/k1", "--quiet"]) == 0
    both = capsys.readouterr().out
    again = [
        "check",
        "--metric",
        "inv",
        "--metric",
        "mix",
        "--checks",
        "inner_product",
        "--case",
        "10x9x4/k1",
        "--quiet",
    ]
    assert main(again) == 0
    assert capsys.readouterr().out == both
    assert main(["check", "--metric", ","]) == 2
    assert "expected values separated by commas" in capsys.readouterr().err


def test_vectors_write_offers_the_metrics_that_it_takes(capsys, tmp_path):
    assert main(["vectors", "write", "--help"]) == 0
    assert "s=0.5" not in capsys.readouterr().out
    assert main(["vectors", "write", str(tmp_path), "--metric", "mix", "--case", "10x9x4/k1", "--quiet"]) == 0
