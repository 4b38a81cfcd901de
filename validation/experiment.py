"""What the experiments share: settings, results that survive an interruption, pictures, one line of findings."""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import multiprocessing
import os
import platform
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

import refgeo
from refgeo.support.files import write_text
from refgeo.support.progress import show_progress

console = Console()
PACKAGES = ("numpy", "scipy", "torch", "transformers", "scikit-learn")


class Results:
    """Numbers by name in one JSON file, written whole after each, so that a run goes on where it was interrupted.

    A file made with other settings, or by another version, is not continued; it is moved aside.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, settings
        self.values: dict[str, Any] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            try:
                document = json.loads(path.read_text(encoding="utf-8"))
                same = document["settings"] == json.loads(json.dumps(settings))
                same &= document["versions"]["refgeo"] == refgeo.__version__
                values = dict(document["values"])
            except (ValueError, KeyError, TypeError):
                same, values = False, {}
            if same:
                self.values = values
                console.print(f"{path}: continuing with {len(self.values)} values")
            else:
                aside = next(p for i in itertools.count(1) if not (p := path.with_suffix(f".{i}.json")).exists())
                os.replace(path, aside)
                console.print(f"{path}: of other settings or another version, or damaged; it is now {aside.name}")

    def measure(self, name: str, function: Callable[[], Any]) -> Any:
        """The value of this name; computed and saved if it is not there yet."""
        if name not in self.values:
            self.values[name] = function()
            self.save()
        return self.values[name]

    def measure_all(
        self, function: Callable[..., Any], tasks: dict[str, tuple[Any, ...]], workers: int, description: str
    ) -> list[Any]:
        """The values of ``function(*arguments)`` by name, in so many processes; each is saved when it is there."""
        missing = {name: arguments for name, arguments in tasks.items() if name not in self.values}
        here = ((name, function(*arguments)) for name, arguments in missing.items())
        with show_progress(description) as tell:
            tell(len(tasks) - len(missing), len(tasks), "")
            result = here if workers == 1 else _in_processes(function, missing, workers)
            for done, (name, value) in enumerate(result, len(tasks) - len(missing) + 1):
                self.values[name] = value
                self.save()
                tell(done, len(tasks), name)
        return [self.values[name] for name in tasks]

    def save(self) -> None:
        """Write the file, whole or not at all."""
        text = json.dumps({"settings": self.settings, "versions": versions(), "values": self.values}, indent=1)
        write_text(self.path, text)


def versions() -> dict[str, str]:
    """Of what numbers come from, and the processor's instructions: training in PyTorch depends on both."""
    result = {"python": platform.python_version(), "refgeo": refgeo.__version__, "machine": platform.machine()}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            result[package] = metadata.version(package)
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        result["instructions"] = torch.backends.cpu.get_cpu_capability()
        if torch.cuda.is_initialized():
            result["device"] = torch.cuda.get_device_name()
    return result


def _in_processes(
    function: Callable[..., Any], tasks: dict[str, tuple[Any, ...]], workers: int
) -> Iterator[tuple[str, Any]]:
    """Names and values, as they are done."""
    with processes(workers) as pool:
        names = {pool.submit(function, *arguments): name for name, arguments in tasks.items()}
        for future in as_completed(names):
            yield names[future], future.result()


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool; every process has one thread of its own for linear algebra."""
    threads = {name: os.environ.get(name) for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    os.environ.update(dict.fromkeys(threads, "1"))
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        for name, value in threads.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))


def table(header: list[str], rows: list[list[str]], path: Path) -> None:
    """A table, printed in Markdown, and written in the format that the name of its file says."""
    text = markdown(header, rows) + "\n"
    console.print(text, soft_wrap=True, highlight=False, markup=False, end="")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        csv.writer(lines := io.StringIO(), lineterminator="\n").writerows([header, *rows])
        text = lines.getvalue()
    write_text(path, text)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, got {text!r}")
    return int(text)


def parser(description: str | None, has_quick: bool = True) -> argparse.ArgumentParser:
    """Return the options that every experiment has, and nearly all have a smaller version."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if has_quick:
        made.add_argument("--quick", action="store_true", help="a smaller version, in about a minute")
    made.add_argument("--out", type=Path, default=Path("results"), help="folder for the pictures and numbers (results)")
    made.add_argument("--workers", type=_positive, default=1, help="threads, or processes (1)")
    return made


def style() -> Any:
    """matplotlib.pyplot without a screen, in the look of these figures."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "figure.dpi": 150,
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "legend.frameon": False,
        }
    )
    return plt


COLOURS = {"inv": "#1f4e79", "mix": "#2a9d8f", "adaptive": "#c0392b", "Euclidean": "#c0392b", "loss": "#444444"}
