"""The profile ``fuzz``: search for a failing point with Hypothesis, and shrink it."""

from __future__ import annotations

import contextlib
import itertools
import zlib
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from refgeo.conformance.case import Case
from refgeo.conformance.checks import Check
from refgeo.conformance.drawing import KINDS, TIMES, make_case, rng_of
from refgeo.conformance.precision import PRECISIONS
from refgeo.conformance.recipes import BATCHES, SIZES
from refgeo.conformance.tally import Tally
from refgeo.extras import require

if TYPE_CHECKING:
    from refgeo.conformance.run import Run

_ROUND = 12
"""So many points of one shape and metric are tried in turn; fewer, if else some shapes would get none."""
_CONDITIONS = (1.0, 12.0)

# Simplest first. Each is searched in turn: entries shrink well, shapes do not, since all that is drawn later moves.
_SMALL = sorted(
    (
        (batch, *sizes)
        for batch in BATCHES
        for sizes in SIZES
        if max(sizes) <= 8 and int(np.prod(batch)) <= 6 and (not batch or sizes in ((7, 4, 1), (5, 4, 2)))
    ),
    key=lambda shape: (int(np.prod(shape[0])) * (shape[1] + shape[2]) * shape[3], len(shape[0])),
)


def search(run: Run, examples: int) -> list[Case]:
    """Try so many points, and return the smallest failing cases found.

    A check that has failed once is not searched again; what it saw is replaced by the shrunk case. Interrupted, the
    search ends early. The same seed tries the same points.

    Parameters
    ----------
    run : Run
    examples : int

    Returns
    -------
    list of Case
    """
    require("profile fuzz", "fuzz", "hypothesis")
    found = _Search(run, examples)
    with contextlib.suppress(KeyboardInterrupt):
        found.run()
    return found.cases


class _Search:
    def __init__(self, run: Run, examples: int) -> None:
        self.judge, self.examples = run, examples
        self.open = {metric: [one for one in run.checks if one.kind != "contract"] for metric in run.metrics}
        self.conduct = [one for one in run.checks if one.kind == "contract"]
        self.tried = 0
        self.cases: list[Case] = []
        self.target: Check | None = None  # what is being shrunk
        self.smallest: tuple[Case, Tally] | None = None

    def run(self) -> None:
        from hypothesis import HealthCheck, Phase, find, settings
        from hypothesis.errors import HypothesisException

        random = Random(self.judge.points.seed)
        most = min(_ROUND, max(3, self.examples // (len(_SMALL) * len(self.open))))
        for shape, metric in itertools.cycle(itertools.product(_SMALL, self.open)):
            if self.tried >= self.examples or not any(self.open.values()):
                return
            self.target = self.smallest = None
            options = settings(
                max_examples=min(most, self.examples - self.tried),
                deadline=None,
                database=None,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
            )
            with contextlib.suppress(HypothesisException):
                find(_cases(metric, shape, self.judge), self._fails, settings=options, random=random)
            if self.target is not None and self.smallest is not None:
                self._settle(self.target, *self.smallest)

    def _fails(self, case: Case) -> bool:
        shrinking = self.target is not None
        self.tried += not shrinking
        state = f"{self.tried} points, {len(self.cases)} failing checks" + (", shrinking one" if shrinking else "")
        self.judge.progress(min(self.tried, self.examples), self.examples, state)
        for one in [self.target] if self.target is not None else list(self.open[case.metric]):
            tally = Tally(one, case.metric, case.dtype)
            self.judge.tally(one, case, tally)
            if tally.is_wrong:
                self.target, self.smallest = one, (case, tally)
                return True
            if not shrinking:
                self.judge.tallies[one.name, case.metric].absorb(tally)
        if not shrinking:
            for one in self.conduct:
                self.judge.tally(one, case)
        return False

    def _settle(self, one: Check, case: Case, seen: Tally) -> None:
        """Keep the failure on the shrunk case, as it was seen, as all that the check has seen."""
        self.open[case.metric].remove(one)
        again = Tally(one, case.metric, case.dtype)
        self.judge.tally(one, case, again)
        if not again.is_wrong:
            seen.remark = "not reproducible: called again with the same input, it passed"
        self.judge.tallies[one.name, case.metric] = seen
        self.cases.append(case)


def _cases(metric: str, shape: tuple[tuple[int, ...], int, int, int], run: Run) -> Any:
    """A strategy for cases, named after their content; the same kinds of vectors and times as are generated."""
    from hypothesis import strategies as st

    from refgeo import strategies

    points = run.points
    scale = (1e-6, 1e6) if PRECISIONS[points.dtype].largest > 1e37 else 1.0

    @st.composite
    def cases(draw: Any) -> Case:
        point = draw(strategies.pairs(shape, condition=_CONDITIONS, scale=scale))
        kind = draw(st.sampled_from(list(KINDS)))
        given = {}
        if kind == "any":
            given["a"] = given["v"] = draw(strategies.tangent_vectors(point))
            given["b"] = draw(st.one_of(st.just(given["a"]), strategies.tangent_vectors(point)))
            given["e"] = draw(strategies.covectors(point))
        t = draw(st.sampled_from(sorted(TIMES, key=lambda t: t != 1.0)))
        content = b"".join(np.asarray(x).tobytes() for pair in (point, *given.values()) for x in pair)
        name = f"fuzz-{metric}-{zlib.crc32(content + kind.encode() + str(t).encode()):08x}"
        rng = rng_of(points.seed, name)
        return make_case(name, metric, point, rng, points.dtype, points.seed, points.relaxation, given, t, kind=kind)

    return cases()
