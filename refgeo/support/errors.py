"""The errors that carry a mathematical meaning; every other bad input is a plain ``ValueError`` or ``TypeError``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class NotFiniteError(ValueError):
    """NaN or infinity where numbers are expected."""


class RankDeficientError(ValueError):
    """A factor (or the product ``G Hᵀ``) has numerical rank below h, so the point is not on the quotient manifold.

    Attributes
    ----------
    block : tuple of int
        Index of the offending block in the leading dimensions, ``()`` for a single block.
    smallest_singular_value : float
    """

    def __init__(self, message: str, block: tuple[int, ...], smallest_singular_value: float) -> None:
        super().__init__(message)
        self.block = block
        self.smallest_singular_value = smallest_singular_value

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (str(self), self.block, self.smallest_singular_value)


class GeodesicIncompleteError(ValueError):
    """The geodesic leaves the manifold (loses rank) before the requested time.

    Attributes
    ----------
    time : float
        The time at which rank is lost.
    block : tuple of int
        Index of the offending block in the leading dimensions, ``()`` for a single block.
    """

    def __init__(self, message: str, time: float, block: tuple[int, ...]) -> None:
        super().__init__(message)
        self.time = time
        self.block = block

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (str(self), self.time, self.block)


class RefereeError(RuntimeError):
    """The referee itself failed after its run had begun; the cause says how. It is no matter of usage."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came during a check or a search; `result` is what had been found by then: a report, or a result."""

    def __init__(self, result: Any) -> None:
        super().__init__("interrupted; the exception's .result has what was found")
        self.result = result

    @property
    def report(self) -> Any:
        """The same, of a check."""
        return self.result


class BatchError(ValueError):
    """A batch has no finite loss; `result` is what the batches before it gave, or None."""

    result: Any = None


class GeodesicAccuracyError(ArithmeticError):
    """An integrated geodesic is not accurate: a conserved quantity drifted, two integrations differ, or one stopped."""


NO_GEODESIC = (RankDeficientError, GeodesicIncompleteError, GeodesicAccuracyError)
"""What ends a geodesic."""


@contextmanager
def about(subject: str) -> Iterator[None]:
    """Put what an error is about before its message.

    Examples
    --------
    >>> with about("block 'w'"):
    ...     raise ValueError("expected something else")
    Traceback (most recent call last):
    ...
    ValueError: block 'w': expected something else
    """
    try:
        yield
    except (ValueError, TypeError, NotImplementedError) as error:
        error.args = (f"{subject}: {error}", *error.args[1:])
        raise
