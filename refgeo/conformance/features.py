"""The one vocabulary of numbers: what is drawn, what a test point is called, and what separates failing calls.

A test point is generated from its `Features`; its name says all that is not the usual. `design` chooses points so that
every level of every feature occurs, and as many pairs of levels as there is room for.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

COUNTS = {"quick": 80, "full": 300}
"""Points of a profile, for a metric."""
_LARGEST = 70_000
"""Numbers of a factor of a point that is large in several features."""
_ODD = 3
"""In at most so many features a point is unusual."""


@dataclass(frozen=True)
class Features:
    """What code branches on or divides by.

    Attributes
    ----------
    blocks : tuple of int
        Leading dimensions.
    n, m, h : int
    condition_G, condition_H, size_G, size_H : float
        Of each factor the condition number, and the largest singular value, about.
    gap : float
        Relative, between neighbouring singular values; 0: they are equal in pairs.
    turn : float
        Of the singular vectors away from the axes; 0: the factors are columns of a diagonal matrix.
    balance : float
        1: S = T.
    alike : int
        1: G = H.
    identity : int
        1: G = I, for n = h; 2: H = I, for m = h; 3: G and H are the first columns of identities.
    normed : int
        1: all columns of G and H have length 1.
    shared : str
        What blocks have in common: "G", "H", or "all"; "rows": the last rows of G are the first ones of H.
    uneven, uneven_condition : float
        How many times as large the first block is as the second, and as ill-conditioned the last one as the first.
    zero_rows : int
        Of the factors.
    length : float
        Of the vectors, beside the point; 0: all are zero.
    ratio : float
        Of the length of b to that of a; infinite: a is zero.
    part : float
        Of the size of a vector's G part to that of its H part; infinite: the H part is zero.
    same : int
        1: a and b are one array.
    cosine : float, optional
        Of the angle between a and b; None: as drawn.
    vertical : float, optional
        The share of a vector that is vertical; None: as drawn.
    radial : float
        1: a points along θ; less: so much of it does.
    sparse : float
        The share of the vectors' entries that are zero.
    empty_rows, empty_blocks : int
        The first rows, or blocks, of the vectors that are zero.
    slope : float
        How long the gradient of the Hessian's loss is, beside its usual length.
    t : float
    speed : float, optional
        How far, relatively, the geodesic goes; None: as drawn.
    single : int
        1: in float32, whatever the run is in.
    draw : int
        Points that are alike but for their random numbers.

    Examples
    --------
    >>> Features((2, 3), 6, 7, 2, part=0.0, t=-2.0).name
    '2.3-6x7x2/k3/part=0/t=-2'
    >>> Features.parse("2.3-6x7x2/k1,10000").condition_H
    10000.0
    """

    blocks: tuple[int, ...] = ()
    n: int = 5
    m: int = 4
    h: int = 3
    condition_G: float = 3.0
    condition_H: float = 3.0
    size_G: float = 1.0
    size_H: float = 1.0
    gap: float = 0.05
    turn: float = 1.0
    balance: float = 0.0
    alike: int = 0
    identity: int = 0
    normed: int = 0
    shared: str = ""
    uneven: float = 1.0
    uneven_condition: float = 1.0
    zero_rows: int = 0
    length: float = 1.0
    ratio: float = 1.0
    part: float = 1.0
    same: int = 0
    cosine: float | None = None
    vertical: float | None = None
    radial: float = 0.0
    sparse: float = 0.0
    empty_rows: int = 0
    empty_blocks: int = 0
    slope: float = 1.0
    t: float = 0.75
    speed: float | None = None
    single: int = 0
    draw: int = 0

    @property
    def name(self) -> str:
        """The shape, the conditioning, and what is unusual."""
        first, second = _text(self.condition_G), _text(self.condition_H)
        shape = (f"{'.'.join(map(str, self.blocks))}-" if self.blocks else "") + f"{self.n}x{self.m}x{self.h}"
        others = (name for name in self.unusual if name not in _IN_SHAPE)
        words = (f"{name}={_text(getattr(self, name))}" for name in others)
        return "/".join([shape, f"k{first}" if first == second else f"k{first},{second}", *words])

    @classmethod
    def parse(cls, name: str) -> Features | None:
        """The features of a name; None if it is none."""
        shape, *words = name.split("/")
        found = re.fullmatch(r"(?:((?:\d+\.)*\d+)-)?(\d+)x(\d+)x(\d+)", shape)
        if not found:
            return None
        blocks = tuple(map(int, found[1].split("."))) if found[1] else ()
        changes: dict[str, Any] = {"blocks": blocks, **dict(zip("nmh", map(int, found.groups()[1:]), strict=True))}
        try:
            for word in words:
                key, separator, value = word.partition("=")
                if separator and key in _FIELDS and key not in _IN_SHAPE:
                    changes[key] = value if key == "shared" else ast.literal_eval(value.replace("inf", "2e308"))
                elif word.startswith("k"):
                    values = [float(x) for x in word[1:].split(",")]
                    changes |= {"condition_G": values[0], "condition_H": values[-1]} if len(values) <= 2 else {"h": 0}
                else:
                    return None
        except (ValueError, SyntaxError):
            return None
        features = cls(**changes)
        return features if features.possible else None

    @property
    def unusual(self) -> list[str]:
        """The features in which it is not the usual."""
        return [name for name, usual in _FIELDS.items() if getattr(self, name) != usual]

    @property
    def is_plain(self) -> bool:
        """Whether its vectors are random and not zero."""
        return not _OF_VECTORS & set(self.unusual)

    @property
    def is_usual(self) -> bool:
        """Whether it differs from others in its shape alone."""
        return set(self.unusual) <= {*_IN_SHAPE, "draw", "single"} and max(self.condition_G, self.condition_H) <= 3.0

    @property
    def is_clear(self) -> bool:
        """Whether nothing hides what is wrong there: well conditioned, with generic vectors, at a usual time."""
        others = {*self.unusual} - {*_IN_SHAPE, "draw", "single", "shared", "t"}
        return not others and max(self.condition_G, self.condition_H) <= 3.0 and 0.1 < abs(self.t) < 4.0

    @property
    def is_large(self) -> bool:
        """Whether a call takes its time there."""
        return self.cost > 3000 or math.prod(self.blocks) > 20

    @property
    def possible(self) -> bool:
        """Whether such a point exists."""
        blocks = math.prod(self.blocks)
        return (
            0 < self.h <= min(self.n, self.m)
            and min(self.blocks, default=1) > 0
            and min(self.condition_G, self.condition_H) >= 1.0
            and not (self.alike and self.n != self.m)
            and not (self.identity == 1 and self.n != self.h)
            and not (self.identity == 2 and self.m != self.h)
            and self.shared in _SHARED
            and not (self.shared == "rows" and (self.turn < 1.0 or self.identity or self.zero_rows))
            and not (blocks < 2 and self.shared in ("G", "H", "all"))
            and not (self.h < 2 and (self.gap != 0.05 or 0.0 < self.turn < 1.0))
            and not (self.zero_rows and min(self.n, self.m) - self.zero_rows < self.h)
            and not (blocks < 2 and (self.uneven != 1.0 or self.uneven_condition != 1.0 or self.empty_blocks))
            and not (self.h == 1 and max(self.condition_G, self.condition_H) > 3.0)
        )

    def fits(self, dtype: str, largest: float) -> bool:
        """Whether its numbers, and the products of six of them, are within the range of a dtype."""
        of_point = 6.0 * max(abs(math.log(size)) for size in (self.size_G, self.size_H, self.uneven))
        lengths = [x for x in (self.length, self.ratio, self.length * self.ratio) if 0.0 < x < math.inf]
        of_vectors = max(4.0 * (abs(math.log(x)) - 12.0) for x in lengths) if lengths else 0.0
        return max(of_point, of_vectors) <= math.log(largest) and not (self.single and dtype != "float64")

    @property
    def cost(self) -> int:
        """Numbers of the larger factor."""
        return math.prod(self.blocks) * max(self.n, self.m) * self.h


_FIELDS: dict[str, Any] = {field.name: field.default for field in fields(Features)}
_SHARED = ("", "G", "H", "all", "rows")
_IN_SHAPE = {"blocks", "n", "m", "h", "condition_G", "condition_H"}
_OF_VECTORS = {
    "length", "ratio", "part", "same", "cosine", "vertical", "radial", "sparse", "empty_rows", "empty_blocks", "slope",
    "speed",
}  # fmt: skip


def _text(value: Any) -> str:
    """The shortest text that is read as this number."""
    if not isinstance(value, float):
        return str(value)
    return next((short for short in (f"{value:g}", f"{value:.12g}") if float(short) == value), repr(value))


Change = dict[str, Any]


def _several(name: str, *levels: Any) -> list[Change]:
    return [{name: level} for level in levels]


def _together(names: str, *levels: tuple[Any, ...]) -> list[Change]:
    return [dict(zip(names.split(), level, strict=True)) for level in levels]


LEVELS: dict[str, list[Change]] = {
    "blocks": _several(
        "blocks", (), (1,), (2,), (3,), (5,), (2, 3), (3, 1), (2, 3, 2), (1, 2, 1, 2), (12,), (37,), (64,), (257,),
        (1100,),
    ),
    "shape": _together(
        "n m h", (5, 4, 3), (1, 1, 1), (7, 4, 1), (1, 5, 1), (5, 4, 2), (2, 2, 2), (6, 6, 3), (3, 8, 3), (8, 3, 3),
        (10, 9, 4), (4, 4, 4), (6, 7, 5), (9, 8, 7), (24, 9, 8), (12, 11, 9), (40, 36, 16), (20, 19, 17), (70, 68, 3),
        (769, 64, 6), (5, 1030, 2), (32801, 3, 2), (300, 290, 20), (34, 40, 32), (66, 64, 64), (67, 66, 65),
        (131, 129, 128),
    ),
    "condition": _together(
        "condition_G condition_H", (3.0, 3.0), (1.0, 1.0), (30.0, 30.0), (1.0, 100.0), (100.0, 1.0), (120.0, 120.0),
        (330.0, 330.0), (700.0, 3.0), (3.0, 700.0), (1e3, 1e3), (1e4, 1e4), (1e6, 1e6),
    ),
    "point": [
        {}, *_several("balance", 1.0, 0.99999994), *_several("turn", 0.0, 6e-8), *_several("gap", 0.0, 1e-9),
        {"alike": 1}, *_several("identity", 1, 2, 3), {"normed": 1},
        {"uneven_condition": 2e3}, {"zero_rows": 1},
    ],
    "shared": _several("shared", *_SHARED),
    "size": [
        {},
        *_together(
            "size_G size_H", (1e6, 1e-6), (1e-6, 1e6), (1e6, 1e6), (1e-6, 1e-6), (1e-5, 1e-5), (1e-9, 1e-9), (1e3, 1.0),
        ),
        {"uneven": 1e6}, {"length": 1e4, "ratio": 1e-8},
    ],
    "vectors": [
        {}, *_several("length", 0.0, 1e-9, 1e-13, 1e-30, 1e-60, 1e12), *_several("ratio", 0.0, math.inf),
        *_several("part", 0.0, math.inf, 1.5e-5), {"same": 1},
        *_several("cosine", 1.0, -1.0, 0.0, 0.9999999999999, 1e-7),
        *_several("vertical", 0.0, 1.0, 1e-7, 1e-10, 0.99999997), {"radial": 1.0}, {"sparse": 0.7}, {"empty_rows": 1},
        {"empty_blocks": 1}, *_several("slope", 0.0, 1e-8), {"speed": 7.9},
    ],
    "t": _several("t", 0.75, -2.0, 2.5, 0.0, 1.0, -0.75, 1000.0, 0.3, 0.00390625, 1e-7),
}  # fmt: skip
"""What each kind of feature can be; the first level is the usual one."""
_OFTEN = (0.2, 0.3, 0.1, 0.1, 0.05, 0.1, 0.1, 0.05)
"""How often a kind is unusual beside others: shapes are what most code branches on."""
_HIDING = {"condition", "point", "size", "vectors"}
"""Of these one hides another: at zero vectors no point shows what it has, and scaled factors are not balanced."""
_PLAIN = (
    ((), 5, 4, 2), ((3,), 5, 4, 3), ((), 7, 4, 1), ((2, 3), 6, 7, 2), ((20,), 1, 1, 1), ((), 10, 9, 4), ((), 4, 4, 4),
    ((), 6, 6, 3),
)  # fmt: skip
_SINGLE = (((), 5, 4, 3), ((3,), 7, 4, 1), ((2,), 9, 8, 7), ((), 5, 4, 2))
_MET = (
    Features((5,)), Features((4,)), Features((4,), 4, 4, 4), Features((2,), h=2), Features(speed=7.9),
    Features((2,), 7, 4, 1, speed=7.9), Features((), 7, 4, 1, radial=0.9, speed=4.5, t=-2.0),
    Features((3,), 4, 5, 1, radial=0.9, speed=7.0, t=-2.0), Features(h=2, size_G=1e-9, size_H=1e-9),
    Features((3,), 7, 4, 1, size_G=1e-9, size_H=1e-9, t=2.5), Features((2,), 4, 5, 1, size_G=1e-5, size_H=1e-5, t=-2.0),
    Features((3,), h=2, size_G=1e-5, size_H=1e-5),
)  # fmt: skip
"""What is met together in any case: as many blocks as rows or columns, long ways, also inwards, small factors."""
Level = tuple[str, int]
"""A kind of feature, and which of its levels."""


def repaired(features: Features) -> Features:
    """With the shape that its other features need."""
    if features.h >= 8 and (features.condition_G, features.condition_H) == (3.0, 3.0):
        features = replace(features, condition_G=1.0, condition_H=1.0)  # where rounding hides least of what is lost
    if features.h == 1 and max(features.condition_G, features.condition_H) > 3.0:
        features = replace(features, condition_G=3.0, condition_H=3.0)
    if features.speed is not None:  # as far as can be enclosed, wherever that is
        usual = {name: _FIELDS[name] for name in ("t", "size_G", "size_H", "uneven", "condition_G", "condition_H")}
        features = replace(features, **usual)
    if features.alike and features.n != features.m:
        features = replace(features, n=6, m=6, h=3)
    if features.identity:
        n, m, h = features.n, features.m, features.h
        fits = h == {1: n, 2: m, 3: h}[features.identity]
        n, m, h = (n, m, h) if fits else {1: (3, 5, 3), 2: (6, 4, 4)}[features.identity]
        features = replace(features, n=n, m=m, h=h, condition_G=3.0, condition_H=3.0)
    needs_blocks = features.uneven != 1.0 or features.uneven_condition != 1.0 or features.empty_blocks
    needs_blocks = needs_blocks or features.shared in ("G", "H", "all")
    return replace(features, blocks=(3,)) if needs_blocks and math.prod(features.blocks) < 2 else features


_NAMES = {kind: sorted({name for level in levels for name in level}) for kind, levels in LEVELS.items()}
_INDEX = {
    kind: {tuple((_FIELDS | level)[name] for name in _NAMES[kind]): i for i, level in reversed([*enumerate(levels)])}
    for kind, levels in LEVELS.items()
}


def levels_of(features: Features) -> dict[str, int]:
    """Of each kind the level that it has; of what was repaired away, the usual one."""
    return {kind: _INDEX[kind].get(tuple(getattr(features, name) for name in _NAMES[kind]), 0) for kind in LEVELS}


def shown(features: Features) -> set[Level]:
    """The levels that no other one hides, and the kinds of shapes with the kinds of batches."""
    found = levels_of(features)
    hidden = _HIDING if sum(found[kind] > 0 for kind in _HIDING) > 1 else set()
    both = {(_BOTH, i) for i, pair in enumerate(_PAIRS) if _kinds_of(features) == pair}
    return {one for one in found.items() if one[0] not in hidden} | both


def _kinds_of(features: Features) -> tuple[int, str]:
    """How many leading dimensions there are, of three, and which sizes are equal, or small."""
    n, m, h = features.n, features.m, features.h
    kind = "h = 1" if h == 1 else "n = m = h" if n == m == h else "n = m" if n == m else "n = h" if n == h else ""
    return min(len(features.blocks), 3), kind or ("m = h" if m == h else "h ≥ 7" if h >= 7 else "")


_BOTH = "batch and shape"
_PAIRS = list(itertools.product((1, 2, 3), ("h = 1", "n = m = h", "n = m", "n = h", "m = h", "h ≥ 7")))
_BATCHES: dict[int, tuple[int, ...]] = {1: (3,), 2: (2, 3), 3: (2, 1, 2)}
_SHAPES: dict[str, tuple[int, int, int]] = {
    "h = 1": (7, 4, 1), "n = m = h": (4, 4, 4), "n = m": (6, 6, 3), "n = h": (3, 8, 3), "m = h": (8, 3, 3),
    "h ≥ 7": (9, 8, 7),
}  # fmt: skip
"""What code branches on most is met together: a few of each kind."""


@cache
def design(profile: str, seed: int = 0) -> tuple[Features, ...]:
    """What a profile generates, simplest first: every level where it shows, and as many pairs as there is room for."""
    rng = np.random.default_rng([seed, COUNTS[profile]])
    alone = [repaired(replace(Features(), **level)) for levels in LEVELS.values() for level in levels]
    missing = {one for features in alone for one in shown(features)} | {(_BOTH, i) for i in range(len(_PAIRS))}
    plain = [*(Features(*shape) for shape in _PLAIN), *_MET]
    missing -= {one for features in plain for one in shown(features)}
    single = [repaired(replace(Features(*shape), single=1)) for shape in _SINGLE]
    single.append(Features(ratio=math.inf, single=1))
    chosen: list[Features] = []
    covered: set[tuple[Level, Level]] = set()
    while len(plain) + len(chosen) + len(single) < COUNTS[profile] or missing:
        drawn = [_drawn(rng, sorted(missing)) for _ in range(24)]
        drawn = [one for one in drawn if one.possible and one not in (*plain, *chosen) and _is_affordable(one)]
        if not drawn:
            continue
        best = max(drawn, key=lambda one: _news(one, missing, covered))
        chosen.append(best)
        missing -= shown(best)
        covered |= set(itertools.combinations(sorted(levels_of(best).items()), 2))
    return (*plain, *sorted(chosen, key=lambda one: (len(one.unusual), one.cost)), *single)


def _news(features: Features, missing: set[Level], covered: set[tuple[Level, Level]]) -> float:
    odd = sorted(one for one in levels_of(features).items() if one[1])
    return 10.0 * len(missing & shown(features)) + len(set(itertools.combinations(odd, 2)) - covered)


def _drawn(rng: np.random.Generator, missing: list[Level]) -> Features:
    """Unusual in a few kinds; in one of them as nothing before, if there is something left."""
    changes: dict[str, Change] = {}
    if missing:
        kind, i = missing[rng.integers(len(missing))]
        if kind == _BOTH:
            batch, shape = _PAIRS[i]
            changes["blocks"] = {"blocks": _BATCHES[batch]}
            changes["shape"] = dict(zip("nmh", _SHAPES[shape], strict=True))
        else:
            changes[kind] = LEVELS[kind][i]
    for kind in map(str, rng.choice(list(LEVELS), rng.integers(1, _ODD + 1), replace=False, p=_OFTEN)):
        changes.setdefault(kind, LEVELS[kind][rng.integers(len(LEVELS[kind]))])
    return repaired(replace(Features(), **merged(changes.values())))


def merged(changes: Iterable[Change]) -> Change:
    """Several changes as one."""
    return {name: value for change in changes for name, value in change.items()}


def spread(points: Sequence[Sequence[Level]], items: Iterable[tuple[Any, Sequence[int]]]) -> list[list[Any]]:
    """To each point some of the items, so that each of them meets most levels that it has not met, and no point many.

    Parameters
    ----------
    points : sequence of sequence of Level
    items : iterable of (item, sequence of int)
        In their order, with the points that can have them; one that comes twice goes to two points.

    Examples
    --------
    >>> spread([[("h", 1)], [("h", 2)]], [("a", [0, 1]), ("b", [0, 1]), ("a", [0, 1])])
    [['a'], ['b', 'a']]
    """
    found: list[list[Any]] = [[] for _ in points]
    met: Counter[Any] = Counter()
    for item, possible in items:

        def newness(i: int, item: Any = item) -> float:
            news = sum(1.0 / (1 + met[item, level]) for level in points[i])
            return news / max(len(points[i]), 1) - 0.3 * len(found[i])

        some = [i for i in possible if item not in found[i]]
        if some:
            chosen = max(some, key=newness)
            found[chosen].append(item)
            met.update((item, level) for level in points[chosen])
    return found


def _is_affordable(features: Features) -> bool:
    """Large in one feature alone, and at most ill-conditioned besides: what is hard to judge is judged for itself."""
    count, odd = math.prod(features.blocks), sum(i > 0 for i in levels_of(features).values())
    large = features.cost > 5000 or features.h > 16
    hard = max(features.condition_G, features.condition_H) > 300.0
    return (
        features.cost <= _LARGEST
        and odd <= (2 if large or hard else _ODD)
        and not (large and hard)
        and not (count > 40 and (max(features.n, features.m) > 8 or odd > 2))
        and not (count > 300 and features.h > 2)
    )
