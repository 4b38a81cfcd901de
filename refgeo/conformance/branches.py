"""What no call has evaluated of an expression, such as the ``b`` of ``a if test else b``: the bytecode shows it.

Python reports each conditional jump that it takes (``sys.monitoring``, from Python 3.12 on; before, nothing is found).
What the jumps taken lead to has run; other instructions have not.
"""

from __future__ import annotations

import ast
import dis
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from functools import cache
from types import CodeType
from typing import Any

Position = tuple[int, int, int, int]
"""First and last line, first and last column."""
_TOOL = 4
_ENDS = ("RETURN_", "RAISE_", "RERAISE")
_TESTS = ("POP_JUMP_", "FOR_ITER")


class Branches:
    """The conditional jumps of somebody's own files that are taken in calls that count.

    Parameters
    ----------
    own, others : sequence of str
        Patterns of the names of files that are followed, and of those among them that are not.

    Attributes
    ----------
    counts : bool
        Whether what runs now counts.
    """

    def __init__(self, own: Sequence[str], others: Sequence[str]) -> None:
        self.counts, self._own, self._others = False, own, others
        self._file = cache(self._file_of)  # a branch that always goes one way is reported at every call
        self._taken: defaultdict[str, dict[CodeType, dict[int, set[int]]]] = defaultdict(dict)
        monitoring: Any = getattr(sys, "monitoring", None)
        if monitoring is not None:
            monitoring.use_tool_id(_TOOL, "refgeo")
            monitoring.register_callback(_TOOL, monitoring.events.BRANCH, self._branch)
            monitoring.set_events(_TOOL, monitoring.events.BRANCH)
            self._enough = monitoring.DISABLE

    def _file_of(self, name: str) -> str:
        """The file, if it is followed."""
        file = os.path.realpath(name)
        own, other = (any(fnmatch(file, one) for one in patterns) for patterns in (self._own, self._others))
        return file if own and not other else ""

    def _branch(self, code: CodeType, offset: int, target: int) -> Any:
        file = self._file(code.co_filename)
        if not file:
            return self._enough
        seen = self._taken[file].setdefault(code, {}).setdefault(offset, set())
        if self.counts:
            seen.add(target)
        return self._enough if len(seen) > 1 else None

    def not_run(self, file: str, source: str, run: set[int]) -> dict[str, set[Position]]:
        """By function, what has not run of statements that have.

        Parameters
        ----------
        file, source : str
            Where the code is, and its text.
        run : set of int
            The first lines of statements that have run.
        """
        statements = list(_statements(ast.parse(source)))
        found: dict[str, set[Position]] = {}
        for code, seen in self._taken[file].items():
            taken = {offset: targets for offset, targets in seen.items() if targets}
            if taken:
                missed = _missed(code, taken, run)
                name = code.co_qualname.replace(".<locals>", "")
                found[name] = {one for one in missed if _is_inside(one, statements, run)}
        return found


def _missed(code: CodeType, taken: dict[int, set[int]], run: Iterable[int]) -> set[Position]:
    """Where something is loaded that has not been, though some way leads there."""
    instructions = list(dis.get_instructions(code))
    following = dict(zip([one.offset for one in instructions], instructions[1:], strict=False))
    by_offset = {one.offset: one for one in instructions}
    first = {line: one for one in reversed(instructions) if (line := _line(one)) is not None}
    # what an exception has entered, where no jump leads, begins with a line that has run
    begin = [instructions[0], *map(by_offset.__getitem__, taken), *(first[line] for line in run if line in first)]
    possible, has_run = (_reached(begin, following, by_offset, jumps) for jumps in ({}, taken))
    return _loads(possible) - {_place(one) for one in has_run}


def _reached(
    begin: Iterable[dis.Instruction],
    following: dict[int, dis.Instruction],
    by_offset: dict[int, dis.Instruction],
    taken: dict[int, set[int]],
) -> list[dis.Instruction]:
    """Instructions to which a way leads: of a conditional jump that was seen, those that it took."""
    found: dict[int, dis.Instruction] = {}
    ahead = list(begin)
    while ahead:
        one = ahead.pop()
        if one.offset in found:
            continue
        found[one.offset] = one
        jump = by_offset.get(one.argval) if one.opcode in _JUMPS else None
        after = None if one.opname.startswith(_ENDS) else following.get(one.offset)
        if after is not None and not one.opname.startswith("JUMP") and _goes(one, taken, jump, False):
            ahead.append(after)
        if jump is not None and _goes(one, taken, jump, True):
            ahead.append(jump)
    return list(found.values())


def _goes(one: dis.Instruction, taken: dict[int, set[int]], jump: dis.Instruction | None, far: bool) -> bool:
    """Whether an instruction was seen to jump, or seen not to; where nothing is seen, it may do both.

    These jumps lead forward, and a reported target can be a little behind the instruction itself.
    """
    if jump is None or one.offset not in taken or not one.opname.startswith(_TESTS):
        return True
    return far in {target >= jump.offset for target in taken[one.offset]}


_JUMPS = {*dis.hasjrel, *dis.hasjabs}


def _line(one: dis.Instruction) -> int | None:
    return None if one.positions is None else one.positions.lineno


def _place(one: dis.Instruction) -> Position | None:
    """Where it stands in the text."""
    at = one.positions
    if at is None or None in (at.lineno, at.end_lineno, at.col_offset, at.end_col_offset):
        return None
    return at.lineno, at.end_lineno, at.col_offset, at.end_col_offset  # type: ignore[return-value]


def _loads(instructions: Iterable[dis.Instruction]) -> set[Position]:
    """Of those that load something: what only tidies the stack is no part of anybody's text."""
    places = (_place(one) for one in instructions if one.opname.startswith("LOAD_"))
    return {one for one in places if one is not None}


def _statements(tree: ast.AST) -> Iterable[ast.stmt]:
    """Innermost last."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.stmt))


def _is_inside(position: Position, statements: Iterable[ast.stmt], run: set[int]) -> bool:
    """Whether its statement has run, and is none that only raises."""
    line, last, column, end = position
    own = None
    for one in statements:
        begins, ends = (one.lineno, one.col_offset), (one.end_lineno or 0, one.end_col_offset or 0)
        if begins <= (line, column) and (last, end) <= ends:
            own = one
    return own is not None and own.lineno in run and not isinstance(own, (ast.Raise, ast.Assert))
