"""Tables of `rich` on a terminal, or as plain text."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Collection
from typing import Any


def printable(text: str) -> str:
    r"""Return somebody's text without escape sequences and control characters, except new lines.

    Examples
    --------
    >>> printable("\x1b[31mwrong\x1b[0m\x07")
    'wrong'
    """
    text = re.sub(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])", "", text)
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")


def without_common_words(names: Collection[str]) -> dict[str, str]:
    """Return a short name of each block, without the words that all names contain.

    Examples
    --------
    >>> list(without_common_words(["encoder.layer.0.query_key", "encoder.layer.1.query_key"]).values())
    ['0', '1']
    """
    words = {name: name.split(".") for name in names}
    common = set.intersection(*map(set, words.values())) if len(words) > 1 else set()
    return {name: ".".join(part for part in parts if part not in common) for name, parts in words.items()}


def needed(table: Any) -> int:
    """Return the width of a table in which no line is folded.

    Examples
    --------
    >>> from rich.table import Table
    >>> needed(Table("one", "two", box=None))
    10
    """
    from rich.console import Console

    return Console(width=1000).measure(table).maximum


def as_text(*shown: Any, width: int = 0) -> str:
    r"""Return what `rich` would print as lines of plain text, without spaces at their ends.

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

    console = Console(width=width or max((needed(item) for item in shown if not isinstance(item, str)), default=80))
    lines = []
    for item in shown:
        if isinstance(item, str):
            lines += textwrap.wrap(item, width or 80, break_long_words=False, break_on_hyphens=False)
        else:
            with console.capture() as captured:
                console.print(item, highlight=False)
            lines += captured.get().strip("\n").splitlines()
    return "\n".join(line.rstrip() for line in lines)


def say(*lines: str, file: Any = None) -> None:
    """Print lines; letters that the stream does not have are question marks.

    Examples
    --------
    >>> import io
    >>> say("κ = 3", file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    """
    encoding = getattr(sys.stdout if file is None else file, "encoding", None) or "utf-8"
    print(*(line.encode(encoding, "replace").decode(encoding) for line in lines), sep="\n", file=file)


def show(*shown: Any) -> None:
    """Print tables and sentences: in colour on a terminal, else as plain text."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    console.width = max([console.width, *(needed(item) for item in shown if not isinstance(item, str))])
    if not console.is_terminal:
        say(as_text(*shown))
        return
    for item in shown:
        console.print(Text(item) if isinstance(item, str) else item, highlight=False)
