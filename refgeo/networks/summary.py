"""Summarise a network's heads: shapes, condition numbers, spectra, and the number of redundant parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from refgeo.geometry.gauge import balance, lacks_rank, scale_exactly
from refgeo.geometry.pair import Pair
from refgeo.support.arguments import Array
from refgeo.support.console import as_text, without_common_words
from refgeo.support.figures import make_axes

GRAM_LIMIT = 64.0
"""Condition number κ above which the projection of inv by Gram matrices may have no correct digit in single precision:
its error grows as κ⁴ times the unit roundoff 2⁻²⁴, and 64⁴ · 2⁻²⁴ is 1.
"""
DAMPING = 1e-2
"""The ε that PEFT's Riemannian optimiser adds to Gram matrices by default."""


@dataclass(frozen=True)
class PairSummary:
    """The measurements on the heads of one pair; arrays have a number for each head, or h numbers.

    Attributes
    ----------
    name : str
    n, m, h, heads : int
    orbit : int
        Dimension of the orbit of one head: h² for GL(h), h for the part of it that rotary positions leave.
    condition_G, condition_H : ndarray
        κ(G), κ(H); infinite where a factor lacks rank.
    singular_values : ndarray, shape ``(heads, h)``
        The singular values of G Hᵀ.
    imbalance : ndarray
        ‖log A‖ of the symmetric group element A that carries the head to its balanced representative, GᵀG = HᵀH: 0 if
        the head is balanced, infinite where a factor lacks rank.
    least_eigenvalue : ndarray
        The smallest eigenvalue of GᵀG and HᵀH.
    """

    name: str
    n: int
    m: int
    h: int
    heads: int
    orbit: int
    condition_G: Array
    condition_H: Array
    singular_values: Array
    imbalance: Array
    least_eigenvalue: Array

    @classmethod
    def of(cls, name: str, pair: Pair, orbit: int) -> PairSummary:
        """Measure a pair, of any rank.

        Examples
        --------
        >>> summary = PairSummary.of("qk", Pair([[4.0], [0.0]], [[1.0], [0.0]]), 1)
        >>> summary.singular_values.item(), round(float(summary.imbalance[0] / np.log(2.0)), 12)
        (4.0, 1.0)
        """
        n, m, h = pair.sizes
        # scaled by powers of two, so that products neither overflow nor underflow
        parts = [scale_exactly(factor.reshape(-1, rows, h)) for factor, rows in zip(pair, (n, m), strict=True)]
        powers = [power for _, power in parts]
        # rows of zeros, added if there are fewer rows than columns, change neither products nor ranks
        factors = [np.pad(factor, ((0, 0), (0, max(0, h - factor.shape[1])), (0, 0))) for factor, _ in parts]
        values = [np.linalg.svd(factor, compute_uv=False) for factor in factors]
        has_rank = [~lacks_rank(v, rows) for v, rows in zip(values, (n, m), strict=True)]
        conditions = [v[:, 0] / np.where(ranked, v[:, -1], 1.0) for v, ranked in zip(values, has_rank, strict=True)]
        conditions = [np.where(ranked, kappa, np.inf) for kappa, ranked in zip(conditions, has_rank, strict=True)]
        both, imbalance = has_rank[0] & has_rank[1], np.full(len(has_rank[0]), np.inf)
        A, _ = balance(factors[0][both], factors[1][both]).to_balanced
        logs = np.log(np.linalg.svd(A, compute_uv=False)) + 0.5 * np.log(2.0) * (powers[0] - powers[1])[both, None]
        imbalance[both] = np.linalg.norm(logs, axis=-1)
        least = np.minimum(*(np.ldexp(v[:, -1] ** 2, 2 * power) for v, power in zip(values, powers, strict=True)))
        R_G, R_H = (np.asarray(np.linalg.qr(factor, mode="r")) for factor in factors)
        sigma = np.ldexp(np.linalg.svd(R_G @ R_H.mT, compute_uv=False), (powers[0] + powers[1])[:, None])
        return cls(name, n, m, h, len(sigma), orbit, conditions[0], conditions[1], sigma, imbalance, least)

    @property
    def condition(self) -> Array:
        """The larger of κ(G) and κ(H)."""
        return np.maximum(self.condition_G, self.condition_H)

    @property
    def stable_rank(self) -> Array:
        """‖G Hᵀ‖_F² / ‖G Hᵀ‖₂²."""
        largest = np.maximum(self.singular_values[:, 0], np.finfo(np.float64).tiny)
        return np.asarray(np.sum((self.singular_values / largest[:, None]) ** 2, axis=-1))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with lists for arrays, and None for numbers that are infinite."""
        numbers = {name: _to_lists(x) if isinstance(x, np.ndarray) else x for name, x in vars(self).items()}
        return {**numbers, "stable_rank": _to_lists(self.stable_rank)}


@dataclass(frozen=True)
class NetworkSummary:
    """The measurements on all pairs of a network, which are printed as a table with remarks.

    Attributes
    ----------
    layout : str
    parameters : int
    pairs : tuple of PairSummary
    biases : int
        The number of directions in which biases alone can change without changing the network's function. Key biases
        add the same number to all scores of a query, which softmax ignores. Value biases add the same vector to all
        outputs, as the output bias does.
    parameters_note : str
        A remark on which tensors count as parameters; empty if a module has defined them.
    """

    layout: str
    parameters: int
    pairs: tuple[PairSummary, ...]
    biases: int
    parameters_note: str = ""

    @property
    def redundant(self) -> int:
        """The number of redundant parameters, that is, the dimension of the orbit."""
        return sum(pair.heads * pair.orbit for pair in self.pairs) + self.biases

    @property
    def remarks(self) -> list[str]:
        """Sentences about what the numbers mean."""
        conditions = np.concatenate([pair.condition for pair in self.pairs])
        heads, worst = len(conditions), max(self.pairs, key=lambda pair: float(pair.condition.max()))
        lacking = int(np.isinf(conditions).sum())
        digits = max(0.0, -math.log10(conditions.max() * 2.0**-24))
        remarks = [
            f"{self.redundant:,} of {self.parameters:,} parameters ({self.redundant / self.parameters:.2%}) are "
            f"redundant if the network uses its weights as the layout {self.layout} says: they can change in at least "
            f"{self.redundant:,} directions without changing the network's function.",
            f"The largest condition number is {conditions.max():.3g}, in {worst.name}. At this condition number, "
            f"an implementation that uses QR factorisations has about {digits:.0f} correct digits in single precision.",
        ]
        remarks += [self.parameters_note] if self.parameters_note else []
        if lacking:
            remarks.append(
                f"In {lacking} of {heads} heads, a factor does not have full column rank, so the metrics are not "
                "defined there. Freeze these heads."
            )
        gram = int((conditions > GRAM_LIMIT).sum())
        if gram:
            remarks.append(
                f"In {gram} of {heads} heads, the condition number κ is above {GRAM_LIMIT:g}. For these heads, an "
                "implementation that uses the Gram matrices GᵀG and HᵀH may have no correct digit in the horizontal "
                "projection of inv in single precision."
            )
        damped = sum(int((pair.least_eigenvalue < 100.0 * DAMPING).sum()) for pair in self.pairs)
        if damped:
            remarks.append(
                f"In {damped} of {heads} heads, the relaxation (App. H.2 of the paper), which replaces GᵀG and HᵀH by "
                f"GᵀG + εI and HᵀH + εI, changes the metric by more than 1% in some direction if ε = {DAMPING:g}."
            )
        return remarks

    def rows(self, each_head: bool = False) -> Iterator[tuple[str, ...]]:
        """Yield the rows of the table: one for each head, or one for each pair.

        The row of a pair has the largest condition numbers and imbalance of its heads, and the ranges of the rest.
        """
        names = without_common_words([pair.name for pair in self.pairs])
        for pair in self.pairs:
            name = names[pair.name]
            sizes, ends = f"{pair.n}x{pair.m}x{pair.h}", (pair.singular_values[:, 0], pair.singular_values[:, -1])
            if each_head:
                columns = (pair.condition_G, pair.condition_H, *ends, pair.stable_rank, pair.imbalance)
                for head in range(pair.heads):
                    yield (f"{name}[{head}]", sizes, *(f"{column[head]:.2g}" for column in columns))
            else:
                largest = [f"{x.max():.2g}" for x in (pair.condition_G, pair.condition_H, pair.imbalance)]
                ranges = map(_range, (*ends, pair.stable_rank))
                yield name, f"{pair.heads}x{sizes}", *largest[:2], *ranges, largest[2]

    def table(self, each_head: bool = False) -> Any:
        """Return the numbers as a table of `rich`."""
        from rich.table import Table

        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        sizes = "n x m x h" if each_head else "heads x\nn x m x h"
        for i, title in enumerate(("pair", sizes, "κ(G)", "κ(H)", "σ₁", "σₕ", "stable\nrank", "imbalance")):
            table.add_column(title, justify="left" if i == 0 else "right", no_wrap=True)
        for row in self.rows(each_head):
            table.add_row(*row)
        return table

    def __str__(self) -> str:
        return as_text(self.table(), *self.remarks)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: all numbers of every head."""
        return {
            "layout": self.layout, "parameters": self.parameters, "redundant": self.redundant,
            "pairs": [pair.to_dict() for pair in self.pairs],
        }  # fmt: skip

    def plot(self, axes: Any = None) -> Any:
        """Plot condition numbers and stable ranks of all heads, in their order, with matplotlib, and return both axes.

        Parameters
        ----------
        axes : pair of matplotlib axes, optional
            Default: the axes of a new figure.
        """
        axes = make_axes(axes, 2, (7.0, 4.8))
        kinds = list(dict.fromkeys(pair.name.rpartition(".")[2] for pair in self.pairs))
        for k, kind in enumerate(kinds):
            pairs = [pair for pair in self.pairs if pair.name.rpartition(".")[2] == kind]
            x = np.concatenate([i + np.linspace(-0.3, 0.3, pair.heads) for i, pair in enumerate(pairs)])
            colour = f"C{k}"
            for values, marker, factor in (("condition_G", "o", "G"), ("condition_H", "x", "H")):
                y = np.concatenate([getattr(pair, values) for pair in pairs])
                axes[0].plot(x, y, marker, ms=3.5, color=colour, label=f"{kind}, κ({factor})", alpha=0.8)
            axes[1].plot(x, np.concatenate([pair.stable_rank for pair in pairs]), "o", ms=3.5, color=colour)
        axes[0].set(yscale="log", ylabel="condition number")
        axes[0].yaxis.set_minor_formatter("{x:g}")
        axes[0].yaxis.set_major_formatter("{x:g}")
        axes[0].legend(frameon=False, ncols=2, fontsize="small")
        axes[1].set(ylim=(0, None), ylabel="stable rank of G Hᵀ", xlabel="layer (its heads from left to right)")
        return axes


def _to_lists(values: Array) -> Any:
    """Turn an array into nested lists, with None for infinite numbers, which JSON does not have."""
    return np.where(np.isfinite(values), values, None).tolist()  # type: ignore[call-overload]


def _range(values: Array) -> str:
    """Format the range of values."""
    low, high = f"{values.min():.2g}", f"{values.max():.2g}"
    return low if low == high else f"{low}–{high}"


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a key to sort names by, so that layer 2 comes before layer 10.

    Examples
    --------
    >>> sorted(["layer.10.w", "layer.2.w"], key=natural_key)
    ['layer.2.w', 'layer.10.w']
    """
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


def _orbit(n: int, m: int, h: int) -> int:
    """Return the dimension of the orbit of GL(h), which excludes all K with G K = 0 and H Kᵀ = 0."""
    return h * h - max(0, h - n) * max(0, h - m)


def summarise(
    layout: str, parameters: int, pairs: Mapping[str, Pair], rotary: Set[str], biased: Set[str], note: str = ""
) -> NetworkSummary:
    """Measure all pairs of a network.

    Parameters
    ----------
    layout : str
    parameters : int
        The number of parameters of the network.
    pairs : mapping of str to Pair
    rotary, biased : set of str
        Names of the pairs with rotary positions, and of those with redundant biases.
    note : str
        A remark on which tensors count as parameters.

    Raises
    ------
    ValueError
        There are no pairs.
    """
    if not pairs:
        raise ValueError("network: expected at least one pair of factors, got none")
    orbits = {name: pair.sizes[2] if name in rotary else _orbit(*pair.sizes) for name, pair in pairs.items()}
    measured = tuple(PairSummary.of(name, pairs[name], orbits[name]) for name in sorted(pairs, key=natural_key))
    biases = sum(pair.heads * pair.h for pair in measured if pair.name in biased)
    return NetworkSummary(layout, parameters, measured, biases, note)
