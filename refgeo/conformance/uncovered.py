"""What a pass does not say: lines of a backend's own files that no decisive call has reached (coverage.py)."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

Ranges = list[tuple[int, int]]

_HERE = Path(__file__).parent.parent
_PACKAGES = {"site-packages", "dist-packages"}


class Coverage:
    """Lines and branches of the files beside a backend's own, in the process that calls it.

    Parameters
    ----------
    spec : str
        Where the backend is. Of a file all files of its folder are its own; of a module those of its package.
    """

    def __init__(self, spec: str) -> None:
        place = spec.partition(":")[0]
        with contextlib.suppress(ImportError, ValueError, AttributeError):
            found = None if place.endswith(".py") else importlib.util.find_spec(place)
            place = str(found.origin) if found is not None else place
        path = Path(place).resolve()
        # of refgeo's own modules one alone: the rest of the package is the referee's
        own = [str(path)] if _HERE in path.parents else [f"{path.parent}{os.sep}*"]
        # an environment may lie in the folder, with packages that are nobody's own
        installed = [] if _PACKAGES & set(path.parts) else [f"*{os.sep}{name}{os.sep}*" for name in sorted(_PACKAGES)]
        import coverage

        self._measured = coverage.Coverage(
            data_file=None,
            branch=True,
            include=own,
            omit=installed,
            config_file=False,
            messages=False,
            concurrency=["thread"],
        )
        self._measured.set_option("run:disable_warnings", ["no-data-collected", "module-not-measured", "couldnt-parse"])

        self._context = ""
        self._measured.start()

    def of(self, context: str) -> None:
        """What is reached from now on is reached by decisive calls, by others, or by none."""
        if context != self._context:
            self._context = context
            self._measured.switch_context(context)

    def reached(self) -> Reached:
        """By file: lines that decisive calls have executed, and the lines and branches that they have not."""
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "coverage.json"
            self._measured.stop()
            try:
                self._measured.json_report(outfile=str(place), contexts=["decisive"])
            except Exception:  # nothing of its own was reached at all, or no file is there any more
                return {}
            finally:
                self._measured.start()
                self._measured.switch_context(self._context)
            files = json.loads(place.read_text(encoding="utf-8"))["files"]
        return {
            name: (
                set(file["executed_lines"]),
                set(file["missing_lines"]),
                {(source, target) for source, target in file.get("missing_branches", ())},
            )
            for name, file in files.items()
        }


Reached = dict[str, tuple[set[int], set[int], set[tuple[int, int]]]]


def not_run(found: Sequence[Reached]) -> dict[str, Ranges]:
    """By file, the lines that no decisive call of any process has reached, of functions that some call has entered.

    A branch past an ``if`` that was never taken is the line of the ``if``.
    """
    missed = {}
    for name in sorted(set().union(*found)):
        files = [one[name] for one in found if name in one]
        executed = set().union(*(lines for lines, _, _ in files))
        missing = set.intersection(*(lines for _, lines, _ in files))
        branches = set.intersection(*(branches for _, _, branches in files))
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            entered = _bodies(Path(name).read_text(encoding="utf-8"), executed)
            lines = missing & entered
            lines |= {source for source, target in branches if target not in missing and source in entered}
            if lines:
                missed[name] = _ranges(sorted(lines))
    return missed


def _bodies(source: str, executed: set[int]) -> set[int]:
    """The lines of functions that were entered, without those that only raise."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    entered: set[int] = set()
    raising: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, functions):
            inside = set(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1))
            entered |= inside if inside & executed else set()
        elif not isinstance(node, ast.Module):
            for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
                if isinstance(body, list) and body and isinstance(body[-1], ast.Raise):
                    start = node.lineno if isinstance(node, ast.ExceptHandler) else body[0].lineno
                    raising |= set(range(start, (body[-1].end_lineno or start) + 1))
                    raising |= {node.lineno} if isinstance(node, ast.If) else set()
    return entered - raising


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
