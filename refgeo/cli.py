"""The command line: ``refgeo check``."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from refgeo import __version__

if TYPE_CHECKING:
    from refgeo.conformance import Report

PASSED, FAILED, USAGE = 0, 1, 2

_OUTPUTS = {
    "json": "JSON",
    "junit": "JUnit XML, for continuous integration",
    "html": "one page with plots (needs the extra html)",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 all provided checks pass, 1 something is wrong, 2 usage.

    Examples
    --------
    >>> main(["check", "--checks", "no_such_check"])
    2
    """
    parser = _parser()
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stop:  # argparse has printed help (0) or the usage error (2)
        return int(stop.code or 0)
    try:
        return _check(options)
    except (ValueError, OSError) as error:
        print(f"refgeo: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("refgeo: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="refgeo", description="The referee for symmetry-aware sharpness.")
    parser.add_argument("--version", action="version", version=f"refgeo {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check",
        help="judge an implementation of the geometry",
        description="Judge an implementation of the GL(h) geometry against rigorous enclosures. "
        "Exit status: 0 all provided checks pass, 1 something is wrong, 2 usage.",
    )
    check.add_argument(
        "backend", nargs="?", help="module, module:object or file.py; default: the paper's formulas, literally"
    )
    check.add_argument("--metric", action="append", choices=["inv", "mix"], help="only this metric (repeatable)")
    check.add_argument(
        "--checks", type=_names, help="only these, separated by commas: inner_product, horizontal_projection, "
        "riemannian_gradient, christoffel, geodesic (a function), geodesic_2 (a value), christoffel.koszul (a law)",
    )  # fmt: skip
    check.add_argument("--case", action="append", help="only this test point, or all that start with it (repeatable)")
    check.add_argument("--dtype", default="float64", choices=["float64", "float32"])
    check.add_argument(
        "--profile",
        default="quick",
        choices=["quick", "full", "fuzz"],
        help="how many generated points; fuzz searches for a failing one and shrinks it",
    )
    check.add_argument("--seconds", type=float, help="how long --profile fuzz searches (60)")
    check.add_argument("--seed", type=int, default=0)
    check.add_argument("--checkpoint", type=Path, metavar="FILE", help="take the test points from a safetensors file")
    check.add_argument("--layout", help="how the checkpoint names its tensors: bert")
    check.add_argument("--heads", type=int, help="attention heads of the checkpoint; default: config.json beside it")
    check.add_argument("--timeout", type=float, default=60.0, help="seconds that one call may take (60)")
    _output_arguments(check)
    check.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def _output_arguments(parser: argparse.ArgumentParser) -> None:
    for name, what in _OUTPUTS.items():
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"also write the report as {what}")


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("expected names separated by commas")
    return names


def _outputs(options: argparse.Namespace) -> dict[str, Path]:
    """Format to absolute path; what cannot be written is an error before the run rather than after it."""
    chosen: dict[str, Path] = {}
    for name in _OUTPUTS:
        file: Path | None = getattr(options, name)
        if file is None:
            continue
        if not file.resolve().parent.is_dir():
            raise ValueError(f"--{name}: the folder {file.parent} does not exist")
        if file.is_dir():
            raise ValueError(f"--{name}: {file} is a folder; expected the name of a file")
        chosen[name] = file.resolve()
    if "html" in chosen:
        from refgeo.conformance.html import require

        require()
    return chosen


def _deliver(report: Report, outputs: dict[str, Path]) -> int:
    """Write the files, print the table, and return the exit status."""
    for name, file in outputs.items():
        text: str = getattr(report, f"to_{name}")()
        file.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal or pipe without Greek letters still gets its report
    report.print()
    return PASSED if report.passed else FAILED


def _check(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from refgeo.conformance import check

    if options.seed < 0:
        raise ValueError(f"--seed: expected a number >= 0, got {options.seed}")
    if options.seconds is not None and options.profile != "fuzz":
        raise ValueError("--seconds: goes with --profile fuzz")
    if options.layout is not None and options.checkpoint is None:
        raise ValueError("--layout: goes with --checkpoint FILE")
    if options.heads is not None and options.checkpoint is None:
        raise ValueError("--heads: goes with --checkpoint FILE")
    outputs = _outputs(options)
    columns = (TextColumn("checking"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(),
               TextColumn("{task.description}"))  # fmt: skip
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=options.quiet or not console.is_terminal) as bar:
        task = bar.add_task("")

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        report = check(
            options.backend,
            metrics=options.metric or ("inv", "mix"),
            checks=options.checks,
            dtype=options.dtype,
            profile=options.profile,
            **({} if options.seconds is None else {"seconds": options.seconds}),
            seed=options.seed,
            cases=options.case,
            checkpoint=None if options.checkpoint is None else options.checkpoint.resolve(),
            layout=options.layout,
            heads=options.heads,
            timeout=options.timeout,
            progress=show,
        )
    return _deliver(report, outputs)


if __name__ == "__main__":
    sys.exit(main())
