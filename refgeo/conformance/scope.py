"""How wide a sentence may be: what was met decisively."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from refgeo.conformance.call import Event
from refgeo.conformance.evidence import Evidence


def counted(number: float, noun: str) -> str:
    """A number of things in words.

    Examples
    --------
    >>> counted(1.2, "digit"), counted(8.7, "digit")
    ('1 digit', '9 digits')
    """
    return f"{number:.0f} {noun}" + ("" if round(number) == 1 else "s")


@dataclass(frozen=True)
class Scope:
    """What was met decisively: how wide a sentence may be.

    Attributes
    ----------
    n, m, h, blocks : tuple of int
        From the least to the most.
    condition : tuple of float
        κ of the factors, from the least to the most; of update rules and searches it is not told.
    circumstances : tuple of str
        Those in which something decisive was asked, in words.
    functions : tuple of str
        Of a rule of conduct, those that were seen.
    """

    n: tuple[int, ...] = ()
    m: tuple[int, ...] = ()
    h: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    condition: tuple[float, ...] = ()
    circumstances: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()

    @classmethod
    def of(cls, kind: str, evidence: Iterable[Evidence]) -> Scope:
        """That of the evidence on a check."""
        told = [one for one in evidence if one.decisive and one.event in (Event.RESULT, Event.BROKEN)]
        sizes = zip(*(one.sizes for one in told if one.sizes), strict=True)
        ranges = dict(zip(("n", "m", "h", "blocks"), map(_range, sizes), strict=False))
        return cls(
            **ranges,
            condition=_range(one.condition for one in told if kind in ("value", "law")),
            circumstances=tuple(sorted({one.circumstance for one in told} - {""})),
            functions=tuple(sorted({one.about for one in told})) if kind == "contract" else (),
        )

    @classmethod
    def shared(cls, scopes: Sequence[Scope]) -> Scope:
        """What all of several scopes have."""
        ranges = {
            name: (max(values[0] for values in known), min(values[-1] for values in known))
            for name in ("n", "m", "h", "blocks", "condition")
            if all(known := [getattr(one, name) for one in scopes])
        }
        circumstances = set.intersection(*(set(one.circumstances) for one in scopes))
        return cls(**ranges, circumstances=tuple(sorted(circumstances)))

    def __str__(self) -> str:
        """In words.

        Examples
        --------
        >>> str(Scope((1, 40), (1, 36), (1, 17), (1, 3), (1.0, 1000.0)))
        'h = 1 to 17, n = 1 to 40, m = 1 to 36, κ = 1 to 1e+03, 1 to 3 blocks'
        """
        parts = [
            f"{name} = {_text(values)}"
            for name, values in (("h", self.h), ("n", self.n), ("m", self.m), ("κ", self.condition)) if values
        ]  # fmt: skip
        parts += [f"{_text(self.blocks)} block" + "s" * (self.blocks[-1] > 1)] if self.blocks else []
        parts += [f"in {counted(len(self.circumstances), 'circumstance')}"] if self.circumstances else []
        return ", ".join(parts)


def _range(values: Iterable[Any]) -> tuple[Any, ...]:
    found = list(values)
    return (min(found), max(found)) if found else ()


def _text(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{value:.3g}" if value > 99_999 or value != int(value) or isinstance(value, float)
                                     else str(value) for value in values))  # fmt: skip
