"""The profile ``fuzz``: search for a failing point with Hypothesis, and shrink it."""

from __future__ import annotations

import contextlib
import itertools
import time
import zlib
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import numpy as np

from refgeo.conformance.cases import Case, given_case
from refgeo.conformance.checks import Check, can_tell
from refgeo.conformance.report import Verdict
from refgeo.conformance.tally import Tally

SHRINKING = 5.0
"""Seconds by which shrinking a failure found late may go over the time."""

# Leading dimensions, n, m, h, simplest first. Each is searched in turn: entries shrink well, shapes do not, since all
# that is drawn after them moves.
_SHAPES: tuple[tuple[tuple[int, ...], int, int, int], ...] = (
    ((), 1, 1, 1),
    ((), 2, 2, 2),
    ((), 2, 1, 1),
    ((), 3, 2, 2),
    ((), 2, 3, 2),
    ((2,), 1, 1, 1),
    ((2,), 2, 2, 2),
    ((), 3, 3, 3),
    ((), 5, 4, 3),
    ((2,), 4, 3, 2),
)
_CONDITIONS = (1.0, 12.0)
_SCALES = (1e-6, 1e6)


class Judge(Protocol):
    """Puts one case to one check, and keeps what it sees, or not."""

    def __call__(self, check: Check, case: Case, keep: bool = True) -> Tally:
        """The tally that has seen the case: the run's own, or a fresh one."""


def search(
    judge: Judge,
    checks: list[Check],
    metrics: list[str],
    dtype: str,
    seed: int,
    seconds: float,
    progress: Callable[[int, int, str], None],
) -> list[Case]:
    """Search for `seconds`, and return the smallest failing cases found.

    A check that has failed once is not searched again; what it saw is replaced by the shrunk case. Interrupted, the
    search ends early.

    Parameters
    ----------
    judge : callable
        Of the run.
    checks : list of Check
    metrics : list of str
    dtype : str
    seed : int
        The same seed draws the same points; how many depends on the time.
    seconds : float
    progress : callable

    Returns
    -------
    list of Case
    """
    if not seconds > 0.0:
        raise ValueError(f"seconds: expected a number > 0, got {seconds!r}")
    try:
        import hypothesis  # noqa: F401
    except ImportError as error:
        raise ValueError("profile: fuzz needs Hypothesis; pip install hypothesis") from error
    search = _Search(judge, checks, metrics, dtype, seed, seconds, progress)
    with contextlib.suppress(KeyboardInterrupt):
        search.run()
    return search.found


class _Search:
    def __init__(
        self,
        judge: Judge,
        checks: list[Check],
        metrics: list[str],
        dtype: str,
        seed: int,
        seconds: float,
        progress: Callable[[int, int, str], None],
    ) -> None:
        self.judge, self.dtype, self.seed, self.progress = judge, dtype, seed, progress
        self.open = {metric: list(checks) for metric in metrics}
        self.started, self.seconds = time.monotonic(), seconds
        self.tried = 0
        self.found: list[Case] = []
        self.target: Check | None = None  # what is being shrunk
        self.smallest: Case | None = None
        self.seen: Tally | None = None
        self.stop = self.started + seconds

    def run(self) -> None:
        from hypothesis import HealthCheck, Phase, find, settings
        from hypothesis.errors import HypothesisException

        options = settings(
            max_examples=15,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        random = Random(self.seed)
        for shape, metric in itertools.cycle(itertools.product(_SHAPES, self.open)):
            if time.monotonic() > self.started + self.seconds or not any(self.open.values()):
                return
            if not self.open[metric]:
                continue
            self.target, self.smallest = None, None
            self.stop = self.started + self.seconds
            # NoSuchExample, or Flaky where the time ran out while it was shrinking: then what it had is kept
            with contextlib.suppress(HypothesisException):
                cases = _cases(metric, shape, self.dtype, self.seed)
                find(cases, self._fails, settings=options, random=random)
            if self.target is not None and self.smallest is not None and self.seen is not None:
                self._settle(self.target, self.smallest, self.seen)

    def _fails(self, case: Case) -> bool:
        if time.monotonic() > self.stop:
            return False
        self.tried += 1
        elapsed = min(time.monotonic() - self.started, self.seconds)
        what = f"{self.tried} points, {len(self.found)} failing checks"
        total = int(min(self.seconds, 1e6))
        self.progress(int(elapsed), total, what if self.target is None else f"{what}, shrinking one")
        for check in self.open[case.metric] if self.target is None else [self.target]:
            if not (check.applies(case) and can_tell(check, case)):
                continue
            tally = self.judge(check, case, keep=False)
            if tally.row().verdict is Verdict.WRONG:
                if self.target is None:
                    self.stop = self.started + self.seconds + SHRINKING
                self.target, self.smallest, self.seen = check, case, tally
                return True
            if self.target is None:
                self.judge(check, case)
        return False

    def _settle(self, check: Check, case: Case, seen: Tally) -> None:
        """Keep the failure on the shrunk case, as it was seen, as all that the check has seen."""
        self.open[case.metric].remove(check)
        again = self.judge(check, case, keep=False)
        if again.row().verdict is not Verdict.WRONG:
            seen.remark = "not reproducible: called again with the same input, it passed"
        kept = self.judge(check, case)
        vars(kept).update(vars(seen))
        self.found.append(case)


def _cases(metric: str, shape: tuple[tuple[int, ...], int, int, int], dtype: str, seed: int) -> Any:
    """A strategy for cases, named after their content."""
    from hypothesis import strategies as st

    from refgeo import strategies

    @st.composite
    def cases(draw: Any) -> Case:
        point = draw(strategies.pairs(shape, condition=_CONDITIONS, scale=_SCALES))
        a = draw(strategies.tangent_vectors(point))
        b = draw(st.one_of(st.just(a), strategies.tangent_vectors(point)))
        e = draw(strategies.covectors(point))
        arrays: dict[str, Any] = {"G": point.G, "H": point.H, "t": draw(st.sampled_from((1.0, 0.5, -0.25)))}
        for name, pair in (("a", a), ("b", b), ("e", e)):
            arrays[f"{name}_G"], arrays[f"{name}_H"] = pair
        content = b"".join(np.asarray(array).tobytes() for array in arrays.values())
        return given_case(f"fuzz-{metric}-{zlib.crc32(content):08x}", metric, arrays, dtype, seed)

    return cases()
