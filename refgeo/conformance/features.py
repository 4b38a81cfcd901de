"""Features of a test point, and the covering design that generates the test points of a run.

A `Features` value records everything about a test point that an implementation might branch on, divide by, or lose
digits to. With a metric, a dtype and a seed it determines the point, and it round-trips through the point's name.

`covering_design` combines two notions of combinatorial testing, so that faults are met and do not mask each other:

- *Pairwise coverage* of sizes: every feasible pair of size levels, such as 64 columns and a dozen blocks, occurs in
  some point.
- *Base-choice coverage* of special levels, such as G = H: each occurs in a point without another special level, and
  again, possibly beside others, for narrow and wide heads, for single blocks and batches.
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
    """The features that define a test point.

    Field names are part of the names of test points, and are therefore stable.

    Attributes
    ----------
    blocks : tuple of int
        Batch shape, the leading dimensions of every array; () for a single block.
    n, m, h : int
        G is n×h, and H is m×h.
    condition_G, condition_H : float
        Approximate condition number of each factor.
    size_G, size_H : float
        Approximate largest singular value of each factor.
    gap : float
        Relative gap between neighbouring singular values; 0 makes them equal in pairs.
    turn : float
        Rotation of the singular vectors away from the coordinate axes; 0: each factor is a set of columns of a diagonal
        matrix.
    balance : float
        1: the Gram matrices S = GᵀG and T = HᵀH are equal.
    alike : int
        1: G = H.
    identity : int
        1: G = I, which needs n = h; 2: H = I, which needs m = h; 3: both are leading columns of identity matrices.
    normed : int
        1: every column of G and H has length 1.
    shared : str
        What the blocks of a batch have in common: "G", "H" or "all"; "rows": the last rows of G are the first of H.
    uneven, uneven_condition : float
        Size of the first block relative to the second, and condition number of the last block relative to the first.
    zero_rows : int
        Number of zero rows of each factor.
    length : float
        Length of the tangent vectors relative to the point; 0: all are zero.
    ratio : float
        Length of b relative to a; infinite: a is zero.
    part : float
        Size of a vector's G part relative to its H part; infinite: the H part is zero.
    same : int
        1: a and b are the same array object.
    cosine : float, optional
        Cosine of the angle between a and b; None: random.
    vertical : float, optional
        Vertical fraction of a vector; None: random.
    radial : float
        Fraction of a that points along θ; 1: all of it.
    sparse : float
        Fraction of the vectors' entries that are zero.
    empty_rows, empty_blocks : int
        Number of leading rows, or leading blocks, of the vectors that are zero.
    slope : float
        Length of the gradient of the loss whose Hessian is taken, relative to its usual length.
    t : float
        Time to which a geodesic is followed.
    speed : float, optional
        Length of the geodesic relative to the point; None: that of a random vector.
    single : int
        1: float32, whatever the dtype of the run.
    draw : int
        Index of the random numbers, to tell apart points with otherwise equal features.

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
        """Shape, condition numbers, and every other field that differs from its default."""
        first, second = _format(self.condition_G), _format(self.condition_H)
        shape = (f"{'.'.join(map(str, self.blocks))}-" if self.blocks else "") + f"{self.n}x{self.m}x{self.h}"
        settings = (f"{name}={_format(getattr(self, name))}" for name in self.non_default if name not in _PREFIX)
        return "/".join([shape, f"k{first}" if first == second else f"k{first},{second}", *settings])

    @classmethod
    def parse(cls, name: str) -> Features | None:
        """Invert `name`; None if the name is malformed or describes an infeasible point."""
        shape, *settings = name.split("/")
        match = re.fullmatch(r"(?:((?:\d+\.)*\d+)-)?(\d+)x(\d+)x(\d+)", shape)
        if not match:
            return None
        blocks = tuple(map(int, match[1].split("."))) if match[1] else ()
        values: dict[str, Any] = {"blocks": blocks, **dict(zip("nmh", map(int, match.groups()[1:]), strict=True))}
        try:
            for setting in settings:
                key, equals, text = setting.partition("=")
                if equals and key in _DEFAULTS and key not in _PREFIX:
                    values[key] = text if key == "shared" else ast.literal_eval(text.replace("inf", "2e308"))
                elif setting.startswith("k"):
                    kappas = [float(number) for number in setting[1:].split(",")]
                    values |= {"condition_G": kappas[0], "condition_H": kappas[-1]} if len(kappas) <= 2 else {"h": 0}
                else:
                    return None
        except (ValueError, SyntaxError):
            return None
        features = cls(**values)
        return features if features.is_feasible else None

    @property
    def non_default(self) -> list[str]:
        """Names of the fields that differ from their defaults."""
        return [name for name, default in _DEFAULTS.items() if getattr(self, name) != default]

    @property
    def has_generic_vectors(self) -> bool:
        """Whether the vectors are random and nonzero."""
        return not _INPUT_DESCRIBED.keys() & set(self.non_default) - {"t"}

    @property
    def is_generic(self) -> bool:
        """Whether nothing but the shape is special: random factors with condition number at most 3, random vectors."""
        return set(self.non_default) <= {*_PREFIX, "draw", "single"} and max(self.condition_G, self.condition_H) <= 3.0

    @property
    def has_zero_vectors(self) -> bool:
        """Whether a vector, or its G or H part, vanishes, which masks every other special level."""
        return bool({self.length, self.ratio, self.part} & {0.0, math.inf})

    @property
    def is_sensitive(self) -> bool:
        """Whether a fault in a call would show: generic vectors, a moderate t, and no large condition number."""
        return self.has_generic_vectors and self.max_condition <= 30.0 and 0.1 < abs(self.t) < 4.0

    @property
    def max_condition(self) -> float:
        """The largest condition number of a factor in any block."""
        return max(self.condition_G, self.condition_H, self.uneven_condition)

    @property
    def is_large(self) -> bool:
        """Whether the point takes so much memory that it is rebuilt whenever it is needed, and not cached."""
        return self.cost > 4000

    @property
    def is_feasible(self) -> bool:
        """Whether a test point with these features exists."""
        count, kappa = math.prod(self.blocks), self.max_condition
        has_zeros = self.has_zero_vectors or self.sparse or self.empty_rows or self.empty_blocks
        return (
            0 < self.h <= min(self.n, self.m)
            and min(self.blocks, default=1) > 0
            and min(self.condition_G, self.condition_H) >= 1.0
            and not (self.alike and self.n != self.m)
            and not (self.identity == 1 and self.n != self.h)
            and not (self.identity == 2 and self.m != self.h)
            and self.shared in _SHARED
            and not (self.shared == "rows" and (self.turn < 1.0 or self.identity or self.zero_rows or self.alike))
            and not (count < 2 and self.shared in ("G", "H", "all"))
            and not (self.h < 2 and (self.gap != 0.05 or 0.0 < self.turn < 1.0))
            and not (self.zero_rows and min(self.n, self.m) - self.zero_rows < self.h)
            and not (count < 2 and (self.uneven != 1.0 or self.uneven_condition != 1.0 or self.empty_blocks))
            and not (self.h == 1 and max(self.condition_G, self.condition_H) > 3.0)
            and not (kappa > 3.0 and (self.turn < 1.0 or self.balance or self.normed or self.shared == "rows"))
            and not (self.alike and self.condition_G != self.condition_H)
            and not (self.speed is not None and has_zeros)
        )

    def is_in_range(self, dtype: str, largest: float) -> bool:
        """Whether the numbers of the point, and products of six of them, neither overflow nor underflow in a dtype."""
        factors = 6.0 * max(abs(math.log(size)) for size in (self.size_G, self.size_H, self.uneven))
        lengths = [x for x in (self.length, self.ratio, self.length * self.ratio) if 0.0 < x < math.inf]
        vectors = max(4.0 * (abs(math.log(x)) - 12.0) for x in lengths) if lengths else 0.0
        return max(factors, vectors) <= math.log(largest) and not (self.single and dtype != "float64")

    @property
    def cost(self) -> int:
        """Approximate cost of a call: the number of entries of the larger factor, weighted up for wide heads."""
        return int(math.prod(self.blocks) * max(self.n, self.m) * self.h * (1.0 + self.h / 64.0))

    def distance(self, other: Features) -> float:
        """How unlike two points are: the number of differing fields, plus the logarithm of the ratio of costs."""
        return len(vars(self).items() ^ vars(other).items()) + abs(math.log(self.cost / other.cost))


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Features)}
_SHARED = ("", "G", "H", "all", "rows")
_PREFIX = {"blocks", "n", "m", "h", "condition_G", "condition_H"}
"""Fields that always appear at the beginning of a name."""
_INPUT_DESCRIBED = {
    **dict.fromkeys(("length", "part", "vertical", "radial", "sparse", "empty_rows", "empty_blocks"), "vectors"),
    **dict.fromkeys(("ratio", "same", "cosine"), "two vectors"), "slope": "loss", "speed": "curve", "t": "curve",
}  # fmt: skip
"""The input of a call that a field describes. All other fields describe the base point, an input of every call."""


def _format(value: Any) -> str:
    """The shortest text that parses back to the same value."""
    if not isinstance(value, float):
        return str(value)
    return next((text for text in (f"{value:g}", f"{value:.12g}") if float(text) == value), repr(value))


# Levels --------------------------------------------------------------------------------------------------------------

Overrides = dict[str, Any]
"""Values of some fields of `Features`."""
Level = tuple[str, str]
"""A kind of level, and the name of one level of this kind."""


def _levels(*overrides: Overrides) -> dict[str, Overrides]:
    """Name each level after the fields that it sets."""
    return {", ".join(f"{name}={_format(x)}" for name, x in level.items()): level for level in overrides}


def _values(name: str, *values: Any) -> list[Overrides]:
    return [{name: value} for value in values]


def _joint(names: str, *values: tuple[Any, ...]) -> list[Overrides]:
    return [dict(zip(names.split(), value, strict=True)) for value in values]


_TILES, _ODD, _MAX_EXCESS = (128, 256, 384, 512, 768), (97, 129, 201, 301, 769), 9
SIZE_LEVELS: dict[str, dict[str, tuple[Any, ...]]] = {
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
"""Size levels of each kind: a named range, with the values from which the seed draws; rows may depend on h instead."""
SPECIAL_LEVELS: dict[str, dict[str, Overrides]] = {
    "condition": _levels(*_joint(
        "condition_G condition_H", (1.0, 100.0), (100.0, 1.0), (330.0, 330.0), (700.0, 3.0), (3.0, 700.0), (1e3, 1e3),
        (1e4, 1e4), (1e6, 1e6),
    ), {"uneven_condition": 2e3}),
    "point": _levels(
        *_values("balance", 1.0, 0.99999994), *_values("turn", 0.0, 6e-8), *_values("gap", 0.0, 1e-9),
        {"alike": 1}, *_values("identity", 1, 2, 3), {"normed": 1}, {"zero_rows": 1},
    ),
    "large": _levels(
        {"n": 1030}, {"n": 32801, "h": 2}, {"m": 1030}, *_values("blocks", (257,), (1100,)),
        {"n": 131, "m": 129, "h": 128},
        {"blocks": (12,), "n": 67, "m": 64, "h": 64, "condition_G": 30.0, "condition_H": 30.0},  # a layer of heads
    ),
    "shared": _levels(*_values("shared", "G", "H", "all", "rows")),
    "size": _levels(
        *_joint(
            "size_G size_H", (1e6, 1e-6), (1e-6, 1e6), (1e6, 1e6), (1e-6, 1e-6), (1e-5, 1e-5), (1e-9, 1e-9), (1e3, 1.0),
        ),
        {"uneven": 1e6},
    ),
    "length": _levels(
        *_values("length", 0.0, 1e-9, 1e-13, 1e-30, 1e-60, 1e12), *_values("ratio", 0.0, math.inf),
        {"length": 1e4, "ratio": 1e-8}, *_values("slope", 0.0, 1e-8), {"speed": 7.9},
        {"radial": 0.9, "speed": 4.5, "t": -2.0},
    ),
    "angle": _levels(
        {"same": 1}, *_values("cosine", 1.0, -1.0, 0.0, 0.9999999999999, 1e-7),
        *_values("vertical", 0.0, 1.0, 1e-7, 1e-10, 0.99999997), {"radial": 1.0},
    ),
    "zeros": _levels(
        *_values("part", 0.0, math.inf, 1.5e-5), {"sparse": 0.7}, {"empty_rows": 1}, {"empty_blocks": 1},
    ),
    "t": _levels(*_values("t", -2.0, 2.5, 0.0, 1.0, -0.75, 1000.0, 0.3, 0.00390625, 1e-7)),
    "precision": _levels({"single": 1}),
}  # fmt: skip
"""Special levels of each kind, and the fields that each of them sets."""
_SPECIAL = [((kind, name), level.items()) for kind, levels in SPECIAL_LEVELS.items() for name, level in levels.items()]
NARROW = 16
"""Number of columns above which a head is wide."""
_QUICK_WIDTHS = {"1": "1", "2 to 4": "2 to 16", "5 to 16": "2 to 16", "17 to 32": "17 to 32"}
"""Groups of levels of h in which the quick profile must meet each special level."""


def size_levels(features: Features) -> dict[str, str]:
    """The size level of each kind; "" where a value belongs to none, such as a special condition number.

    Examples
    --------
    >>> size_levels(Features((12,), 768, 65, 64, 30.0, 30.0))
    {'h': '64', 'n': 'tiles', 'm': 'near h', 'blocks': 'a dozen', 'κ': '30'}
    """
    h, n, m = features.h, features.n, features.m

    def rows(count: int) -> str:
        levels = {"= h": count == h, "tiles": count % 128 == 0, "near h": count <= h + _MAX_EXCESS, "odd": count < 1000}
        return next((name for name, applies in levels.items() if applies), "")

    count = math.prod(features.blocks)
    batch = {
        "none": features.blocks in ((), (1,)), "several": len(features.blocks) > 1, "as many": count in (h, n, m),
        "one": count <= 5, "a dozen": count <= 16, "dozens": count <= 64, "": True,
    }  # fmt: skip
    is_even = features.condition_G == features.condition_H and features.uneven_condition == 1.0
    kappa = _format(features.condition_G) if is_even else ""
    return {
        "h": next((name for name, values in SIZE_LEVELS["h"].items() if h <= values[-1]), ""),
        "n": rows(n), "m": "= n" if m == n != h else rows(m),
        "blocks": next(name for name, applies in batch.items() if applies),
        "κ": "1" if h == 1 else kappa if kappa in SIZE_LEVELS["κ"] else "",
    }  # fmt: skip


def all_levels(features: Features) -> set[Level]:
    """The size levels and the special levels of a point; special levels that `repair` has undone are not among them."""
    return {*size_levels(features).items()} | _find_special_levels(features)


def _find_special_levels(features: Features) -> set[Level]:
    values = vars(features).items()
    return {level for level, overrides in _SPECIAL if overrides <= values}


def visible_levels(features: Features) -> set[Level]:
    """The special levels whose effect is visible: a single one, or one beside a special t."""
    special = _find_special_levels(features)
    others = {level for level in special if level[0] != "t"}
    return set() if len(others) > 1 else others if features.has_zero_vectors else special


def affects(name: str, operation: Operation) -> bool:
    """Whether a feature describes an input of an operation.

    Examples
    --------
    >>> from refgeo.conformance.operations import OPERATIONS
    >>> [affects(name, OPERATIONS["christoffel"]) for name in ("h", "cosine", "t")]
    [True, True, False]
    """
    return {
        "point": True,
        "vectors": operation.name != "riemannian_hessian",
        "two vectors": operation.sources == ("a", "b"),
        "curve": bool(operation.extra),
        "loss": operation.name == "riemannian_hessian",
    }[_INPUT_DESCRIBED.get(name, "point")]


def is_informative(features: Features, operation: Operation) -> bool:
    """Whether a point tests an operation in a way of its own: it has no special level, or one that affects it."""
    special = [name for kind, level in _find_special_levels(features) for name in SPECIAL_LEVELS[kind][level]]
    return not special or any(affects(name, operation) for name in special)


# Pairwise coverage of sizes ------------------------------------------------------------------------------------------

_MAX_COST, _MAX_LARGE_COST = 20_000, 110_000
"""Bounds for `Features.cost`, in general and for the kind "large"."""
_COST_SCALE = 4_000
"""Cost at which a point must cover twice as much to be preferred to a point without cost."""
_MAX_DRAWS, _MAX_CANDIDATES = 16, 4
"""Number of attempts to draw a point; and of successful ones among which the best is taken."""
Choose = Callable[[Sequence[Any]], Any]
"""Chooses one element of a sequence."""


def instantiate(levels: Mapping[str, str], choose: Choose) -> Features | None:
    """Make a point with the given size levels; None if there is none, or if it is too expensive."""

    def rows(kind: str, h: int, n: int = 0) -> int:
        level = levels[kind]
        if level in ("= h", "= n"):
            return h if level == "= h" else n
        least = h if level == "tiles" else h + _MAX_EXCESS
        counts = range(h + 1, h + 1 + _MAX_EXCESS) if level == "near h" else SIZE_LEVELS[kind][level]
        return int(choose([x for x in counts if x != n and (x > least or level == "near h")] or [0]))

    h = choose(SIZE_LEVELS["h"][levels["h"]])
    n = rows("n", h)
    m = rows("m", h, n)
    blocks = choose(SIZE_LEVELS["blocks"][levels["blocks"]] or ((h,), (n,), (m,)))
    kappa = choose(SIZE_LEVELS["κ"][levels["κ"]])
    point = Features(blocks, n, m, h, kappa, kappa)
    is_expensive = point.cost > _MAX_COST or (kappa > 30.0 and h > 32)  # the latter take long to enclose
    return None if is_expensive or not point.is_feasible or size_levels(point) != levels else point


def random_choice(rng: np.random.Generator, options: Sequence[Any]) -> Any:
    """Choose an element uniformly; unlike `Generator.choice`, without making an array of the options.

    Examples
    --------
    >>> random_choice(np.random.default_rng(0), ["a"])
    'a'
    """
    return options[int(rng.integers(len(options)))]


def _extreme_points(levels: Mapping[str, str]) -> list[Features]:
    """The points with the first, and with the last, value of every size level."""
    return [point for point in (instantiate(levels, itemgetter(i)) for i in (0, -1)) if point]


@cache
def _feasible_combinations() -> tuple[list[dict[str, str]], Any, Any, list[frozenset[Level]]]:
    """All feasible combinations of one size level of each kind; for each its cost, and the indices of the pairs of
    levels that it contains; and the list of all pairs.
    """
    combinations, costs, pairs, indices = [], [], [], dict[frozenset[Level], int]()
    for names in itertools.product(*SIZE_LEVELS.values()):
        levels = dict(zip(SIZE_LEVELS, names, strict=True))
        points = _extreme_points(levels)
        if points:
            combinations.append(levels)
            costs.append(min(point.cost for point in points))
            contained = map(frozenset, itertools.combinations(levels.items(), 2))
            pairs.append([indices.setdefault(pair, len(indices)) for pair in contained])
    return combinations, np.array(costs), np.array(pairs), [*indices]


def infeasible_pairs(profile: str) -> list[tuple[Level, Level]]:
    """The pairs of levels that no point of a profile contains, as none exists or all are too expensive.

    Examples
    --------
    >>> (("h", "64"), ("blocks", "dozens")) in infeasible_pairs("full")
    True
    """
    kinds = itertools.combinations(SIZE_LEVELS, 2)
    pairs = (((a, x), (b, y)) for a, b in kinds for x in SIZE_LEVELS[a] for y in SIZE_LEVELS[b])
    large = (size_levels(replace(Features(), **level)).items() for level in SPECIAL_LEVELS["large"].values())
    covered = {*_feasible_combinations()[3]}
    covered |= {frozenset(pair) for levels in large for pair in itertools.combinations(levels, 2)}
    widths = [] if profile == "full" else [name for name in SIZE_LEVELS["h"] if not _group("h", name, is_full=False)]
    return [x for x in pairs if frozenset(x) not in covered] + [(("what is rare", "any"), ("h", x)) for x in widths]


def _pairwise_covering_array(rng: np.random.Generator) -> Iterator[Features]:
    """Points that contain every feasible pair of size levels.

    Greedy, as in AETG: each point is the one that covers most uncovered pairs, divided by its cost and perturbed at
    random.
    """
    combinations, costs, pairs, every_pair = _feasible_combinations()
    uncovered = np.ones(len(every_pair), dtype=bool)
    weights = (1.0 + 0.3 * rng.random(len(combinations))) / (1.0 + costs / _COST_SCALE)
    while uncovered.any():
        best = int(np.argmax(uncovered[pairs].sum(axis=1) * weights))
        uncovered[pairs[best]] = False
        draws = (instantiate(combinations[best], partial(random_choice, rng)) for _ in range(_MAX_DRAWS))
        points = (point for point in itertools.chain(draws, _extreme_points(combinations[best])) if point)
        yield next(point for point in points if point.cost <= 3 * costs[best] + _COST_SCALE)


# Base-choice coverage of special levels ------------------------------------------------------------------------------

Goal = tuple[Level, Level]
"""A coverage goal: a special level, and where it must occur (`_ISOLATED`, or a kind of size and a `_group`)."""
_ISOLATED = ("", "")
"""In a point without another special level."""


def _group(kind: str, level: str, is_full: bool) -> str:
    """The group of size levels that a level is in; special levels must occur once in every group but "".

    In the full profile every level is a group of its own.
    """
    if is_full:
        return level
    return _QUICK_WIDTHS.get(level, "") if kind == "h" else level if level in ("none", "several") else "one"


def _goals_met(features: Features, is_full: bool) -> set[Goal]:
    """The coverage goals that a point meets."""
    sizes, unmasked = size_levels(features), visible_levels(features)
    visible = unmasked if features.has_zero_vectors or features.single else _find_special_levels(features)
    groups = [(kind, _group(kind, sizes[kind], is_full)) for kind in ("h", "blocks")]
    return {(level, _ISOLATED) for level in unmasked} | {*itertools.product(visible, groups)}


def _draw_point(goal: Goal, others: Sequence[Level], is_full: bool, rng: np.random.Generator) -> Features | None:
    """Draw a point that meets a goal, and add other special levels, at most one of each kind, while it does.

    None if the sizes that are drawn admit no such point.
    """
    choose = partial(random_choice, rng)
    level, (kind, group) = goal
    sizes = {"h": choose(("2 to 4", "5 to 16")), "n": choose(("= h", "near h")), "m": "near h", "κ": "3"}
    sizes["blocks"] = choose(("none", "one", "several"))
    if kind:
        sizes[kind] = choose([name for name in SIZE_LEVELS[kind] if _group(kind, name, is_full) == group])
    sizes |= {"κ": "1"} if sizes["h"] == "1" else {}
    base = instantiate({kind: sizes[kind] for kind in SIZE_LEVELS}, choose)
    levels, point = {level}, base and _apply(base, {level})
    if base is None or point is None or goal not in _goals_met(point, is_full):
        return None
    by_kind = {kind: [x for x in others if x[0] == kind != level[0]] for kind, _ in others}
    for candidates in (by_kind[kind] for kind in map(str, rng.permutation([*by_kind])) if by_kind[kind]):
        more = levels | {choose(candidates)}
        extended = _apply(base, more)
        if extended and not extended.has_zero_vectors and goal in _goals_met(extended, is_full):
            levels, point = more, extended
    return point


def _apply(sizes: Features, levels: set[Level]) -> Features | None:
    """Apply special levels to a point with nothing special; None if they contradict each other, or cost too much."""
    overrides = {name: value for kind, level in levels for name, value in SPECIAL_LEVELS[kind][level].items()}
    point = repair(replace(sizes, **overrides))
    limit = _MAX_LARGE_COST if any(kind == "large" for kind, _ in levels) else _MAX_COST
    return point if point.is_feasible and point.cost <= limit and levels <= _find_special_levels(point) else None


def repair(features: Features) -> Features:
    """Change the fields that contradict a special level: rows, blocks and condition numbers give way to it."""
    n, m, h, blocks = features.n, features.m, features.h, features.blocks
    n, m = h if features.identity == 1 else n, h if features.identity == 2 else m
    m = n if features.alike else m
    n, m = (max(rows, h + features.zero_rows) for rows in (n, m))
    is_uneven = (features.uneven, features.uneven_condition) != (1.0, 1.0)
    needs_batch = is_uneven or features.empty_blocks or features.shared in ("G", "H", "all")
    blocks = (3,) if needs_batch and math.prod(blocks) < 2 else blocks
    overrides: Overrides = {}
    if h == 1 or features.identity:
        overrides = {"condition_G": 3.0, "condition_H": 3.0}
    if features.speed is not None:  # long geodesics can be enclosed at well-conditioned points only
        names = ("size_G", "size_H", "uneven", "condition_G", "condition_H", *(["t"] if features.radial == 0.0 else []))
        overrides = {name: _DEFAULTS[name] for name in names}
    return replace(features, n=n, m=m, blocks=blocks, **overrides)


@cache
def covering_design(profile: str, seed: int = 0) -> tuple[Features, ...]:
    """The generated test points of a profile, simplest first.

    They contain a pairwise covering array of the sizes (three for the full profile), and points for special levels:
    each of these meets the first unmet goal, and is of a few random ones that do the one that meets most others for its
    cost. A goal for which no point can be drawn is dropped.
    """
    rng, is_full = np.random.default_rng([seed, len(profile)]), profile == "full"
    points = dict.fromkeys(point for _ in range(3 if is_full else 1) for point in _pairwise_covering_array(rng))
    groups = ((kind, _group(kind, name, is_full)) for kind in ("h", "blocks") for name in SIZE_LEVELS[kind])
    places = [_ISOLATED, *(group for group in dict.fromkeys(groups) if group[1])]
    special = [(kind, x) for kind, names in sorted(SPECIAL_LEVELS.items(), key=lambda x: -len(x[1])) for x in names]
    unmet: list[Goal] = [x for x in itertools.product(special, places) if x[1] == _ISOLATED or x[0][0] != "large"]
    while unmet:
        goal = unmet[0]
        others = [level for level, place in unmet if place == goal[1] and (place != _ISOLATED or level[0] == "t")]
        draws = (_draw_point(goal, others, is_full, rng) for _ in range(_MAX_DRAWS))
        candidates = itertools.islice(filter(None, draws), _MAX_CANDIDATES)
        met = {point: _goals_met(point, is_full).intersection(unmet) for point in candidates}
        best = max(met, key=lambda point: len(met[point]) / (1.0 + point.cost / _COST_SCALE), default=None)
        points |= {best: None} if best else {}
        unmet = [goal for goal in unmet[1:] if best is None or goal not in met[best]]
    return tuple(sorted(points, key=lambda f: (len(all_levels(f)), f.h == 1 or not f.is_generic, f.cost)))


# Distribution of other factors over the points -----------------------------------------------------------------------


def distribute(points: Sequence[Sequence[Level]], items: Iterable[tuple[Any, Sequence[int]]]) -> list[list[Any]]:
    """Assign each item to a point, so that equal items meet many different levels, and no point has many items.

    Greedy: an item goes to the point whose levels it has met least often so far.

    Parameters
    ----------
    points : sequence of sequence of Level
        The levels of each point.
    items : iterable of (item, sequence of int)
        The items in order, each with the indices of the points that admit it. Repeat an item to assign it again, to
        another point.

    Returns
    -------
    list of list
        The items of each point.

    Examples
    --------
    >>> distribute([[("h", 1)], [("h", 2)]], [("a", [0, 1]), ("b", [0, 1]), ("a", [0, 1])])
    [['a'], ['b', 'a']]
    """
    assigned: list[list[Any]] = [[] for _ in points]
    meetings: Counter[Any] = Counter()
    for item, admissible in items:

        def novelty(i: int, item: Any = item) -> float:
            novel = sum(1.0 / (1 + meetings[item, level]) for level in points[i])
            return novel / max(len(points[i]), 1) - 0.3 * len(assigned[i])

        candidates = [i for i in admissible if item not in assigned[i]]
        if candidates:
            best = max(candidates, key=novelty)
            assigned[best].append(item)
            meetings.update((item, level) for level in points[best])
    return assigned
