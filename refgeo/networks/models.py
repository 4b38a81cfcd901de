"""A small transformer written with autograd, to try sharpness on: its heads are `Pair` blocks.

A model is an immutable description; parameters are a dict of named blocks, `init` makes them, `loss` and
`value_and_grad` take them, and `metric` is the geometry they live in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import autograd.numpy as anp
import numpy as np

from refgeo.geometry.pair import Pair
from refgeo.geometry.product import ProductMetric
from refgeo.geometry.tangent_space import Metric
from refgeo.networks.block_metric import block_metric
from refgeo.sharpness.gradients import value_and_grad
from refgeo.support.arguments import Array

Batch = tuple[Array, Array]


@dataclass(frozen=True)
class AttentionClassifier:
    """A transformer encoder whose mean over the tokens is classified.

    Token and position embeddings, `depth` layers of multi-head attention and a GELU network, each with biases, a
    residual connection and a layer normalisation, then a linear layer. Of every layer and head, query with key and
    value with output are pairs, biases appended (App. A.1).

    Parameters
    ----------
    vocabulary, length, width, heads, hidden, depth, classes : int
        ``length`` is the number of tokens of an input, ``hidden`` the width of the GELU network.
    norm : "pre" or "post"
        Where the normalisation is: before each part, or after each residual sum.

    Examples
    --------
    >>> import refgeo as rg
    >>> model = rg.networks.AttentionClassifier(heads=2, width=6)
    >>> params = model.init(0)
    >>> params["layer0.query_key"]
    Pair(G (2, 7, 3), H (2, 7, 3))
    >>> batch = np.zeros((4, model.length), dtype=int), np.array([0, 1, 2, 3])
    >>> loss, grads = model.value_and_grad(params, batch)
    >>> grads["layer0.query_key"]
    Pair(G (2, 7, 3), H (2, 7, 3))
    """

    vocabulary: int = 11
    length: int = 6
    width: int = 8
    heads: int = 2
    hidden: int = 16
    depth: int = 1
    classes: int = 4
    norm: Literal["pre", "post"] = "pre"

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"heads: expected a divisor of the width {self.width}, got {self.heads}")
        if self.norm not in ("pre", "post"):
            raise ValueError(f'norm: expected "pre" or "post", got {self.norm!r}')

    def init(self, rng: np.random.Generator | int) -> dict[str, Any]:
        """Draw Gaussian weights with variance 1/inputs, and small random biases, so that none is exactly zero."""
        rng = np.random.default_rng(rng)
        d, h, heads = self.width, self.width // self.heads, self.heads

        def weights(*shape: int) -> Array:
            return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[-2]))

        def biases(n: int) -> Array:
            return 0.02 * rng.standard_normal(n)

        def with_bias() -> Array:
            return np.concatenate([weights(heads, d, h), 0.02 * rng.standard_normal((heads, 1, h))], axis=1)

        params: dict[str, Any] = {
            "tokens": rng.standard_normal((self.vocabulary, d)),
            "positions": 0.5 * rng.standard_normal((self.length, d)),
        }
        for layer in range(self.depth):
            prefix = f"layer{layer}."
            out = rng.standard_normal((heads, d, h)) / np.sqrt(d)
            params |= {
                f"{prefix}query_key": Pair(with_bias(), with_bias()),
                f"{prefix}value_out": Pair(with_bias(), out),
                f"{prefix}out.bias": biases(d),
                f"{prefix}norm1.weight": 1.0 + biases(d),
                f"{prefix}norm1.bias": biases(d),
                f"{prefix}up.weight": weights(d, self.hidden),
                f"{prefix}up.bias": biases(self.hidden),
                f"{prefix}down.weight": weights(self.hidden, d),
                f"{prefix}down.bias": biases(d),
                f"{prefix}norm2.weight": 1.0 + biases(d),
                f"{prefix}norm2.bias": biases(d),
            }
        params |= {"classes.weight": weights(d, self.classes), "classes.bias": biases(self.classes)}
        return params

    def logits(self, params: Any, tokens: Any) -> Any:
        """Return class scores, shape ``(inputs, classes)``, of integer tokens of shape ``(inputs, length)``."""
        x = params["tokens"][tokens] + params["positions"]
        for layer in range(self.depth):
            prefix = f"layer{layer}."
            for norm, part in (("norm1", self._attention), ("norm2", self._network)):
                scale, shift = params[f"{prefix}{norm}.weight"], params[f"{prefix}{norm}.bias"]
                if self.norm == "pre":
                    x = x + part(params, prefix, _normalise(x) * scale + shift)
                else:
                    x = _normalise(x + part(params, prefix, x)) * scale + shift
        return anp.mean(x, axis=1) @ params["classes.weight"] + params["classes.bias"]

    def loss(self, params: Any, batch: Batch) -> Any:
        """Return the mean cross-entropy of ``(tokens, labels)``."""
        tokens, labels = batch
        logits = self.logits(params, tokens)
        shifted = logits - anp.max(logits, axis=-1, keepdims=True)
        return anp.mean(anp.log(anp.sum(anp.exp(shifted), axis=-1)) - shifted[np.arange(len(labels)), labels])

    def value_and_grad(self, params: Any, batch: Batch) -> tuple[float, Any]:
        """Return the loss and its gradient, by autograd."""
        return value_and_grad(self.loss)(params, batch)

    def metric(
        self, pairs: str | Metric[Any] = "inv", arrays: Metric[Any] | None = None, frozen: Iterable[str] = ()
    ) -> ProductMetric:
        """Return the product geometry, see `refgeo.networks.block_metric`."""
        return block_metric(self.init(0), pairs, arrays, frozen)

    def _attention(self, params: Any, prefix: str, x: Any) -> Any:
        ones = np.ones((*x.shape[:-1], 1), dtype=anp.result_type(x))
        extended = anp.concatenate([x, ones], axis=-1)[:, None]  # (inputs, 1, length, width + 1)
        W_q, W_k = params[f"{prefix}query_key"]
        W_v, W_o = params[f"{prefix}value_out"]
        scores = (extended @ W_q) @ anp.swapaxes(extended @ W_k, -1, -2) / math.sqrt(W_q.shape[-1])
        weights = anp.exp(scores - anp.max(scores, axis=-1, keepdims=True))
        weights = weights / anp.sum(weights, axis=-1, keepdims=True)
        heads = weights @ (extended @ W_v) @ anp.swapaxes(W_o, -1, -2)
        return anp.sum(heads, axis=1) + params[f"{prefix}out.bias"]

    def _network(self, params: Any, prefix: str, x: Any) -> Any:
        up = x @ params[f"{prefix}up.weight"] + params[f"{prefix}up.bias"]
        return _gelu(up) @ params[f"{prefix}down.weight"] + params[f"{prefix}down.bias"]


def _normalise(x: Any) -> Any:
    centred = x - anp.mean(x, axis=-1, keepdims=True)
    return centred / anp.sqrt(anp.mean(centred**2, axis=-1, keepdims=True) + 1e-12)


def _gelu(x: Any) -> Any:
    from autograd.scipy.special import erf

    return 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))
