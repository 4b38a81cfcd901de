"""A checkpoint with its loss: what ``refgeo sharpness`` and ``refgeo verify`` measure.

The loss is a Python file with a function ``model(path, network)`` that returns a dict with

    value_and_grad   ``blocks -> (loss, gradients)``, see `refgeo.worst_case_sharpness`
    batches          a list, optional: ``value_and_grad(blocks, batch)``; sharpness is measured on each, and averaged
    frozen           names of blocks that do not move, with wildcards; optional

``path`` is that of the safetensors file, also if the command got its folder, which is then ``path.parent``;
``network`` is what `refgeo.networks.read` makes of it, and blocks are those of ``network.blocks``. With PyTorch,
`refgeo.adapters.torch_value_and_grad` makes such a function of a module.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refgeo.geometry.product import ProductMetric
from refgeo.networks.block_metric import moving
from refgeo.networks.files import weight_files
from refgeo.networks.layouts import Heads
from refgeo.networks.reading import Network, read
from refgeo.sharpness.adaptive import adaptive_sharpness
from refgeo.sharpness.parameters import checked_evaluation, on_batch
from refgeo.sharpness.radius import proposed_radius
from refgeo.sharpness.result import Progress, SharpnessCurve, SharpnessResult
from refgeo.sharpness.worst_case import worst_case_sharpness
from refgeo.support.errors import LossFileError
from refgeo.support.extras import require
from refgeo.support.figures import plain_axes
from refgeo.support.files import imported, strict_json, write_text

ADAPTIVE = "adaptive"


@dataclass(frozen=True)
class Checkpoint:
    """A network's weights with a loss of them.

    Attributes
    ----------
    path : Path
    network : Network
    value_and_grad : callable
        ``(blocks, batch) -> (loss, gradients)``.
    batches : list
        One None, if the loss has no batches.
    frozen : tuple of str
    known : dict
        What else the loss file says of the model.
    """

    path: Path
    network: Network
    value_and_grad: Callable[[Any, Any], tuple[float, Any]]
    batches: Sequence[Any]
    frozen: tuple[str, ...]
    known: dict[str, Any]

    @property
    def title(self) -> str:
        """What a plot calls it: the name of the file, or of the folder where the file has the usual one."""
        usual = re.fullmatch(r"(adapter_|pytorch_)?model(-\d+-of-\d+)?", self.path.stem)
        return self.path.resolve().parent.name if usual else self.path.stem


def load(path: Path, layout: str | None, loss: Path, heads: Heads | None = None) -> Checkpoint:
    """Read a checkpoint and run the file with its loss.

    Parameters
    ----------
    path : Path
        A ``.safetensors`` file, or a folder with one, such as Hugging Face's.
    layout : str, optional
    loss : Path
    heads : int, optional

    Raises
    ------
    ValueError
        The file has no ``model``, or what it returns lacks something; the message says what.
    FileNotFoundError, LayoutError
    """
    if not loss.is_file():
        raise FileNotFoundError(f"--loss: expected a Python file, but there is no {loss}")
    network, path = read(path, layout, heads), weight_files(path)[0]
    model = _function(loss)
    with _errors_of(loss):
        described = model(path, network)
    if not isinstance(described, Mapping):
        raise ValueError(f"{loss}: expected model(path, network) to return a dict, got {type(described).__name__}")
    if "value_and_grad" not in described:
        raise ValueError(f"{loss}: expected model(path, network) to return a dict with the entry value_and_grad")
    evaluate, frozen = described["value_and_grad"], described.get("frozen") or ()
    one = described.get("batches") is None
    batches = [None] if one else described["batches"]
    if not isinstance(batches, Iterable) or not callable(evaluate):
        raise ValueError(f"{loss}: expected value_and_grad to be a function and batches to be a list")
    batches = list(batches)
    if not batches:
        raise ValueError(f"{loss}: expected batches to hold at least one batch, got none")

    def value_and_grad(blocks: Any, batch: Any) -> tuple[float, Any]:
        with _errors_of(loss):
            return checked_evaluation(evaluate(blocks) if one else evaluate(blocks, batch))

    known = {name: value for name, value in described.items() if name not in ("value_and_grad", "batches", "frozen")}
    return Checkpoint(
        path, network, value_and_grad, batches, (frozen,) if isinstance(frozen, str) else tuple(frozen), known
    )


@contextmanager
def _errors_of(loss: Path) -> Iterator[None]:
    """An exception of the loss file as a `LossFileError`, sys.exit too; it reads a command line of its own."""
    arguments, sys.argv = sys.argv, [str(loss)]
    try:
        yield
    except (Exception, SystemExit) as error:
        text = f"{type(error).__name__}: {error}"
        raise LossFileError(f"{loss}: {text}") from (RuntimeError(text) if isinstance(error, StopIteration) else error)
    finally:
        sys.argv = arguments


def _function(loss: Path) -> Callable[[Path, Network], Any]:
    if loss.suffix != ".py":
        raise ValueError(f"--loss: expected a Python file, got {loss}")
    with _errors_of(loss):
        module = imported(loss, "refgeo_loss_file")
    if not callable(getattr(module, "model", None)):
        raise ValueError(f"{loss}: expected a function model(path, network)")
    return module.model  # type: ignore[no-any-return]


def geometry(checkpoint: Checkpoint, metric: str) -> ProductMetric:
    """The product metric of the blocks that move, as the network's layout has it."""
    return checkpoint.network.metric(metric, frozen=checkpoint.frozen)


def measure(
    checkpoint: Checkpoint,
    metrics: Iterable[str],
    radii: Sequence[float] | None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    **settings: Any,
) -> Iterator[tuple[str, list[SharpnessResult]]]:
    """Sharpness in one metric after the other, a result for each radius.

    Parameters
    ----------
    checkpoint : Checkpoint
    metrics : iterable of str
        "inv", "mix", "s=0.5", "adaptive".
    radii : sequence of float, optional
        Default: for each metric the one that `refgeo.proposed_radius` gives for the first batch; 0.1 for "adaptive".
    progress : callable
        ``progress(what, evaluations done, of so many)``, also of those before a search, whose number is not known (0).
        It may raise ``StopIteration``: a search gives what it has found; before it begins, that is a KeyboardInterrupt.
    **settings
        Of `refgeo.worst_case_sharpness`; "adaptive" takes those that `refgeo.adaptive_sharpness` has.
    """
    for name in metrics:
        loss = _Watched(checkpoint.value_and_grad, name, progress)
        common = {
            "batches": checkpoint.batches,
            "callback": loss.searched,
            "maximizers": False,  # nobody sees them, and each is as large as the network
            **settings,
        }
        if name == ADAPTIVE:
            names = moving(checkpoint.network.blocks, checkpoint.frozen)
            for only in ("order", "gradient"):
                common.pop(only, None)
            curve = adaptive_sharpness(loss, checkpoint.network.blocks, list(radii or [0.1]), names=names, **common)
        else:
            metric, blocks = geometry(checkpoint, name), checkpoint.network.blocks
            first = on_batch(loss, checkpoint.batches[0])
            wanted = list(radii) if radii else [proposed_radius(first, blocks, metric)]
            curve = worst_case_sharpness(loss, blocks, metric, wanted, **common)
        yield name, list(curve.results)


class _Watched:
    """A loss that tells of its evaluations: before a search it does itself, later the search does."""

    def __init__(self, value_and_grad: Callable[[Any, Any], Any], name: str, progress: Callable[..., None]) -> None:
        self._evaluate, self._name, self._progress = value_and_grad, name, progress
        self._checks, self._searching = 0, False

    def __call__(self, blocks: Any, batch: Any) -> Any:
        if not self._searching:
            self._checks += 1
            try:
                self._progress(f"{self._name}: checks of the loss", self._checks, 0)
            except StopIteration:
                raise KeyboardInterrupt from None
        return self._evaluate(blocks, batch)

    def searched(self, progress: Progress) -> None:
        """The callback of the search."""
        self._searching = True
        self._progress(self._name, progress.done, progress.total or 0)


def document(
    checkpoint: Checkpoint, found: Mapping[str, list[SharpnessResult]], cut: Sequence[SharpnessResult] = ()
) -> dict[str, Any]:
    """Everything that was measured, for JSON; and which searches were stopped before their end."""
    from refgeo import __version__

    return {
        "checkpoint": str(checkpoint.path),
        "layout": checkpoint.network.layout,
        "batches": len(checkpoint.batches),
        "frozen": list(checkpoint.frozen),
        "refgeo": __version__,
        **({"interrupted": True} if cut else {}),
        "sharpness": [
            {"name": name, **result.to_dict(), "advice": result.advice}
            | ({"interrupted": True} if any(one is result for one in cut) else {})
            for name, results in found.items()
            for result in results
        ],
    }


def write_json(path: Path, content: Any) -> None:
    """Whole or not at all."""
    write_text(path, strict_json(content))


def check_plot(path: Path) -> None:
    """Whether matplotlib is there and can write such a file: an error before the searches."""
    require("--plot", "plot", "matplotlib")
    import matplotlib as mpl

    mpl.use("Agg")  # a file needs no screen
    import matplotlib.backends.backend_agg as agg

    known = agg.FigureCanvasAgg.get_supported_filetypes()
    if path.suffix[1:] not in known:
        raise ValueError(f"--plot: expected a file that ends with one of {', '.join(sorted(known))}, got {path}")


def plot(found: Mapping[str, list[SharpnessResult]], path: Path, title: str) -> None:
    """Sharpness against ρ, or one bar a metric where each has one radius, with matplotlib."""
    ax = plain_axes(size=(5.0, 3.6))
    if all(len(results) == 1 for results in found.values()):
        labels = [f"{name}\nρ = {results[0].rho:.3g}" for name, results in found.items()]
        bars = ax.bar(labels, [results[0].value for results in found.values()], width=0.5)
        ax.bar_label(bars, fmt="%.3g")
        ax.set(ylabel="increase of the loss", title=title)
    else:
        for name, results in found.items():
            SharpnessCurve(tuple(results)).plot(ax, name)
        ax.set_title(title)
        ax.legend(frameon=False)
    save_figure(ax.figure, path)


def save_figure(figure: Any, path: Path) -> None:
    """Write it, and close it."""
    import matplotlib.pyplot as plt

    figure.savefig(path, dpi=150)
    plt.close(figure)


HEADER = f"{'metric':10s} {'ρ':>9s} {'sharpness':>13s} {'loss':>12s} {'evaluations':>12s}  converged"
"""Of the `lines` of results."""


_OPTIONS = {
    "n_iter=": "--n-iter ", "n_restarts=": "--n-restarts ", 'order="exact"': "--order exact",
    "rho (refgeo.proposed_radius)": "--rho",
}  # fmt: skip
"""What the command line has in the place of arguments."""


def lines(name: str, result: SharpnessResult, interrupted: bool = False) -> Iterator[str]:
    """A result, and below it what to try where it is not to be taken as it is."""
    yield (
        f"{name:10s} {result.rho:9.4g} {result.value:13.6g} {result.loss:12.6g} {result.n_evaluations:12d}  "
        f"{'interrupted' if interrupted else 'yes' if result.converged else 'no'}"
    )
    if result.needs_advice and not interrupted:
        advice = re.sub("|".join(map(re.escape, _OPTIONS)), lambda match: _OPTIONS[match[0]], result.advice)
        yield from textwrap.wrap(advice, 78, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
