"""refgeo: the exact CPU reference for symmetry-aware ("geodesic") sharpness.

Everything loads on first use. The geometry and its searches need NumPy and SciPy only.
"""

from typing import TYPE_CHECKING

from refgeo.support.deferred import ShortNames, deferred

if TYPE_CHECKING:
    from refgeo import conformance, diagonal, exact, networks, paper
    from refgeo.bridges import strategies, testing
    from refgeo.bridges.gradients import value_and_grad
    from refgeo.conformance import Report, check, read
    from refgeo.diagonal import toy
    from refgeo.geometry.ablations import ConstantMetric, EuclideanNormMetric
    from refgeo.geometry.arrays import ElementwiseMetric, EuclideanMetric, ScalingMetric, TranslationMetric
    from refgeo.geometry.distance import Distance, quotient_distance
    from refgeo.geometry.embedded import EmbeddedMetric
    from refgeo.geometry.pair import Pair
    from refgeo.geometry.pair_metrics import InterpolatedMetric, InvariantMetric, MixedMetric
    from refgeo.geometry.product import ProductMetric
    from refgeo.geometry.rotary import RotaryMetric
    from refgeo.geometry.tangent_space import TangentSpace
    from refgeo.landscape import spectrum, symmetry
    from refgeo.landscape.adaptive import adaptive_sharpness
    from refgeo.landscape.average_case import average_case_sharpness
    from refgeo.landscape.gradient_check import check_gradient
    from refgeo.landscape.radius import proposed_radius
    from refgeo.landscape.result import AverageSharpness, Progress, SharpnessCurve, SharpnessResult
    from refgeo.landscape.worst_case import worst_case_sharpness
    from refgeo.networks import adapters
    from refgeo.support.errors import GeodesicAccuracyError, GeodesicIncompleteError, RankDeficientError

__version__ = "0.1.0"

__all__ = [
    "AverageSharpness", "ConstantMetric", "Distance", "ElementwiseMetric", "EmbeddedMetric", "EuclideanMetric",
    "EuclideanNormMetric", "GeodesicAccuracyError", "GeodesicIncompleteError", "InterpolatedMetric",
    "InvariantMetric", "MixedMetric", "Pair", "ProductMetric", "Progress", "RankDeficientError", "Report",
    "RotaryMetric", "ScalingMetric", "SharpnessCurve", "SharpnessResult", "TangentSpace", "TranslationMetric",
    "adapters", "adaptive_sharpness", "average_case_sharpness", "check", "check_gradient", "conformance",
    "diagonal", "exact", "networks", "paper", "proposed_radius", "quotient_distance", "read", "spectrum",
    "strategies", "symmetry", "testing", "toy", "value_and_grad", "worst_case_sharpness",
]  # fmt: skip

_MODULES = {
    "adapters": "networks.adapters", "checkpoint": "networks.checkpoint", "metrics.ablations": "geometry.ablations",
    "metrics.array_space": "geometry.arrays", "metrics.elementwise": "geometry.arrays",
    "metrics.euclidean": "geometry.arrays", "metrics.pair": "geometry.pair_metrics",
    "metrics.product": "geometry.product", "metrics.rotary": "geometry.rotary", "metrics.scaling": "geometry.arrays",
    "metrics.tangent_space": "geometry.tangent_space", "operations": "conformance.operations",
    "pymanopt": "bridges.pymanopt", "spectrum": "landscape.spectrum", "strategies": "bridges.strategies",
    "symmetry": "landscape.symmetry", "testing": "bridges.testing", "toy": "diagonal.toy",
}  # fmt: skip
"""Modules that are imported without their folder, too."""

_PLACES = {
    "bridges.gradients": "value_and_grad",
    "conformance": "Report check read",
    "geometry.ablations": "ConstantMetric EuclideanNormMetric",
    "geometry.arrays": "ElementwiseMetric EuclideanMetric ScalingMetric TranslationMetric",
    "geometry.distance": "Distance quotient_distance",
    "geometry.embedded": "EmbeddedMetric",
    "geometry.pair": "Pair",
    "geometry.pair_metrics": "InterpolatedMetric InvariantMetric MixedMetric",
    "geometry.product": "ProductMetric",
    "geometry.rotary": "RotaryMetric",
    "geometry.tangent_space": "TangentSpace",
    "landscape.adaptive": "adaptive_sharpness",
    "landscape.average_case": "average_case_sharpness",
    "landscape.gradient_check": "check_gradient",
    "landscape.radius": "proposed_radius",
    "landscape.result": "AverageSharpness Progress SharpnessCurve SharpnessResult",
    "landscape.worst_case": "worst_case_sharpness",
    "support.errors": "GeodesicAccuracyError GeodesicIncompleteError RankDeficientError",
}

ShortNames({f"refgeo.{name}": f"refgeo.{module}" for name, module in _MODULES.items()})
__getattr__, __dir__ = deferred(
    __name__,
    {name: name for name in ("conformance", "diagonal", "exact", "paper", "metrics", "networks")}
    | {name: module for name, module in _MODULES.items() if "." not in name}
    | {name: f"{module}:{name}" for module, names in _PLACES.items() for name in names.split()},
)
