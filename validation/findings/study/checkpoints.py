"""Your own models: a folder of safetensors files, a layout, and a Python file with the loss.

The file is that of `refgeo.networks.checkpoint`; here ``model(path, network)`` says two things more,

    gap              the outcome, test error minus train error; and what else the table is to say of the model
    weights          names of weight matrices for relative flatness, the last layer's first (optional)

See validation/findings/README.md for one with Hugging Face.
"""

from __future__ import annotations

from pathlib import Path

from refgeo.networks import checkpoint
from validation.findings.study.measures import Model
from validation.findings.study.runner import Row, Task, measured


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
        """A file each."""
        return list(self._files())

    def _files(self) -> dict[str, Path]:
        files = sorted(self.folder.rglob("*.safetensors"))
        if not files:
            raise SystemExit(f"--checkpoints: expected .safetensors files in {self.folder}, found none")
        names = ["_".join(file.relative_to(self.folder).with_suffix("").parts) for file in files]
        return {f"{k:03d}_{name}": file for k, (name, file) in enumerate(zip(names, files, strict=True))}

    def rows(self, task: Task) -> list[Row]:
        """Load a model and measure it."""
        found = checkpoint.load(self._files()[task.unit], self.layout, self.loss, self.heads)
        columns = dict(found.known)
        if "gap" not in columns:
            raise SystemExit(f"{self.loss}: expected model(path, network) to return a dict with gap, the outcome")
        weights = tuple(columns.pop("weights", ()))
        blocks = dict(found.network.blocks)
        model = Model(blocks, found.value_and_grad, found.batches, columns, found.frozen, weights)
        return measured(task, task.unit, model)
