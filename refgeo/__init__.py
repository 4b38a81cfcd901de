"""refgeo: the exact CPU reference for symmetry-aware ("geodesic") sharpness.

Everything loads on first use. The geometry and its searches need NumPy and SciPy only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from refgeo.deferred import deferred

if TYPE_CHECKING:
    from refgeo import adapters, conformance, diagonal, formulas, networks, spectrum, strategies, symmetry, testing, toy
    from refgeo.conformance import Report, check, read
    from refgeo.distance import Distance, quotient_distance
    from refgeo.errors import GeodesicAccuracyError, GeodesicIncompleteError, RankDeficientError
    from refgeo.gradients import value_and_grad
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
        "AverageSharpness": "sharpness",
        "ConstantMetric": "metrics.ablations",
        "Distance": "distance",
        "ElementwiseMetric": "metrics.elementwise",
        "EuclideanMetric": "metrics.euclidean",
        "EuclideanNormMetric": "metrics.ablations",
        "GeodesicAccuracyError": "errors",
        "GeodesicIncompleteError": "errors",
        "InterpolatedMetric": "metrics.pair",
        "InvariantMetric": "metrics.pair",
        "MixedMetric": "metrics.pair",
        "Pair": "pair",
        "ProductMetric": "metrics.product",
        "Progress": "sharpness",
        "RankDeficientError": "errors",
        "Report": "conformance",
        "RotaryMetric": "metrics.rotary",
        "ScalingMetric": "metrics.scaling",
        "SharpnessCurve": "sharpness",
        "SharpnessResult": "sharpness",
        "TangentSpace": "metrics.tangent_space",
        "TranslationMetric": "metrics.euclidean",
        "adaptive_sharpness": "sharpness",
        "average_case_sharpness": "sharpness",
        "check": "conformance",
        "check_gradient": "sharpness",
        "proposed_radius": "sharpness",
        "quotient_distance": "distance",
        "read": "conformance",
        "value_and_grad": "gradients",
        "worst_case_sharpness": "sharpness",
    },
)  # fmt: skip
