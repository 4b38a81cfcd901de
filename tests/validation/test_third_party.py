"""Published code: adapters, what is recomputed without refgeo, and a page on which nothing stands without a source."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from validation.third_party import __main__ as released
from validation.third_party import merges, page, programs

HERE = Path(released.__file__).parent
RESULTS = page.read_results()
OPTIMISERS = [pytest.param(entry, id=entry["adapter"]) for entry in page.JUDGED["optimiser"]]
CLAIMS = [pytest.param(entry, id=entry.get("name") or entry["adapter"])
          for entry in [*page.JUDGED["optimiser"], *page.JUDGED["program"]]]  # fmt: skip
SIGNS = ("as documented", "mistake", "mended upstream", "imprecise", "another rule")
ANSWERS = {"what", "sign", "release", "main", "limits", "follows"}


def tree(name):
    return ast.parse((HERE / name).read_text(encoding="utf-8"))


def numbers(text):
    """As they are, so that 1e-05 and 0.00001 are one."""
    return {float(item) for item in re.findall(r"(?<![\w.^])\d+(?:\.\d+)?(?:e-?\d+)?(?![\w^])", text)}


def test_every_adapter_is_there_and_short():
    assigned = {t.id for node in tree("optimisers.py").body if isinstance(node, ast.Assign) for t in node.targets}
    assert {entry["adapter"] for entry in page.JUDGED["optimiser"]} <= assigned
    for file in ("optimisers.py", "merges.py", "recomputed.py"):
        functions = [node for node in ast.walk(tree(file)) if isinstance(node, ast.FunctionDef)]
        assert max(node.end_lineno - node.lineno + 1 for node in functions) <= 40


@pytest.mark.slow
def test_what_is_recomputed_knows_no_refgeo():
    """The adapters and the trajectories are imported in a process of their own."""
    pytest.importorskip("torch")
    code = "import sys; from validation.third_party import optimisers, recomputed; assert 'refgeo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=HERE.parent.parent)
    for name in programs.NAMES:
        assert "refgeo" not in (programs.HERE / name / "program.py").read_text(encoding="utf-8"), name


def test_what_is_not_there_is_skipped_with_a_line(monkeypatch, capsys):
    monkeypatch.delenv("REPOSITORIES", raising=False)
    monkeypatch.setattr(released.importlib.util, "find_spec", lambda name: None)
    assert not any(released.is_here(entry["title"], entry["source"]) for entry in page.JUDGED["optimiser"])
    message = capsys.readouterr().out.splitlines()
    assert len(message) == len(page.JUDGED["optimiser"])
    assert all(line.startswith("skipped: ") for line in message)


def test_a_commit_is_told_of_a_clone_only(tmp_path, monkeypatch):
    monkeypatch.setattr(released.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("REPOSITORIES", str(tmp_path))
    assert released.version_of("somebody/nothing") is None


# Without refgeo -------------------------------------------------------------------------------------------------------


def test_recomputed_differences_of_rules_that_are_known():
    """Plain descent keeps rotations; the gradient of mix keeps GL(h), and cannot leave B = 0."""
    pytest.importorskip("torch")
    from types import SimpleNamespace

    from validation.third_party.recomputed import compute_differences

    def plain(state, G, H, e_G, e_H):
        return state, G - 0.1 * e_G, H - 0.1 * e_H

    def mix(state, G, H, e_G, e_H):
        return state, G - 0.1 * e_G @ np.linalg.inv(H.T @ H), H - 0.1 * e_H @ np.linalg.inv(G.T @ G)

    result = {rule.__name__: compute_differences(SimpleNamespace(step=rule)) for rule in (plain, mix)}
    differences = result["plain"]["differences"]
    assert differences["rotations"] < 1e-12
    assert min(differences[kind] for kind in ("scalings", "general", "ill-conditioned")) > 0.01
    assert max(result["mix"]["differences"].values()) < 1e-10
    assert [value["from B = 0"] for value in result.values()] == ["moves", "raises"]
    assert page.group_of(differences)[0] == "rotations"
    assert page.group_of(result["mix"]["differences"])[0] == "GL(h)"


@pytest.mark.parametrize("entry", OPTIMISERS)
def test_refgeo_and_the_program_without_it_agree(entry):
    """Whether an optimiser is invariant, and under which kinds of matrices it is not."""
    result = RESULTS["optimisers"][entry["adapter"]]
    assert page.agree(result), (result["differences"], result["recomputed"])
    assert result["seeds"][0] == result["seeds"][1]


def test_a_disagreement_is_seen():
    item = {"verdict": "WRONG", "differences": {"rotations": 1e-15, "scalings": 0.3}}
    assert page.agree(item | {"recomputed": {"differences": {"rotations": 1e-9, "scalings": 0.05}}})
    assert not page.agree(item | {"recomputed": {"differences": {"rotations": 0.1, "scalings": 0.05}}})
    assert not page.agree(item | {"recomputed": {"differences": {"rotations": 1e-9, "scalings": 1e-9}}})
    passing = item | {"verdict": "pass", "recomputed": {"differences": {"rotations": 1e-9, "scalings": 0.2}}}
    assert not page.agree(passing)


# Programs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", programs.NAMES)
def test_a_program_is_short_and_a_mistake_has_all_that_a_maintainer_needs(name):
    folder, result = programs.HERE / name, programs.answers(name)
    assert len((folder / "program.py").read_text(encoding="utf-8").splitlines()) <= 40
    repository, versions = programs.needs(name)
    assert repository or versions.keys() - {"torch"}
    assert bool(result) == programs.is_mistake(name)
    assert (folder / "issue.md").exists() == ("to_tell" in result)
    if result:
        assert result.keys() == ANSWERS | ({"to_tell"} if result["sign"] != "mended upstream" else set())
        assert result["sign"] in ("mistake", "mended upstream", "imprecise")
        assert "read" in result["main"] or re.search(r"\b[0-9a-f]{7}, 20\d\d-\d\d-\d\d", result["main"]), (
            "commit and date"
        )
        assert "with correction.patch:" in (folder / "printed.txt").read_text(encoding="utf-8")
        changed = [line for line in (folder / "correction.patch").read_text(encoding="utf-8").splitlines()
                   if re.match(r"[+-](?![+-]{2})", line)]  # fmt: skip
        assert len(changed) <= 24


def test_what_is_counted_is_in_the_folders():
    counts = {sign: page.count_programs(sign) for sign in ("mistake", "imprecise", "mended upstream")}
    assert sum(counts.values()) == len(list(programs.HERE.glob("*/correction.patch")))
    readme = " ".join((HERE.parents[1] / "README.md").read_text(encoding="utf-8").split())
    assert f"{counts['mistake']} mistakes and {counts['imprecise']} imprecise sentences have a short program" in readme
    assert f"{counts['mended upstream']} more mistakes are mended upstream" in readme


def is_alike(said, seen):
    """The same words, and numbers that are nearly the same; those of rounding only as small."""
    pattern = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
    assert re.sub(pattern, "#", said) == re.sub(pattern, "#", seen)
    for item, second in zip(map(float, re.findall(pattern, said)), map(float, re.findall(pattern, seen)), strict=True):
        assert item == pytest.approx(second, rel=0.2) or max(item, second) < 5e-3, (said, seen)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", programs.NAMES)
def test_a_program_prints_what_is_kept_also_with_the_correction(name):
    """Where its package is, in the version that it names."""
    if lacking := programs.missing(name):
        pytest.skip(f"not here: {lacking}")
    is_alike((programs.HERE / name / "printed.txt").read_text(encoding="utf-8"), programs.read_printed(name))


# The page -------------------------------------------------------------------------------------------------------------


def test_the_page_is_that_of_the_results():
    assert (HERE / "README.md").read_text(encoding="utf-8") == page.text(RESULTS)


@pytest.mark.parametrize("entry", OPTIMISERS)
def test_a_row_has_a_sign_and_a_mistake_its_program(entry):
    assert entry["sign"] in SIGNS
    assert (entry["sign"] == "mistake") == ("mistake" in entry)
    if "mistake" in entry:
        assert programs.answers(entry["mistake"])["sign"] == "mistake"
    assert entry["options"]


@pytest.mark.parametrize("entry", CLAIMS)
def test_what_is_said_of_a_documentation_stands_there(entry):
    """The words, in the line that is named, where the code is there in the version that was read."""
    version = released.version_of(entry["source"])
    if "adapter" in entry:
        read = RESULTS["optimisers"][entry["adapter"]]["version"]
    else:
        repository, versions = programs.needs(entry["name"])
        read = None if repository else {name.lower(): item for name, item in versions.items()}[entry["source"].lower()]
    if version is None or (read is not None and read != version):
        pytest.skip(f"{entry['source']} is not here, or another version")
    root = (Path(os.environ["REPOSITORIES"]) / entry["source"].partition("/")[2] if "/" in entry["source"]
            else Path(sys.modules["sysconfig"].get_paths()["purelib"]))  # fmt: skip
    for file, line, words in entry["said"]:
        assert words in (root / file).read_text(encoding="utf-8").splitlines()[line - 1], (file, line)
        assert len(words.split()) <= 10


@pytest.mark.parametrize("entry", OPTIMISERS)
def test_every_number_of_a_remark_has_a_source(entry):
    """In the words of the documentation, the results, the adapter or the program of the row."""
    sources = [
        json.dumps(RESULTS["optimisers"][entry["adapter"]]),
        (HERE / "optimisers.py").read_text(encoding="utf-8"),
    ]
    sources += [words for _, _, words in entry["said"]]
    if "mistake" in entry:
        sources.append((programs.HERE / entry["mistake"] / "printed.txt").read_text(encoding="utf-8"))
    known = set.union({0.0, 1.0, 2.0}, *map(numbers, sources))
    result = RESULTS["optimisers"][entry["adapter"]]
    shares = [*result["differences"].values(), *result["recomputed"].get("differences", {}).values()]
    digits = {float(np.floor(-np.log10(value))) for value in shares if value > 0.0}
    assert numbers(entry.get("remark", "") + entry["options"]) <= known | digits


def test_the_first_page_says_what_the_table_carries():
    rows = [RESULTS["optimisers"][entry["adapter"]] for entry in page.JUDGED["optimiser"]]
    invariant = sum(page.invariant_under(row).startswith("GL(h)") for row in rows)
    message = " ".join((HERE.parent.parent / "README.md").read_text(encoding="utf-8").split())
    assert (
        f"Of {len(rows)} settings of optimisers, {invariant} are invariant under GL(h) to 4 digits or more" in message
    )
    (manopt,) = (item for name, item in RESULTS["geometries"].items() if name.startswith("Manopt"))
    assert not manopt["wrong"]


# Merges ---------------------------------------------------------------------------------------------------------------


def test_a_mean_of_products_obeys_the_laws_and_one_of_factors_does_not():
    def truncated(X, h):
        U, s, Vt = np.linalg.svd(X, full_matrices=False)
        return U[:, :h] * np.sqrt(s[:h]), Vt[:h].T * np.sqrt(s[:h])

    def mean(factors, weights):
        X = sum(w * G @ H.T for w, (G, H) in zip(weights, factors, strict=True))
        return truncated(X, factors[0][0].shape[1])

    def of_factors(factors, weights):
        return tuple(sum(w**0.5 * pair[i] for w, pair in zip(weights, factors, strict=True)) for i in (0, 1))

    held = {law for law, function in merges.LAWS.items() if merges.error(mean, function) == 0.0}
    assert held == merges.LAWS.keys() - {"counted"}
    errors = {law: merges.error(of_factors, function) for law, function in merges.LAWS.items()}
    assert {law for law, error in errors.items() if error == 0.0} == {"symmetric", "weight_one"}
    assert errors["idempotent"] == pytest.approx(1.0)  # twice the adapter


@pytest.mark.slow
def test_what_is_said_of_pefts_merges_is_so():
    """The default is svd; it and cat give the weighted sum of the products, linear something else."""
    pytest.importorskip("torch")
    peft = pytest.importorskip("peft")

    defaults = inspect.signature(peft.tuners.lora.LoraModel.add_weighted_adapter).parameters
    assert defaults["combination_type"].default == "svd"
    message = " ".join(peft.tuners.lora.LoraModel.add_weighted_adapter.__doc__.split())
    assert "very rough approximation and should be avoided" in message
    rng = np.random.default_rng(0)
    factors = [(rng.standard_normal((6, 2)), rng.standard_normal((5, 2))) for _ in range(2)]
    mean = 0.3 * factors[0][0] @ factors[0][1].T + 0.7 * factors[1][0] @ factors[1][1].T
    for combination, rank in (("svd", 2), ("cat", 4)):
        G, H = merges.merge_with(combination)(factors, [0.3, 0.7])
        U, sigma, Vt = np.linalg.svd(mean)
        assert np.allclose(G @ H.T, (U[:, :rank] * sigma[:rank]) @ Vt[:rank], atol=1e-5)
    G, H = merges.merge_with("linear")([factors[0]] * 2, [0.5, 0.5])
    assert np.allclose(G @ H.T, 2.0 * factors[0][0] @ factors[0][1].T, atol=1e-5)
