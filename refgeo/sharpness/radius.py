r"""A radius in proportion to the geometry."""

from __future__ import annotations

import math
from typing import Any

from refgeo.geometry.tangent_space import Metric
from refgeo.sharpness.objective import Objective, ParameterSpace
from refgeo.sharpness.parameters import Calls, LossAndGradient
from refgeo.support.arguments import number


def proposed_radius(value_and_grad: LossAndGradient, params: Any, metric: Metric[Any], bend: float = 0.05) -> float:
    r"""Return the radius up to which second-order geodesics bend little, whatever block the search moves.

    In every block (and head) the gradient at θ has a direction u of unit length. Along it a second-order geodesic
    :math:`ρu - ½ρ^2Γ(u, u)` bends by the share :math:`ρ‖½Γ(u, u)‖` of its length. The radius is the one at which that
    is `bend` in the block where it is largest: even if a search spends all of ρ there, the second-order term is short
    beside the first one. Takes one evaluation of the loss and its gradient.

    Parameters
    ----------
    value_and_grad, params, metric
        As of `worst_case_sharpness`.
    bend : float
        The share.

    Returns
    -------
    float
        Rounded down to two digits. Where nothing bends, or the gradient is zero, `bend` times the root mean square of
        the blocks' lengths.

    Examples
    --------
    >>> import numpy as np, refgeo as rg
    >>> proposed_radius(lambda w: (float(w.sum()), np.ones(2)), np.array([3.0, 4.0]), rg.ElementwiseMetric())
    0.13
    """
    share = number("bend", bend, above=0.0)
    with Calls("value_and_grad", value_and_grad):
        objective = Objective(value_and_grad, ParameterSpace(params, metric), 2, 2)
    most = objective.space.bend(objective.gradient_at_origin, 2)
    radius = share / most if most > 0.0 else share * objective.space.size
    unit = 10.0 ** (math.floor(math.log10(radius)) - 1)
    return float(f"{math.floor(radius / unit * (1.0 + 1e-12)) * unit:.2g}")
