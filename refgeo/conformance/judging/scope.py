"""The scope of a verdict: the sizes and circumstances that decisive evidence covers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from refgeo.conformance.judging.evidence import Evidence
from refgeo.conformance.points.covering_design import NARROW, Level, levels_visible_alone, size_levels, visible_levels
from refgeo.conformance.points.features import Features
from refgeo.conformance.protocol.call import Event


def count_noun(number: float, noun: str) -> str:
    """Write a number with a noun, which gets its plural.

    Examples
    --------
    >>> count_noun(1.2, "digit"), count_noun(8.7, "digit")
    ('1 digit', '9 digits')
    """
    return f"{number:.0f} {noun}" + ("" if round(number) == 1 else "s")


Size = tuple[int, int, int, int, float]
"""h, n, m, the number of blocks, and κ."""
_COMMON = ("met", "circumstances", "special", "visible")
"""Fields of a scope that several scopes can have in common."""
_KINDS = ("h", "n", "m", "blocks", "κ")
_MAX_CONDITIONS = (2.0, 10.0, 50.0, 200.0, 500.0, 2000.0, 3e4, math.inf)
_MAX_BLOCKS = (1, 5, 16, 64)
"""The largest values of κ, and of the number of blocks, of each level. The number of blocks has a further level for
each number above the last; chosen, so that most neighbouring levels differ by a factor of two to five."""


@dataclass(frozen=True)
class Scope:
    """The sizes and circumstances that decisive evidence covers.

    Attributes
    ----------
    met : frozenset of (int, int, int, int, float)
        h, n, m, the number of blocks, and κ (0 for update rules and searches, whose evidence has none).
    circumstances : frozenset of (str, int, bool)
        The circumstances of decisive evidence, in words, each with h, and whether there were several blocks.
    functions : frozenset of str
        The functions that were watched, for a rule of conduct.
    special : frozenset of (Level, bool, bool)
        The special levels, such as G = H, that decisive evidence covers at generated points where they are visible in
        the value; each with whether h > 16, and whether there were several blocks.
    visible : frozenset of Level
        The special levels that can be visible in the value.
    """

    met: frozenset[Size] = frozenset()
    circumstances: frozenset[tuple[str, int, bool]] = frozenset()
    functions: frozenset[str] = frozenset()
    special: frozenset[tuple[Level, bool, bool]] = frozenset()
    visible: frozenset[Level] = frozenset()

    @classmethod
    def of(cls, kind: str, evidence: Iterable[Evidence], value: str = "") -> Scope:
        """Make the scope of the evidence on a check of this kind, and of a value."""
        decisive = [e for e in evidence if e.decisive and e.event in (Event.RESULT, Event.BROKEN)]
        sized, has_condition = [e for e in decisive if e.sizes], kind in ("value", "law")
        return cls(
            frozenset(_size(e, has_condition) for e in sized),
            frozenset((e.circumstance, e.sizes[2], e.sizes[3] > 1) for e in sized if e.circumstance),
            frozenset(e.subject for e in decisive if kind == "contract"),
            frozenset(
                (level, f.h > NARROW, math.prod(f.blocks) > 1)
                for f in map(Features.parse, dict.fromkeys(e.case for e in sized))
                if f is not None for level in visible_levels(f).get(value, ())
            ),
            levels_visible_alone(value),
        )  # fmt: skip

    @classmethod
    def intersection(cls, scopes: Sequence[Scope]) -> Scope:
        """Make the scope that all scopes have in common; it is empty if there are none."""
        if not scopes:
            return cls()
        return cls(**{name: frozenset.intersection(*(getattr(scope, name) for scope in scopes)) for name in _COMMON})

    @property
    def covered_pairs(self) -> tuple[int, int]:
        """The number of pairs of size levels that were tested together, and that of all feasible pairs of them."""
        labels = [sorted(_levels(size)) for size in self.met]
        covered = {pair for levels in labels for pair in itertools.combinations(levels, 2)}
        pairs = itertools.combinations(sorted(set().union(*labels)), 2)
        feasible = (pair for pair in pairs if pair[0][0] != pair[1][0] and _is_feasible(*pair))
        return len(covered), len(covered.union(feasible))

    @property
    def summary(self) -> str:
        """The ranges of the sizes, and how many pairs of size levels were tested together.

        Examples
        --------
        >>> Scope(frozenset((h, n, h, 1, 3.0) for h in (2, 3, 16) for n in (h, h + 5)) | {(3, 1500, 3, 1, 3.0)}).summary
        'h = 2 to 16 (3 values), n = 2 to 1500, m = 2 to 16, 1 block, κ = 3; 23 of 24 pairs of size levels together'
        """
        if not self.met:
            return ""
        kinds = [kind for kind in _KINDS if kind != "κ" or any(size[-1] for size in self.met)]
        ranges = ", ".join(self._range(kind) for kind in kinds)
        wide = {level for level, is_wide, _ in self.special if is_wide} & self.visible
        special = f"; {len(wide)} of {len(self.visible)} special levels with h > {NARROW}" if wide else ""
        return ranges + "; {} of {} pairs of size levels together".format(*self.covered_pairs) + special

    def __str__(self) -> str:
        return "; ".join([*filter(None, [self.summary]), *self._circumstances_in_words()])

    def _range(self, kind: str) -> str:
        """Write the smallest and the largest number of a kind, for h with the number of values if it has gaps."""
        numbers = sorted({size[_KINDS.index(kind)] for size in self.met})
        text = " to ".join(
            dict.fromkeys(f"{x:.0f}" if x == int(x) and x < 1e6 else f"{x:.3g}" for x in (numbers[0], numbers[-1]))
        )
        if kind == "blocks":
            return f"{text} block" + "s" * (numbers[-1] > 1)
        has_gaps = kind == "h" and len(numbers) <= numbers[-1] - numbers[0]
        return f"{kind} = {text}" + f" ({len(numbers)} values)" * has_gaps

    def _circumstances_in_words(self) -> Iterator[str]:
        """Describe the circumstances that were tested."""
        names = {name for name, *_ in self.circumstances}
        if names:
            wide = {name for name, h, _ in self.circumstances if h > NARROW}
            both = {name for name, h, is_batch in self.circumstances if h > NARROW and is_batch}
            yield (
                f"{count_noun(len(names), 'circumstance')}: {len(wide)} with h > {NARROW}, "
                f"{len(both)} with h > {NARROW} and several blocks"
            )


def _size(evidence: Evidence, has_condition: bool) -> Size:
    """Return the sizes of the call that evidence is about."""
    n, m, h, blocks = evidence.sizes
    return h, n, m, blocks, float(f"{evidence.condition:.2g}") if has_condition else 0.0


def _levels(size: Size) -> Iterator[Level]:
    """Yield the level of each kind of size."""
    h, n, m, blocks, kappa = size
    levels = size_levels(Features((), n, m, h))
    yield "h", levels["h"] or str(h)
    yield "n", levels["n"] or str(n)
    yield "m", "= h" if m == h else size_levels(Features((), m, n, h))["n"] or str(m)
    yield "blocks", str(next((i for i, largest in enumerate(_MAX_BLOCKS) if blocks <= largest), blocks))
    yield "κ", str(next(i for i, largest in enumerate(_MAX_CONDITIONS) if kappa <= largest))


def _is_feasible(x: Level, y: Level) -> bool:
    """Return whether two levels can occur together: a single column has κ = 1."""
    return ("h", "1") not in (x, y) or not any(kind == "κ" and level != "0" for kind, level in (x, y))
