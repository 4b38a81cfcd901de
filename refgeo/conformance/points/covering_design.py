"""The covering design that generates the test points of a run.

It combines two notions of combinatorial testing, so that faults are met and do not mask each other:

- *Pairwise coverage* of sizes: every feasible pair of size levels, such as 64 columns and a dozen blocks, occurs in
  some point.
- *Each-choice coverage* of special levels, such as G = H: for every value, each occurs with narrow and wide heads, with
  single blocks and batches, in a point in which it is visible: neither rounding nor another level masks it there
  (`visible_levels`).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from operator import itemgetter
from typing import Any

import numpy as np

from refgeo.conformance.points.features import Features, Overrides, affects, format_value, repair
from refgeo.conformance.points.visibility import DETERMINING_FIELDS, estimate_rounding_errors, find_visible
from refgeo.conformance.protocol.operations import JUDGED_VALUES, VALUES
from refgeo.support.records import with_fields

Level = tuple[str, str]
"""A kind of level, and the name of one level of this kind."""


def _levels(*overrides: Overrides) -> dict[str, Overrides]:
    """Name each level after the fields that it sets."""
    return {", ".join(f"{name}={format_value(x)}" for name, x in level.items()): level for level in overrides}


def _values(name: str, *values: Any) -> list[Overrides]:
    """Return a level for each value of one feature."""
    return [{name: value} for value in values]


def _joint(names: str, *values: tuple[Any, ...]) -> list[Overrides]:
    """Return a level for each combination of values of several features."""
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
        "none": ((), (1,)), "one": ((2,), (3,), (5,), (1, 2), (3, 1)), "a dozen": ((8,), (12,), (16,)),
        "several": ((2, 2), (2, 3), (2, 3, 2), (1, 2, 1, 2)),
        "as many": (), "dozens": ((37,), (64,)),
    },
    "κ": {"1": (1.0,), "3": (3.0,), "30": (30.0,), "100": (100.0,)},
}  # fmt: skip
"""Size levels of each kind: a named range, with the values from which the seed draws; rows may depend on h instead."""
SPECIAL_LEVELS: dict[str, dict[str, Overrides]] = {
    "condition": _levels(*_joint(
        "condition_G condition_H", (1.0, 100.0), (100.0, 1.0), (330.0, 330.0), (700.0, 3.0), (3.0, 700.0), (1e3, 1e3),
        (1e4, 1e4), (1e6, 1e6)
    ), {"uneven_condition": 2e3}),
    "point": _levels(
        {"balance": 1.0}, {"turn": 0.0}, {"gap": 0.0}, {"alike": 1}, *_values("identity", 1, 2, 3), {"normed": 1},
        {"zero_rows": 1}
    ),
    "nearly": _levels(
        {"balance": 0.99999994}, {"turn": 6e-8}, {"gap": 1e-9}, *_values("cosine", 0.9999999999999, 1e-7),
        *_values("vertical", 1e-7, 1e-10, 0.99999997)
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
        {"same": 1}, *_values("cosine", 1.0, -1.0, 0.0), *_values("vertical", 0.0, 1.0), {"radial": 1.0}
    ),
    "zeros": _levels(
        *_values("part", 0.0, math.inf, 1.5e-5), {"sparse": 0.7}, {"empty_rows": 1}, {"empty_blocks": 1},
    ),
    "t": _levels(*_values("t", -2.0, 2.5, 0.0, 1.0, -0.75, 1000.0, 0.3, 0.00390625, 1e-7)),
    "precision": _levels({"single": 1}),
}  # fmt: skip
"""Special levels of each kind, and the fields that each of them sets. A point has at most one level of each kind."""
_SPECIAL = [((k, name), {*level.items()}) for k, levels in SPECIAL_LEVELS.items() for name, level in levels.items()]
_ALL_SPECIAL = {level for level, _ in _SPECIAL}
_MAGNITUDES = ("condition", "nearly", "size", "length", "t")
"""Kinds whose levels differ in magnitude only: each level occurs once, and any of them in every group of sizes."""
NARROW = 16
"""Number of columns above which a head is wide."""
_QUICK_WIDTHS = {"1": "1", "2 to 4": "2 to 16", "5 to 16": "2 to 16", "17 to 32": "17 to 32"}
"""Groups of levels of h in which the quick profile must meet each special level."""


def size_levels(features: Features) -> dict[str, str]:
    """Return the size level of each kind; "" if a value belongs to no level, such as a special condition number.

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
        "none": features.blocks in ((), (1,)), "several": sum(size > 1 for size in features.blocks) > 1,
        "as many": count in (h, n, m),
        "one": count <= 5, "a dozen": count <= 16, "dozens": count <= 64, "": True,
    }  # fmt: skip
    is_even = features.condition_G == features.condition_H and features.uneven_condition == 1.0
    kappa = format_value(features.condition_G) if is_even else ""
    return {
        "h": next((name for name, values in SIZE_LEVELS["h"].items() if h <= values[-1]), ""),
        "n": rows(n), "m": "= n" if m == n != h else rows(m),
        "blocks": next(name for name, applies in batch.items() if applies),
        "κ": "1" if h == 1 else kappa if kappa in SIZE_LEVELS["κ"] else "",
    }  # fmt: skip


def all_levels(features: Features) -> set[Level]:
    """Return the size levels and the special levels of a point, without special levels that `repair` has undone."""
    return {*size_levels(features).items()} | _find_special_levels(features)


def _find_special_levels(features: Features) -> set[Level]:
    """Return the special levels of a point."""
    values = {*vars(features).items()}
    return {level for level, overrides in _SPECIAL if overrides <= values}


@lru_cache(1024)
def visible_levels(features: Features) -> dict[str, set[Level]]:
    """Return the special levels of a point that are visible in a value, by the name of the value.

    A level is masked if a fault would be invisible even without it, because of rounding or of other features.

    Examples
    --------
    >>> visible_levels(Features(normed=1, t=0.0))["geodesic_2"]
    {('t', 't=0')}
    """
    visible, values = {name: set[Level]() for name in VALUES}, [*VALUES.values()]
    levels = _find_special_levels(features)
    if not levels:
        return visible
    errors = estimate_rounding_errors(features, values)
    revealed = find_visible(features, values, errors)
    for level in levels:
        default, concerned = _default_of(level)
        without = find_visible(with_fields(features, **default), values, errors) if default else revealed
        for value, is_visible in zip(values, without, strict=True):
            if is_visible and value.name in concerned:
                visible[value.name].add(level)
    return visible


@cache
def _default_of(level: Level) -> tuple[Overrides, set[str]]:
    """Return the defaults of a special level's fields that determine values, and the values whose inputs it affects."""
    overrides = SPECIAL_LEVELS[level[0]][level[1]]
    default = {field: getattr(Features, field) for field in DETERMINING_FIELDS.intersection(overrides)}
    is_concerned = {v.name: any(affects(field, v.operation) for field in overrides) for v in VALUES.values()}
    return default, {name for name, concerned in is_concerned.items() if concerned}


_MAX_SIMPLE_COST = 200
"""Cost of points of a few columns up to which they stay simple, as examples of what is wrong; chosen."""
_MAX_COST = 20_000
"""Bound for `Features.cost`, except for the kind "large"."""
_COST_SCALE = 4_000
"""Cost at which a point must cover twice as much to be preferred to a point without cost."""


_MAX_DRAWS, _MAX_CANDIDATES = 16, 6
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
    """Return the points with the first, and with the last, value of every size level."""
    return [point for point in (instantiate(levels, itemgetter(i)) for i in (0, -1)) if point]


@cache
def _feasible_combinations() -> tuple[list[dict[str, str]], Any, Any, list[frozenset[Level]]]:
    """Return all feasible combinations of one size level of each kind, and the list of all pairs of levels.

    Each combination comes with its cost, and with the indices of the pairs that it contains.
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
    """Return the pairs of levels that no point of a profile contains, because none exists or all are too expensive.

    Examples
    --------
    >>> (("h", "64"), ("blocks", "dozens")) in infeasible_pairs("full")
    True
    """
    kinds = itertools.combinations(SIZE_LEVELS, 2)
    pairs = (((a, x), (b, y)) for a, b in kinds for x in SIZE_LEVELS[a] for y in SIZE_LEVELS[b])
    large = (size_levels(Features(**level)).items() for level in SPECIAL_LEVELS["large"].values())
    covered = {*_feasible_combinations()[3]}
    covered |= {frozenset(pair) for levels in large for pair in itertools.combinations(levels, 2)}
    widths = [] if profile == "full" else [name for name in SIZE_LEVELS["h"] if not _group("h", name, is_full=False)]
    return [x for x in pairs if frozenset(x) not in covered] + [(("what is rare", "any"), ("h", x)) for x in widths]


def _pairwise_covering_array(rng: np.random.Generator) -> Iterator[Features]:
    """Yield points that contain every feasible pair of size levels."""
    combinations, costs, pairs, every_pair = _feasible_combinations()
    uncovered = np.ones(len(every_pair), dtype=bool)
    weights = (1.0 + 0.3 * rng.random(len(combinations))) / (1.0 + costs / _COST_SCALE)
    while uncovered.any():
        best = int(np.argmax(uncovered[pairs].sum(axis=1) * weights))
        uncovered[pairs[best]] = False
        draws = (instantiate(combinations[best], partial(random_choice, rng)) for _ in range(_MAX_DRAWS))
        points = (point for point in itertools.chain(draws, _extreme_points(combinations[best])) if point)
        yield next(point for point in points if point.cost <= 1.5 * costs[best] + _COST_SCALE / 4)


Goal = tuple[Level, Level, str]
"""A coverage goal: a special level (or a kind, with any level), where it must occur (`_ANYWHERE`, or a kind of size and
a `_group`), and the value in which it must be visible there."""
_ANYWHERE = ("", "")
Goals = dict[Goal, None]
"""An ordered set of goals."""


def _group(kind: str, level: str, is_full: bool) -> str:
    """Return the group to which a size level belongs; special levels must occur once in every group except ""."""
    if is_full:
        return level
    return _QUICK_WIDTHS.get(level, "") if kind == "h" else level if level in ("none", "several") else "one"


def _groups(features: Features, is_full: bool) -> list[Level]:
    """Return the groups of sizes to which a point belongs."""
    sizes = size_levels(features)
    return [(kind, _group(kind, sizes[kind], is_full)) for kind in ("h", "blocks")]


def _goals_met(features: Features, is_full: bool) -> set[Goal]:
    """Return the coverage goals that a point meets."""
    groups, met = _groups(features, is_full), set[Goal]()
    for value, levels in visible_levels(features).items():
        for level in levels:
            is_magnitude, is_exact = level[0] in _MAGNITUDES and not is_full, VALUES[value].order == "exact"
            met |= {(level, _ANYWHERE, value)} if is_magnitude or is_exact else set()
            if not is_exact:  # whose enclosures take long
                met |= {((level[0], "") if is_magnitude else level, group, value) for group in groups}
    return met


@cache
def levels_visible_alone(value: str) -> frozenset[Level]:
    """Return the special levels that are visible in a value at a point without another special level.

    Examples
    --------
    >>> ("t", "t=2.5") in levels_visible_alone("geodesic_2"), ("t", "t=2.5") in levels_visible_alone("christoffel")
    (True, False)
    """
    return frozenset(level for level in _ALL_SPECIAL if level in visible_levels(_alone(level)).get(value, ()))


def _alone(level: Level) -> Features:
    """Return a point with a special level and nothing else special."""
    point = _apply(Features(h=2), {level})
    assert point is not None
    return point


def _all_goals(is_full: bool) -> Goals:
    """Return the coverage goals that can be met, the hardest first: of wide heads, then of exact geodesics."""
    groups = [(kind, _group(kind, name, is_full)) for kind in ("h", "blocks") for name in SIZE_LEVELS[kind]]
    goals: Goals = {}
    for kind in sorted(SPECIAL_LEVELS, key=lambda kind: -len(SPECIAL_LEVELS[kind])):
        for level in [(kind, name) for name in SPECIAL_LEVELS[kind] if kind != "large"]:
            for goal_level, place, value in sorted(_goals_met(_alone(level), is_full)):
                if goal_level[0] == kind:
                    places = [_ANYWHERE] if place == _ANYWHERE else [group for group in groups if group[1]]
                    goals |= dict.fromkeys((goal_level, group, value) for group in places)
    widest = [(kind, group) for kind, group in groups if kind == "h" and group][-1]
    return dict.fromkeys(sorted(goals, key=lambda goal: (goal[1] != widest, VALUES[goal[2]].order != "exact")))


def _remove(goals: Goals, met: set[Goal]) -> Goals:
    """Return the goals that are not met."""
    return {goal: None for goal in goals if goal not in met}


def _draw_point(goal: Goal, unmet: Goals, is_full: bool, rng: np.random.Generator) -> Features | None:
    """Draw a point that meets a goal, and add special levels that meet more; None if the drawn sizes admit none."""
    choose = partial(random_choice, rng)
    (special, name), (kind, group), _ = goal
    sizes = {"h": choose(("2 to 4", "5 to 16")), "n": choose(("= h", "near h")), "m": "near h", "κ": "3"}
    sizes["blocks"] = choose(("none", "one", "several"))
    if kind:
        sizes[kind] = choose([name for name in SIZE_LEVELS[kind] if _group(kind, name, is_full) == group])
    sizes |= {"κ": "1"} if sizes["h"] == "1" else {}
    base = instantiate({kind: sizes[kind] for kind in SIZE_LEVELS}, choose)
    level = special, name or choose([*SPECIAL_LEVELS[special]])
    point = base and _apply(base, {level})
    if base is None or point is None or goal not in _goals_met(point, is_full):
        return None
    return _add_levels(base, {level}, unmet, is_full, rng)


_MAX_TRIED_LEVELS = 12
"""Number of special levels of a kind among which one is sought that can be added to a point; chosen."""


def _add_levels(base: Features, levels: set[Level], unmet: Goals, is_full: bool, rng: np.random.Generator) -> Features:
    """Add special levels to a point, at most one of each kind, with which it meets further unmet goals.

    A fault in the sizes of a point without special levels stays visible.
    """
    point = _apply(base, levels) or base
    met, is_special = unmet.keys() & _goals_met(point, is_full), bool(levels)
    places, by_kind = {_ANYWHERE, *_groups(base, is_full)}, dict[str, dict[Level, None]]()
    for kind, name in (level for level, place, _ in unmet if place in places):
        by_kind.setdefault(kind, {}).update({(kind, x): None for x in ([name] if name else SPECIAL_LEVELS[kind])})
    for kind in [str(x) for x in rng.permutation([*by_kind]) if x not in dict(levels)]:
        options = [*by_kind[kind]]
        for i in rng.permutation(len(options))[:_MAX_TRIED_LEVELS]:
            more = levels | {options[i]}
            extended = _apply(base, more)
            met_more = unmet.keys() & _goals_met(extended, is_full) if extended else set()
            if extended and met_more > met and (is_special or _reveals_sizes(extended, base)):
                levels, point, met = more, extended, met_more
                break
    return point


def _reveals_sizes(point: Features, base: Features) -> bool:
    """Return whether a point has the sizes of another, and reveals the same faults in them."""
    values = [value for value in JUDGED_VALUES.values() if value.order != "exact"]
    revealed = [value for value, is_visible in zip(values, find_visible(base, values), strict=True) if is_visible]
    return size_levels(point) == size_levels(base) and all(find_visible(point, revealed))


def _apply(sizes: Features, levels: set[Level]) -> Features | None:
    """Apply special levels to a point with nothing special; None if they contradict each other, or cost too much."""
    pairs = {pair for kind, level in levels for pair in SPECIAL_LEVELS[kind][level].items()}
    overrides = dict(pairs)
    if len(overrides) < len(pairs):
        return None
    point = repair(with_fields(sizes, **overrides))
    limit = math.inf if any(kind == "large" for kind, _ in levels) else _MAX_COST
    is_kept = all(getattr(point, name) == value for name, value in overrides.items())
    return point if is_kept and point.cost <= limit and point.is_feasible else None


@cache
def covering_design(profile: str, seed: int = 0) -> tuple[Features, ...]:
    """Generate the test points of a profile, simplest first.

    They contain a pairwise covering array of the sizes (three for the full profile), whose points get special levels as
    far as these hide no fault in the sizes, and further points for special levels: each of these meets the first unmet
    goal, and is the one of a few such random points that meets most others for its cost. A goal for which no point can
    be drawn is dropped.
    """
    rng, is_full = np.random.default_rng([seed, len(profile)]), profile == "full"
    points = dict.fromkeys(point for _ in range(3 if is_full else 1) for point in _pairwise_covering_array(rng))
    points |= {Features(**large): None for large in SPECIAL_LEVELS["large"].values()}
    unmet = _all_goals(is_full)
    for base in [f for f in points if not (f.is_generic and 1 < f.h <= NARROW and f.cost <= _MAX_SIMPLE_COST)]:
        del points[base]
        points[point := _add_levels(base, set(), unmet, is_full, rng)] = None
        unmet = _remove(unmet, _goals_met(point, is_full))
    visible = frozenset[Level]().union(*map(levels_visible_alone, VALUES))
    points |= {_alone(level): None for level in _ALL_SPECIAL - visible}  # where right implementations may give up
    while unmet:
        goal = next(iter(unmet))
        draws = (_draw_point(goal, unmet, is_full, rng) for _ in range(_MAX_DRAWS))
        met = {point: _goals_met(point, is_full) for point in itertools.islice(filter(None, draws), _MAX_CANDIDATES)}
        gains = {point: len(goals & unmet.keys()) / (1.0 + point.cost / _COST_SCALE) for point, goals in met.items()}
        best = max(gains, key=gains.__getitem__, default=None)
        points |= {best: None} if best else {}
        unmet = _remove(unmet, {goal, *(met[best] if best else ())})
    return tuple(sorted(points, key=lambda f: (f.h == 1, 2 * len(_find_special_levels(f)) + math.log10(f.cost + 1))))


def distribute(
    points: Sequence[Sequence[Level]],
    items: Iterable[tuple[Any, Sequence[int]]],
    added_cost: Callable[[int, Sequence[Any], Any], float] = lambda i, assigned, item: len(assigned),
) -> list[list[Any]]:
    """Assign each item to a point, so that equal items meet many different levels, and no point has many items.

    Greedy: an item goes to the point whose levels it has met least often so far.

    Parameters
    ----------
    points : sequence of sequence of Level
        The levels of each point.
    items : iterable of (item, sequence of int)
        The items in order, each with the indices of the points that admit it. Repeat an item to assign it again, to
        another point.
    added_cost : callable
        The cost of one more item at the point i with others; by default, the number of these.

    Returns
    -------
    list of list
        The items of each point.

    Examples
    --------
    >>> distribute([[("h", 1)], [("h", 2)]], [("a", [0, 1]), ("b", [0, 1]), ("a", [0, 1])])
    [['a'], ['b', 'a']]
    """
    assigned: list[dict[Any, None]] = [{} for _ in points]
    meetings: Counter[Any] = Counter()
    for item, admissible in items:

        def novelty(i: int, item: Any = item) -> float:
            novel = sum(1.0 / (1 + meetings[item, level]) for level in points[i])
            return novel / max(len(points[i]), 1) - 0.3 * added_cost(i, [*assigned[i]], item)

        candidates = [i for i in admissible if item not in assigned[i]]
        if candidates:
            best = max(candidates, key=novelty)
            assigned[best][item] = None
            meetings.update((item, level) for level in points[best])
    return [[*items] for items in assigned]
