"""Find the lines of a backend's own files that no decisive call has reached, with coverage.py."""

from __future__ import annotations

import ast
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

_HERE = Path(__file__).parents[2]


class Coverage:
    """The lines and branches that are reached in a backend's own files, in the process that calls it.

    Parameters
    ----------
    spec : str
        Where the backend is. For a file, all files of its folder belong to it; for a module, those of its package.
    """

    def __init__(self, spec: str) -> None:
        place, _ = place_of(spec)
        with contextlib.suppress(ImportError, ValueError, AttributeError):
            module_spec = None if place.endswith(".py") else importlib.util.find_spec(place)
            place = str(module_spec.origin) if module_spec is not None else place
        path = Path(place).resolve()
        # of refgeo's own modules one alone: the rest of the package is the referee's
        own = [str(path)] if _HERE in path.parents else [f"{path.parent}{os.sep}*"]
        others = [*_environments(), _HERE]  # refgeo's own tree may lie below the backend's folder
        installed = [f"{folder}{os.sep}*" for folder in others if folder not in path.parents]
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

    def switch_context(self, context: str) -> None:
        """Attribute the lines that are reached from now on to "decisive" calls or to "other" ones."""
        if context != self._context:
            self._context = context
            self._measured.switch_context(context)

    def data(self) -> CoverageData:
        """Return, for every function that decisive calls have entered, the lines and branches that they have not
        reached.
        """
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
        missed = {}
        for name, file in files.items():
            loops = _find_loops(Path(name))
            entered = [
                function for function, report in file["functions"].items() if function and report["executed_lines"]
            ]
            for function, report in file["functions"].items():  # those inside an entered one, too
                if any(f"{function}.".startswith(f"{outer}.") for outer in entered):
                    # a one-line function shares its line with its module, whose branch there no call takes
                    first = report.get("start_line")
                    branches = {
                        (source, target) for source, target in report["missing_branches"]
                        if source != first and target in loops.get(source, [target])
                    }  # fmt: skip
                    missed[name, function] = set(report["missing_lines"]), branches
        return missed


def _find_loops(file: Path) -> dict[int, range]:
    """Return the lines of the body of every ``for`` loop, by the line of its ``for``.

    The way from there to the end of the loop is no branch: nobody tests that a loop with a ``return`` is exhausted.
    """
    tree = ast.parse(file.read_bytes())
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]
    return {loop.lineno: range(loop.body[0].lineno, (loop.body[-1].end_lineno or 0) + 1) for loop in loops}


def _environments() -> list[Path]:
    """Return the folders of installed packages, which may lie within that of a backend and do not belong to it."""
    return [folder for folder in map(Path.resolve, map(Path, sys.path)) if any(folder.glob("*.dist-info"))]


CoverageData = dict[tuple[str, str], tuple[set[int], set[tuple[int, int]]]]


def find_uncovered_lines(processes: Sequence[CoverageData], unasked: Set[str] = frozenset()) -> dict[str, Ranges]:
    """Return, by file, the lines that no decisive call of any process has reached, of functions that a call has
    entered.

    A branch that was never taken counts as the line of its ``if``. Functions of the protocol that were not requested
    are left out, although an earlier call may have entered them.
    """
    missed: dict[str, set[int]] = {}
    for name, function in sorted(set().union(*processes)):
        if function.partition(".")[0] in unasked:
            continue
        missed_by_process = [reached[name, function] for reached in processes if (name, function) in reached]
        lines, branches = (set.intersection(*sets) for sets in zip(*missed_by_process, strict=True))
        lines = lines | {source for source, target in branches if target not in lines}
        missed.setdefault(name, set()).update(lines)
    return {name: _ranges(sorted(lines)) for name, lines in missed.items() if lines}


def _ranges(lines: list[int]) -> Ranges:
    """Group consecutive lines into pairs of the first and the last.

    Examples
    --------
    >>> _ranges([3, 4, 5, 9])
    [(3, 5), (9, 9)]
    """
    ranges: Ranges = []
    for line in lines:
        if ranges and line == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], line
        else:
            ranges.append((line, line))
    return ranges
