"""Diagonal networks ‖X(u ⊙ v) − y‖²: geodesics, sharpness with a certificate, and training."""

from refgeo.diagonal.certified import Certified, second_order, worst_case
from refgeo.diagonal.pairs import geodesic, horizontal_projection, norm
from refgeo.diagonal.training import Trained, train

__all__ = [
    "Certified",
    "Trained",
    "geodesic",
    "horizontal_projection",
    "norm",
    "second_order",
    "train",
    "worst_case",
]
