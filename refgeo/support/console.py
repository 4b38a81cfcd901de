"""Tables of `rich` on a terminal, or as plain text."""

from __future__ import annotations

from typing import Any


def needed(table: Any) -> int:
    """The width of a table that is not broken.

    Examples
    --------
    >>> from rich.table import Table
    >>> needed(Table("one", "two", box=None))
    10
    """
    from rich.console import Console

    return Console(width=1000).measure(table).maximum


def as_text(*shown: Any, width: int = 0) -> str:
    r"""What `rich` would print, as lines of plain text without spaces at their ends; as wide as its tables need.

    Parameters
    ----------
    shown : table or str
    width : int, optional
        Of tables, which are folded to it.

    Examples
    --------
    >>> from rich.table import Table
    >>> table = Table("a", "b", box=None, pad_edge=False)
    >>> table.add_row("1", "2")
    >>> as_text(table)
    'a  b\n1  2'
    """
    from rich.console import Console

    console = Console(width=width or max((needed(one) for one in shown if not isinstance(one, str)), default=80))
    with console.capture() as captured:
        for one in shown:
            console.print(one, soft_wrap=isinstance(one, str), markup=False, highlight=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")


def show(*shown: Any) -> None:
    """Print tables and sentences: in colour on a terminal, else as plain text."""
    from rich.console import Console

    console = Console()
    console.width = max([console.width, *(needed(one) for one in shown if not isinstance(one, str))])
    if not console.is_terminal:
        print(as_text(*shown))
        return
    for one in shown:
        console.print(one, markup=False, highlight=False, soft_wrap=isinstance(one, str))
