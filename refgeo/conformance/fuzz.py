"""The profile ``fuzz``: search for failing recipes with Hypothesis, and shrink them to ones as plain as can be."""

from __future__ import annotations

import contextlib
import itertools
from random import Random
from typing import Any

import numpy as np

from refgeo.conformance.case import Case
from refgeo.conformance.checks import Check
from refgeo.conformance.recipes import LEVELS, Recipe, build, repaired
from refgeo.conformance.tally import Tally
from refgeo.support.extras import require

_LARGEST, _MOST_ROWS, _MOST_BLOCKS = 2000, 40, 40


def try_random_cases(run: Any, examples: int) -> None:
    """Put so many points to every value, the same to all, and keep the plainest failing one of each.

    Where no value is judged, laws are searched. Interrupted, it ends early. The same seed tries the same points.

    Parameters
    ----------
    run : Run
    examples : int
    """
    require("profile fuzz", "fuzz", "hypothesis")
    kind = "value" if any(one.kind == "value" for one in run.checks) else "law"
    searched, others = ([one for one in run.checks if (one.kind == kind) is such] for such in (True, False))
    everything = list(itertools.product(run.metrics, searched))
    with contextlib.suppress(KeyboardInterrupt):
        for done, (metric, one) in enumerate(everything):
            what = f"{metric} {one.name}, {len(run.cases)} failing checks"
            _hunt(run, one, metric, examples, (done * examples, len(everything) * examples, what), others)


def _hunt(
    run: Any, one: Check, metric: str, examples: int, progress: tuple[int, int, str], others: list[Check]
) -> None:
    """Search for a failing point of one check; what it saw of others is replaced by what it sees of the plainest."""
    from hypothesis import HealthCheck, Phase, find, settings
    from hypothesis.errors import HypothesisException

    points, tried, failing = run.points, itertools.count(1), list[tuple[Case, Tally]]()

    def fails(recipe: Recipe) -> bool:
        done, total, what = progress
        run.progress(done + min(next(tried), examples), total, what)
        case = build(recipe, metric, points.dtype, points.seed, points.relaxation)
        tally = Tally(one, metric, case.dtype)
        run.tally(one, case, tally)
        if tally.is_wrong:
            failing.append((case, tally))
        elif not failing:
            run.tallies[one.name, metric].absorb(tally)
            for other in others:
                run.tally(other, case)
        return tally.is_wrong

    options = settings(
        max_examples=examples, deadline=None, database=None, phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    with contextlib.suppress(HypothesisException):  # nothing failed, or not again
        find(_recipes(points.dtype), fails, settings=options, random=Random(points.seed))
    if failing:
        case, seen = failing[-1]
        again = Tally(one, metric, case.dtype)
        run.tally(one, case, again)
        seen.remark = (
            ""
            if again.is_wrong
            else "not reproducible: when refgeo called the function again with the same input, the check passed"
        )
        run.tallies[one.name, metric] = seen
        run.cases.append((metric, (case.name, lambda: case)))


def _recipes(dtype: str) -> Any:
    """A strategy for recipes, also of sizes, numbers of blocks and times that are no levels."""
    from hypothesis import strategies as st

    rows = st.integers(1, _MOST_ROWS)
    sizes = st.tuples(rows, rows, st.integers(1, 12)).map(lambda s: (max(s[0], s[2]), max(s[1], s[2]), s[2]))
    plain = {name: st.sampled_from(LEVELS[name]) for name in ("point", "scale", "vectors")}
    made = st.builds(
        Recipe, sizes=sizes, batch=st.lists(st.integers(1, 5), max_size=4).map(tuple),
        conditions=st.sampled_from([pair for pair in LEVELS["conditions"] if max(pair) <= 120.0]),
        t=st.sampled_from(LEVELS["t"]) | st.integers(-4000, 4000).map(lambda t: t / 1000.0),
        draw=st.integers(0, 99), **plain,
    )  # fmt: skip
    return made.map(repaired).filter(
        lambda one: one.possible and one.fits(dtype) and one.cost <= _LARGEST and np.prod(one.batch) <= _MOST_BLOCKS
    )
