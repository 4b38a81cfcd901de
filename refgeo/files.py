"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_whole(file: str | Path, write: Callable[[Path], Any]) -> None:
    """Let `write` write beside the file and move that there, so that a half-written one never has its name.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(f"{folder}/note.txt", lambda beside: beside.write_text("whole"))
    ...     Path(folder, "note.txt").read_text()
    'whole'
    """
    file = Path(file)
    beside = file.with_name(f".{file.name}.part")
    write(beside)
    os.replace(beside, file)


def write_text(file: str | Path, text: str) -> None:
    """A text in UTF-8, whole or not at all.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(f"{folder}/note.txt", "λ")
    ...     Path(folder, "note.txt").read_text(encoding="utf-8")
    'λ'
    """
    write_whole(file, lambda beside: beside.write_text(text, encoding="utf-8"))
