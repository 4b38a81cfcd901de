"""Your own models: a folder of safetensors files, a layout, and a Python file with the loss.

The file has a function ``model(path, network)`` that returns a dict with

    value_and_grad   ``(blocks, batch) -> (loss, gradients)``, see `refgeo.worst_case_sharpness`
    batches          a list; sharpness is measured on each, and averaged
    gap              the outcome, test error minus train error; and what else the table is to say of the model
    frozen           names of blocks that do not move, with wildcards (optional)
    weights          names of weight matrices for relative flatness, the last layer's first (optional)

``network`` is what `refgeo.networks.read` makes of the file. See validation/README.md for one with Hugging Face.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import refgeo as rg
from validation.study.measures import Model
from validation.study.runner import Row, Task, measured

_RESERVED = ("value_and_grad", "batches", "frozen", "weights")


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
        path = self._files()[task.unit]
        network = rg.networks.read(path, self.layout, self.heads)
        told = self._module().model(path, network)
        missing = [name for name in ("value_and_grad", "batches", "gap") if name not in told]
        if missing:
            raise SystemExit(f"{self.loss}: expected model(path, network) to return a dict with {', '.join(missing)}")
        columns = {name: value for name, value in told.items() if name not in _RESERVED}
        model = Model(
            dict(network.blocks), told["value_and_grad"], told["batches"], columns,
            tuple(told.get("frozen", ())), tuple(told.get("weights", ())),
        )  # fmt: skip
        return measured(task, task.unit, model)

    def _module(self) -> Any:
        spec = importlib.util.spec_from_file_location("study_loss", self.loss)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
