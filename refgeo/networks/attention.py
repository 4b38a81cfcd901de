r"""Attention layers as pairs, whatever the checkpoint calls and stores them (App. A.1).

With one appended to the input, a head's query and key use :math:`G = [W_q^\top; b_q^\top]` and
:math:`H = [W_k^\top; b_k^\top]`, (d+1)×h, only through GHᵀ; value and output use :math:`G = [W_v^\top; b_v^\top]` and H
= the head's columns of W_o, d×h. The output bias has no part in the symmetry. Without biases the last row is missing.

With grouped queries one key and one value serve several query heads: the group is GL(h) per *key* head, the query
factor stacks its query heads and the output factor their columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from refgeo.geometry.blocks import names_of
from refgeo.geometry.pair import Pair
from refgeo.support.arguments import Array

Tensors = Mapping[str, Array]
Factors = tuple[Array, Array]


class LayoutError(ValueError):
    """A checkpoint does not fit the layout it is read with."""


OWN = "for other names, give a layout of your own, refgeo.networks.own_layout"


class MissingTensorsError(LayoutError):
    """A layout needs tensors with these names, and there are none of numbers."""

    def __init__(self, names: Iterable[str], present: Collection[str] = ()) -> None:
        self.names = list(dict.fromkeys(names))
        count = len(self.names)
        message = f"{count} tensor{'s are' if count > 1 else ' is'} missing: {names_of(self.names, 5)}"
        super().__init__(message + (f"; there are {names_of(present, 5)}; {OWN}" if present else ""))


@dataclass(frozen=True)
class Linear:
    """Where a linear map is stored: its weight, (out, in) or transposed, a part of the outputs of a fused one."""

    weight: str
    bias: str | None = None
    transposed: bool = False
    part: int = 0
    parts: int = 1

    def names(self, tensors: Mapping[str, object]) -> list[str]:
        """Return the tensors it needs; a bias only if there is one."""
        return [self.weight] + ([self.bias] if self.bias is not None and self.bias in tensors else [])

    def matrix(self, tensors: Tensors) -> Array:
        """Return (in, out), or (in + 1, out) with the bias as last row."""
        weight = tensors[self.weight] if self.transposed else tensors[self.weight].T
        names = self.names(tensors)
        if weight.ndim != 2 or any(tensors[name].shape != weight.shape[1:] for name in names[1:]):
            shapes = ", ".join(f"{name} {tensors[name].shape}" for name in names)
            raise LayoutError(
                f"expected a matrix{' and a bias as long as its outputs' if names[1:] else ''}, got {shapes}"
            )
        whole = weight if len(names) == 1 else np.concatenate([weight, tensors[names[1]][None, :]])
        if whole.shape[1] % self.parts:
            raise LayoutError(f"{self.weight}: expected a multiple of {self.parts} outputs, got {whole.shape[1]}")
        return np.asarray(np.split(whole, self.parts, axis=1)[self.part])

    def store(self, matrix: Array, tensors: dict[str, Array], like: Mapping[str, tuple[int, ...]]) -> None:
        """Write the part back; the tensors of a fused map are begun by its first part."""
        names = [self.weight] + ([self.bias] if self.bias is not None and self.bias in like else [])
        rows = matrix if len(names) == 1 else matrix[:-1]
        for name, values in zip(names, (rows if self.transposed else rows.T, matrix[-1]), strict=False):
            axis = 0 if values.ndim == 1 or not self.transposed else 1
            size = values.shape[axis]
            where = [slice(None)] * values.ndim
            where[axis] = slice(self.part * size, (self.part + 1) * size)
            tensors.setdefault(name, np.empty(like[name]))[tuple(where)] = values


@dataclass(frozen=True)
class AttentionLayer:
    """One layer: where its maps are and what its pairs are called.

    ``rotary``: queries and keys are rotated by position, which leaves little of GL(h), in the first columns of a head,
    ``rotated`` of all; the others are a pair of their own. ``interleaved``: planes are neighbouring columns, which come
    apart as those of `refgeo.RotaryMetric`. ``paired``: they are a pair; otherwise arrays.
    """

    prefix: str
    query: Linear
    key: Linear
    value: Linear
    out: Linear
    rotary: bool = False
    paired: bool = True
    rotated: float = 1.0
    interleaved: bool = False

    def _columns(self, h: int) -> tuple[list[int], int]:
        """Return the order in which a block has the columns of a head, and how many of them are rotated."""
        cut = round(self.rotated * h) if self.rotary else h
        if self.rotary and (cut % 2 or not 0 < cut <= h or abs(cut - self.rotated * h) > 1e-9):
            raise LayoutError(f"rotated: expected a share of {h} columns that is an even number, got {self.rotated}")
        planes = [*range(0, cut, 2), *range(1, cut, 2)] if self.interleaved else [*range(cut)]
        return [*planes, *range(cut, h)], cut

    def factors(self, tensors: Tensors, heads: int, key_heads: int) -> dict[str, Factors]:
        """Return the layer's blocks, key heads leading."""
        query, key, value = (linear.matrix(tensors) for linear in (self.query, self.key, self.value))
        out = self.out.matrix(tensors).T  # (d, heads·h)
        for name, matrix, count in (
            ("heads", query, heads),
            ("heads", out, heads),
            ("key_value_heads", key, key_heads),
        ):
            if count < 1 or matrix.shape[1] % count:
                width, where = matrix.shape[1], self.prefix.rstrip(".")
                raise LayoutError(f"{name}: expected a divisor of the width {width} of {where}, got {count}")
        if heads % key_heads:
            raise LayoutError(f"key_value_heads: expected a divisor of the number of heads {heads}, got {key_heads}")
        whole = _stack_heads(query, heads, key_heads), _stack_heads(key, key_heads)
        if whole[0].shape[-1] != whole[1].shape[-1]:
            raise LayoutError(
                f"key_value_heads: {self.prefix.rstrip('.')} has queries of {heads} heads of the width "
                f"{whole[0].shape[-1]}, and keys of {key_heads} heads of the width {whole[1].shape[-1]}"
            )
        factors = {"value_out": (_stack_heads(value, key_heads), _stack_heads(out, heads, key_heads))}
        if self.paired:
            order, cut = self._columns(whole[1].shape[-1])
            for name, part in (("query_key", order[:cut]), ("query_key_rest", order[cut:])):
                if part:
                    first, second = (np.ascontiguousarray(F[..., part]) for F in whole)
                    factors[name] = (first, second)
        return {self.prefix + name: factors[name] for name in sorted(factors)}

    def store(
        self, pairs: Mapping[str, Pair], tensors: dict[str, Array], like: Mapping[str, tuple[int, ...]], heads: int
    ) -> None:
        """Store the pairs' factors as the tensors of the layer's maps."""
        maps = {"value_out": (self.value, self.out)} | ({"query_key": (self.query, self.key)} if self.paired else {})
        for name, (first, second) in maps.items():
            parts = [pairs[self.prefix + part] for part in (name, f"{name}_rest") if self.prefix + part in pairs]
            G, H = (np.concatenate(columns, axis=-1) for columns in zip(*parts, strict=True))
            if name == "query_key":
                back = np.argsort(self._columns(H.shape[-1])[0])
                G, H = G[..., back], H[..., back]
            grouped = heads // G.shape[0]
            first.store(_unstack_heads(G, grouped if name == "query_key" else 1), tensors, like)
            matrix = _unstack_heads(H, grouped if name == "value_out" else 1)
            second.store(matrix.T if name == "value_out" else matrix, tensors, like)

    def tensor_names(self, tensors: Mapping[str, object]) -> set[str]:
        """Return the tensors of all four maps, whether they are there or not; of biases those that are."""
        return {name for linear in (self.query, self.key, self.value, self.out) for name in linear.names(tensors)}

    def pair_tensors(self, tensors: Mapping[str, object]) -> list[str]:
        """Return the tensors that the pairs are made of."""
        linears = (self.query, self.key, self.value, self.out) if self.paired else (self.value, self.out)
        return [name for linear in linears for name in linear.names(tensors)]

    def needed(self) -> list[str]:
        """Return the tensors without which it is no attention layer."""
        return [linear.weight for linear in (self.query, self.key, self.value, self.out)]


def _stack_heads(matrix: Array, heads: int, groups: int | None = None) -> Array:
    """Rearrange (rows, heads·h) as (groups, (heads/groups)·rows, h)."""
    groups = heads if groups is None else groups
    rows = matrix.shape[0]
    by_head = np.moveaxis(matrix.reshape(rows, groups, heads // groups, -1), 0, 2)
    return np.ascontiguousarray(by_head.reshape(groups, (heads // groups) * rows, -1))


def _unstack_heads(factor: Array, grouped: int) -> Array:
    """Invert `_stack_heads`: rearrange (groups, grouped·rows, h) as (rows, groups·grouped·h)."""
    groups, stacked, h = factor.shape
    by_head = factor.reshape(groups, grouped, stacked // grouped, h)
    return np.ascontiguousarray(np.moveaxis(by_head, 2, 0).reshape(stacked // grouped, groups * grouped * h))
