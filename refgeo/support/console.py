"""Tables of `rich` on a terminal, or as plain text."""

from __future__ import annotations

from typing import Any


def as_text(*shown: Any, width: int = 80) -> str:
    r"""What `rich` would print, as lines of plain text without spaces at their ends; a wide table is not broken.

    Examples
    --------
    >>> from rich.table import Table
    >>> table = Table("a", "b", box=None)
    >>> table.add_row("1", "2")
    >>> as_text(table)
    ' a  b\n 1  2'
    """
    from rich.console import Console

    widest = Console(width=1000)
    console = Console(width=max(width, *(widest.measure(one).maximum for one in shown if not isinstance(one, str))))
    with console.capture() as captured:
        for one in shown:
            console.print(one, soft_wrap=isinstance(one, str), markup=False, highlight=False)
    return "\n".join(line.strip("\n").rstrip() for line in captured.get().splitlines()).strip("\n")


def show(*shown: Any) -> None:
    """Print tables and sentences: in colour on a terminal, else as plain text."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        print(as_text(*shown))
        return
    for one in shown:
        console.print(one, markup=False, highlight=False)
