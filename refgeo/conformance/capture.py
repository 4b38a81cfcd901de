"""What a backend prints and warns of, kept apart from what it returns."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings

from refgeo.conformance.wire import out_of_the_way

MOST_TEXT = 400


def _as_users_see_them() -> None:
    """Warnings every time, but for those that Python does not show: they are for developers of what raises them."""
    warnings.simplefilter("always")
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)


class Capture:
    """Output of Python code, by replacing its streams."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._text = io.StringIO()
        self._warnings: list[warnings.WarningMessage] = []

    def start(self) -> None:
        """From now on, output is kept."""
        self._text = io.StringIO()
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(contextlib.redirect_stdout(self._text))
        self._stack.enter_context(contextlib.redirect_stderr(self._text))
        self._warnings = self._stack.enter_context(warnings.catch_warnings(record=True))
        _as_users_see_them()

    def stop(self) -> tuple[str, str]:
        """What was printed since the start, and what was done to the streams."""
        tampered = "replaced or closed a standard stream" if sys.stdout is not self._text else ""
        self._stack.close()
        warned = [f"{found.category.__name__}: {found.message}" for found in self._warnings]
        try:
            return "\n".join([self._text.getvalue(), *warned])[:MOST_TEXT].strip(), tampered
        except ValueError:
            return "", "closed a standard stream"


class FileCapture(Capture):
    """All output of a process: its standard streams go to a file without a name."""

    def __init__(self) -> None:
        import tempfile

        file = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the process)
        self._file = os.fdopen(out_of_the_way(file.fileno()), "w+b")
        for stream in (1, 2):
            os.dup2(self._file.fileno(), stream)
        self._streams = sys.stdout, sys.stderr
        self._seen = 0
        _as_users_see_them()

    def start(self) -> None:
        """From now on, output is new."""
        self._streams = sys.stdout, sys.stderr
        self._seen = self._size()

    def stop(self) -> tuple[str, str]:
        """What was printed since the start, and what was done to the streams, which is undone."""
        size = self._size()
        text = (
            os.pread(self._file.fileno(), min(size - self._seen, MOST_TEXT), self._seen) if size > self._seen else b""
        )
        return text.decode("utf-8", "replace").strip(), self._restored()

    def _restored(self) -> str:
        tampered = ""
        if (sys.stdout, sys.stderr) != self._streams:
            tampered = "replaced a standard stream"
            sys.stdout, sys.stderr = self._streams
        for number, stream in ((1, "stdout"), (2, "stderr")):
            try:
                os.fstat(number)
            except OSError:
                tampered = "closed a standard stream"
                os.dup2(self._file.fileno(), number)
            if getattr(getattr(sys, stream), "closed", False):
                tampered = "closed a standard stream"
                setattr(sys, stream, open(number, "w", closefd=False))  # noqa: SIM115
        return tampered

    def _size(self) -> int:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # somebody has closed or replaced it
                stream.flush()
        return os.fstat(self._file.fileno()).st_size
