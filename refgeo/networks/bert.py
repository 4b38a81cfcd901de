r"""Hugging Face BERT-type encoders.

Linear layers are stored out×in and compute ``x Wᵀ + b``. With one appended to the input, a head's query and key use
:math:`G = [W_q^\top; b_q^\top]` and :math:`H = [W_k^\top; b_k^\top]`, (d+1)×d_k, only through GHᵀ; value and output use
:math:`G = [W_v^\top; b_v^\top]`, (d+1)×d_v, and H = the head's columns of W_o, d×d_v (App. A.1). The output bias has
no part in the symmetry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from refgeo.networks.errors import LayoutError
from refgeo.pair import Array, Pair

_LAYER = re.compile(r"^(.*encoder\.layer\.\d+\.attention\.)self\.query\.weight$")
_PROJECTIONS = [f"self.{name}.{part}" for name in ("query", "key", "value") for part in ("weight", "bias")]
_TENSORS = (*_PROJECTIONS, "output.dense.weight")


def split(tensors: Mapping[str, Array], heads: int) -> tuple[dict[str, Pair], dict[str, Array]]:
    """Pairs of every attention layer, and the remaining tensors."""
    prefixes = [match[1] for match in map(_LAYER.match, tensors) if match]
    if not prefixes:
        raise LayoutError(
            "layout bert: expected tensors named encoder.layer.N.attention.self.query.weight, found none; the file has "
            f"{', '.join(list(tensors)[:3]) or 'no floating-point tensors'}, ..."
        )
    missing = [prefix + name for prefix in prefixes for name in _TENSORS if prefix + name not in tensors]
    if missing:
        raise LayoutError(f"layout bert: {len(missing)} tensors are missing: {', '.join(missing[:5])}")
    pairs = {}
    for prefix in prefixes:
        query, key, value = (
            _by_head(prefix, _with_bias(tensors, f"{prefix}self.{name}"), heads) for name in ("query", "key", "value")
        )
        out = _by_head(prefix, tensors[f"{prefix}output.dense.weight"], heads)
        try:
            pairs[f"{prefix}query_key"] = Pair(query, key)
            pairs[f"{prefix}value_out"] = Pair(value, out)
        except ValueError as error:
            raise LayoutError(f"{prefix.rstrip('.')}: {error}") from error
    used = {prefix + name for prefix in prefixes for name in _TENSORS}
    return pairs, {name: tensor for name, tensor in tensors.items() if name not in used}


def join(pairs: Mapping[str, Pair]) -> dict[str, Array]:
    """The tensors of the pairs that `split` made."""
    tensors = {}
    for name, pair in pairs.items():
        prefix, _, kind = name.rpartition(".")
        G, H = (_merged(factor) for factor in pair)
        if kind == "query_key":
            parts = {"self.query": G, "self.key": H}
        else:
            parts = {"self.value": G}
            tensors[f"{prefix}.output.dense.weight"] = H
        for part, factor in parts.items():
            tensors[f"{prefix}.{part}.weight"] = np.ascontiguousarray(factor[:-1].T)
            tensors[f"{prefix}.{part}.bias"] = factor[-1].copy()
    return tensors


def _with_bias(tensors: Mapping[str, Array], name: str) -> Array:
    return np.concatenate([tensors[f"{name}.weight"].T, tensors[f"{name}.bias"][None, :]])


def _by_head(prefix: str, matrix: Array, heads: int) -> Array:
    """(rows, heads·h) to (heads, rows, h)."""
    rows, columns = matrix.shape
    if heads < 1 or columns % heads:
        raise LayoutError(f"heads: expected a divisor of the width {columns} of {prefix.rstrip('.')}, got {heads}")
    return np.ascontiguousarray(np.moveaxis(matrix.reshape(rows, heads, columns // heads), 1, 0))


def _merged(factor: Array) -> Array:
    heads, rows, h = factor.shape
    return np.ascontiguousarray(np.moveaxis(factor, 0, 1).reshape(rows, heads * h))
