"""Diagonal networks ‖X(u ⊙ v) − y‖²: geodesics, sharpness with a certificate, training, and the paper's formulas."""

from refgeo.diagonal.certified import Certified, second_order, worst_case
from refgeo.diagonal.geodesics import geodesic, horizontal_projection, norm
from refgeo.diagonal.paper import paper_25, paper_26, paper_35
from refgeo.diagonal.training import Trained, train

__all__ = [
    "Certified",
    "Trained",
    "geodesic",
    "horizontal_projection",
    "norm",
    "paper_25",
    "paper_26",
    "paper_35",
    "second_order",
    "train",
    "worst_case",
]
