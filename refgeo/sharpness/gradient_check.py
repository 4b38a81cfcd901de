"""Is the gradient that somebody gives the gradient of the loss? By differences, before anything is built on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from refgeo.arguments import Array
from refgeo.pair import Pair
from refgeo.sharpness.objective import Increase
from refgeo.sharpness.parameters import LossAndGradient, Parameters, checked_evaluation, checked_gradient

_AGREE = 0.1
"""A difference quotient this close to the slope confirms it: a wrong gradient is off by more, rounding by less."""
_AGREE_AT_RANDOM = 0.03
"""Along a random direction, where a part that is left out is one of many."""
_CONVERGED = 0.3
"""Two quotients that agree to this share of what is asked for are the slope, whatever the gradient says."""
_NOISE = 2.0**-23
"""Of a loss in float32, relative."""
_REPEATS = 1e-5


def check_gradient(
    value_and_grad: LossAndGradient,
    params: Any,
    *,
    tolerance: float = _AGREE,
    rng: np.random.Generator | int | None = 0,
) -> dict[str, float]:
    """Compare a gradient with differences of its loss, block by block.

    Every block is moved alone, along its gradient and along a random direction, by smaller and smaller steps until the
    difference quotient agrees with the gradient, or has converged to something else.

    Parameters
    ----------
    value_and_grad : callable
        ``value_and_grad(params) -> (loss, grads)``.
    params : Pair, array or dict of these
    tolerance : float
        Relative disagreement that is an error.
    rng : numpy Generator, or a seed

    Returns
    -------
    dict of str to float
        The relative disagreement of every block (of ``name.G`` and ``name.H`` for a pair); nan where the loss is flat
        to rounding and nothing can be told.

    Raises
    ------
    ValueError
        A block disagrees, or the loss differs when it is evaluated again.

    Examples
    --------
    >>> import refgeo as rg
    >>> def loss(w):
    ...     return float(np.sum(w**3)), 3 * w**2
    >>> max(rg.check_gradient(loss, np.array([1.0, 2.0])).values()) < 1e-3
    True
    >>> rg.check_gradient(lambda w: (float(np.sum(w**3)), 2 * w**2), np.array([1.0, 2.0]))
    Traceback (most recent call last):
    ...
    ValueError: value_and_grad: the gradient is not that of the loss; parameters: the loss changes by ...
    """
    generator = np.random.default_rng(rng)
    if not callable(value_and_grad):
        raise TypeError(f"value_and_grad: expected a function of the parameters, got {type(value_and_grad).__name__}")
    loss, grads = checked_evaluation(value_and_grad(params))
    if not math.isfinite(loss):
        raise ValueError(f"value_and_grad: expected a finite loss, got {loss}")
    again, _ = checked_evaluation(value_and_grad(params))
    _refuse_chance(loss, again)
    found: dict[str, float] = {}
    complaints: list[str] = []
    for name, factor, gradient, moved in _blocks(params, grads):
        size = float(np.sqrt(np.mean(factor**2))) or 1.0
        seen: list[tuple[float, str]] = []
        for direction in (gradient, generator.standard_normal(factor.shape)):
            length = float(np.linalg.norm(direction))
            if length > 0.0:
                step = direction * (size * math.sqrt(factor.size) / length)
                change = partial(_change, value_and_grad, moved, factor, step, loss)
                scale = float(np.linalg.norm(gradient)) * size
                seen += _disagreements(change, float(np.sum(gradient * step)), scale, loss)
        found[name], said = max(seen, key=lambda one: one[0], default=(math.nan, ""))
        if found[name] > tolerance:
            complaints.append(f"{name}: {said}")
    if not found:
        raise ValueError(f"value_and_grad: expected gradients of some of {', '.join(params)}, got {', '.join(grads)}")
    if complaints:
        raise ValueError("value_and_grad: the gradient is not that of the loss; " + "; ".join(complaints))
    return found


def _disagreements(
    change: Callable[[float], float], slope: float, scale: float, loss: float
) -> Iterator[tuple[float, str]]:
    """How far a gradient of this slope, and of this typical slope, is from what the loss does, and that in words."""
    beside = max(abs(slope), scale)
    quotient = _slope_by_differences(change, slope, beside, loss, 1e-2)
    if quotient is not None:
        off = abs(quotient - slope) / beside if beside > 0.0 else 0.0
        yield off, f"the loss changes by {quotient / slope:.3g} times what it says" if slope else "it says 0"
    if scale == 0.0 and _is_sloped(change, loss, 1e-2):
        yield 1.0, "the loss changes, and the gradient is zero"


def _change(
    value_and_grad: LossAndGradient,
    moved: Callable[[Array], Any],
    factor: Array,
    unit: Array,
    loss: float,
    s: float,
) -> float:
    """What the loss gains by a step of one array."""
    return checked_evaluation(value_and_grad(moved(factor + s * unit)))[0] - loss


def verify(objective: Increase, radius: float) -> None:
    """One evaluation again at the parameters, a difference along the gradient and one along a random direction, and one
    evaluation on the orbit: an error if any of it tells of a mistake.
    """
    again, _ = objective(objective.origin)
    _refuse_chance(objective.loss, objective.loss + again)
    _refuse_wrong_gradient(objective, radius)
    objective.check_symmetry()


def _refuse_wrong_gradient(objective: Increase, radius: float) -> None:
    """Along the gradient, which a wrong factor shows in; and along a random direction, for what it leaves out."""
    gradient, step = objective.gradient_at_origin, 0.1 * radius
    length = float(np.linalg.norm(gradient))
    random = objective.random_direction(np.random.default_rng(0))

    def start(agree: float, scale: float) -> float:
        """In a small ball noise hides the slope: a longer step then, but short beside the parameters."""
        telling = 100.0 * _NOISE * abs(objective.loss) / (_CONVERGED * agree * scale)
        return max(step, min(telling, 1e-2 * objective.size))

    for name, direction, agree in (
        ("its gradient", gradient, _AGREE),
        ("a random direction", random, _AGREE_AT_RANDOM),
    ):
        size = float(np.linalg.norm(direction))
        if not 0.0 < size < math.inf or not math.isfinite(length):
            continue
        unit = direction / size
        slope = float(np.dot(gradient, unit))

        def change(s: float, unit: Array = unit) -> float:
            return objective(s * unit)[0]

        beside = max(abs(slope), length / len(gradient) ** 0.5)
        if beside > 0.0:
            quotient = _slope_by_differences(change, slope, beside, objective.loss, start(agree, beside), agree)
            if quotient is None or abs(quotient - slope) <= agree * beside:
                continue
            said = f"by {quotient:.3g} a unit of length, where the gradient says {slope:.3g}"
        elif _is_sloped(change, objective.loss, step):
            said = "and the gradient is zero"
        else:
            continue
        check_gradient(*objective.source)  # which names the block
        raise ValueError(f"value_and_grad: along {name} the loss changes, {said}; verify=False searches all the same")


def verify_unchanged(objective: Increase, workers: int) -> None:
    """One evaluation again at the parameters, after the search: an error if it has changed them."""
    again, _ = objective(objective.origin)
    threads = "it is not thread-safe, or it changes the model" if workers > 1 else "it changes the model"
    _refuse_chance(objective.loss, objective.loss + again, f"before and after the search; {threads}")


def _refuse_chance(loss: float, again: float, when: str = "; is dropout on, or does it change the model") -> None:
    if abs(again - loss) > _REPEATS * max(abs(loss), abs(again)):
        raise ValueError(
            f"value_and_grad: two evaluations at the same parameters gave {loss:.8g} and {again:.8g}{when}? "
            "(module.eval(), a fixed batch and a fixed seed help; verify=False searches all the same)"
        )


def _slope_by_differences(
    change: Callable[[float], float], slope: float, scale: float, loss: float, step: float, agree: float = _AGREE
) -> float | None:
    """A central difference that agrees with the slope, or that smaller steps converge to; None if rounding hides it."""
    before = None
    for _ in range(6):
        if _NOISE * abs(loss) > _CONVERGED * agree * scale * step:
            return None
        ahead, behind = change(step), change(-step)
        rounding = _NOISE * (abs(ahead) + abs(behind))  # which a smaller step has less of
        if math.isfinite(ahead) and math.isfinite(behind) and rounding <= _CONVERGED * agree * scale * step:
            quotient = (ahead - behind) / (2.0 * step)
            if abs(quotient - slope) <= agree * scale:
                return quotient
            if before is not None and abs(quotient - before) <= _CONVERGED * agree * scale:
                return quotient
            before = quotient
        step *= 0.1
    return None


def _is_sloped(change: Callable[[float], float], loss: float, step: float) -> bool:
    """Whether differences with two steps are the same, and more than rounding."""
    quotients = []
    for s in (step, 0.1 * step):
        ahead, behind = change(s), change(-s)
        quotients.append((ahead - behind) / (2.0 * s))
        if not abs(quotients[-1]) > 30.0 * _NOISE * (abs(loss) + abs(ahead) + abs(behind)) / s:
            return False
    return abs(quotients[0] - quotients[1]) <= 0.1 * abs(quotients[1])


def _blocks(params: Any, grads: Any) -> Iterator[tuple[str, Array, Array, Callable[[Array], Any]]]:
    """Every array of the parameters with its name, its gradient, and the parameters with it replaced."""
    parameters = Parameters(params)
    found = parameters.gradients(grads)
    for name, block in parameters.blocks.items():
        if name not in found:
            continue  # a frozen block
        block = block if isinstance(block, Pair) else np.asarray(block, dtype=np.float64)
        gradient = checked_gradient(name, found, block)

        def whole(x: Any, name: str = name) -> Any:
            return parameters.assembled({name: x})

        if isinstance(block, Pair):
            G, H = block
            prefix = "" if parameters.single else f"{name}."
            yield f"{prefix}G", G, gradient.G, lambda x, H=H, whole=whole: whole(Pair(x, H))  # type: ignore[misc]
            yield f"{prefix}H", H, gradient.H, lambda x, G=G, whole=whole: whole(Pair(G, x))  # type: ignore[misc]
        else:
            yield name, block, gradient, whole
