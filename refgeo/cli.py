"""The command line: ``refgeo check``, ``sharpness``, ``verify``, ``vectors write`` and ``vectors grade``."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refgeo import __version__
from refgeo.support.errors import LossFileError, RefereeError

if TYPE_CHECKING:
    from refgeo.conformance import Report

PASSED, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

LINE_EVERY = 10.0
"""Seconds between lines of progress, where there is no terminal."""

_DTYPES = ("float64", "float32", "float16", "bfloat16")

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
        status: int = options.run(options)
        return status
    except BrokenPipeError:  # of `| head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (ValueError, OSError) as error:
        print(f"refgeo: {error}", file=sys.stderr)
        return USAGE
    except RefereeError as error:
        print(f"refgeo: {error}", file=sys.stderr)
        return FAILED
    except LossFileError as error:
        traceback.print_exception(error.__cause__)
        print(f"refgeo: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("refgeo: interrupted", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="refgeo", description="The referee for symmetry-aware sharpness.")
    parser.add_argument("--version", action="version", version=f"refgeo {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    _check_parser(commands)
    _read_parser(commands)
    _network_parsers(commands)
    _vectors_parser(commands)
    return parser


def _check_parser(commands: Any) -> None:
    check = commands.add_parser(
        "check",
        help="judge an implementation of the geometry",
        description="Judge an implementation of the GL(h) geometry against rigorous enclosures. "
        "Exit status: 0 all provided checks pass, 1 something is wrong or nothing could be judged, 2 usage.",
    )
    check.set_defaults(run=_check)
    check.add_argument(
        "backend", nargs="?", help="module, module:object or file.py; default: the paper's formulas, literally"
    )
    _several(
        check, "--checks", "only these: inner_product, horizontal_projection, riemannian_gradient, "
        "riemannian_hessian, christoffel, geodesic (a function), geodesic_2 (a value), christoffel.many_blocks (a law)",
    )  # fmt: skip
    _point_arguments(check, ["quick", "full", "fuzz"], _DTYPES, "inv, mix or s=0.5")
    check.add_argument("--examples", type=int, help="how many points --profile fuzz tries for each value (300)")
    check.add_argument("--timeout", type=float, default=60.0, help="seconds that one call may take (60)")
    check.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="how many metrics are judged at once (all, if there are as many processors)",
    )
    check.add_argument("--laws-only", action="store_true", help="no values: for update rules of another metric")
    check.add_argument("--specification", type=int, metavar="N", help="the version of the protocol to be judged by")
    check.add_argument(
        "--strict",
        action="store_true",
        help="findings count, too: inaccurate, partly provided, contract, lines that were not run",
    )
    check.add_argument("--list", action="store_true", help="show the names of the checks and test points, and end")
    _output_arguments(check)


def _read_parser(commands: Any) -> None:
    read = commands.add_parser(
        "read",
        help="print the formulas that an implementation computes",
        description="Print the formulas that an implementation computes, right or wrong, read from its numbers.",
    )
    read.set_defaults(run=_read)
    read.add_argument("backend", help="module, module:object or file.py")
    _several(read, "--checks", "only these functions or values: christoffel, geodesic_2, ...")
    _several(read, "--metric", "the names of metrics that it gets (inv,mix)")
    read.add_argument("--dtype", default="float64", choices=_DTYPES)
    read.add_argument("--relaxation", type=float, default=0.0, metavar="ε", help="S + εI and T + εI are words, too")
    read.add_argument("--timeout", type=float, default=60.0, help="seconds that one call may take (60)")


def _read(options: argparse.Namespace) -> int:
    from refgeo.conformance import read

    found = read(
        options.backend, metrics=options.metric or ("inv", "mix"), functions=options.checks, dtype=options.dtype,
        relaxation=options.relaxation, timeout=options.timeout,
    )  # fmt: skip
    print(found)
    return PASSED


def _vectors_parser(commands: Any) -> None:
    vectors = commands.add_parser(
        "vectors",
        help="test points in files, for any language",
        description="Write test points into files that any language reads, and grade the results.",
    )
    verbs = vectors.add_subparsers(dest="verb", required=True)
    write = verbs.add_parser("write", help="write inputs and instructions into a folder")
    write.set_defaults(run=_write_vectors)
    write.add_argument("directory", type=Path, metavar="DIR")
    write.add_argument("--format", default="npz", choices=["npz", "mat", "json"])
    write.add_argument("--with-results", action="store_true", help="also write the enclosures of all results")
    write.add_argument("--quiet", action="store_true", help="no progress bar")
    # not all files and languages have the other types, and no file says what M_G between the two metrics is
    _point_arguments(write, ["quick", "full"], _DTYPES[:2], "inv or mix")
    grade = verbs.add_parser(
        "grade",
        help="judge results that were computed from them",
        description="Judge results computed elsewhere. Exit status as for refgeo check.",
    )
    grade.set_defaults(run=_grade_vectors)
    grade.add_argument("directory", type=Path, metavar="DIR")
    grade.add_argument("results", type=Path, metavar="RESULTS", help="a .npz, .mat or .json file")
    _output_arguments(grade)


def _network_parsers(commands: Any) -> None:
    sharpness = commands.add_parser(
        "sharpness",
        help="measure the sharpness of a checkpoint",
        description="Worst-case sharpness of a checkpoint, of all blocks together. FILE.py has a function "
        "model(path, network) that returns a dict with value_and_grad and, optional, batches and the names of frozen "
        "blocks: see help('refgeo.checkpoint').",
    )
    sharpness.set_defaults(run=_sharpness)
    _several(sharpness, "--metric", "inv, mix, s=0.5, adaptive (default: inv, mix and adaptive)", spaced=True)
    _several(sharpness, "--rho", "radii (default: one for each metric, at which second-order geodesics are nearly "
             "straight)", convert=float, spaced=True)  # fmt: skip
    sharpness.add_argument("--order", default="2", choices=["1", "2", "exact"], help="of the geodesics (2)")
    sharpness.add_argument("--n-iter", type=int, default=20, help="iterations of a search (20)")
    sharpness.add_argument("--n-restarts", type=int, default=1, help="starts of a search (1)")
    sharpness.add_argument("--seed", type=int, default=0)
    sharpness.add_argument("--dtype", default="float64", choices=_DTYPES[:2], help="of the search's vectors (float64)")
    sharpness.add_argument("--memory", type=float, metavar="GB", help="what a search may need beside the loss "
                           "(default: 12 times the moving parameters in float32)")  # fmt: skip
    sharpness.add_argument("--plot", type=Path, metavar="FILE", help="also draw it (needs the extra plot)")
    verify = commands.add_parser(
        "verify",
        help="measure which symmetries a checkpoint's loss has",
        description="Which of the symmetries that a layout suggests the loss of a checkpoint has, to how many digits. "
        "Exit status: 0 the geometry divides by nothing that is not there, 1 it does.",
    )
    verify.set_defaults(run=_verify)
    verify.add_argument("--samples", type=int, default=2, help="random group elements of each size (2)")
    verify.add_argument("--seed", type=int, default=0)
    for parser in (sharpness, verify):
        parser.add_argument("--checkpoint", type=Path, required=True, metavar="PATH", help="a safetensors file, or a "
                            "folder with one")  # fmt: skip
        parser.add_argument("--layout", required=True, help="how it names its tensors: bert, llama, ...")
        parser.add_argument("--heads", type=int, help="attention heads; default: config.json beside it")
        parser.add_argument("--loss", type=Path, required=True, metavar="FILE.py", help="Python file with model()")
        parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as JSON")
        parser.add_argument("--quiet", action="store_true", help="no progress bar")


class _Several(argparse.Action):
    """Several values: separated by commas, or the option given again."""

    def __init__(self, *arguments: Any, convert: Callable[[str], Any], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._convert = convert

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        """Add what came to what came before."""
        given = values if isinstance(values, list) else [values]
        texts = [part.strip() for text in given for part in text.split(",")]
        try:
            found = [self._convert(text) for text in texts if text]
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        if not found:
            raise argparse.ArgumentError(self, "expected values separated by commas")
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or []), *found])


def _several(
    parser: argparse.ArgumentParser, name: str, what: str, convert: Callable[[str], Any] = str, spaced: bool = False
) -> None:
    """An option with several values; `spaced` ones may have spaces between them, where no other argument follows."""
    parser.add_argument(
        name, action=_Several, convert=convert, nargs="+" if spaced else None, metavar=name[2:].upper() + ",...",
        help=f"{what}; separated by commas",
    )  # fmt: skip


def _point_arguments(parser: argparse.ArgumentParser, profiles: list[str], dtypes: Sequence[str], metrics: str) -> None:
    _several(parser, "--metric", f"only this metric: {metrics}")
    parser.add_argument("--case", action="append", help="only this test point, or all that start with it (repeatable)")
    parser.add_argument("--dtype", default="float64", choices=dtypes)
    fuzz = "; fuzz searches for failing ones and simplifies them" if "fuzz" in profiles else ""
    parser.add_argument("--profile", default="quick", choices=profiles, help=f"how many generated points{fuzz}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--relaxation", type=float, default=0.0, metavar="ε", help="judge the relaxed geometry (H.2)")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="take the test points from a safetensors file")
    parser.add_argument("--layout", help="how the checkpoint names its tensors: bert, llama, ...")
    parser.add_argument("--heads", type=int, help="attention heads of the checkpoint; default: config.json beside it")


def _points(options: argparse.Namespace) -> dict[str, Any]:
    """The options of `_point_arguments`, as functions take them."""
    if options.seed < 0:
        raise ValueError(f"--seed: expected a number >= 0, got {options.seed}")
    for name in ("layout", "heads"):
        if getattr(options, name) is not None and options.checkpoint is None:
            raise ValueError(f"--{name}: goes with --checkpoint FILE")
    return {
        "metrics": options.metric or ("inv", "mix"),
        "dtype": options.dtype,
        "profile": options.profile,
        "seed": options.seed,
        "relaxation": options.relaxation,
        "cases": options.case,
        "checkpoint": None if options.checkpoint is None else options.checkpoint.resolve(),
        "layout": options.layout,
        "heads": options.heads,
    }


def _output_arguments(parser: argparse.ArgumentParser) -> None:
    for name, what in _OUTPUTS.items():
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"also write the report as {what}")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


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
        if file.resolve() in chosen.values():
            raise ValueError(f"--{name}: {file} is asked for twice; expected a file for each format")
        chosen[name] = file.resolve()
    if "html" in chosen:
        from refgeo.conformance.render.html import require_html

        require_html()
    return chosen


def _deliver(report: Report, outputs: dict[str, Path], strict: bool = False) -> int:
    """Write the files, print the table, and return the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal or pipe without Greek letters still gets its report
    report.print()
    for name, file in outputs.items():
        text: str = getattr(report, f"to_{name}")()
        try:
            file.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
        except OSError as error:
            raise ValueError(f"--{name}: {error}") from error
    return PASSED if (report.passed_strictly if strict else report.passed) else FAILED


@contextlib.contextmanager
def _progress(options: argparse.Namespace, what: str = "checking") -> Iterator[Callable[[int, int, str], None]]:
    """A bar on a terminal; in a file or pipe a line now and then."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(file=sys.stderr)  # this one, whatever a backend's output is redirected to meanwhile
    if options.quiet or not console.is_terminal:
        yield (lambda *_: None) if options.quiet else _lines(what, sys.stderr)
        return
    columns = (TextColumn(what), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(),
               TextColumn("{task.description}"))  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("")
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def _lines(what: str, stream: Any) -> Callable[[int, int, str], None]:
    """Progress as lines of text, `LINE_EVERY` seconds apart."""
    begun = last = time.monotonic()

    def show(done: int, total: int, of: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_EVERY:
            last = now
            print(f"{what} {of}: {done} of {total or '?'}, {now - begun:.0f} s", file=stream, flush=True)

    return show


def _check(options: argparse.Namespace) -> int:
    from refgeo.conformance import check

    if options.examples is not None and options.profile != "fuzz":
        raise ValueError("--examples: goes with --profile fuzz")
    points, outputs = _points(options), _outputs(options)
    if options.list:
        return _list(options, points)
    chosen = {
        name: getattr(options, name) for name in ("examples", "specification") if getattr(options, name) is not None
    }
    with _progress(options) as show:
        report = check(
            options.backend,
            checks=options.checks,
            timeout=options.timeout,
            jobs=options.jobs,
            laws_only=options.laws_only,
            progress=show,
            **chosen,
            **points,
        )
    return _deliver(report, outputs, options.strict)


def _list(options: argparse.Namespace, points: dict[str, Any]) -> int:
    """The names that --checks and --case take, of the checks and test points that are chosen."""
    from refgeo.conformance.points import Points
    from refgeo.conformance.run import chosen_checks, chosen_searches
    from refgeo.conformance.searches import SEARCH

    for one in chosen_checks(options.checks):
        print(f"{one.kind:9s} {one.name:50s} {one.statement}")
    for name in chosen_searches(options.checks):
        print(f"search    {name:50s} {SEARCH[name]}")
    if points["profile"] == "fuzz":  # which makes its own
        return PASSED
    metrics, cases = points.pop("metrics"), points.pop("cases")
    for name, _ in Points(**points).selected(metrics[0], cases):
        print(f"case      {name}")
    return PASSED


def _loaded(options: argparse.Namespace, *files: str) -> Any:
    """The checkpoint with its loss; where a file cannot be written, an error before the run."""
    from refgeo.networks import checkpoint

    for name in files:
        file: Path | None = getattr(options, name)
        if file is not None and (file.is_dir() or not file.resolve().parent.is_dir()):
            raise ValueError(f"--{name}: expected the name of a file in a folder that exists, got {file}")
    if options.seed < 0:
        raise ValueError(f"--seed: expected a number >= 0, got {options.seed}")
    return checkpoint.load(options.checkpoint, options.layout, options.loss, options.heads)


def _sharpness(options: argparse.Namespace) -> int:

    from refgeo.geometry.pair_metrics import pair_metric
    from refgeo.networks import checkpoint

    metrics, radii = options.metric or ["inv", "mix", checkpoint.ADAPTIVE], sorted(options.rho or []) or None
    for name in metrics:
        if name != checkpoint.ADAPTIVE:
            pair_metric(name, argument="--metric")
    if options.plot is not None:
        checkpoint.check_plot(options.plot)
    loaded = _loaded(options, "json", "plot")
    found: dict[str, Any] = {}
    order: Any = options.order if options.order == "exact" else int(options.order)
    memory = None if options.memory is None else 1e9 * options.memory
    print(checkpoint.HEADER)
    with _interruptible() as interrupted, _progress(options, "searching") as show:

        def heard(name: str, done: int, total: int) -> None:
            show(done, total, name)
            if interrupted():
                raise StopIteration  # which gives what has been found so far

        measured = checkpoint.measure(
            loaded, metrics, radii, heard, order=order, n_iter=options.n_iter, n_restarts=options.n_restarts,
            rng=options.seed, dtype=options.dtype, memory=memory,
        )  # fmt: skip
        for name, results in measured:
            found[name] = results
            print("\n".join(line for result in results for line in checkpoint.lines(name, result)), flush=True)
            if options.json is not None:  # after each metric: what kills the process takes one
                checkpoint.write_json(options.json, checkpoint.document(loaded, found))
            if interrupted():
                break
    if radii is None:
        print("ρ was not given: it is the radius up to which second-order geodesics are nearly straight in each metric")
    if options.plot is not None:
        checkpoint.plot(found, options.plot, loaded.path.name)
    if interrupted():
        print("refgeo: interrupted; the last search above was stopped before its end", file=sys.stderr)
        return INTERRUPTED
    return PASSED


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Whether somebody has pressed Ctrl-C: the first time it is noted, the second time it interrupts."""
    seen: list[int] = []

    def note(signal_number: int, frame: Any) -> None:
        seen.append(signal_number)
        if len(seen) > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)


def _verify(options: argparse.Namespace) -> int:
    from rich.console import Console

    from refgeo.landscape import symmetry
    from refgeo.networks import checkpoint

    loaded = _loaded(options, "json")
    moving = checkpoint.geometry(loaded, "inv")
    batch = loaded.batches[0]
    found = symmetry.verify(
        lambda blocks: loaded.value_and_grad(blocks, batch),
        loaded.network.blocks,
        [one for one in symmetry.of_network(loaded.network) if set(one.blocks) <= set(moving.metrics)],
        samples=options.samples,
        rng=options.seed,
    )
    if options.json is not None:
        checkpoint.write_json(options.json, found.to_dict())
    Console().print(found.table())
    divided = {(one.name, one.blocks) for one in symmetry.of_metric(moving)}
    wrong = [one for one in found if (one.symmetry, one.blocks) in divided and not one.holds]
    return FAILED if wrong else PASSED


def _write_vectors(options: argparse.Namespace) -> int:
    from refgeo.conformance import vectors

    with _progress(options) as show:
        count = vectors.write(
            options.directory, options.format, with_results=options.with_results, progress=show, **_points(options)
        )
    print(f"{count} cases in {options.directory}; FORMAT.md there says what to compute. Then:")
    print(f"refgeo vectors grade {shlex.quote(str(options.directory))} RESULTS")
    return PASSED


def _grade_vectors(options: argparse.Namespace) -> int:
    from refgeo.conformance import vectors

    outputs = _outputs(options)
    with _progress(options) as show:
        report = vectors.grade(options.directory, options.results, progress=show)
    return _deliver(report, outputs)


if __name__ == "__main__":
    sys.exit(main())
