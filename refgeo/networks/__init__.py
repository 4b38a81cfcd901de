"""Real networks: from a checkpoint to named blocks of pairs and arrays, and back."""

from typing import TYPE_CHECKING

from refgeo.networks.block_metric import block_metric
from refgeo.networks.network import LAYOUTS, LayoutError, Network, own_layout, read
from refgeo.networks.neurons import NeuronPairs
from refgeo.support.deferred import defer

if TYPE_CHECKING:  # it needs autograd, and reading a checkpoint does not
    from refgeo.networks.models import AttentionClassifier as AttentionClassifier

__all__ = [
    "LAYOUTS",
    "AttentionClassifier",
    "LayoutError",
    "Network",
    "NeuronPairs",
    "block_metric",
    "own_layout",
    "read",
]
__getattr__, __dir__, _ = defer(__name__)
