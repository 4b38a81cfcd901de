"""The command line: ``refgeo check``, ``read``, ``inspect`` and ``vectors``."""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refgeo import __version__
from refgeo.support import progress
from refgeo.support.console import printable, show
from refgeo.support.errors import Interrupted, RefereeError
from refgeo.support.extras import require
from refgeo.support.files import (
    is_stream,
    origin,
    place_of,
    refuse_unwritable,
    strict_json,
    write_text,
    write_whole,
)  # fmt: skip

if TYPE_CHECKING:
    from refgeo.conformance import Report

PASSED, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses. 2 is argparse's for usage errors, 130 the shell's for Ctrl-C."""

DTYPES = ("float64", "float32", "float16", "bfloat16")
LAYOUTS = "bert, vit, gpt2, clip, clip_hf, timm, llama, llama_rotary, llama_nope, lora"

_OUTPUTS = {"json": "JSON", "html": 'one page with plots (needs pip install "refgeo[html]")'}
"""The formats of a report, and how their options describe them."""
_INPUTS = ("*.safetensors", "*.safetensors.index.json", "config.json", "adapter_config.json", "inputs.*")
"""Patterns of files that are read in a folder that is named, or beside a file."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 passed, 1 something is wrong, 2 usage, 130 interrupted.

    Examples
    --------
    >>> main(["check", "--checks", "no_such_check"])
    2
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal or pipe without Greek letters still gets the rest
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as stop:  # argparse has printed help (0) or the usage error (2)
        return int(stop.code or 0)
    os.environ["MPLBACKEND"] = "agg"  # files need no window, and no notebook
    try:
        _refuse_to_overwrite(options)
        status: int = options.run(options)
        return status
    except BrokenPipeError:  # `| head`, for example, stops reading
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        print("refgeo: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError, RefereeError) as error:
        print(f"refgeo: {printable(_as_option(str(error), options))}", file=sys.stderr)
        return FAILED if isinstance(error, RefereeError) else USAGE
    except ImportError as error:  # not of a backend, which has a process of its own
        print(f"refgeo: {printable(_describe_broken_import(error))}", file=sys.stderr)
        return USAGE


def _describe_broken_import(error: ImportError) -> str:
    """Name the package that cannot be imported, and the reason."""
    names, traceback = [(error.name or "a package").partition(".")[0]], error.__traceback__
    while traceback is not None:
        names.append(str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0])
        traceback = traceback.tb_next
    broken = [name for name in names[1:] if name not in ("refgeo", "__main__", *sys.stdlib_module_names)]
    package = broken[0] if broken else names[0]
    return f"importing {package}, which refgeo needs, failed: {error}; install {package} again"


def _refuse_to_overwrite(options: argparse.Namespace) -> None:
    """Raise an error if an output is also an input, or is given twice."""
    outputs = _select_outputs(options, *_OUTPUTS, "plot")
    targets = [os.path.realpath(file) for file in outputs.values()]
    for (name, file), target in zip(outputs.items(), targets, strict=True):
        if targets.count(target) > 1:
            raise ValueError(f"{name}: {file} is given twice; expected a different file for each format")
        for argument, source in _input_files(options):
            if not is_stream(source) and os.path.realpath(source) == target:
                raise ValueError(f"{name}: {file} is also an input ({argument}); give another name")


def _select_outputs(options: argparse.Namespace, *names: str) -> dict[str, Path]:
    """Return the files of those of these output options that are given."""
    return {name: file for name in names if (file := getattr(options, name, None)) is not None}


def _input_files(options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Yield every file that may be read, with the name of the argument that names it."""
    if (backend := getattr(options, "backend", None)) is not None:
        place = place_of(backend)[0]
        here = Path(place if place.endswith(".py") else place.replace(".", os.sep) + ".py")
        yield "backend", (None if here.exists() else origin(place)) or here
    for name in ("checkpoint", "directory", "results"):
        path = getattr(options, name, None)
        if path is not None:
            folder = path if path.is_dir() else path.parent
            yield from ((name, file) for pattern in _INPUTS for file in folder.glob(pattern))
            yield name, path


def _as_option(message: str, options: argparse.Namespace) -> str:
    """Replace the name of a Python argument, with which a message begins, by the option of the command line."""
    name, colon, rest = message.partition(":")
    flags = {dest: dest for dest in vars(options)} | {"metrics": "metric", "cases": "case", "rng": "seed"}
    return f"--{flags[name].replace('_', '-')}:{rest}" if colon and name in flags else message


# Arguments ------------------------------------------------------------------------------------------------------------


class _Help(argparse.RawDescriptionHelpFormatter):
    """Prints examples as they are typed, and the default of every option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        has_none = any(action.default is value for value in (None, False, argparse.SUPPRESS))
        return text if has_none or "default" in text else f"{text} (default: %(default)s)"

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        """Show the placeholder of a list once, because its values are separated by commas."""
        return str(action.metavar) if isinstance(action, _AppendList) else super()._format_args(action, default_metavar)


class _AppendList(argparse.Action):
    """Collects the values of an option, which are separated by commas, or given by repeating the option."""

    def __init__(self, *arguments: Any, convert: Callable[[str], Any] = str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._convert = convert

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        """Append values to those that were given before."""
        arguments = values if isinstance(values, list) else [values]
        texts = [part.strip() for text in arguments for part in text.rstrip(", ").split(",")]
        try:
            converted = [self._convert(text) for text in texts]
        except ValueError:
            raise argparse.ArgumentError(self, f"expected numbers such as 0.01,0.1, got {','.join(texts)}") from None
        if not all(texts):
            raise argparse.ArgumentError(self, f"expected values separated by commas, got {','.join(texts)!r}")
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or []), *converted])


def _parse_seed(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a whole number >= 0, got {text}")
    return int(text)


def _option(text: str) -> tuple[str, list[Any]]:
    """Parse ``name=value,value`` into a keyword argument's name and values, as Python or else as text."""
    name, _, values = text.partition("=")
    if not (name.isidentifier() and values):
        raise argparse.ArgumentTypeError(f"expected name=value,value, got {text}")
    try:
        return name, list(ast.literal_eval(f"({values},)"))
    except (ValueError, SyntaxError):
        return name, [_parse_value(value) for value in values.split(",")]


def _parse_value(text: str) -> Any:
    """Parse a value that Python can read, and return any other as text, except a misspelt constant."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        if text.lower() in ("true", "false", "none", "null"):
            raise argparse.ArgumentTypeError(
                f"expected a value as Python writes it: True, False or None, got {text}"
            ) from None
        return text


def _output_path(text: str) -> Path:
    """Return the path of an output, or raise an error, before the run rather than after it, if it is not writable."""
    try:
        file = Path(os.path.abspath(text))  # a link or a device stays what it is
        refuse_unwritable(file)
    except OSError as error:
        message = os.fsencode(f"expected the name of a writable file, got {error}").decode(errors="replace")
        raise argparse.ArgumentTypeError(message) from error
    return file


def _parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="refgeo", formatter_class=_Help,
        description="Measure sharpness that is the same for all equivalent weights of a network, and check\n"
        "implementations of its formulas.",
        epilog="examples:\n  refgeo check                        check refgeo's own implementation of the formulas\n"
        "  refgeo check my_backend.py          check your implementation\n"
        "  refgeo inspect --checkpoint model/ --layout bert  show the heads of a network\n\n"
        "words:\n  G, H      the factors of a pair: the network uses only G Hᵀ; both have h columns\n"
        "  GL(h)     the invertible h×h matrices A; (G A⁻¹, H Aᵀ) has the same product as (G, H)\n"
        '  inv, mix  the metrics of the paper "Hide & Seek" (arXiv:2505.05409); they divide out GL(h)\n'
        "  backend   the implementation that refgeo checks: your module",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"refgeo {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    _add_check(commands)
    _add_read(commands)
    _add_inspect(commands)
    _add_vectors(commands)
    return parser


def _add_command(
    commands: Any, name: str, run: Any, summary: str, details: str, example: str, *parents: argparse.ArgumentParser
) -> Any:
    """Add a command, with the options of its parents, and return its parser."""
    parser = commands.add_parser(
        name, help=summary, description=details, epilog=f"example:\n  {example}", formatter_class=_Help, parents=parents
    )
    parser.set_defaults(run=run)
    return parser


def _parent_parser() -> argparse.ArgumentParser:
    """Make a parser whose options several commands have."""
    return argparse.ArgumentParser(add_help=False)


def _quiet_option() -> argparse.ArgumentParser:
    """Make a parser of the option --quiet."""
    parser = _parent_parser()
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser


def _point_options(dtypes: Sequence[str], metrics: str) -> argparse.ArgumentParser:
    """Make a parser of the options that select test points, named after the arguments of `refgeo.check`."""
    parser = _parent_parser()
    parser.add_argument("--metric", dest="metrics", action=_AppendList, metavar="M,...",
                        help=f"use only these metrics: {metrics} (default: inv,mix)")  # fmt: skip
    parser.add_argument("--case", dest="cases", action="append", metavar="CASE",
                        help="use only this test point: one that --list of refgeo check shows, or another such as "
                        "6x5x2/k10; of a network, also all whose names begin with CASE (you can give this option "
                        "several times)")  # fmt: skip
    parser.add_argument("--dtype", default="float64", choices=dtypes, help="precision of the arrays")
    parser.add_argument(
        "--profile", default="quick", choices=("quick", "full"), help="how many test points refgeo makes"
    )
    parser.add_argument("--seed", type=_parse_seed, default=0, help="seed of the test points")
    parser.add_argument("--relaxation", type=float, default=0.0, metavar="ε",
                        help="judge by the relaxed metrics: S + εI and T + εI replace S = GᵀG and T = HᵀH "
                        "(App. H.2 of the paper)")  # fmt: skip
    _add_checkpoint(parser, "take the test points from this network: ")
    return parser


_POINT_ARGUMENTS = (
    "metrics", "dtype", "profile", "seed", "relaxation", "cases", "checkpoint", "layout", "heads", "key_value_heads",
)  # fmt: skip
"""The names of these options in a namespace."""


def _add_checkpoint(parser: argparse.ArgumentParser, purpose: str = "the network: ", required: bool = False) -> None:
    """Add the options that name a network."""
    parser.add_argument("--checkpoint", type=Path, required=required, metavar="PATH",
                        help=f"{purpose}a safetensors file, or a folder that contains one")  # fmt: skip
    parser.add_argument("--layout", required=required, help=f"how the network uses its weights: {LAYOUTS}")
    parser.add_argument("--heads", type=int, help="number of attention heads (default: the number in config.json)")
    parser.add_argument(
        "--key-value-heads", type=int, help="number of key and value heads, if several queries share one"
    )


def _output_options() -> argparse.ArgumentParser:
    """Make a parser of the options that show or write a report."""
    parser = _parent_parser()
    for name, kind in _OUTPUTS.items():
        parser.add_argument(f"--{name}", type=_output_path, metavar="FILE", help=f"also write the report as {kind}")
    parser.add_argument(
        "--verbose", action="store_true", help="print the right formulas, each loss of digits, the scope"
    )
    return parser


def _add_check(commands: Any) -> None:
    check = _add_command(
        commands, "check", _check, "check an implementation of the formulas of inv and mix",
        "Check an implementation of the metrics inv and mix. refgeo compares its results with enclosures:\n"
        "intervals that contain the exact results. refgeo can also check an optimiser and a search for\n"
        "sharpness.\n"
        "The exit status is 0 if refgeo has judged something and has found nothing wrong or undecided. It\n"
        "is 2 if the command itself is wrong, 130 after Ctrl-C, and 1 in all other cases.",
        "refgeo check my_backend.py --dtype float32 --html report.html",
        _point_options(DTYPES, "inv, mix, or a metric between them such as s=0.5"),
        _output_options(), _quiet_option(),
    )  # fmt: skip
    check.add_argument(
        "backend", nargs="?", help="the implementation: module, module:object or file.py (default: refgeo's own)"
    )
    check.add_argument(
        "--checks", action=_AppendList, metavar="C,...", help="run only these checks; C is the name of a "
        "function (geodesic, step), of one of its values (geodesic_2), of a rule of conduct (inputs_unchanged), of "
        "a check of an optimiser (step.invariant), or of a search (sharpness_2); --list shows all names",
    )  # fmt: skip
    check.add_argument("--option", dest="rule_options", action="append", type=_option, metavar="NAME=V,...",
                       help="check an optimiser with each of these values of its keyword argument NAME, such as "
                       "momentum=0,0.9 (you can give this option several times)")  # fmt: skip
    check.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds that one call may take")
    check.add_argument("--strict", action="store_true", help="return exit status 1 also if a verdict is "
                       "'inaccurate', 'partly provided' or 'contract', or if lines of the file did not "
                       "run")  # fmt: skip
    check.add_argument("--list", action="store_true", help="print the names of the checks and test points, then exit")


def _add_read(commands: Any) -> None:
    read = _add_command(
        commands, "read", _read, "print the formulas that an implementation computes",
        "Print the formula that each function computes, right or wrong. refgeo infers it from the results.",
        "refgeo read my_backend.py --checks christoffel",
    )  # fmt: skip
    read.add_argument("backend", help="the implementation: module, module:object or file.py")
    read.add_argument("--checks", action=_AppendList, metavar="C,...",
                      help="read only these functions or values, such as christoffel,geodesic_2")  # fmt: skip
    read.add_argument(
        "--metric", action=_AppendList, metavar="M,...", help="call the functions with these metrics (default: inv,mix)"
    )
    read.add_argument("--dtype", default="float64", choices=DTYPES, help="precision of the arrays")
    read.add_argument("--relaxation", type=float, default=0.0, metavar="ε",
                      help="also look for S + εI and T + εI in the formulas, where S = GᵀG and T = HᵀH")  # fmt: skip
    read.add_argument("--option", dest="rule_options", action="append", type=_option, metavar="NAME=V",
                      help="of an optimiser, a keyword argument (you can give this option several times)")  # fmt: skip
    read.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds that one call may take")


def _add_vectors(commands: Any) -> None:
    vectors = commands.add_parser(
        "vectors", help="write test points into files for any language, and grade the results",
        description="Write test points into files that any language can read, and grade the results of a program.",
    )  # fmt: skip
    verbs = vectors.add_subparsers(dest="verb", required=True, metavar="{write,grade}")
    write = _add_command(
        verbs, "write", _write_vectors, "write inputs and instructions into a folder",
        "Write test points into the folder DIR, with a file FORMAT.md that says what to compute.",
        "refgeo vectors write points --format json",
        # other dtypes are not known to all languages, and no file defines the metrics between inv and mix
        _point_options(DTYPES[:2], "inv or mix"), _quiet_option(),
    )  # fmt: skip
    write.add_argument("directory", type=Path, metavar="DIR", help="the folder to write into")
    write.add_argument("--format", default="npz", choices=["npz", "json"], help="format of the inputs")
    write.add_argument("--with-results", action="store_true", help="also write the right results, each as an interval")
    grade = _add_command(
        verbs, "grade", _grade_vectors, "judge results that a program has computed from the inputs",
        "Judge results that a program has computed from the inputs in DIR. The exit status has the same\n"
        "meaning as that of 'refgeo check'.",
        "refgeo vectors grade points results.json", _output_options(), _quiet_option(),
    )  # fmt: skip
    grade.add_argument("directory", type=Path, metavar="DIR", help="a folder that 'refgeo vectors write' has made")
    grade.add_argument("results", type=Path, metavar="RESULTS", help="the file with the results: .npz or .json")


def _add_inspect(commands: Any) -> None:
    network = _parent_parser()
    _add_checkpoint(network, required=True)
    network.add_argument("--json", type=_output_path, metavar="FILE", help="also write the numbers as JSON")
    inspect = _add_command(
        commands, "inspect", _inspect,
        "show condition numbers, singular values and redundant parameters of attention heads",
        "Show the heads of a checkpoint: their sizes and condition numbers, the singular values and stable rank\n"
        "of G Hᵀ, and the distance to equivalent weights with GᵀG = HᵀH. G and H are the two factors of a head:\n"
        "the network uses only their product G Hᵀ. Also count the redundant parameters, that is, the number of\n"
        "directions in which the weights can change without changing the network's function.",
        "refgeo inspect --checkpoint model/ --layout bert --plot heads.png", network,
    )  # fmt: skip
    inspect.add_argument(
        "--each-head", action="store_true", help="print one row for each head, not one row for all heads of a layer"
    )
    inspect.add_argument("--plot", type=_output_path, metavar="FILE",
                         help='also draw a plot (needs pip install "refgeo[plot]")')  # fmt: skip
    inspect.add_argument("--quiet", action="store_true", help=argparse.SUPPRESS)


# Progress and results -------------------------------------------------------------------------------------------------


def _show_progress(options: argparse.Namespace) -> Any:
    """Return a context in which progress is shown."""
    return progress.show_progress("checking", options.quiet)


@contextlib.contextmanager
def _write_outputs(outputs: Mapping[str, tuple[Path, Callable[[], str | bytes]]]) -> Iterator[None]:
    """Write files before anything is printed, and raise an error afterwards about those that could not be written.

    Files are thus written even if printing fails.
    """
    failures = []
    for name, (file, make_content) in outputs.items():
        try:
            content = make_content()
            if isinstance(content, bytes):
                write_whole(file, content)
            else:
                write_text(file, content)
        except OSError as error:
            failures.append(f"--{name}: " + f"{file}: " * (file.name not in str(error)) + str(error))
    yield
    if failures:
        raise ValueError("; ".join(failures))


def _output_files(options: argparse.Namespace) -> dict[str, Path]:
    """Return the file of each format of the report, after a check that the packages for it are installed."""
    files = _select_outputs(options, *_OUTPUTS)
    if "html" in files:
        from refgeo.conformance.report_html import require_html

        require_html()
    return files


def _deliver(report: Report, outputs: Mapping[str, Path], verbose: bool, strict: bool = False) -> int:
    """Write the files, print the table, and return the exit status."""

    def text(name: str) -> str:
        return str(getattr(report, f"to_{name}")()).rstrip("\n") + "\n"

    with _write_outputs({name: (file, partial(text, name)) for name, file in outputs.items()}):
        report.print(verbose=verbose)
    if report.interrupted:
        return INTERRUPTED
    if strict and report.passed and not report.passed_strictly:
        reasons = [*map(str, report.findings), *(["lines that were not run"] if report.not_run else [])]
        print(f"not passed with --strict, because of {', '.join(reasons)}")
    return PASSED if (report.passed_strictly if strict else report.passed) else FAILED


# Commands -------------------------------------------------------------------------------------------------------------


def _point_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `_point_options` as keyword arguments."""
    for name in ("layout", "heads", "key_value_heads"):
        if getattr(options, name) is not None and options.checkpoint is None:
            raise ValueError(f"{name}: expected --checkpoint PATH together with this option")
    if options.checkpoint is not None:
        options.checkpoint = options.checkpoint.absolute()  # not resolved, because config.json lies beside the link
    return {name: getattr(options, name) for name in _POINT_ARGUMENTS} | {"metrics": options.metrics or ("inv", "mix")}


def _check(options: argparse.Namespace) -> int:
    from refgeo.conformance import check

    points, outputs = _point_arguments(options), _output_files(options)
    if options.list:
        return _list(options, points)
    try:
        with _show_progress(options) as progress:
            report = check(
                options.backend, checks=options.checks, timeout=options.timeout, options=_rule_options(options),
                progress=progress, **points,
            )  # fmt: skip
    except Interrupted as stop:
        report = stop.report
    return _deliver(report, outputs, options.verbose, options.strict)


def _rule_options(options: argparse.Namespace) -> dict[str, list[Any]]:
    """Return the values of each option of an update rule, whether they are given at once or one by one."""
    by_name: dict[str, list[Any]] = {}
    for name, values in options.rule_options or ():
        by_name.setdefault(name, []).extend(values)
    return by_name


def _list(options: argparse.Namespace, points: dict[str, Any]) -> int:
    """Print the names of checks and test points, and the pairs of levels that no point combines."""
    from refgeo.conformance.judging.checks import select_checks
    from refgeo.conformance.points.covering_design import infeasible_pairs
    from refgeo.conformance.points.sources import Points

    for check in select_checks(options.checks):
        print(f"{check.kind:10s} {check.name:40s} {check.statement}")
    metrics, cases = points.pop("metrics"), points.pop("cases")
    made = Points(**points)
    for name, *_ in made.select(metrics[0], cases):
        print(f"case       {name}")
    for pair in infeasible_pairs(made.profile) if made.is_generated and cases is None else ():
        print("apart      " + " and ".join(f"{kind}: {band}" for kind, band in pair))
    return PASSED


def _read(options: argparse.Namespace) -> int:
    from refgeo.conformance import read

    rule_options = _rule_options(options)
    for name, values in rule_options.items():
        if len(values) > 1:
            raise ValueError(f"--option: expected one value of {name}, got {', '.join(map(repr, values))}")
    formulas = read(
        options.backend, metrics=options.metric or ("inv", "mix"), functions=options.checks, dtype=options.dtype,
        relaxation=options.relaxation, timeout=options.timeout,
        options={name: values[0] for name, values in rule_options.items()},
    )  # fmt: skip
    print(formulas)
    return PASSED


def _inspect(options: argparse.Namespace) -> int:
    from refgeo import networks

    if options.plot is not None:
        _refuse_unknown_format(options.plot)
    network = networks.read(options.checkpoint, options.layout, options.heads, options.key_value_heads)
    summary = network.summary()

    def plot() -> bytes:
        image = io.BytesIO()
        summary.plot()[0].figure.savefig(image, dpi=150, format=_image_format(options.plot))
        return image.getvalue()

    makers: dict[str, Callable[[], str | bytes]] = {"json": lambda: strict_json(summary.to_dict()), "plot": plot}
    with _write_outputs({name: (file, makers[name]) for name, file in _select_outputs(options, *makers).items()}):
        show(summary.table(options.each_head), *summary.remarks)
    return PASSED


def _image_format(file: Path) -> str:
    """Return the format that the file's suffix names."""
    return file.suffix.lstrip(".").lower() or "png"


def _refuse_unknown_format(file: Path) -> None:
    """Raise an error, before the work, if matplotlib is not installed or does not write this format."""
    require("--plot", "plot", "matplotlib")
    from matplotlib.backend_bases import FigureCanvasBase

    formats = FigureCanvasBase.get_supported_filetypes()
    if _image_format(file) not in formats:
        raise ValueError(f"plot: expected a name that ends with .{', .'.join(sorted(formats))}, got {file.name}")


def _write_vectors(options: argparse.Namespace) -> int:
    from refgeo.conformance import vectors

    points = _point_arguments(options)
    with _show_progress(options) as progress:
        count = vectors.write(
            options.directory, options.format, with_results=options.with_results, progress=progress, **points
        )
    print(f"{count} test points are in {options.directory}. FORMAT.md in this folder says what to compute.")
    print("When you have computed the results, run:")
    print(f"refgeo vectors grade {shlex.quote(str(options.directory))} RESULTS")
    return PASSED


def _grade_vectors(options: argparse.Namespace) -> int:
    from refgeo.conformance import vectors

    outputs = _output_files(options)
    with _show_progress(options) as progress:
        report = vectors.grade(options.directory, options.results, progress=progress)
    return _deliver(report, outputs, options.verbose)


if __name__ == "__main__":
    sys.exit(main())
