"""Real networks: from a checkpoint to named blocks of pairs and arrays, and back."""

from refgeo.networks.block_metric import block_metric
from refgeo.networks.models import AttentionClassifier
from refgeo.networks.neurons import NeuronPairs
from refgeo.networks.reading import LAYOUTS, LayoutError, Network, layout_of, own_layout, read

__all__ = [
    "LAYOUTS",
    "AttentionClassifier",
    "LayoutError",
    "Network",
    "NeuronPairs",
    "block_metric",
    "layout_of",
    "own_layout",
    "read",
]
