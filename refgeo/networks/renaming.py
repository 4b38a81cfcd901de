"""From the tensors of a checkpoint to the parameters of a module, where the two do not have the same names.

transformers 5 has renamed modules and packed experts, and keeps the old names in files; it is asked for the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from refgeo.networks.reading import Network


class Renaming:
    """Tensors under a checkpoint's names as those of a module; the identity, where the names are the same.

    Parameters
    ----------
    module : torch.nn.Module
    network : Network

    Attributes
    ----------
    packed : dict
        Of tensors that the module has as a part of another one: its name.
    missing : list
        Tensors that the module lacks, and for which transformers knows no other name.
    """

    def __init__(self, module: Any, network: Network) -> None:
        parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        self._buffers = {name for name, _ in module.named_buffers(remove_duplicate=False)} - parameters
        own = parameters | self._buffers
        self._names = {name: name for name in network.shapes if name in own}
        self.packed: dict[str, str] = {}
        self.missing: list[str] = []
        strange = [name for name in network.shapes if name not in own]
        if strange:
            self._ask_transformers(module, strange, own)

    def _ask_transformers(self, module: Any, strange: Iterable[str], own: set[str]) -> None:
        try:
            from transformers.conversion_mapping import get_model_conversion_mapping
            from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

            known, prefix = get_model_conversion_mapping(module), module.base_model_prefix
        except (ImportError, AttributeError):  # an older release, or another library's module
            known = None
        if known is not None:
            renamings = [one for one in known if isinstance(one, WeightRenaming)]
            converters = [one for one in known if isinstance(one, WeightConverter)]
            state = module.state_dict()
        for name in strange:
            new, is_packed = name, None
            if known is not None:
                new, is_packed = rename_source_key(name, renamings, converters, prefix, state)
            if is_packed is not None:
                self.packed[name] = new
            elif new in own:
                self._names[name] = new
            else:
                self.missing.append(name)

    def check_moving(self, moving: Iterable[str]) -> None:
        """An error if a tensor is to move that the module lacks, has as a part of another one, or as a buffer."""
        names = list(moving)
        lacking = next((name for name in names if name in self.missing), None)
        if lacking is not None:
            raise ValueError(f"network: the module has no parameter {lacking!r}; {_FROM_THE_MODULE}")
        name = next((name for name in names if name in self.packed), None)
        if name is not None:
            raise ValueError(
                f"network: {name!r} moves, and the module has it as a part of {self.packed[name]!r}; freeze it, or "
                f"{_FROM_THE_MODULE}"
            )

        name = next((name for name in names if self._names.get(name) in self._buffers), None)
        if name is not None:
            raise ValueError(
                f"network: {name!r} is to move, but it is a buffer of the module and no parameter; freeze it, or "
                f"{_FROM_THE_MODULE}"
            )

    def __call__(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Under the module's names; what is packed stays as the module has it."""
        return {self._names[name]: tensor for name, tensor in tensors.items() if name in self._names}


_FROM_THE_MODULE = "read the network from the module: refgeo.networks.read(module, layout=...)"
