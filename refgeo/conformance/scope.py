"""How wide a sentence may be: what was met decisively."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from refgeo.conformance.call import Event
from refgeo.conformance.evidence import Evidence
from refgeo.conformance.features import NARROW, SIZE_LEVELS, Features, size_levels


def counted(number: float, noun: str) -> str:
    """A number of things in words.

    Examples
    --------
    >>> counted(1.2, "digit"), counted(8.7, "digit")
    ('1 digit', '9 digits')
    """
    return f"{number:.0f} {noun}" + ("" if round(number) == 1 else "s")


Size = tuple[int, int, int, int, float]
"""h, n, m, the number of blocks, and κ."""
Label = tuple[str, str]
"""A kind of size, and one of its bands."""
_KAPPAS = (2.0, 10.0, 50.0, 200.0, 500.0, 2000.0, 3e4, math.inf)
_COUNTS = (1, 5, 16, 64)


@dataclass(frozen=True)
class Scope:
    """What was met decisively: how wide a sentence may be.

    Attributes
    ----------
    met : frozenset of (int, int, int, int, float)
        h, n, m, the number of blocks, and κ (0 for update rules and searches, where it is not told).
    circumstances : frozenset of (str, int, bool)
        In words those in which something decisive was asked, with h, and whether of several blocks.
    functions : frozenset of str
        Of a rule of conduct, those that were seen.
    """

    met: frozenset[Size] = frozenset()
    circumstances: frozenset[tuple[str, int, bool]] = frozenset()
    functions: frozenset[str] = frozenset()

    @classmethod
    def of(cls, kind: str, evidence: Iterable[Evidence]) -> Scope:
        """That of the evidence on a check."""
        told = [one for one in evidence if one.decisive and one.event in (Event.RESULT, Event.BROKEN)]
        sized, has_kappa = [one for one in told if one.sizes], kind in ("value", "law")
        return cls(
            frozenset(_size(one, has_kappa) for one in sized),
            frozenset((one.circumstance, one.sizes[2], one.sizes[3] > 1) for one in sized if one.circumstance),
            frozenset(one.subject for one in told if kind == "contract"),
        )

    @classmethod
    def shared(cls, scopes: Sequence[Scope]) -> Scope:
        """What all of several scopes have; nothing, if there are none."""
        parts = [[getattr(one, name) for one in scopes] for name in ("met", "circumstances")]
        return cls(*(frozenset.intersection(*part) for part in parts)) if scopes else cls()

    @cached_property
    def labels(self) -> dict[Size, frozenset[Label]]:
        """Of each of them the bands."""
        return {size: frozenset(_labels(size)) for size in self.met}

    @cached_property
    def box(self) -> frozenset[Label]:
        """Bands of which every two were met together, but for what cannot be: those that miss most are left out."""
        met = {frozenset(pair) for some in self.labels.values() for pair in itertools.combinations(some, 2)}
        kept = set().union(*self.labels.values())
        while True:
            pairs = (pair for pair in itertools.combinations(sorted(kept), 2) if pair[0][0] != pair[1][0])
            missed = Counter(one for pair in pairs if frozenset(pair) not in met and _can_be(*pair) for one in pair)
            several = Counter(kind for kind, _ in kept)
            some = [one for one in missed if several[one[0]] > 1]
            if not some:
                return frozenset(kept) if not missed else max(self.labels.values(), key=sorted)
            kept.remove(max(some, key=lambda one: (missed[one], one[0] != "h", self._largest(one))))

    def _largest(self, label: Label) -> float:
        return max(_number(size, label[0]) for size, some in self.labels.items() if label in some)

    @property
    def summary(self) -> str:
        """State the ranges of sizes that were met together, and how many pairs of size bands if not all were.

        Examples
        --------
        >>> Scope(frozenset((h, n, h, 1, 3.0) for h in (2, 3, 16) for n in (h, h + 5)) | {(3, 1500, 3, 1, 3.0)}).summary
        'h = 2 to 16 (3 values), n = h to h + 5, m = h, 1 block, κ = 3, every two of these together; of all pairs of \
size bands, 23 of 24'
        """
        met = {pair for labels in self.labels.values() for pair in itertools.combinations(sorted(labels), 2)}
        pairs = itertools.combinations(sorted(set().union(*self.labels.values())), 2)
        every = met.union(pair for pair in pairs if pair[0][0] != pair[1][0] and _can_be(*pair))
        return self._ranges + f"; of all pairs of size bands, {len(met)} of {len(every)}" * (len(met) < len(every))

    @property
    def _ranges(self) -> str:
        kinds = [kind for kind in _KINDS if kind != "κ" or any(size[-1] for size in self.met)] if self.met else []
        together = ", every two of these together" * (bool(self.met) and len(self.box) > len(_KINDS))
        return ", ".join(map(self._range, kinds)) + together

    def __str__(self) -> str:
        """In words.

        Examples
        --------
        >>> print(Scope(frozenset((h, n, h, 1, 3.0) for h in (2, 3, 16) for n in (h, h + 5)) | {(3, 1500, 3, 1, 3.0)}))
        h = 2 to 16 (3 values), n = h to h + 5, m = h, 1 block, κ = 3, every two of these together; n = 1500 at h = 3
        """
        if not self.met:
            return ""
        others: list[str] = []
        beyond: dict[str, list[list[Size]]] = {}
        for label in sorted(set().union(*self.labels.values()) - self.box, key=self._largest):
            there = [size for size, some in self.labels.items() if label in some and some - {label} <= self.box]
            beyond.setdefault(label[0], []).extend([there] if there else [])
        for kind, several in beyond.items():
            there, other = [size for some in several for size in some], "h" if kind != "h" else "blocks"
            some_of = "some of " if len(several) > 1 and len({_number(one, other) for one in there}) > 1 else ""
            others += [f"{_numbers(kind, there)} at {some_of}{_numbers(other, there)}"] if there else []
        return "; ".join([self._ranges, *others, *self._in_circumstances()])

    def _range(self, kind: str) -> str:
        """From the least to what every band of h has met; rows beside h, where no band is far from it."""
        of = _KINDS[:-1] if kind == "h" else ("h", kind)
        inside = [size for size, some in self.labels.items() if {one for one in some if one[0] in of} <= self.box]
        if kind == "h":
            values = {size[0] for size in inside}
            is_sparse = len(values) <= max(values) - min(values)
            return _numbers("h", inside) + f" ({len(values)} values)" * is_sparse
        by_width: dict[str, list[float]] = {}
        beside = kind in "nm" and {band for one, band in self.box if one == kind} <= {"= h", "near h"}
        for size in inside if kind != "κ" else [one for one in inside if one[0] > 1] or inside:
            by_width.setdefault(dict(_labels(size))["h"], []).append(_number(size, kind) - beside * size[0])
        top = min(map(max, by_width.values()))
        if kind not in "nm":
            return _numbers(kind, [one for one in inside if _number(one, kind) <= top])
        if len({_number(size, kind) for size in inside}) == 1:
            return _numbers(kind, inside)
        least = min(_number(size, kind) - size[0] for size in inside)
        ends = [f"h + {least:.0f}" if least else "h", f"h + {top:.0f}" if beside and top else f"{top:.0f}"]
        return f"{kind} = " + " to ".join(ends[: 1 + (top > least * beside)])

    def _in_circumstances(self) -> Iterator[str]:
        words = {one[0] for one in self.circumstances}
        if words:
            wide = {word for word, h, _ in self.circumstances if h > NARROW}
            both = {word for word, h, is_batch in self.circumstances if h > NARROW and is_batch}
            yield (
                f"in {counted(len(words), 'circumstance')}, each at some of these sizes: {len(wide)} with "
                f"h > {NARROW}, {len(both)} with several blocks besides"
            )


def _size(one: Evidence, has_kappa: bool) -> Size:
    n, m, h, blocks = one.sizes
    return h, n, m, blocks, float(f"{one.condition:.2g}") if has_kappa else 0.0


def _number(size: Size, kind: str) -> float:
    return float(size[_KINDS.index(kind)])


_KINDS = ("h", "n", "m", "blocks", "κ")


def _labels(size: Size) -> Iterator[Label]:
    h, n, m, blocks, kappa = size
    bands = size_levels(Features((), n, m, h))
    yield "h", bands["h"] or str(h)
    yield "n", bands["n"] or str(n)
    yield "m", "= h" if m == h else size_levels(Features((), m, n, h))["n"] or str(m)
    yield "blocks", str(next((i for i, most in enumerate(_COUNTS) if blocks <= most), blocks))
    yield "κ", str(next(i for i, most in enumerate(_KAPPAS) if kappa <= most))


def _can_be(one: Label, other: Label) -> bool:
    """A single column has κ = 1."""
    labels = {one, other}
    return ("h", "1") not in labels or not any(kind == "κ" and band != "0" for kind, band in labels)


def _numbers(kind: str, sizes: Sequence[Size]) -> str:
    """Those of a kind, in words."""
    numbers = sorted({_number(size, kind) for size in sizes})
    text = _text([numbers[0], numbers[-1]])
    if kind == "blocks":
        return f"{text} block" + "s" * (numbers[-1] > 1)
    if kind != "h":
        return f"{kind} = {text}"
    bands = [*SIZE_LEVELS["h"], ""]
    indices = [bands.index(size_levels(Features((), int(h), int(h), int(h)))["h"]) for h in numbers]
    starts = [0, *(k for k in range(1, len(numbers)) if indices[k] - indices[k - 1] > 1), len(numbers)]
    return "h = " + " and ".join(_text([numbers[a], numbers[b - 1]]) for a, b in itertools.pairwise(starts))


def _text(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{x:.0f}" if x == int(x) and x < 1e6 else f"{x:.3g}" for x in values))
