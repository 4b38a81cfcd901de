"""Random points, losses, and programs of the documentation, for the tests to compare with."""

import re
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import refgeo as rg
from refgeo import paper
from refgeo.conformance.protocol.operations import OPERATIONS
from refgeo.diagonal.geometry import geometry_of

ROOT = Path(__file__).parents[1]

FUNCTIONS = [name for name in OPERATIONS if hasattr(paper, name)]
METRICS = {"inv": rg.InvariantMetric, "mix": rg.MixedMetric}
FAMILY = METRICS | {f"s={s}": partial(rg.InterpolatedMetric, s) for s in (0.3, 0.8)}

# leading dimensions, n, m, h: one of each kind
SHAPES = [
    ((), 1, 1, 1),
    ((5,), 1, 1, 1),
    ((), 6, 4, 1),
    ((), 3, 3, 3),
    ((3,), 7, 5, 3),
    ((2, 2), 4, 6, 2),
    ((), 4, 9, 4),
]


def sample(values, every=4, ids=None):
    """All values for a test; by default only one of so many is run, the others with ``pytest -m exhaustive``."""
    return [pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=[] if i % every == 0 else pytest.mark.exhaustive,
                         id=ids(v) if ids else None) for i, v in enumerate(values)]  # fmt: skip


def backend(**changes):
    """The literal formulas with some functions replaced (None: removed)."""
    functions = {name: getattr(paper, name) for name in FUNCTIONS} | changes
    return SimpleNamespace(**{name: function for name, function in functions.items() if function is not None})


def bert_layer(width):
    """The attention of a layer in BERT's layout."""
    rng, state = np.random.default_rng(0), {}
    for name in ("self.query", "self.key", "self.value", "output.dense"):
        state[f"encoder.layer.0.attention.{name}.weight"] = rng.standard_normal((width, width))
        state[f"encoder.layer.0.attention.{name}.bias"] = rng.standard_normal(width)
    return state


def linear_loss(x, y):
    """½ mean ‖x H Gᵀ − y‖² of the block "layers", a linear network, with its gradient written out."""

    def value_and_grad(params):
        G, H = params["layers"]
        residual = x @ H @ G.T - y
        rows = len(x)
        return 0.5 * np.sum(residual**2) / rows, {
            "layers": rg.Pair(residual.T @ (x @ H) / rows, x.T @ residual @ G / rows)
        }

    return value_and_grad


def product_loss(target):
    """½‖GHᵀ − target‖², with its gradient."""

    def loss(pair):
        residual = pair.G @ np.swapaxes(pair.H, -1, -2) - target
        return 0.5 * float(np.sum(residual**2)), rg.Pair(residual @ pair.H, np.swapaxes(residual, -1, -2) @ pair.G)

    return loss


def random_pair(rng, batch, n, m, h):
    return rg.Pair(rng.standard_normal((*batch, n, h)), rng.standard_normal((*batch, m, h)))


def factor_of_condition(rng, n, h, condition):
    left = np.linalg.qr(rng.standard_normal((n, h)))[0]
    right = np.linalg.qr(rng.standard_normal((h, h)))[0]
    return left * np.geomspace(1.0, 1.0 / condition, h) @ right.T


def like(pair, rng):
    return rg.Pair(rng.standard_normal(pair.G.shape), rng.standard_normal(pair.H.shape))


def relative_error(actual, expected):
    difference = np.hypot(np.linalg.norm(actual.G - expected.G), np.linalg.norm(actual.H - expected.H))
    return difference / np.hypot(np.linalg.norm(expected.G), np.linalg.norm(expected.H))


# Diagonal networks -----------------------------------------------------------------------------------------------


def loss(u, v, X, y):
    return np.sum(((X @ (u * v)[..., None])[..., 0] - y) ** 2, axis=-1)


def one_by_one(u, v):
    return rg.Pair(u[:, None, None], v[:, None, None])


def orthonormal(rng, n, d):
    return np.linalg.qr(rng.standard_normal((n, d)))[0]


def ball_points(rng, count, d, rho):
    """Points of the ball, most of them near its surface."""
    t = rng.standard_normal((count, d))
    return t * (rho * rng.random((count, 1)) ** (1 / d) / np.linalg.norm(t, axis=1, keepdims=True))


def increase_at(name, u, v, X, y, t):
    """The loss's increase at coordinates t, by way of the weights; None where the geodesic does not exist."""
    eta_u, eta_v = geometry_of(name).velocity(u, v, t)
    try:
        return loss(*rg.diagonal.geodesic(name, u, v, eta_u, eta_v), X, y) - loss(u, v, X, y)
    except rg.GeodesicIncompleteError:
        return None


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, title and text."""

    page: Path
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.strip().splitlines()[0][:40]}"


def blocks(page: Path) -> list[Block]:
    result = re.findall(r"^```(\w+)(?: title=\"(.*?)\")?\n(.*?)^```$", page.read_text(encoding="utf-8"), re.S | re.M)
    return [Block(page, *parts) for parts in result]


def grow_weights(module, factor=15.0):
    """A fresh module of transformers with weights of the size that training gives: of those that it starts with, a
    loss in float32 hardly depends on queries and keys.
    """
    for parameter in module.parameters():
        if parameter.ndim > 1:
            parameter.data *= factor
    return module


@cache
def transformer(norm="pre"):
    model = rg.networks.AttentionClassifier(width=8, heads=2, norm=norm)
    rng = np.random.default_rng(0)
    batch = rng.integers(0, model.vocabulary, (16, model.length)), rng.integers(0, model.classes, 16)
    params = model.init(1)
    for _ in range(60):  # some way towards a minimum
        _, grads = model.value_and_grad(params, batch)
        params = {name: block - 0.1 * grads[name] for name, block in params.items()}
    return model, params, lambda p: model.value_and_grad(p, batch)


def batches_of(model, n):
    rng = np.random.default_rng(7)
    return [(rng.integers(0, model.vocabulary, (8, model.length)), rng.integers(0, model.classes, 8)) for _ in range(n)]


def critical_point(name):
    """A shallow linear network with residuals orthogonal to the data: every direction is stationary."""
    rng = np.random.default_rng(3)
    point = rg.Pair(rng.standard_normal((4, 2)) + np.eye(4, 2), rng.standard_normal((3, 2)) + np.eye(3, 2))
    x = rng.standard_normal((9, 3))
    y = x @ point.product.T
    return {"layers": point}, linear_loss(x, y), rg.ProductMetric({"layers": METRICS[name]()})
