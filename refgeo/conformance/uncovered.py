"""What a pass does not say: lines of a backend's own files that no decisive call has reached (coverage.py)."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import sys
from collections.abc import Sequence, Set
from pathlib import Path

from refgeo.support.files import place_of

Ranges = list[tuple[int, int]]

_HERE = Path(__file__).parent.parent


class Coverage:
    """Lines and branches of the files beside a backend's own, in the process that calls it.

    Parameters
    ----------
    spec : str
        Where the backend is. Of a file all files of its folder are its own; of a module those of its package.
    """

    def __init__(self, spec: str) -> None:
        place, _ = place_of(spec)
        with contextlib.suppress(ImportError, ValueError, AttributeError):
            found = None if place.endswith(".py") else importlib.util.find_spec(place)
            place = str(found.origin) if found is not None else place
        path = Path(place).resolve()
        # of refgeo's own modules one alone: the rest of the package is the referee's
        own = [str(path)] if _HERE in path.parents else [f"{path.parent}{os.sep}*"]
        installed = [f"{place}{os.sep}*" for place in _environments() if place not in path.parents]
        import coverage

        self._measured = coverage.Coverage(
            data_file=None, branch=True, include=own, omit=installed, config_file=False, messages=False,
            concurrency=["thread"],
        )  # fmt: skip
        self._measured.set_option("run:disable_warnings", ["no-data-collected", "module-not-measured", "couldnt-parse"])
        for only_raises in (r"^\s*raise\b", r"^\s*if\b[^\n]*:\s*raise\b", r"\bexcept\b[^\n]*:\s*\n\s*raise\b"):
            self._measured.exclude(only_raises)
        self._context = ""
        self._measured.start()

    def of(self, context: str) -> None:
        """What is reached from now on is reached by decisive calls, by others, or by none."""
        if context != self._context:
            self._context = context
            self._measured.switch_context(context)

    def reached(self) -> Reached:
        """Of every function that decisive calls have entered, by file and name, what they have not reached in it."""
        self._measured.stop()
        try:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                self._measured.json_report(outfile="-", contexts=["decisive"])
        except Exception:  # nothing of its own was reached at all, or no file is there any more
            return {}
        finally:
            self._measured.start()
            self._measured.switch_context(self._context)
        files = json.loads(printed.getvalue())["files"]
        found = {}
        for name, file in files.items():
            entered = [function for function, one in file["functions"].items() if function and one["executed_lines"]]
            for function, one in file["functions"].items():  # those inside an entered one, too
                if any(f"{function}.".startswith(f"{outer}.") for outer in entered):
                    # a function of one line shares it with its module, whose way on no call takes
                    first = one.get("start_line")
                    branches = {(source, target) for source, target in one["missing_branches"] if source != first}
                    found[name, function] = set(one["missing_lines"]), branches
        return found


def _environments() -> list[Path]:
    """Folders of installed packages, which may lie in that of a backend and are nobody's own."""
    return [place for place in map(Path.resolve, map(Path, sys.path)) if any(place.glob("*.dist-info"))]


Reached = dict[tuple[str, str], tuple[set[int], set[tuple[int, int]]]]


def not_run(found: Sequence[Reached], unasked: Set[str] = frozenset()) -> dict[str, Ranges]:
    """By file, the lines that no decisive call of any process has reached, of functions that some call has entered.

    A branch past an ``if`` that was never taken is the line of the ``if``. Functions of the protocol that were not
    asked for are passed over, though an earlier call may have entered them.
    """
    missed: dict[str, set[int]] = {}
    for name, function in sorted(set().union(*found)):
        if function.partition(".")[0] in unasked:
            continue
        seen = [one[name, function] for one in found if (name, function) in one]
        lines, branches = (set.intersection(*sets) for sets in zip(*seen, strict=True))
        lines = lines | {source for source, target in branches if target not in lines}
        missed.setdefault(name, set()).update(lines)
    return {name: _ranges(sorted(lines)) for name, lines in missed.items() if lines}


def _ranges(lines: list[int]) -> Ranges:
    """Lines that follow each other, as first and last.

    Examples
    --------
    >>> _ranges([3, 4, 5, 9])
    [(3, 5), (9, 9)]
    """
    found: Ranges = []
    for line in lines:
        if found and line == found[-1][1] + 1:
            found[-1] = found[-1][0], line
        else:
            found.append((line, line))
    return found
