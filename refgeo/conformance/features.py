"""The one vocabulary of numbers: what is drawn, what a test point is called, and what separates failing calls.

A test point is generated from its `Features`; its name says all that is not the usual. `design` chooses points so that
every two bands of sizes that can be meet in one, and that every rare level has one of its own, and others besides.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from operator import itemgetter
from typing import Any

import numpy as np

from refgeo.conformance.operations import Operation


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
        return not _CALLS.keys() & set(self.unusual) - {"t"}

    @property
    def is_usual(self) -> bool:
        """Whether it differs from others in its shape alone."""
        return set(self.unusual) <= {*_IN_SHAPE, "draw", "single"} and max(self.condition_G, self.condition_H) <= 3.0

    @property
    def is_empty(self) -> bool:
        """Whether vectors are zero, or parts of them, so that no call shows what else is special."""
        return bool({self.length, self.ratio, self.part} & {0.0, math.inf})

    @property
    def is_clear(self) -> bool:
        """Whether nothing hides what is wrong in a circumstance: usual vectors and times, and no large κ."""
        return self.is_plain and self.kappa <= 30.0 and 0.1 < abs(self.t) < 4.0

    @property
    def kappa(self) -> float:
        """The largest condition number of a factor."""
        return max(self.condition_G, self.condition_H, self.uneven_condition)

    @property
    def is_large(self) -> bool:
        """Whether it takes much memory, so that it is made again rather than kept."""
        return self.cost > 4000

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
            and not (self.shared == "rows" and (self.turn < 1.0 or self.identity or self.zero_rows or self.alike))
            and not (blocks < 2 and self.shared in ("G", "H", "all"))
            and not (self.h < 2 and (self.gap != 0.05 or 0.0 < self.turn < 1.0))
            and not (self.zero_rows and min(self.n, self.m) - self.zero_rows < self.h)
            and not (blocks < 2 and (self.uneven != 1.0 or self.uneven_condition != 1.0 or self.empty_blocks))
            and not (self.h == 1 and max(self.condition_G, self.condition_H) > 3.0)
            and not (self.kappa > 3.0 and (self.turn < 1.0 or self.balance or self.normed or self.shared == "rows"))
            and not (self.alike and self.condition_G != self.condition_H)
            and not (self.speed is not None and (self.is_empty or self.sparse or self.empty_rows or self.empty_blocks))
        )

    def fits(self, dtype: str, largest: float) -> bool:
        """Whether its numbers, and the products of six of them, are within the range of a dtype."""
        of_point = 6.0 * max(abs(math.log(size)) for size in (self.size_G, self.size_H, self.uneven))
        lengths = [x for x in (self.length, self.ratio, self.length * self.ratio) if 0.0 < x < math.inf]
        of_vectors = max(4.0 * (abs(math.log(x)) - 12.0) for x in lengths) if lengths else 0.0
        return max(of_point, of_vectors) <= math.log(largest) and not (self.single and dtype != "float64")

    @property
    def cost(self) -> int:
        """About what a call takes: the numbers of the larger factor, more for wide heads."""
        return int(math.prod(self.blocks) * max(self.n, self.m) * self.h * (1.0 + self.h / 64.0))

    def distance(self, other: Features) -> float:
        """In how many features two points differ, and how much the larger one costs."""
        return len(vars(self).items() ^ vars(other).items()) + abs(math.log(self.cost / other.cost))


_FIELDS: dict[str, Any] = {field.name: field.default for field in fields(Features)}
_SHARED = ("", "G", "H", "all", "rows")
_IN_SHAPE = {"blocks", "n", "m", "h", "condition_G", "condition_H"}
_CALLS = {
    **dict.fromkeys(("length", "part", "vertical", "radial", "sparse", "empty_rows", "empty_blocks"), "vectors"),
    **dict.fromkeys(("ratio", "same", "cosine"), "two vectors"), "slope": "loss", "speed": "curve", "t": "curve",
}  # fmt: skip
"""What calls have a feature; all others are of the point, which every call has."""


def _text(value: Any) -> str:
    """The shortest text that is read as this number."""
    if not isinstance(value, float):
        return str(value)
    return next((short for short in (f"{value:g}", f"{value:.12g}") if float(short) == value), repr(value))


Change = dict[str, Any]
Level = tuple[str, str]
"""A kind of feature, and one of its bands."""


def _bands(*changes: Change) -> dict[str, Change]:
    """Bands of one level each."""
    return {", ".join(f"{name}={_text(x)}" for name, x in change.items()): change for change in changes}


def _several(name: str, *levels: Any) -> list[Change]:
    return [{name: level} for level in levels]


def _together(names: str, *levels: tuple[Any, ...]) -> list[Change]:
    return [dict(zip(names.split(), level, strict=True)) for level in levels]


_TILES, _ODD, _NEAR = (128, 256, 384, 512, 768), (97, 129, 201, 301, 769), 9
SIZES: dict[str, dict[str, tuple[Any, ...]]] = {
    "h": {
        "1": (1,), "2 to 4": (2, 3, 4), "5 to 16": (5, 6, 7, 8, 10, 12, 16), "17 to 32": (17, 20, 24, 32),
        "33 to 63": (33, 40, 48, 63), "64": (64,), "65 to 96": (65, 80, 96),
    },
    "n": {"= h": (), "near h": (), "tiles": _TILES, "odd": _ODD},
    "m": {"= h": (), "= n": (), "near h": (), "tiles": _TILES, "odd": _ODD},
    "blocks": {
        "none": ((), (1,)), "one": ((2,), (3,), (5,)), "a dozen": ((8,), (12,), (16,)),
        "several": ((1, 2), (2, 3), (3, 1), (2, 3, 2), (1, 2, 1, 2)),
        "as many": (), "dozens": ((37,), (64,)),
    },
    "κ": {"1": (1.0,), "3": (3.0,), "30": (30.0,), "100": (100.0,)},
}  # fmt: skip
"""Sizes, by bands in which the seed draws: every two bands that can be are met together."""
LEVELS: dict[str, dict[str, Change]] = {
    "condition": _bands(*_together(
        "condition_G condition_H", (1.0, 100.0), (100.0, 1.0), (330.0, 330.0), (700.0, 3.0), (3.0, 700.0), (1e3, 1e3),
        (1e4, 1e4), (1e6, 1e6),
    ), {"uneven_condition": 2e3}),
    "point": _bands(
        *_several("balance", 1.0, 0.99999994), *_several("turn", 0.0, 6e-8), *_several("gap", 0.0, 1e-9),
        {"alike": 1}, *_several("identity", 1, 2, 3), {"normed": 1}, {"zero_rows": 1},
    ),
    "large": _bands(
        {"n": 1030}, {"n": 32801, "h": 2}, {"m": 1030}, *_several("blocks", (257,), (1100,)),
        {"n": 131, "m": 129, "h": 128},
        {"blocks": (12,), "n": 67, "m": 64, "h": 64, "condition_G": 30.0, "condition_H": 30.0},  # a layer of heads
    ),
    "shared": _bands(*_several("shared", "G", "H", "all", "rows")),
    "size": _bands(
        *_together(
            "size_G size_H", (1e6, 1e-6), (1e-6, 1e6), (1e6, 1e6), (1e-6, 1e-6), (1e-5, 1e-5), (1e-9, 1e-9), (1e3, 1.0),
        ),
        {"uneven": 1e6},
    ),
    "length": _bands(
        *_several("length", 0.0, 1e-9, 1e-13, 1e-30, 1e-60, 1e12), *_several("ratio", 0.0, math.inf),
        {"length": 1e4, "ratio": 1e-8}, *_several("slope", 0.0, 1e-8), {"speed": 7.9},
        {"radial": 0.9, "speed": 4.5, "t": -2.0},
    ),
    "angle": _bands(
        {"same": 1}, *_several("cosine", 1.0, -1.0, 0.0, 0.9999999999999, 1e-7),
        *_several("vertical", 0.0, 1.0, 1e-7, 1e-10, 0.99999997), {"radial": 1.0},
    ),
    "zeros": _bands(
        *_several("part", 0.0, math.inf, 1.5e-5), {"sparse": 0.7}, {"empty_rows": 1}, {"empty_blocks": 1},
    ),
    "t": _bands(*_several("t", -2.0, 2.5, 0.0, 1.0, -0.75, 1000.0, 0.3, 0.00390625, 1e-7)),
    "precision": _bands({"single": 1}),
}  # fmt: skip
"""What is rare, by kinds: every level alone, and with narrow and wide heads, one block and several."""
_RARE = [((kind, name), change.items()) for kind, bands in LEVELS.items() for name, change in bands.items()]
_AFFORDABLE, _LARGE, _CHEAP = 20_000, 110_000, 4_000
"""What a point may cost, also a large one; and so much as weighs as much as a point of its own."""
_TRIES, _FEW = 16, 4
"""How often a point is drawn; and among so many that meet a need the best one is taken."""
WIDE = 16
"""Columns of heads that are not wide."""
_WIDTHS = {"1": "1", "2 to 4": "2 to 16", "5 to 16": "2 to 16", "17 to 32": "17 to 32"}
"""What rare levels meet of h, unless every band is asked for."""
_ALONE = ("", "")
"""A place of its own, in which nothing else is rare."""
Pick = Callable[[Sequence[Any]], Any]
Need = tuple[Level, Level]
"""A rare level, and where it is to be met."""


def sizes_of(f: Features) -> dict[str, str]:
    """Of each kind of size the band; "" for a κ that is rare.

    Examples
    --------
    >>> sizes_of(Features((12,), 768, 65, 64, 30.0, 30.0))
    {'h': '64', 'n': 'tiles', 'm': 'near h', 'blocks': 'a dozen', 'κ': '30'}
    """

    def rows(count: int) -> str:
        of = {"= h": count == f.h, "tiles": count % 128 == 0, "near h": count <= f.h + _NEAR, "odd": count < 1000}
        return next((name for name, is_so in of.items() if is_so), "")

    count = math.prod(f.blocks)
    batch = {
        "none": f.blocks in ((), (1,)), "several": len(f.blocks) > 1, "as many": count in (f.h, f.n, f.m),
        "one": count <= 5, "a dozen": count <= 16, "dozens": count <= 64, "": True,
    }  # fmt: skip
    kappa = _text(f.condition_G) if f.condition_G == f.condition_H and f.uneven_condition == 1.0 else ""
    return {
        "h": next((name for name, values in SIZES["h"].items() if f.h <= values[-1]), ""),
        "n": rows(f.n), "m": "= n" if f.m == f.n != f.h else rows(f.m),
        "blocks": next(name for name, is_so in batch.items() if is_so),
        "κ": "1" if f.h == 1 else kappa if kappa in SIZES["κ"] else "",
    }  # fmt: skip


def levels_of(features: Features) -> set[Level]:
    """The bands of sizes, and the rare levels; of what was repaired away, none."""
    return {*sizes_of(features).items()} | _rare_of(features)


def _rare_of(features: Features) -> set[Level]:
    values = vars(features).items()
    return {level for level, change in _RARE if change <= values}


def applies(name: str, operation: Operation) -> bool:
    """Whether calls of an operation have a feature.

    Examples
    --------
    >>> from refgeo.conformance.operations import OPERATIONS
    >>> [applies(name, OPERATIONS["christoffel"]) for name in ("h", "cosine", "t")]
    [True, True, False]
    """
    return {
        "point": True,
        "vectors": operation.name != "riemannian_hessian",
        "two vectors": operation.sources == ("a", "b"),
        "curve": bool(operation.extra),
        "loss": operation.name == "riemannian_hessian",
    }[_CALLS.get(name, "point")]


def concerns(features: Features, operation: Operation) -> bool:
    """Whether anything that is rare of a point is so for an operation, or nothing is rare."""
    rare = _rare_of(features)
    return not rare or any(applies(name, operation) for kind, level in rare for name in LEVELS[kind][level])


def shown(features: Features) -> set[Level]:
    """The rare levels that no other one hides: one alone, and a time beside it."""
    rare = _rare_of(features)
    others = {one for one in rare if one[0] != "t"}
    return set() if len(others) > 1 else others if features.is_empty else rare


def in_bands(bands: Mapping[str, str], pick: Pick) -> Features | None:
    """A point in these bands of sizes, of which `pick` chooses one of several; None where there is none."""

    def rows(kind: str, h: int, n: int = 0) -> int:
        band = bands[kind]
        if band in ("= h", "= n"):
            return h if band == "= h" else n
        least = h if band == "tiles" else h + _NEAR
        several = range(h + 1, h + 1 + _NEAR) if band == "near h" else SIZES[kind][band]
        return int(pick([x for x in several if x != n and (x > least or band == "near h")] or [0]))

    h = pick(SIZES["h"][bands["h"]])
    n = rows("n", h)
    m = rows("m", h, n)
    blocks, k = pick(SIZES["blocks"][bands["blocks"]] or ((h,), (n,), (m,))), pick(SIZES["κ"][bands["κ"]])
    found = Features(blocks, n, m, h, k, k)
    is_dear = found.cost > _AFFORDABLE or (k > 30.0 and h > 32)  # where a result takes long to enclose
    return None if is_dear or not found.possible or sizes_of(found) != bands else found


def drawn_by(rng: np.random.Generator, some: Sequence[Any]) -> Any:
    """One of some.

    Examples
    --------
    >>> drawn_by(np.random.default_rng(0), ["a"])
    'a'
    """
    return some[int(rng.integers(len(some)))]


def _extremes(bands: Mapping[str, str]) -> list[Features]:
    """Points in these bands with the first choices, and with the last ones."""
    return [one for one in (in_bands(bands, itemgetter(i)) for i in (0, -1)) if one]


@cache
def _combinations() -> tuple[list[dict[str, str]], Any, Any, list[frozenset[Level]]]:
    """The choices of a band of each kind that can be, what they cost, their pairs by number, and these pairs."""
    found, costs, pairs, numbers = [], [], [], dict[frozenset[Level], int]()
    for names in itertools.product(*SIZES.values()):
        bands = dict(zip(SIZES, names, strict=True))
        extremes = [one.cost for one in _extremes(bands)]
        if extremes:
            found.append(bands)
            costs.append(min(extremes))
            pairs.append(
                [numbers.setdefault(frozenset(pair), len(numbers)) for pair in itertools.combinations(bands.items(), 2)]
            )
    return found, np.array(costs), np.array(pairs), [*numbers]


def apart(profile: str) -> list[tuple[Level, Level]]:
    """Every two bands that no point of a profile has together, as it cannot be or is too dear.

    Examples
    --------
    >>> (("h", "64"), ("blocks", "dozens")) in apart("full")
    True
    """
    kinds = itertools.combinations(SIZES, 2)
    every = (((a, x), (b, y)) for a, b in kinds for x in SIZES[a] for y in SIZES[b])
    large = (sizes_of(replace(Features(), **change)).items() for change in LEVELS["large"].values())
    met = {*_combinations()[3]} | {frozenset(pair) for one in large for pair in itertools.combinations(one, 2)}
    rare = [] if profile == "full" else [band for band in SIZES["h"] if not _group("h", band, is_full=False)]
    return [pair for pair in every if frozenset(pair) not in met] + [(("what is rare", "any"), ("h", x)) for x in rare]


def _paired(rng: np.random.Generator) -> Iterator[Features]:
    """Points in which every two bands of sizes meet that can; cheap ones first."""
    found, costs, pairs, every = _combinations()
    missing = np.ones(len(every), dtype=bool)
    weights = (1.0 + 0.3 * rng.random(len(found))) / (1.0 + costs / _CHEAP)
    while missing.any():
        best = int(np.argmax(missing[pairs].sum(axis=1) * weights))
        missing[pairs[best]] = False
        drawn = (in_bands(found[best], partial(drawn_by, rng)) for _ in range(_TRIES))
        some = (one for one in itertools.chain(drawn, _extremes(found[best])) if one)
        yield next(one for one in some if one.cost <= 3 * costs[best] + _CHEAP)


def _group(kind: str, band: str, is_full: bool) -> str:
    """Of the bands of a kind those that rare levels need not meet one by one."""
    if is_full:
        return band
    return _WIDTHS.get(band, "") if kind == "h" else band if band in ("none", "several") else "one"


def _needs_met(features: Features, is_full: bool) -> set[Need]:
    """The rare levels that are shown alone, and those that are met by narrow and wide heads, and by batches."""
    sizes, alone = sizes_of(features), shown(features)
    met = alone if features.is_empty or features.single else _rare_of(features)
    groups = [(kind, _group(kind, sizes[kind], is_full)) for kind in ("h", "blocks")]
    return {(one, _ALONE) for one in alone} | {*itertools.product(met, groups)}


def _rare(need: Need, others: Sequence[Level], is_full: bool, rng: np.random.Generator) -> Features | None:
    """A point that meets this need, with levels of other kinds besides, as far as they can be together."""
    pick = partial(drawn_by, rng)
    level, (kind, group) = need
    bands = {"h": pick(("2 to 4", "5 to 16")), "n": pick(("= h", "near h")), "m": "near h", "κ": "3"}
    bands["blocks"] = pick(("none", "one", "several"))
    if kind:
        bands[kind] = pick([band for band in SIZES[kind] if _group(kind, band, is_full) == group])
    bands |= {"κ": "1"} if bands["h"] == "1" else {}
    sizes = in_bands({kind: bands[kind] for kind in SIZES}, pick)
    rare, found = {level}, sizes and _with_levels(sizes, {level})
    if sizes is None or found is None or need not in _needs_met(found, is_full):
        return None
    by_kind = {one[0]: [other for other in others if other[0] == one[0] != level[0]] for one in others}
    for some in (by_kind[kind] for kind in map(str, rng.permutation([*by_kind])) if by_kind[kind]):
        more = rare | {pick(some)}
        trial = _with_levels(sizes, more)
        is_good = trial and not trial.is_empty and need in _needs_met(trial, is_full)
        rare, found = (more, trial) if is_good else (rare, found)
    return found


def _with_levels(sizes: Features, levels: set[Level]) -> Features | None:
    """A point with these rare levels; None where it cannot have them all."""
    found = repaired(replace(sizes, **merged(LEVELS[kind][name] for kind, name in levels)))
    limit = _LARGE if any(kind == "large" for kind, _ in levels) else _AFFORDABLE
    return found if found.possible and found.cost <= limit and levels <= _rare_of(found) else None


@cache
def design(profile: str, seed: int = 0) -> tuple[Features, ...]:
    """What a profile generates, simplest first: points in which every two bands of sizes meet; every rare level alone,
    and with narrow heads and wide ones, with one block and several; in full with every band of these.
    """
    rng, is_full = np.random.default_rng([seed, len(profile)]), profile == "full"
    chosen = dict.fromkeys(one for _ in range(3 if is_full else 1) for one in _paired(rng))
    kinds = {kind: [*dict.fromkeys(_group(kind, band, is_full) for band in SIZES[kind])] for kind in ("h", "blocks")}
    places = [_ALONE, *((kind, group) for kind, groups in kinds.items() for group in groups if group)]
    levels = [(kind, name) for kind in sorted(LEVELS, key=lambda kind: -len(LEVELS[kind])) for name in LEVELS[kind]]
    missing: list[Need] = [
        need for need in itertools.product(levels, places) if need[1] == _ALONE or need[0][0] != "large"
    ]
    while missing:
        need = missing[0]
        others = [level for level, place in missing if place == need[1] and (place != _ALONE or level[0] == "t")]
        drawn = (_rare(need, others, is_full, rng) for _ in range(_TRIES))
        met = {
            one: _needs_met(one, is_full).intersection(missing) for one in itertools.islice(filter(None, drawn), _FEW)
        }
        best = max(met, key=lambda one: len(met[one]) / (1.0 + one.cost / _CHEAP), default=None)
        chosen |= {best: None} if best else {}
        missing = [one for one in missing[1:] if best is None or one not in met[best]]
    return tuple(sorted(chosen, key=lambda one: (len(levels_of(one)), one.h == 1 or not one.is_usual, one.cost)))


def repaired(features: Features) -> Features:
    """With the shape that its other features need."""
    n, m, h, blocks = features.n, features.m, features.h, features.blocks
    n, m = h if features.identity == 1 else n, h if features.identity == 2 else m
    m = n if features.alike else m
    n, m = (max(rows, h + features.zero_rows) for rows in (n, m))
    needs_blocks = features.uneven != 1.0 or features.uneven_condition != 1.0 or features.empty_blocks
    needs_blocks = needs_blocks or features.shared in ("G", "H", "all")
    blocks = (3,) if needs_blocks and math.prod(blocks) < 2 else blocks
    usual: Change = {}
    if h == 1 or features.identity:
        usual = {"condition_G": 3.0, "condition_H": 3.0}
    if features.speed is not None:  # as far as can be enclosed, wherever that is
        names = ("size_G", "size_H", "uneven", "condition_G", "condition_H", *(["t"] if features.radial == 0.0 else []))
        usual = {name: _FIELDS[name] for name in names}
    return replace(features, n=n, m=m, blocks=blocks, **usual)


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
