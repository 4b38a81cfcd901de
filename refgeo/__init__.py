"""refgeo: the exact CPU reference for symmetry-aware ("geodesic") sharpness.

Only NumPy and SciPy are imported here; the conformance kit, the readers of networks and the helpers for
tests load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from refgeo.deferred import deferred
from refgeo.errors import GeodesicAccuracyError, GeodesicIncompleteError, RankDeficientError
from refgeo.metrics.ablations import ConstantMetric, EuclideanNormMetric
from refgeo.metrics.elementwise import ElementwiseMetric
from refgeo.metrics.euclidean import EuclideanMetric, TranslationMetric
from refgeo.metrics.pair import InterpolatedMetric, InvariantMetric, MixedMetric
from refgeo.metrics.product import ProductMetric
from refgeo.metrics.rotary import RotaryMetric
from refgeo.metrics.scaling import ScalingMetric
from refgeo.metrics.tangent_space import TangentSpace
from refgeo.pair import Pair
from refgeo.sharpness import (
    AverageSharpness,
    Progress,
    SharpnessCurve,
    SharpnessResult,
    adaptive_sharpness,
    average_case_sharpness,
    check_gradient,
    proposed_radius,
    worst_case_sharpness,
)

if TYPE_CHECKING:
    from refgeo import adapters, conformance, diagonal, formulas, networks, spectrum, strategies, symmetry, testing, toy
    from refgeo.conformance import Report, check, read
    from refgeo.distance import Distance, quotient_distance
    from refgeo.gradients import value_and_grad

__version__ = "0.1.0"

__all__ = [
    "AverageSharpness",
    "ConstantMetric",
    "Distance",
    "ElementwiseMetric",
    "EuclideanMetric",
    "EuclideanNormMetric",
    "GeodesicAccuracyError",
    "GeodesicIncompleteError",
    "InterpolatedMetric",
    "InvariantMetric",
    "MixedMetric",
    "Pair",
    "ProductMetric",
    "Progress",
    "RankDeficientError",
    "Report",
    "RotaryMetric",
    "ScalingMetric",
    "SharpnessCurve",
    "SharpnessResult",
    "TangentSpace",
    "TranslationMetric",
    "adapters",
    "adaptive_sharpness",
    "average_case_sharpness",
    "check",
    "check_gradient",
    "conformance",
    "diagonal",
    "formulas",
    "networks",
    "proposed_radius",
    "quotient_distance",
    "read",
    "spectrum",
    "strategies",
    "symmetry",
    "testing",
    "toy",
    "value_and_grad",
    "worst_case_sharpness",
]

__getattr__, __dir__ = deferred(
    __name__,
    modules=(
        "adapters", "conformance", "diagonal", "formulas", "networks", "spectrum", "strategies", "symmetry", "testing",
        "toy",
    ),
    names={
        "Distance": "distance",
        "Report": "conformance.report",
        "check": "conformance.run",
        "quotient_distance": "distance",
        "read": "conformance.reading",
        "value_and_grad": "gradients",
    },
)  # fmt: skip
