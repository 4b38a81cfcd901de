"""refgeo: the exact CPU reference for symmetry-aware ("geodesic") sharpness.

Everything loads on first use. The geometry and its searches need NumPy and SciPy only.
"""

from typing import TYPE_CHECKING

from refgeo.support.deferred import defer

if TYPE_CHECKING:
    from refgeo import conformance as conformance
    from refgeo import diagonal as diagonal
    from refgeo import exact as exact
    from refgeo import networks as networks
    from refgeo import paper as paper
    from refgeo.bridges import strategies as strategies
    from refgeo.bridges import testing as testing
    from refgeo.conformance.diagnosis.reading import read as read
    from refgeo.conformance.execution import adapters as adapters
    from refgeo.conformance.report import Report as Report
    from refgeo.conformance.run import check as check
    from refgeo.geometry.arrays import ElementwiseMetric as ElementwiseMetric
    from refgeo.geometry.arrays import EuclideanMetric as EuclideanMetric
    from refgeo.geometry.arrays import ScalingMetric as ScalingMetric
    from refgeo.geometry.arrays import TranslationMetric as TranslationMetric
    from refgeo.geometry.embedded import EmbeddedMetric as EmbeddedMetric
    from refgeo.geometry.pair import Pair as Pair
    from refgeo.geometry.pair_metrics import InterpolatedMetric as InterpolatedMetric
    from refgeo.geometry.pair_metrics import InvariantMetric as InvariantMetric
    from refgeo.geometry.pair_metrics import MixedMetric as MixedMetric
    from refgeo.geometry.product import ProductMetric as ProductMetric
    from refgeo.geometry.rotary import RotaryMetric as RotaryMetric
    from refgeo.geometry.tangent_space import TangentSpace as TangentSpace
    from refgeo.sharpness import spectrum as spectrum
    from refgeo.sharpness import symmetry as symmetry
    from refgeo.sharpness.adaptive import adaptive_sharpness as adaptive_sharpness
    from refgeo.sharpness.average_case import average_case_sharpness as average_case_sharpness
    from refgeo.sharpness.gradient_check import check_gradient as check_gradient
    from refgeo.sharpness.gradients import value_and_grad as value_and_grad
    from refgeo.sharpness.quotient import QuotientMetric as QuotientMetric
    from refgeo.sharpness.radius import proposed_radius as proposed_radius
    from refgeo.sharpness.result import AverageSharpness as AverageSharpness
    from refgeo.sharpness.result import Progress as Progress
    from refgeo.sharpness.result import SharpnessCurve as SharpnessCurve
    from refgeo.sharpness.result import SharpnessResult as SharpnessResult
    from refgeo.sharpness.worst_case import worst_case_sharpness as worst_case_sharpness
    from refgeo.support.errors import GeodesicAccuracyError as GeodesicAccuracyError
    from refgeo.support.errors import GeodesicIncompleteError as GeodesicIncompleteError
    from refgeo.support.errors import Interrupted as Interrupted
    from refgeo.support.errors import RankDeficientError as RankDeficientError

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = defer(__name__)
