"""Your own models: a folder of safetensors files, a layout, and a Python file with the loss.

The file has a function ``model(path, network)`` that returns a dict with

    value_and_grad   ``(blocks, batch) -> (loss, gradients)``, see `refgeo.worst_case_sharpness`
    batches          a list
    gap              the outcome, test error minus train error; and what else the table is to say of the model
    frozen           names of blocks that do not move, with wildcards (optional)
    weights          names of weight matrices for relative flatness, the last layer's first (optional)

See validation/findings/README.md for one with Hugging Face.
"""

from __future__ import annotations

from pathlib import Path

from refgeo import networks
from refgeo.support.files import imported
from validation.findings.study.measures import Model
from validation.findings.study.runner import Row, Task, measure_model


class Population:
    """The checkpoints of a folder.

    Parameters
    ----------
    checkpoints : str
        The folder.
    layout : str
    loss : str
        The Python file.
    heads : int, optional
    """

    name = "checkpoints"

    def __init__(self, checkpoints: str, layout: str, loss: str, heads: int | None = None) -> None:
        self.folder, self.layout, self.loss, self.heads = Path(checkpoints), layout, Path(loss), heads
        if not self.folder.is_dir():
            raise SystemExit(f"--checkpoints: expected a folder, got {checkpoints}")
        if not self.loss.is_file():
            raise SystemExit(f"--loss: expected a Python file, got {loss}")

    def units(self) -> list[str]:
        """Return a file each."""
        return list(self._files())

    def _files(self) -> dict[str, Path]:
        files = sorted(self.folder.rglob("*.safetensors"))
        if not files:
            raise SystemExit(f"--checkpoints: expected .safetensors files in {self.folder}, found none")
        names = ["_".join(file.relative_to(self.folder).with_suffix("").parts) for file in files]
        return {f"{k:03d}_{name}": file for k, (name, file) in enumerate(zip(names, files, strict=True))}

    def rows(self, task: Task) -> list[Row]:
        """Load a model and measure it."""
        path = self._files()[task.unit]
        network = networks.read(path, self.layout, self.heads)
        columns = dict(imported(self.loss, "loss_file").model(path, network))
        if missing := {"value_and_grad", "batches", "gap"} - columns.keys():
            raise SystemExit(f"{self.loss}: expected model(path, network) to return a dict with {min(missing)}")
        evaluate, batches = columns.pop("value_and_grad"), columns.pop("batches")
        frozen, weights = (tuple(columns.pop(name, ())) for name in ("frozen", "weights"))
        model = Model(dict(network.blocks), evaluate, batches, columns, frozen, weights)
        return measure_model(task, task.unit, model)
