"""The adapters of released code: all of them are there, short, and what cannot be run is said to be skipped."""

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from helpers import blocks

from validation.third_party import __main__ as released

HERE = Path(released.__file__).parent


def tree(name):
    return ast.parse((HERE / name).read_text(encoding="utf-8"))


def test_every_adapter_is_there_and_short():
    assigned = {t.id for node in tree("optimisers.py").body if isinstance(node, ast.Assign) for t in node.targets}
    assert {entry[2] for entry in released.OPTIMISERS} <= assigned
    for file in ("optimisers.py", "merges.py"):
        functions = [node for node in ast.walk(tree(file)) if isinstance(node, ast.FunctionDef)]
        assert max(node.end_lineno - node.lineno + 1 for node in functions) <= 40
    assert set(released.SINGLE) <= {entry[2] for entry in released.OPTIMISERS}
    assert len(released.OPTIMISERS) >= 12


def test_what_is_not_there_is_skipped_with_a_line(monkeypatch, capsys):
    monkeypatch.delenv("REPOSITORIES", raising=False)
    monkeypatch.setattr(released.importlib.util, "find_spec", lambda name: None)
    assert [one for one in (released.optimiser(*entry, 1) for entry in released.OPTIMISERS) if one] == []
    assert released.merges(released.MERGES) == []
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(released.OPTIMISERS) + 1
    assert all(line.startswith("skipped: ") for line in said)


def test_a_commit_is_told_of_a_clone_only(tmp_path, monkeypatch):
    monkeypatch.setattr(released.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("REPOSITORIES", str(tmp_path))
    assert released.version_of("somebody/nothing") is None


def test_a_mean_of_products_obeys_the_laws_and_one_of_factors_does_not():
    from validation.third_party.merges import LAWS, judged

    def truncated(X, h):
        U, s, Vt = np.linalg.svd(X, full_matrices=False)
        return U[:, :h] * np.sqrt(s[:h]), Vt[:h].T * np.sqrt(s[:h])

    def mean(factors, weights):
        X = sum(w * G @ H.T for w, (G, H) in zip(weights, factors, strict=True))
        return truncated(X, factors[0][0].shape[1])

    def of_factors(factors, weights):
        return tuple(sum(w**0.5 * pair[i] for w, pair in zip(weights, factors, strict=True)) for i in (0, 1))

    assert [judged(mean, law) for law in LAWS.values()] == ["holds"] * 5
    said = {name: judged(of_factors, law) for name, law in LAWS.items()}
    assert {name for name, text in said.items() if text == "holds"} == {"symmetric", "weight_one"}
    assert said["idempotent"].endswith("the part along the adapter is 2 times as long as the adapter")


def test_what_is_said_of_pefts_merges_is_so():
    """The default is svd; it and cat give the weighted sum of the products, linear something else."""
    pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    from validation.third_party.merges import merged_by

    defaults = inspect.signature(peft.tuners.lora.LoraModel.add_weighted_adapter).parameters
    assert defaults["combination_type"].default == "svd"
    assert "linear" in (said := " ".join(peft.tuners.lora.LoraModel.add_weighted_adapter.__doc__.split()))
    assert "very rough approximation and should be avoided" in said
    rng = np.random.default_rng(0)
    factors = [(rng.standard_normal((6, 2)), rng.standard_normal((5, 2))) for _ in range(2)]
    mean = 0.3 * factors[0][0] @ factors[0][1].T + 0.7 * factors[1][0] @ factors[1][1].T
    for combination, rank in (("svd", 2), ("cat", 4)):
        G, H = merged_by(combination)(factors, [0.3, 0.7])
        U, sigma, Vt = np.linalg.svd(mean)
        assert np.allclose(G @ H.T, (U[:, :rank] * sigma[:rank]) @ Vt[:rank], atol=1e-5)
    G, H = merged_by("linear")([factors[0]] * 2, [0.5, 0.5])
    assert np.allclose(G @ H.T, 2.0 * factors[0][0] @ factors[0][1].T, atol=1e-5)
    for title, damping in (("PEFT create_riemannian_optimizer, SGD, as shipped", "damped, as documented"),
                           ("Somebody's optimiser", "damped")):  # fmt: skip
        assert released.damped(title) == damping


PROGRAMS = [block.text for block in blocks(HERE / "mistakes.md") if block.language == "python" and not block.title]


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_the_programs_show_the_mistakes(program, capsys):
    """Of packages; those of repositories have a title."""
    for name in re.findall(r"^(?:from|import) (\w+)", program, re.M):
        pytest.importorskip(name)
    exec(program, {})
    found = [float(one) for one in re.findall(r"\d+\.\d+(?:e-?\d+)?|\d+(?=\.)", capsys.readouterr().out)]
    (said,) = re.findall(r"# .*?\bis ([\d.]+)$", program, re.M)
    assert found == pytest.approx([float(said)] * max(len(found), 1), rel=0.01), found


def test_the_page_is_made_of_its_parts():
    page = (HERE / "README.md").read_text(encoding="utf-8")
    for part in ("optimisers.md", "merges.md", "mistakes.md"):
        assert (HERE / part).read_text(encoding="utf-8").strip() in page, part
    assert "default merge" not in page
