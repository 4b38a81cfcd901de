r"""Which symmetries does a loss have? Measured on the loss itself.

A metric of this package divides out a symmetry. Its sharpness means something only where the loss has that symmetry.
`verify` moves the parameters by random elements exp(t K) of a group and looks at the loss; and it takes the share of
the gradient that lies along the group's orbits, which is zero where there is a symmetry. Attention has GL(h) for
queries with keys and for values with outputs, but not with rotary positions (only what commutes with the rotations is
left), nor with a normalisation of queries and keys. What a network really has is quickly measured and easily guessed
wrong.

All of it is measured near θ rather than there, where a gradient that is nothing, a factor that is zero, or a weight
decay that has led to the balanced point would hide what is missing; and for pairs in the balanced gauge, so that it
does not matter which representative of an orbit is given.

A `Symmetry` is a group acting on some blocks of the parameters. Metrics and networks have a method `symmetries`, and
functions make others: `general_linear`, `commutant`, `translation`, `key_bias`, `value_bias`, `scaling`, `rescaling`,
`neurons`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from refgeo.geometry.blocks import ONLY, Blocks, Named, flat, names_of
from refgeo.geometry.groups import (
    Symmetry,
    commutant,
    general_linear,
    key_bias,
    neurons,
    rescaling,
    scaling,
    to_balanced,
    translation,
    value_bias,
)
from refgeo.geometry.pair import Pair, as_factors
from refgeo.geometry.product import ProductMetric
from refgeo.geometry.tangent_space import Metric
from refgeo.sharpness.noise import CLEAR, SHORT, last_digit, least_noise, noise_along
from refgeo.sharpness.parameters import Calls, Parameters, checked_loss, refuse_chance
from refgeo.support.arguments import Array, integer, number
from refgeo.support.console import as_text, without_common_words
from refgeo.support.differences import five_point

__all__ = [
    "Finding",
    "Symmetry",
    "Verification",
    "commutant",
    "general_linear",
    "key_bias",
    "neurons",
    "rescaling",
    "scaling",
    "translation",
    "value_bias",
    "verify",
]


_STEP = 1e-3
"""Of differences along a vector that is carried, as a share of the point; linear actions have no error at any step."""
_HELD, _BROKEN, _SEEN = 1e-8, 1e-6, 1e-2
"""Shares of what other changes of the same size do: less is none, more is some, and noise must be less to tell."""
_SURE = 3.0
"""What breaks a symmetry is so much more than what is `CLEAR` of noise."""


# Measured -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """What was measured of one symmetry: of the loss, or of a metric (`invariance`).

    Attributes
    ----------
    symmetry : str
    blocks : tuple of str
    change : float
        Largest change of the loss by elements of the group, relative to the loss.
    other : float
        Largest change by other changes of the same size, in the same unit.
    noise : float
        What values of the loss are off by, in the same unit, measured.
    gradient : float or nan
        Largest |⟨e, V⟩| / ‖e‖‖V‖ of a head, e the gradient and V a velocity of the group; nan without gradients.
    size : float
        The largest t.
    evaluations : int
        Of the loss.
    least_digits : float or None
        What it takes to hold, if somebody has said it.
    unseen : str
        Why nothing could be seen, where that is known.
    """

    symmetry: str
    blocks: tuple[str, ...]
    change: float
    other: float
    noise: float
    gradient: float = math.nan
    size: float = 1.0
    evaluations: int = 0
    least_digits: float | None = field(default=None, repr=False)
    unseen: str = field(default="", repr=False)

    @property
    def share(self) -> float:
        """The change beside other changes, or beside noise where that is more."""
        seen = max(self.change, self.noise)
        return seen / self.other if 0.0 < self.other < math.inf and math.isfinite(seen) else math.inf

    @property
    def digits(self) -> float:
        """To how many digits it was seen to hold: 0 where the group does what other changes do, or nothing is seen."""
        return max(0.0, -math.log10(self.share)) if 0.0 < self.share < math.inf else 0.0

    @property
    def _resolution(self) -> float:
        """The share that would not be noise."""
        return CLEAR * self.noise / self.other if self.other > 0.0 else math.inf

    @property
    def verdict(self) -> str:
        """One of "holds", "does not hold", and "undecided": what was seen is not enough, and `reason` says why."""
        if self.unseen:
            return "undecided"
        if self.is_broken:
            return "does not hold"
        return "undecided" if self.reason else "holds"

    @property
    def holds(self) -> bool:
        """Whether the verdict is "holds"."""
        return self.verdict == "holds"

    @property
    def is_broken(self) -> bool:
        """Whether the group changes the loss, by more than noise explains."""
        enough = _BROKEN if self.least_digits is None else 10.0 ** (-0.75 * self.least_digits)
        return self.change > _SURE * CLEAR * self.noise and self.change > enough * self.other

    @property
    def reason(self) -> str:
        """Why a verdict is undecided."""
        if self.unseen or self.is_broken:
            return self.unseen
        if not self._resolution <= _SEEN:
            return (
                f"other changes of this size move the loss by {self.other:.1g} of it, and its values are off by "
                f"{self.noise:.1g}: too little to tell; a loss in float64 has less noise"
            )
        least = max(_HELD, self._resolution) if self.least_digits is None else 10.0**-self.least_digits
        if self.share > least:
            return f"it holds to {self.digits:.1f} digits, which is neither rounding nor clearly more"
        if self.gradient > max(math.sqrt(least), _BROKEN):
            return (
                f"the loss stays the same, but {self.gradient:.1g} of the gradient goes along the group: is it the "
                "gradient of this loss (refgeo.check_gradient)?"
            )
        return ""


@dataclass(frozen=True)
class Verification:
    """All findings; printed, a table.

    Attributes
    ----------
    findings : tuple of Finding
    dim : int or None
        The dimension of the quotient, where a metric was asked (`refgeo.QuotientMetric.verify`).
    """

    findings: tuple[Finding, ...]
    dim: int | None = None

    @property
    def holds(self) -> bool:
        """Whether every symmetry does, of one or more."""
        return bool(self.findings) and all(finding.holds for finding in self.findings)

    def __iter__(self) -> Any:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __str__(self) -> str:
        dimension = [] if self.dim is None else [f"dimension of the quotient: {self.dim}"]
        return "\n".join([as_text(self.table()), *self.reasons, *dimension])

    @property
    def reasons(self) -> list[str]:
        """Of verdicts that are undecided, a sentence each."""
        undecided = [one for one in self if one.verdict == "undecided"]
        of_reasons = {one.reason: [other for other in undecided if other.reason == one.reason] for one in undecided}
        return [
            f"undecided, {those[0].symmetry} of {names_of([' and '.join(one.blocks) for one in those])}: {reason}"
            for reason, those in of_reasons.items()
        ]

    def table(self) -> Any:
        """For `rich`."""
        from rich.table import Column, Table

        shown = Table(
            Column("blocks", overflow="fold"), "symmetry", "loss changes", "gradient", "digits",
            Column("verdict", no_wrap=True), box=None, padding=(0, 2, 0, 0), pad_edge=False,
        )  # fmt: skip
        names = without_common_words({block for one in self.findings for block in one.blocks})
        for one in self.findings:
            gradient = "" if math.isnan(one.gradient) else f"{one.gradient:.1e}"
            colour = {"holds": "green", "does not hold": "red"}.get(one.verdict, "yellow")
            shown.add_row(
                "\n".join(names[block] for block in one.blocks), one.symmetry, f"{one.change:.1e}", gradient,
                f"{one.digits:.1f}", f"[{colour}]{one.verdict}[/]",
            )  # fmt: skip
        return shown

    def to_dict(self) -> list[dict[str, Any]]:
        """For JSON."""
        rows = [
            {
                "blocks": list(one.blocks), "symmetry": one.symmetry, "change": one.change, "gradient": one.gradient,
                "other": one.other, "noise": one.noise, "size": one.size, "evaluations": one.evaluations,
                "digits": one.digits, "verdict": one.verdict, "reason": one.reason,
            }
            for one in self.findings
        ]  # fmt: skip
        return [
            {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in row.items()}
            for row in rows
        ]


def verify(
    value_and_grad: Callable[[Any], Any],
    params: Any,
    geometry: Any,
    *,
    sizes: float | Sequence[float] = (0.1, 1.0),
    samples: int = 2,
    least_digits: float | None = None,
    noise: float | None = None,
    rng: np.random.Generator | int | None = 0,
) -> Verification:
    r"""Measure which symmetries a loss has.

    At a point θ' near θ, parameters changed by 1%, the loss is compared with that at :math:`e^{tK} θ'` for random K of
    unit size in every head. What it changes by is held against two things: what other changes of the same size do,
    the same numbers in random places with random signs, and the noise of the loss, which is measured. A symmetry
    *holds* if the group does no more than noise, and others do a hundred times more than what would be seen. If that
    cannot be told it is *undecided*, with the reason: a loss that ignores a block does not say anything about its
    symmetries.

    There are 2 · samples · sizes evaluations a symmetry, and seven more where it seems broken. Besides, for all
    together, there are two at θ and θ', one of them with the gradient, if the function gives one, and seven for the
    noise.

    Parameters
    ----------
    value_and_grad : callable
        ``f(params) -> (loss, gradients)``, see `refgeo.worst_case_sharpness`, or ``f(params) -> loss``.
    params : Pair, array or dict
    geometry : metric, network, Symmetry or several
        A metric stands for the symmetries that it divides out, a network for those of its layout. Of a metric that is
        not invariant itself, as a relaxed one, a further finding says so (`invariance`).
    sizes : float or sequence of float
        t: 0.1 changes entries by a tenth, 1 by a factor of about e.
    samples : int
        Random K for each size.
    least_digits : float, optional
        Digits, beside other changes, that count as a symmetry. Default: 8, or as many as the noise leaves.
    noise : float, optional
        What values of the loss are off by, if it is known.
    rng : numpy Generator, or a seed

    Returns
    -------
    Verification

    Raises
    ------
    ValueError
        There is nothing to verify: a metric that divides out no symmetry.

    Examples
    --------
    >>> import autograd.numpy as np, refgeo as rg
    >>> point = rg.Pair([[2.0], [1.0]], [[3.0]])
    >>> loss = rg.value_and_grad(lambda p: np.sum((p.G @ p.H.T - 1.0) ** 2))
    >>> rg.symmetry.verify(loss, point, rg.InvariantMetric()).holds
    True
    >>> broken = rg.value_and_grad(lambda p: np.sum((p.G @ p.H.T - 1.0) ** 2) + 0.01 * np.sum(p.G**2))
    >>> rg.symmetry.verify(broken, point, rg.InvariantMetric()).findings[0].verdict
    'does not hold'
    >>> rg.symmetry.verify(lambda p: 1.0, point, rg.InvariantMetric()).findings[0].verdict
    'undecided'
    """
    parameters, symmetries = Parameters(params), _listed(geometry)
    blocks = {name: _block(x) for name, x in parameters.blocks.items()}
    missing = [block for one in symmetries for block in one.blocks if block not in blocks and not one.whole]
    if missing:
        raise ValueError(f"params: expected the block {missing[0]!r} of the geometry as a key, but it is missing")
    integer("samples", samples)
    times, calls = _times(sizes), Calls("value_and_grad", value_and_grad)
    generator = np.random.default_rng(rng)

    def evaluate(moved: Named) -> tuple[float, Any]:
        with calls:
            found = value_and_grad(parameters.assembled(moved))
        value, grads = found if isinstance(found, tuple) else (found, None)
        return checked_loss("value_and_grad", value), None if grads is None else parameters.gradients(grads)

    near = nearby(blocks, generator)
    (here, grads), (there, _) = evaluate(near), evaluate(blocks)
    if not (math.isfinite(here) and math.isfinite(there)):
        raise ValueError("value_and_grad: expected a finite loss at the given parameters")
    refuse_chance(here, evaluate(near)[0])
    scale = max(abs(here), abs(here - there)) or 1.0
    if noise is None:
        noise = least_noise(lambda i: lambda t: evaluate(changed(near, t, np.random.default_rng(i)))[0])
    found = []
    for one in symmetries:
        finding = _compared(one, evaluate, near, here, scale, noise / scale, times * samples, generator)
        gradient = math.nan if grads is None else _share(one, near, grads, generator, samples)
        found.append(replace(finding, gradient=gradient, least_digits=least_digits))
    of_metrics = [
        replace(one, symmetry=f"the {one.symmetry}, of {metric}")
        for block, metric in metrics_of(geometry).items()
        if not metric.is_invariant
        for one in invariance(metric, block, blocks, times, generator)
    ]
    return Verification((*found, *(one for one in of_metrics if not one.holds)))


IGNORED = "no change of these blocks that was tried changes the loss (in float64, one may)"
UNMOVED = "the group moves nothing here"
OUTSIDE = "the loss is not finite after any other change of this size (try smaller sizes)"


def _compared(
    symmetry: Symmetry,
    evaluate: Callable[[Named], tuple[float, Any]],
    near: Named,
    here: float,
    scale: float,
    rounding: float,
    times: Sequence[float],
    rng: np.random.Generator,
) -> Finding:
    """What elements of a group do to the loss, and what other changes of the same size do, relative to `scale`.

    Where that is more than the noise near θ', the noise is measured again, along the group's orbit where it does most;
    where it is less, θ' lies beside jumps or kinks, and equal values agree better than the noise says.
    """
    worst, farthest, moves = 0.0, (None, 0.0), False
    losses, beside = [here], [0.0]

    def change(value: float) -> float:
        losses.append(value)
        return abs(value - here) / scale if math.isfinite(value) else math.inf

    for t in times:
        K = symmetry.generator(near, rng)
        moved = symmetry.act(near, K, t)
        moves = moves or not all(np.array_equal(flat(x), flat(near[name])) for name, x in moved.items())
        done = change(evaluate({**near, **moved})[0])
        if done >= worst:
            worst, farthest = done, (K, t)
        other_way = scrambled({b: near[b] for b in moved}, moved, rng)
        beside.append(change(evaluate({**near, **other_way})[0]))
    if CLEAR * rounding < worst < math.inf:
        K, t = farthest
        values = noise_along(lambda s: evaluate({**near, **symmetry.act(near, K, t * (1.0 + s))})[0], SHORT) / scale
        rounding = max(rounding, values) if math.isfinite(values) else rounding
    digit = last_digit([value for value in losses if math.isfinite(value)]) / scale
    rounding = max(min(rounding, CLEAR * worst), 0.5 * digit)
    other = max(filter(math.isfinite, beside))
    unseen = "" if other > 0.0 else IGNORED if moves else UNMOVED
    unseen = OUTSIDE if moves and not any(map(math.isfinite, beside[1:])) else unseen
    return Finding(
        symmetry.name, symmetry.blocks, worst, other, rounding, math.nan, max(times), len(losses) - 1, unseen=unseen
    )


def _times(sizes: float | Sequence[float]) -> list[float]:
    times = [number("sizes", t, "t of exp(t K)", above=0.0) for t in np.atleast_1d(np.asarray(sizes))]
    if not times:
        raise ValueError("sizes: expected at least one number > 0, got none")
    return times


def metrics_of(geometry: Any) -> dict[str, Metric[Any]]:
    """By block; none for what is no metric.

    Examples
    --------
    >>> import refgeo as rg
    >>> metrics_of(rg.ProductMetric({"w": rg.ScalingMetric()})), metrics_of(rg.symmetry.scaling("w"))
    ({'w': ScalingMetric()}, {})
    """
    if not isinstance(geometry, Metric):
        return {}
    return geometry.metrics if isinstance(geometry, ProductMetric) else {ONLY: geometry}


_NOTHING = {
    "group": "the group moves nothing at this point, so nothing was carried along its orbits",
    "metric": "the group moves this point to all points nearby, so the quotient has no vectors to measure",
}


def invariance(
    metric: Metric[Any], block: str, params: Named, times: Iterable[float] = (0.1, 1.0), rng: Any = 0
) -> list[Finding]:
    """Whether a metric lives on the quotient by its groups (App. B.4), near a point.

    Elements of a group carry vectors from a point to another of the orbit. Vertical vectors must stay vertical, and
    horizontal parts must keep their lengths; a vertical part that a horizontal vector gets is no matter. And orbits
    must have the same dimension nearby as through the point itself.

    Parameters
    ----------
    metric : Metric
    block : str
        That it measures; one that is not there means all.
    params : dict
        The point.
    times : iterable of float
        t of exp(tK).
    rng : numpy Generator, or a seed

    Returns
    -------
    list of Finding
        "group" and "metric" for every group; undecided where it moves nothing, or where nothing but orbits is left.
        And one for the dimension, if it changes.

    Examples
    --------
    >>> point = {"w": Pair([[2.0], [1.0]], [[3.0]])}
    >>> from refgeo.geometry.pair_metrics import InvariantMetric
    >>> [(one.symmetry, one.holds) for one in invariance(InvariantMetric(0.1), "w", point)]
    [('group', True), ('metric', False)]
    """
    generator = np.random.default_rng(rng)
    near = nearby(params, generator)
    here, alone = (near[block], True) if block in near else (Blocks(near), False)
    space, times = metric.at(here), list(times)
    horizontal = space.random_tangent_vector(generator) if space.dim else None
    vertical = space.vertical_projection(space.random_tangent_vector(generator, horizontal=False))
    vertical = vertical if np.max(space.norm(vertical)) > 1e-10 else None
    size = _STEP * (float(np.mean(space.norm(here))) or 1.0)
    found = []

    def moved(group: Symmetry, point: Any, K: Any, t: float) -> Any:
        params = {**near, block: point} if alone else point
        there = {**params, **group.act(params, K, t)}
        return there[block] if alone else Blocks(there)

    def horizontal_share(group: Symmetry, v: Any, K: Any, t: float, step: float) -> Array:
        """The length of the horizontal part of v where it is carried to, in units of the length of v."""
        there = metric.at(moved(group, here, K, t))
        pushed = five_point(lambda s: moved(group, here + v * s, K, t), step)
        before = space.norm(v)
        return np.asarray(there.norm(there.horizontal_projection(pushed)) / np.where(before > 0.0, before, 1.0))

    for group in metric.symmetries(block):
        for name, v, expected in (("group", vertical, 0.0), ("metric", horizontal, 1.0)):
            worst, error = 0.0, 0.0
            unseen = "" if v is not None else _NOTHING[name]
            for t in times if v is not None else ():
                K = group.generator(near, generator)
                once, twice = (horizontal_share(group, v, K, t, step) for step in (size, 2.0 * size))
                worst = max(worst, float(np.max(np.abs(once - expected))))
                error = max(error, float(np.max(np.abs(once - twice))))
            found.append(Finding(name, group.blocks, worst, 1.0, 0.1 * error, size=max(times), unseen=unseen))
    dim = metric.at(params[block] if alone else Blocks(params)).dim
    if dim != space.dim:
        name = f"dimension of the quotient: {dim} here, and {space.dim} nearby"
        found.append(Finding(name, (block,), math.inf, 1.0, 0.0))
    return found


def _block(value: Any) -> Any:
    """A pair that is given as a tuple is a `Pair`."""
    return Pair(*value) if isinstance(value, tuple) and len(value) == 2 and np.ndim(value[0]) >= 2 else value


def _listed(geometry: Any) -> list[Symmetry]:
    if isinstance(geometry, Symmetry):
        return [geometry]
    if callable(getattr(geometry, "symmetries", None)):
        found: list[Symmetry] = geometry.symmetries()
        if not found and isinstance(geometry, Metric):
            raise ValueError(
                f"geometry: expected a metric that divides out a symmetry, got {geometry!r}, which divides out none"
            )
        return found
    if isinstance(geometry, Iterable) and not isinstance(geometry, str | Mapping):
        listed = list(geometry)
        if not listed:
            raise ValueError("geometry: expected at least one symmetry, got none, so there is nothing to verify")
        if all(isinstance(one, Symmetry) for one in listed):
            return listed
    raise TypeError(
        "geometry: expected a metric, a network of refgeo.networks.read, or symmetries such as "
        f'refgeo.symmetry.general_linear("block"), got {type(geometry).__name__}'
    )


def nearby(blocks: Named, rng: Any) -> dict[str, Any]:
    """Every block changed by 1%, a pair beside its balanced representative: another point of the orbit, where a badly
    scaled one costs no digits.

    Examples
    --------
    >>> near = nearby({"w": Pair([[4.0]], [[1.0]])}, 0)["w"]
    >>> bool(np.allclose(tuple(near), 2.0, atol=0.1))
    True
    """
    generator = np.random.default_rng(rng)
    return {name: _changed(block, 0.01, generator, stays=True) for name, block in blocks.items()}


def changed(blocks: Named, share: float, rng: np.random.Generator) -> dict[str, Any]:
    """Every block changed by a share of its size, a pair in its balanced gauge; zeros by one of what is beside them.

    Examples
    --------
    >>> changed({"w": np.ones(3)}, 0.5, np.random.default_rng(0))["w"].round(2)
    array([1.06, 0.93, 1.32])
    """
    return {name: _changed(block, share, rng) for name, block in blocks.items()}


def _changed(block: Any, share: float, rng: np.random.Generator, stays: bool = False) -> Any:
    """One block; a pair `stays` in the balanced gauge, or is carried back."""
    to, back = to_balanced(block) if isinstance(block, Pair) else (np.eye(1), np.eye(1))
    parts = [block.G @ back, block.H @ to.mT] if isinstance(block, Pair) else [np.asarray(block, dtype=np.float64)]
    sizes = [float(np.sqrt(np.mean(np.square(x)))) if x.size else 0.0 for x in parts]
    largest = max(sizes) or 1.0
    parts = [x + share * (size or largest) * rng.standard_normal(x.shape) for x, size in zip(parts, sizes, strict=True)]
    if len(parts) == 1:
        return parts[0]
    return Pair.unchecked(*parts) if stays else Pair.unchecked(parts[0] @ to, parts[1] @ back.mT)


def scrambled(blocks: Named, moved: Named, rng: np.random.Generator) -> dict[str, Any]:
    """Other changes of the same size: those that lead from the blocks to the moved ones, in random places with random
    signs; of a pair in its balanced gauge.

    Examples
    --------
    >>> changed = scrambled({"w": np.zeros(3)}, {"w": np.array([1.0, 2.0, 0.0])}, np.random.default_rng(0))["w"]
    >>> np.sort(np.abs(changed))
    array([0., 1., 2.])
    """
    found: dict[str, Any] = {}

    def other(change: Array) -> Array:
        return np.asarray(rng.permutation(change.ravel()).reshape(change.shape) * rng.choice((-1.0, 1.0), change.shape))

    for name, block in blocks.items():
        if isinstance(block, Pair):
            to, back = to_balanced(block)
            G, H = ((x - y) for x, y in zip(moved[name], block, strict=True))
            found[name] = Pair.unchecked(block.G + other(G @ back) @ to, block.H + other(H @ to.mT) @ back.mT)
        else:
            found[name] = block + other(np.asarray(moved[name] - block))
    return found


def _share(symmetry: Symmetry, near: Named, grads: Named, rng: np.random.Generator, samples: int) -> float:
    """The largest cosine of the gradient with a velocity, of a head; in the balanced gauge."""
    largest = 0.0
    for _ in range(samples):
        velocity = symmetry.velocity(near, symmetry.generator(near, rng))
        by_head = all(isinstance(block, Pair) for block in velocity.values())  # else a group acts on all heads together
        products, along, across = (np.zeros(()) for _ in range(3))
        for name, block in velocity.items():
            parts = as_factors(block)
            if name not in grads:
                moved = f"; the symmetry {symmetry.name} moves this block"
                raise ValueError(f"value_and_grad: the gradient of {name!r} is missing{moved}")
            slopes = tuple(grads[name]) if len(parts) == 2 else (grads[name],)
            heads = 0
            if len(parts) == 2:
                to, back = to_balanced(near[name])
                heads = parts[0].ndim - 2 if by_head else 0
                slopes = slopes[0] @ to.mT, slopes[1] @ back
                parts = parts[0] @ back, parts[1] @ to.mT
            for e, v in zip(slopes, parts, strict=True):
                products = products + _over_heads(np.multiply(e, v), heads)
                along = along + _over_heads(np.square(e), heads)
                across = across + _over_heads(np.square(v), heads)
        # beside the largest of all heads, rounding is not a gradient
        floor = 1e-3 * float(np.sqrt(np.max(along, initial=0.0)))
        size = np.maximum(np.sqrt(along), floor) * np.sqrt(across)
        cosines = np.divide(np.abs(products), size, out=np.zeros_like(size), where=size > 0.0)
        largest = max(largest, float(np.max(cosines, initial=0.0)))
    return largest


def _over_heads(values: Array, heads: int) -> Array:
    """Sums over all but the axes of heads."""
    return np.asarray(np.sum(values, axis=tuple(range(heads, np.ndim(values)))))
