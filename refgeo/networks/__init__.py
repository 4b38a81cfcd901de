"""Real networks: from a checkpoint to named blocks of pairs and arrays, and back."""

from refgeo.networks.reading import LAYOUTS, LayoutError, Network, read

__all__ = ["LAYOUTS", "LayoutError", "Network", "read"]
