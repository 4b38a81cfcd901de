"""The frozen test set: never changed, computed anew to the last digit, and right by other routes; and its grader."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
from scipy.special import erf, expit, softmax

import refgeo as rg
from validation.vectors import FILE, FOLDER, read_published, version_1

DIGEST = "9c53765701d203d7588100f94507ec65d0d71e39a2d049508b6d328e3738df90"


@pytest.fixture(scope="module")
def cases():
    return read_published()["cases"]


def test_version_1_never_changes():
    assert hashlib.sha256(FILE.read_bytes()).hexdigest() == DIGEST
    assert (FOLDER / "SHA256SUMS").read_text() == f"{DIGEST}  {FILE.name}\n"
    assert FILE.stat().st_size < 2_000_000
    assert DIGEST[:16] in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in (1, 2, 3))])
def test_it_is_computed_anew_to_the_last_digit(cases, part):
    mine = set(list(cases)[part::4])
    again = version_1.cases(wanted=mine.__contains__)
    for name, case in again.items():  # exact geodesics of relaxed metrics that could not be enclosed then
        more = case["values"].keys() - cases[name]["values"].keys()
        assert more <= {"geodesic_exact_G", "geodesic_exact_H"}
        case["values"] = {key: value for key, value in case["values"].items() if key not in more}
    assert again == {name: case for name, case in cases.items() if name in mine}


def test_nothing_is_missing(cases):
    drawn = []
    version_1.cases(wanted=lambda name: drawn.append(name) and False)
    assert drawn == list(cases)
    assert len(cases) == 192


def test_what_does_not_depend_on_the_representation_agrees_to_the_last_digit(cases):
    agreed = 0
    for case in cases.values():
        start = cases[case["moved_from"]]["values"] if "moved_from" in case else {}
        for name in start.keys() & case["values"].keys():
            if name.startswith(("product", "loss", "output", "inner_product")):
                same = [value["mid"] for value in (start[name], case["values"][name])]
                assert same[0] == same[1], name
                agreed += 1
    assert agreed == 48 + 32 + 24  # inner products, products of trajectories, losses and outputs


# Other routes ----------------------------------------------------------------------------------------------------


def solve(case):
    """The values of a case in double precision: the geometry by the balanced gauge, the networks by NumPy."""
    given = {key: np.array(x) for key, x in case["given"].items()}
    return ROUTES[case["kind"]](case, given) if case["kind"] in ROUTES else {}


def metric_of(case):
    s = {"inv": 0.0, "half": 0.5, "mix": 1.0}[case["metric"]]
    return rg.InterpolatedMetric(s, relaxation=case.get("relaxation", 0.0))


def operations(case, given):
    def pair(name):
        return rg.Pair(given[f"{name}_G"], given[f"{name}_H"])

    space = metric_of(case).at(rg.Pair(given["G"], given["H"]))
    v, t = pair("v"), case["given"]["t"]
    result = {
        "horizontal_projection": space.horizontal_projection(v),
        "riemannian_gradient": space.riemannian_gradient(pair("e")),
        "christoffel": space.christoffel(pair("a"), pair("b")),
        "geodesic_1": space.geodesic(v, t, 1),
        "geodesic_2": space.geodesic(v, t, 2),
    }
    if "hessian_e_G" in given:
        result["riemannian_hessian"] = space.riemannian_hessian(*(pair(f"hessian_{key}") for key in "ewv"))
    if "geodesic_exact_G" in case["values"]:
        result["geodesic_exact"] = space.geodesic(v, t, "exact")
    parts = {f"{name}_{end}": part for name, both in result.items() for end, part in zip("GH", both, strict=True)}
    return {"inner_product": float(space.inner_product(pair("a"), pair("b"))), **parts}


def descent(case, given):
    place, metric, result = rg.Pair(given["G"], given["H"]), metric_of(case), {}
    for k in range(1, 11):
        E = place.G @ place.H.T - given["Y"]
        step = metric.at(place).riemannian_gradient(rg.Pair(E @ place.H, E.T @ place.G))
        place = rg.Pair(*(F - given["rate"] * d for F, d in zip(place, step, strict=True)))
        if k in (1, 2, 5, 10):
            result |= {f"step_{k}_G": place.G, f"step_{k}_H": place.H, f"product_{k}": place.G @ place.H.T}
    return result


def norm(x, scale):
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 2.0**-10) * scale


def centre(x):
    return x - x.mean(axis=1, keepdims=True)


def bert(w):
    x, heads = w["x"], []
    for i in range(2):
        q, k, v = (np.c_[x, np.ones(3)] @ np.r_[w[f"W_{part}_{i}"], w[f"b_{part}_{i}"]] for part in "qkv")
        heads.append(softmax(q @ k.T / np.sqrt(2), axis=1) @ v)
    y = x + np.hstack(heads) @ np.vstack([w["W_o_0"], w["W_o_1"]]) + w["b_o"]
    y = norm(centre(y), w["scale_1"]) + w["shift_1"]
    inner = y @ w["W_1"] + w["b_1"]
    z = y + (inner * (1 + erf(inner / np.sqrt(2))) / 2) @ w["W_2"] + w["b_2"]
    return norm(centre(z), w["scale_2"]) + w["shift_2"]


def decoder(w, shared_by, rotary):
    """Scores behind rotary positions by complex numbers: Re (q̄ k e^{iφ(k's position − q's)})."""
    x, y, causal = norm(w["x"], w["scale_1"]), w["x"].copy(), np.tri(3, dtype=bool)
    for i in range(sum(key.startswith("W_q") for key in w)):
        j = i // shared_by
        q, k, v = x @ w[f"W_q_{i}"], x @ w[f"W_k_{j}"], x @ w[f"W_v_{j}"]
        h = q.shape[1]
        scores = q @ k.T
        if rotary:
            q, k = (z[:, : h // 2] + 1j * z[:, h // 2 :] for z in (q, k))
            angles = np.arange(3)[:, None, None] - np.arange(3)[:, None]
            turns = np.exp(-1j * angles * 10000.0 ** (-2 * np.arange(h // 2) / h))
            scores = np.einsum("pj,qj,pqj->pq", q.conj(), k, turns).real
        y += softmax(np.where(causal, scores / np.sqrt(h), -np.inf), axis=1) @ v @ w[f"W_o_{i}"]
    z = norm(y, w["scale_2"])
    gate = z @ w["W_gate"]
    return y + (gate * expit(gate) * (z @ w["W_up"])) @ w["W_down"]


NETWORKS = {
    "bert": bert,
    "grouped": lambda w: decoder(w, shared_by=2, rotary=False),
    "rotary": lambda w: decoder(w, shared_by=2, rotary=True),
}


def network(case, given):
    output = NETWORKS[case["network"]](given)
    return {"output": output, "loss": float(np.mean((output - given["target"]) ** 2))}


ROUTES = {"descent": descent, "network": network, "operations": operations}
"""For distances there is none."""


def as_plain_data(value):
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.fixture(scope="module")
def results(cases):
    return {name: {key: as_plain_data(x) for key, x in solve(case).items()} for name, case in cases.items()}


def grade(folder, results, *options):
    (folder / "results.json").write_text(json.dumps(results))
    command = [sys.executable, FOLDER / "grade.py", FILE, folder / "results.json", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("precision", [(), ("single",)])
def test_every_value_is_right_by_another_route(precision, results, tmp_path):
    status, lines = grade(tmp_path, results, *precision)
    assert status == 0
    assert lines[-1] == f"All {1582 if precision else 1893} judged arrays are right."
    kinds = tuple(ROUTES)
    assert not any(int(line[50:56]) or int(line[67:75]) for line in lines if line.startswith(kinds))  # wrong, missing


def test_a_rounding_of_the_inputs_moves_no_value_by_what_the_grader_allows(cases):
    """So none is ill-conditioned: the exact result for inputs that differ by ten roundings is right still."""
    rng, compared = np.random.default_rng(0), 0

    def perturb(x):
        return (np.array(x) * (1.0 + 2.0**-52 * rng.choice((-1.0, 1.0), np.shape(x)))).tolist()

    for name, case in cases.items():
        results = solve(case)
        for _ in range(3):
            given = {key: perturb(x) if isinstance(x, (list, float)) else x for key, x in case["given"].items()}
            moved = solve({**case, "given": given})
            for key in results.keys() & {key for key, value in case["values"].items() if value["unit"]}:
                allowed = 1000.0 * case["values"][key]["unit"]
                assert np.max(np.abs(moved[key] - results[key])) / 2.0 < 0.1 * allowed, (name, key)
                compared += 1
    assert compared > 5000


def test_a_wrong_array_is_found_and_named(results, tmp_path):
    wrong = results | {"mix-5x4x2": results["mix-5x4x2"] | {"christoffel_H": results["mix-5x4x2"]["christoffel_G"]}}
    wrong["network-rotary"] = wrong["network-rotary"] | {"loss": wrong["network-rotary"]["loss"] * (1 + 1e-6)}
    del wrong["network-bert"]
    wrong["inv-1x1x1"] = wrong["inv-1x1x1"] | {"inner_product": None, "geodesic_2_G": [[1.0, 1.0]]}
    status, lines = grade(tmp_path, wrong)
    assert status == 1
    assert "wrong: inv-1x1x1 geodesic_2_G: expected 1 numbers, got 2" in lines
    assert any(line.lower().startswith("wrong: inv-1x1x1 inner_product: off by inf, allowed are ") for line in lines)
    named = "operations christoffel mix, operations geodesic_2 inv, operations inner_product inv"
    assert any(line.endswith(named) for line in lines)
    (seen,) = (line.split()[-6:-1] for line in lines if line.startswith("network loss bert"))
    assert seen == ["bert", "4", "0", "0", "1"]


@pytest.mark.parametrize(
    ("wrong", "options", "said"),
    [
        ({"inv-1x1x1": {"christofel_G": [[0.0]]}}, (), "unknown: inv-1x1x1 christofel_G"),
        ({}, (), "No array could be judged."),
        ({"mix-5x4x2-steep": {"inner_product": 1.0}}, (), "No array could be judged."),
        ({}, ("Single",), "results.json [single]"),
    ],
)
def test_what_cannot_be_graded_is_an_error(wrong, options, said, tmp_path):
    status, lines = grade(tmp_path, wrong, *options)
    assert status
    assert any(line.endswith(said) for line in lines)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_literal_formulas_are_right_where_they_are_judged(dtype, cases, tmp_path):
    """Gram matrices and their inverses lose digits, in both precisions, but not so many."""
    result = {}
    for name, case in cases.items():
        if case["kind"] == "operations" and case["metric"] != "half" and not case["relaxation"]:
            given = {key: np.array(x, dtype) for key, x in case["given"].items()}
            result[name] = {}
            for function, vectors in (
                ("horizontal_projection", "v"),
                ("riemannian_gradient", "e"),
                ("christoffel", "ab"),
            ):
                arrays = [given[f"{key}_{end}"] for key in vectors for end in "GH"]
                parts = getattr(rg.paper, function)(case["metric"], given["G"], given["H"], *arrays)
                result[name] |= {
                    f"{function}_{end}": as_plain_data(part) for end, part in zip("GH", parts, strict=True)
                }
    status, lines = grade(tmp_path, result, *(["single"] if dtype is np.float32 else []))
    assert status == 0, lines
    assert int(lines[-1].split()[1]) >= 240
