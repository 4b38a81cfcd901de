"""Whole reports, a text for each program: a sentence that changes anywhere is seen, and read.

``pytest tests/conformance/test_golden.py --force-regen`` writes the texts anew, which `pytest-regressions` keeps as one
plain file each. What depends on a machine's rounding stands as ``#``: numbers with a point or an exponent, and which
entry, step or point is the worst.
"""

import io
import re
from types import SimpleNamespace

import numpy as np
import pytest

import refgeo as rg
from refgeo import paper

FEW = ["5x4x2/k3", "6x6x3/k3", "7x4x1/k3", "3-5x4x4/k3", "10x9x4/k100"]


def of(function, change, metrics=("inv", "mix")):
    """A function of the paper whose result is changed, for some metrics."""
    right = getattr(paper, function)

    def call(metric, G, H, *rest):
        result = right(metric, G, H, *rest)
        return change(result, metric, G, H, *rest) if metric in metrics else result

    return {function: call}


def exchanged(metric, G, H, e_G, e_H):
    S, T = G.mT @ G, H.mT @ H
    return (e_G @ T, e_H @ S) if metric == "inv" else (e_G @ np.linalg.inv(S), e_H @ np.linalg.inv(T))


def without_gamma(metric, G, H, e_G, e_H, w_G, w_H, v_G, v_H):
    right = paper.riemannian_hessian(metric, G, H, e_G, e_H, w_G, w_H, v_G, v_H)
    g = paper.riemannian_gradient(metric, G, H, e_G, e_H)
    bend = paper.horizontal_projection(metric, G, H, *paper.christoffel(metric, G, H, *g, v_G, v_H))
    return tuple(x - y for x, y in zip(right, bend, strict=True))


def writes(metric, G, H, e_G, e_H):
    parts = paper.riemannian_gradient(metric, G, H, e_G, e_H)
    e_G *= 0.0
    return parts


def kept_by_G():
    kept = {}

    def christoffel(metric, G, H, *vectors):
        grams = kept.setdefault((metric, G.tobytes()), (G.copy(), H.copy()))
        return paper.christoffel(metric, *grams, *vectors)

    return {"christoffel": christoffel}


def refuses(what):
    def riemannian_gradient(metric, G, H, e_G, e_H):
        if what(metric, G):
            raise NotImplementedError("on our list")
        return paper.riemannian_gradient(metric, G, H, e_G, e_H)

    return {"riemannian_gradient": riemannian_gradient}


def raises(*arguments):
    raise RuntimeError("no such kernel")


def inheriting():
    def christoffel(metric, *arguments):
        return tuple(1.5 * x for x in paper.christoffel(metric, *arguments))

    def geodesic(metric, G, H, v_G, v_H, t, order):
        if order != 2:
            raise NotImplementedError
        bend = christoffel(metric, G, H, v_G, v_H, v_G, v_H)
        return G + t * v_G - 0.5 * t**2 * bend[0], H + t * v_H - 0.5 * t**2 * bend[1]

    return {"christoffel": christoffel, "geodesic": geodesic}


def step_of(m_G, m_H):
    """Descent in mix with momentum, in a representation with orthonormal H; how the momentum changes with it."""

    def step(state, G, H, e_G, e_H):
        a, b = (0.0, 0.0) if state is None else state
        a, b = 0.9 * a + e_G, 0.9 * b + e_H
        S, T = G.T @ G, H.T @ H
        G, H = G - 0.02 * a @ np.linalg.inv(T), H - 0.02 * b @ np.linalg.inv(S)
        H, R = np.linalg.qr(H)
        return (m_G(a, R), m_H(b, R)), G @ R.T, H

    return {"step": step}


PROGRAMS = {
    "right": ({name: getattr(paper, name) for name in ("inner_product", "christoffel", "geodesic")}, {}),
    "a factor": (of("christoffel", lambda found, *_: tuple(2.0 * x for x in found)), {}),
    "parts exchanged": (of("riemannian_gradient", lambda found, *_: found[::-1]), {"cases": ["5x5x3/k3", "4x4x2/k3"]}),
    "another metric": ({"inner_product": lambda metric, *rest: paper.inner_product("inv", *rest)}, {}),
    "formulas exchanged": ({"riemannian_gradient": exchanged}, {}),
    "a term is missing": ({"riemannian_hessian": without_gamma}, {}),
    "entries": (of("christoffel", lambda found, *_: (found[0], found[1] + 0.3)), {"metrics": ["inv"]}),
    "in a batch": (of("christoffel", lambda found, m, G, *_: tuple(x[::-1] if G.ndim > 2 else x for x in found)), {}),
    "float32": (of("inner_product", lambda found, *_: found.astype("f4").astype(float)), {}),
    "kept by G": (kept_by_G(), {"metrics": ["inv"]}),
    "writes to its input": ({"riemannian_gradient": writes}, {}),
    "changes the dtype": (of("inner_product", lambda found, *_: found.astype(float)), {"dtype": "float32"}),
    "gives what it got": ({"retraction": lambda metric, G, H, v_G, v_H, t: (G, H)}, {}),
    "raises": ({"horizontal_projection": raises}, {}),
    "no numbers": (of("horizontal_projection", lambda found, *_: tuple(np.nan * x for x in found)), {}),
    "another shape": (of("horizontal_projection", lambda found, *_: (found[0],)), {}),
    "inv alone": (refuses(lambda metric, G: metric != "inv"), {}),
    "no batches": (refuses(lambda metric, G: G.ndim > 2), {}),
    "nothing": ({"riemannian_gradient": refuses(lambda *_: True)["riemannian_gradient"]}, {}),
    "everything is asked": (of("inner_product", lambda found, *_: found), {"checks": None}),
    "inherits": (inheriting(), {}),
    "digits": ({"horizontal_projection": paper.horizontal_projection}, {"cases": ["10x9x4/k1000", "10x9x4/k1e+06"]}),
    "undecided": ({"horizontal_projection": paper.horizontal_projection},
                  {"cases": ["10x9x4/k1e+06"], "dtype": "float32", "metrics": ["inv"]}),
    "without relaxation": ({"riemannian_gradient": lambda *a: paper.riemannian_gradient(*a)}, {"relaxation": 0.1}),
    "a retraction": ({"retraction": lambda m, G, H, v_G, v_H, t: (G + 1.1 * t * v_G, H + t * v_H)}, {}),
    "an optimiser": (step_of(lambda a, R: a @ np.linalg.inv(R), lambda b, R: b @ R.T), {}),
    "momentum transposed": (step_of(lambda a, R: a @ np.linalg.inv(R).T, lambda b, R: b @ R), {}),
}  # fmt: skip


ROUNDING = {
    r"\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)|(?<=\.py:)\d+|\d+(?= digits)": "#",
    r"(?<=by )1(?= of both)|(?:(?<=elements )|(?<=scalings )|(?<=rotations ))1\b": "#",
    r" +": " ",
    r"(?<=[GH])\[\d+, \d+\] is -?# and not -?#": "[#] is # and not #",
    r"(?<=enclosed )\d+|(?<=after step )\d+": "#",
    r"(\d/\d+) 0 (?=[#\d])": r"\1 # ",
    r"^((?:\w|\.)+ (?:inv|mix|any metric) \d.*) \S*\dx\d\S*$": r"\1 #",
}
"""What rounding decides, as regular expressions, and what stands for it."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_whole_report_is_the_text_that_was_read(name, file_regression, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")  # that all columns fit, however long a number is
    functions, options = PROGRAMS[name]
    checks = ["step.invariant"] if "step" in functions else list(functions)
    cases = None if "step" in functions else FEW
    report = rg.check(SimpleNamespace(**functions), **{"checks": checks, "cases": cases, **options})
    printed = io.StringIO()
    report.print(printed)
    report.print(printed, verbose=True)
    text = printed.getvalue()
    for pattern, words in ROUNDING.items():
        text = re.sub(pattern, words, text, flags=re.M)
    file_regression.check(text, basename=re.sub(r"\W+", "_", name))
