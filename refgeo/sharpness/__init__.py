"""Sharpness: the worst and the average case over a ball of the geometry, and the adaptive baseline."""

from refgeo.sharpness.adaptive import adaptive_sharpness
from refgeo.sharpness.average_case import average_case_sharpness
from refgeo.sharpness.gradient_check import check_gradient
from refgeo.sharpness.radius import proposed_radius
from refgeo.sharpness.result import AverageSharpness, Progress, SharpnessCurve, SharpnessResult
from refgeo.sharpness.worst_case import worst_case_sharpness

__all__ = [
    "AverageSharpness",
    "Progress",
    "SharpnessCurve",
    "SharpnessResult",
    "adaptive_sharpness",
    "average_case_sharpness",
    "check_gradient",
    "proposed_radius",
    "worst_case_sharpness",
]
