r"""Measure which symmetries a loss has.

A metric of this package divides out a symmetry. Its sharpness has a meaning only if the loss has that symmetry.
`verify` moves the parameters by random elements exp(t K) of a group and compares the losses. It also measures the share
of the gradient that lies along the group's orbits, which is zero if there is a symmetry. Attention has GL(h) for
queries with keys and for values with outputs. With rotary positions only those elements are left that commute with the
rotations, and a normalisation of queries and keys breaks the symmetry, too. It is easy to guess this wrong, and easy to
measure it.

Everything is measured near θ rather than at θ, where a gradient that vanishes, a factor that is zero, or a balanced
point, to which weight decay leads, would hide that a symmetry is missing. Pairs are measured in the balanced gauge, so
that the result does not depend on the representative of the orbit.

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
from refgeo.sharpness.noise import COARSE_STEP, NOISE_FACTOR, last_digit, least_noise, noise_of, values_along
from refgeo.sharpness.parameters import Calls, Parameters, as_loss, refuse_chance
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


_DIFFERENCE_STEP = 1e-3
"""Step of differences along a carried vector, relative to the point; chosen. Linear actions have no error."""
_MAX_HOLDING_SHARE, _MIN_BROKEN_SHARE, _MAX_NOISE_SHARE = 1e-8, 1e-6, 1e-2
"""Shares of the change by other displacements of the same size: a change up to the first is none, one above the second
is a violation, and noise up to the third permits a decision. Chosen.
"""
_BROKEN_MARGIN = 3.0
"""Multiple of the largest change that noise explains above which a change is a violation; between the two, the verdict
is "undecided". Chosen.
"""


# Findings -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """The measurements on one symmetry, of a loss or of a metric (`invariance`).

    Attributes
    ----------
    symmetry : str
    blocks : tuple of str
    change : float
        The largest change of the loss by elements of the group, relative to the loss.
    reference_change : float
        The largest change by other displacements of the same size, in the same unit.
    noise : float
        The error of the loss's values, measured, in the same unit.
    gradient : float or nan
        The largest |⟨e, V⟩| / ‖e‖‖V‖ of a head, where e is the gradient and V a velocity of the group; nan without
        gradients.
    size : float
        The largest t.
    evaluations : int
        The number of evaluations of the loss for this symmetry, with those that measure the noise along its orbit.
    least_digits : float or None
        The number of digits to which a symmetry must hold, if the caller has given it.
    obstacle : str
        The reason why nothing could be measured, if it is known.
    """

    symmetry: str
    blocks: tuple[str, ...]
    change: float
    reference_change: float
    noise: float
    gradient: float = math.nan
    size: float = 1.0
    evaluations: int = 0
    least_digits: float | None = field(default=None, repr=False)
    obstacle: str = field(default="", repr=False)

    @property
    def share(self) -> float:
        """The larger of change and noise, relative to the change by other displacements."""
        change = max(self.change, self.noise)
        is_defined = 0.0 < self.reference_change < math.inf and math.isfinite(change)
        return change / self.reference_change if is_defined else math.inf

    @property
    def digits(self) -> float:
        """The number of digits to which the symmetry holds: 0 if the group changes the loss as much as other
        displacements do, or if nothing could be measured.
        """
        return max(0.0, -math.log10(self.share)) if 0.0 < self.share < math.inf else 0.0

    @property
    def _resolution(self) -> float:
        """The smallest share that noise does not explain."""
        return NOISE_FACTOR * self.noise / self.reference_change if self.reference_change > 0.0 else math.inf

    @property
    def verdict(self) -> str:
        """One of "holds", "does not hold", and "undecided", for which `reason` is the reason."""
        if self.obstacle:
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
        """Whether the group changes the loss by more than noise explains, and by a share that matters."""
        # by default 6 of 8 digits, hence 0.75
        least = _MIN_BROKEN_SHARE if self.least_digits is None else 10.0 ** (-0.75 * self.least_digits)
        return self.change > _BROKEN_MARGIN * NOISE_FACTOR * self.noise and self.change > least * self.reference_change

    @property
    def reason(self) -> str:
        """The reason for the verdict "undecided"; empty for other verdicts."""
        if self.obstacle or self.is_broken:
            return self.obstacle
        if not self._resolution <= _MAX_NOISE_SHARE:
            return (
                f"other changes of this size change the loss by {self.reference_change:.1g} of it, and its values have "
                f"errors of {self.noise:.1g}: too little to tell; a loss in float64 has less noise"
            )
        most = max(_MAX_HOLDING_SHARE, self._resolution) if self.least_digits is None else 10.0**-self.least_digits
        if self.share > most:
            return f"it holds to {self.digits:.1f} digits: too few for rounding errors, too many for a clear violation"
        if self.gradient > max(math.sqrt(most), _MIN_BROKEN_SHARE):
            return (
                f"the loss stays the same, but {self.gradient:.1g} of the gradient lies along the group's orbits: is "
                "it the gradient of this loss (refgeo.check_gradient)?"
            )
        return ""


@dataclass(frozen=True)
class Verification:
    """The findings on all symmetries, which are printed as a table.

    Attributes
    ----------
    findings : tuple of Finding
    dim : int or None
        The dimension of the quotient, if a metric was verified (`refgeo.QuotientMetric.verify`).
    """

    findings: tuple[Finding, ...]
    dim: int | None = None

    @property
    def holds(self) -> bool:
        """Whether there is a finding, and every symmetry holds."""
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
        """A sentence for each reason of the verdict "undecided"."""
        undecided = [finding for finding in self if finding.verdict == "undecided"]
        groups = [[f for f in undecided if f.reason == reason] for reason in dict.fromkeys(f.reason for f in undecided)]
        return [
            f"undecided, {group[0].symmetry} of {names_of([' and '.join(f.blocks) for f in group])}: {group[0].reason}"
            for group in groups
        ]

    def table(self) -> Any:
        """Return the findings as a table of `rich`."""
        from rich.table import Column, Table

        table = Table(
            Column("blocks", overflow="fold"), "symmetry", "loss changes", "gradient", "digits",
            Column("verdict", no_wrap=True), box=None, padding=(0, 2, 0, 0), pad_edge=False,
        )  # fmt: skip
        names = without_common_words({block for finding in self.findings for block in finding.blocks})
        for f in self.findings:
            gradient = "" if math.isnan(f.gradient) else f"{f.gradient:.1e}"
            colour = {"holds": "green", "does not hold": "red"}.get(f.verdict, "yellow")
            table.add_row(
                "\n".join(names[block] for block in f.blocks), f.symmetry, f"{f.change:.1e}", gradient,
                f"{f.digits:.1f}", f"[{colour}]{f.verdict}[/]",
            )  # fmt: skip
        return table

    def to_dict(self) -> list[dict[str, Any]]:
        """Return a dict for each finding, for JSON; numbers that are not finite are None."""
        rows = [
            {
                "blocks": list(f.blocks), "symmetry": f.symmetry, "change": f.change, "gradient": f.gradient,
                "reference_change": f.reference_change, "noise": f.noise, "size": f.size, "evaluations": f.evaluations,
                "digits": f.digits, "verdict": f.verdict, "reason": f.reason,
            }
            for f in self.findings
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

    The parameters are first changed by 1%, from θ to θ'. The loss at θ' is compared with the loss at
    :math:`e^{tK} θ'` for random K of unit size in every head. The change is compared with two numbers: the change by
    other displacements of the same size, which have the same entries in random places with random signs, and the noise
    of the loss, which is measured. A symmetry *holds* if the group changes the loss by no more than noise explains,
    and other displacements by at least a hundred times as much. It *does not hold* if the change is clearly more than
    noise explains. Otherwise it is *undecided*, and a reason is given: for example, a loss that ignores a block shows
    nothing about its symmetries.

    A symmetry takes 2 · samples · sizes evaluations, and seven more if it seems broken. All symmetries together take
    two at θ' and one at θ, and seven or fourteen for the noise.

    Parameters
    ----------
    value_and_grad : callable
        ``f(params) -> (loss, gradients)``, see `refgeo.worst_case_sharpness`, or ``f(params) -> loss``.
    params : Pair, array or dict
    geometry : metric, network, Symmetry or sequence of Symmetry
        A metric stands for the symmetries that it divides out, a network for those of its layout. If a metric itself is
        not invariant, as a relaxed one, a further finding says so (`invariance`).
    sizes : float or sequence of float
        The values of t: 0.1 changes entries by a tenth, 1 by a factor of about e.
    samples : int
        The number of random K for each size.
    least_digits : float, optional
        The number of digits, relative to other displacements, to which a symmetry must hold. Default: 8, or as many as
        the noise permits.
    noise : float, optional
        The error of the loss's values; default: it is measured.
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
    parameters, symmetries = Parameters(params), _symmetries_of(geometry)
    blocks = {name: _as_block(x) for name, x in parameters.blocks.items()}
    missing = [name for symmetry in symmetries for name in symmetry.blocks if name not in blocks and not symmetry.whole]
    if missing:
        raise ValueError(f"params: expected the block {missing[0]!r} of the geometry as a key, but it is missing")
    integer("samples", samples)
    times, calls = _times(sizes), Calls("value_and_grad", value_and_grad)
    generator = np.random.default_rng(rng)

    def evaluate(point: Named) -> tuple[float, Any]:
        with calls:
            result = value_and_grad(parameters.assemble(point))
        value, grads = result if isinstance(result, tuple) else (result, None)
        return as_loss("value_and_grad", value), None if grads is None else parameters.gradients(grads)

    near = nearby_point(blocks, generator)
    (loss_near, grads), (loss, _) = evaluate(near), evaluate(blocks)
    if not (math.isfinite(loss_near) and math.isfinite(loss)):
        raise ValueError("value_and_grad: expected a finite loss at the given parameters")
    refuse_chance(loss_near, evaluate(near)[0])
    scale = max(abs(loss_near), abs(loss_near - loss)) or 1.0
    if noise is None:
        noise = least_noise(lambda i: lambda t: evaluate(perturb(near, t, np.random.default_rng(i)))[0])
    findings = []
    for symmetry in symmetries:
        finding = _measure(symmetry, evaluate, near, loss_near, scale, noise / scale, times * samples, generator)
        gradient = math.nan if grads is None else _gradient_share(symmetry, near, grads, generator, samples)
        findings.append(replace(finding, gradient=gradient, least_digits=least_digits))
    of_metrics = [
        replace(finding, symmetry=f"the {finding.symmetry}, of {metric}")
        for block, metric in metrics_of(geometry).items()
        if not metric.is_invariant
        for finding in invariance(metric, block, blocks, times, generator)
    ]
    return Verification((*findings, *(finding for finding in of_metrics if not finding.holds)))


IGNORED = "none of the changes tried to these blocks changes the loss (a loss in float64 may show one)"
UNMOVED = "the group moves nothing here"
OUTSIDE = "the loss is not finite after any other change of this size (try smaller sizes)"
"""Reasons why nothing could be measured."""


def _measure(
    symmetry: Symmetry,
    evaluate: Callable[[Named], tuple[float, Any]],
    near: Named,
    loss: float,
    scale: float,
    noise: float,
    times: Sequence[float],
    rng: np.random.Generator,
) -> Finding:
    """Measure the changes of a loss by elements of a group and by other displacements of the same size.

    If the group changes the loss by more than noise explains, the noise is measured again along the group's orbit, at
    the element with the largest change. If it changes it by less, the noise is lowered to match: θ' lies beside jumps
    or kinks, and equal values show that the true noise is smaller.

    Parameters
    ----------
    near : dict
        The point θ'.
    loss, scale, noise : float
        The loss at θ', the unit of all changes, and the noise in this unit.
    times : sequence of float
        The values of t, one for each element of the group.
    """
    worst, farthest, moves = 0.0, (None, 0.0), False
    losses, along_orbit, other_changes = [loss], [], [0.0]

    def change(value: float) -> float:
        losses.append(value)
        return abs(value - loss) / scale if math.isfinite(value) else math.inf

    for t in times:
        K = symmetry.generator(near, rng)
        moved = symmetry.act(near, K, t)
        moves = moves or not all(np.array_equal(flat(x), flat(near[name])) for name, x in moved.items())
        by_group = change(evaluate({**near, **moved})[0])
        if by_group >= worst:
            worst, farthest = by_group, (K, t)
        displaced = scramble({name: near[name] for name in moved}, moved, rng)
        other_changes.append(change(evaluate({**near, **displaced})[0]))
    if NOISE_FACTOR * noise < worst < math.inf:
        K, t = farthest
        along_orbit = values_along(lambda s: evaluate({**near, **symmetry.act(near, K, t * (1.0 + s))})[0], COARSE_STEP)
        orbit_noise = noise_of(along_orbit) / scale
        noise = max(noise, orbit_noise) if math.isfinite(orbit_noise) else noise
    digit = last_digit([value for value in losses if math.isfinite(value)]) / scale
    noise = max(min(noise, NOISE_FACTOR * worst), 0.5 * digit)
    other_change = max(filter(math.isfinite, other_changes))
    obstacle = "" if other_change > 0.0 else IGNORED if moves else UNMOVED
    obstacle = OUTSIDE if moves and not any(map(math.isfinite, other_changes[1:])) else obstacle
    return Finding(
        symmetry.name, symmetry.blocks, worst, other_change, noise,
        size=max(times), evaluations=len(losses) - 1 + len(along_orbit), obstacle=obstacle,
    )  # fmt: skip


def _times(sizes: float | Sequence[float]) -> list[float]:
    """Return the values of t in exp(tK) as a list."""
    times = [number("sizes", t, "t of exp(t K)", above=0.0) for t in np.atleast_1d(np.asarray(sizes))]
    if not times:
        raise ValueError("sizes: expected at least one number > 0, got none")
    return times


def metrics_of(geometry: Any) -> dict[str, Metric[Any]]:
    """Return the metric of each block; an empty dict for a geometry that is no metric.

    Examples
    --------
    >>> import refgeo as rg
    >>> metrics_of(rg.ProductMetric({"w": rg.ScalingMetric()})), metrics_of(rg.symmetry.scaling("w"))
    ({'w': ScalingMetric()}, {})
    """
    if not isinstance(geometry, Metric):
        return {}
    return geometry.metrics if isinstance(geometry, ProductMetric) else {ONLY: geometry}


_UNDECIDED_REASONS = {
    "group": "the group moves nothing at this point, so nothing was carried along its orbits",
    "metric": "the group moves this point to all points nearby, so the quotient has no vectors to measure",
}


def invariance(
    metric: Metric[Any], block: str, params: Named, times: Iterable[float] = (0.1, 1.0), rng: Any = 0
) -> list[Finding]:
    """Measure whether a metric lives on the quotient by its groups (App. B.4), near a point.

    Elements of a group carry vectors from a point to other points of its orbit. Vertical vectors must stay vertical,
    and the horizontal part of a horizontal vector must keep its length; it may get a vertical part. Orbits must have
    the same dimension at the point and near it.

    Parameters
    ----------
    metric : Metric
    block : str
        The block that it measures; all blocks, if there is none of this name.
    params : dict
        The point.
    times : iterable of float
        The values of t in exp(tK).
    rng : numpy Generator, or a seed

    Returns
    -------
    list of Finding
        For every group a finding "group" on vertical vectors and a finding "metric" on horizontal ones; they are
        undecided if the group moves nothing, or if it moves the point to all points nearby. Another finding says if the
        dimension changes.

    Examples
    --------
    >>> point = {"w": Pair([[2.0], [1.0]], [[3.0]])}
    >>> from refgeo.geometry.pair_metrics import InvariantMetric
    >>> [(finding.symmetry, finding.holds) for finding in invariance(InvariantMetric(0.1), "w", point)]
    [('group', True), ('metric', False)]
    """
    generator = np.random.default_rng(rng)
    near = nearby_point(params, generator)
    here, is_one_block = (near[block], True) if block in near else (Blocks(near), False)
    space, times = metric.at(here), list(times)
    horizontal = space.random_tangent_vector(generator) if space.dim else None
    vertical = space.vertical_projection(space.random_tangent_vector(generator, horizontal=False))
    vertical = vertical if np.max(space.norm(vertical)) > 1e-10 else None
    size = _DIFFERENCE_STEP * (float(np.mean(space.norm(here))) or 1.0)
    findings = []

    def act(group: Symmetry, point: Any, K: Any, t: float) -> Any:
        params = {**near, block: point} if is_one_block else point
        image = {**params, **group.act(params, K, t)}
        return image[block] if is_one_block else Blocks(image)

    def horizontal_share(group: Symmetry, v: Any, K: Any, t: float, step: float) -> Array:
        """Return the length of the horizontal part of v after it is carried along the orbit, relative to that of v."""
        target = metric.at(act(group, here, K, t))
        carried = five_point(lambda s: act(group, here + v * s, K, t), step)
        length = space.norm(v)
        return np.asarray(target.norm(target.horizontal_projection(carried)) / np.where(length > 0.0, length, 1.0))

    for group in metric.symmetries(block):
        for name, v, expected in (("group", vertical, 0.0), ("metric", horizontal, 1.0)):
            worst, error = 0.0, 0.0
            obstacle = "" if v is not None else _UNDECIDED_REASONS[name]
            for t in times if v is not None else ():
                K = group.generator(near, generator)
                fine, coarse = (horizontal_share(group, v, K, t, step) for step in (size, 2.0 * size))
                worst = max(worst, float(np.max(np.abs(fine - expected))))
                error = max(error, float(np.max(np.abs(fine - coarse))))
            # five-point differences are of fourth order, so the fine step's error is 1/15 of the difference
            findings.append(Finding(name, group.blocks, worst, 1.0, 0.1 * error, size=max(times), obstacle=obstacle))
    dim = metric.at(params[block] if is_one_block else Blocks(params)).dim
    if dim != space.dim:
        name = f"dimension of the quotient: {dim} here, and {space.dim} nearby"
        findings.append(Finding(name, (block,), math.inf, 1.0, 0.0))
    return findings


def _as_block(value: Any) -> Any:
    """Make a `Pair` of a pair that is given as a tuple, and return other blocks as they are."""
    return Pair(*value) if isinstance(value, tuple) and len(value) == 2 and np.ndim(value[0]) >= 2 else value


def _symmetries_of(geometry: Any) -> list[Symmetry]:
    """Return the symmetries for which a geometry stands."""
    if isinstance(geometry, Symmetry):
        return [geometry]
    if callable(getattr(geometry, "symmetries", None)):
        symmetries: list[Symmetry] = geometry.symmetries()
        if not symmetries and isinstance(geometry, Metric):
            raise ValueError(
                f"geometry: expected a metric that divides out a symmetry, got {geometry!r}, which divides out none"
            )
        return symmetries
    if isinstance(geometry, Iterable) and not isinstance(geometry, str | Mapping):
        symmetries = list(geometry)
        if not symmetries:
            raise ValueError("geometry: expected at least one symmetry, got none, so there is nothing to verify")
        if all(isinstance(symmetry, Symmetry) for symmetry in symmetries):
            return symmetries
    raise TypeError(
        "geometry: expected a metric, a network of refgeo.networks.read, or symmetries such as "
        f'refgeo.symmetry.general_linear("block"), got {type(geometry).__name__}'
    )


def nearby_point(blocks: Named, rng: Any) -> dict[str, Any]:
    """Return a point near the given one: every block is changed by 1%, a pair in its balanced gauge.

    A pair stays in this gauge. It thus lies near another point of the orbit, where a badly scaled representative costs
    no digits.

    Examples
    --------
    >>> near = nearby_point({"w": Pair([[4.0]], [[1.0]])}, 0)["w"]
    >>> bool(np.allclose(tuple(near), 2.0, atol=0.1))
    True
    """
    generator = np.random.default_rng(rng)
    return {name: _perturb_block(block, 0.01, generator, is_balanced=True) for name, block in blocks.items()}


def perturb(blocks: Named, share: float, rng: np.random.Generator) -> dict[str, Any]:
    """Change every block at random by a share of its size, a pair in its balanced gauge.

    A factor of zeros is changed by a share of the other factor's size, a block of zeros by the share itself.

    Examples
    --------
    >>> perturb({"w": np.ones(3)}, 0.5, np.random.default_rng(0))["w"].round(2)
    array([1.06, 0.93, 1.32])
    """
    return {name: _perturb_block(block, share, rng) for name, block in blocks.items()}


def _perturb_block(block: Any, share: float, rng: np.random.Generator, is_balanced: bool = False) -> Any:
    """Change a block at random; the result of a pair is in the balanced gauge if `is_balanced`, else in its own."""
    to, back = to_balanced(block) if isinstance(block, Pair) else (np.eye(1), np.eye(1))
    parts = [block.G @ back, block.H @ to.mT] if isinstance(block, Pair) else [np.asarray(block, dtype=np.float64)]
    sizes = [float(np.sqrt(np.mean(np.square(x)))) if x.size else 0.0 for x in parts]
    largest = max(sizes) or 1.0
    parts = [x + share * (size or largest) * rng.standard_normal(x.shape) for x, size in zip(parts, sizes, strict=True)]
    if len(parts) == 1:
        return parts[0]
    return Pair.unchecked(*parts) if is_balanced else Pair.unchecked(parts[0] @ to, parts[1] @ back.mT)


def scramble(blocks: Named, moved: Named, rng: np.random.Generator) -> dict[str, Any]:
    """Displace blocks by as much as the moved ones, in another direction.

    The entries of the displacement from the blocks to the moved ones get random places and random signs, for a pair in
    its balanced gauge.

    Examples
    --------
    >>> displaced = scramble({"w": np.zeros(3)}, {"w": np.array([1.0, 2.0, 0.0])}, np.random.default_rng(0))["w"]
    >>> np.sort(np.abs(displaced))
    array([0., 1., 2.])
    """
    result: dict[str, Any] = {}

    def shuffle(change: Array) -> Array:
        return np.asarray(rng.permutation(change.ravel()).reshape(change.shape) * rng.choice((-1.0, 1.0), change.shape))

    for name, block in blocks.items():
        if isinstance(block, Pair):
            to, back = to_balanced(block)
            G, H = ((x - y) for x, y in zip(moved[name], block, strict=True))
            result[name] = Pair.unchecked(block.G + shuffle(G @ back) @ to, block.H + shuffle(H @ to.mT) @ back.mT)
        else:
            result[name] = block + shuffle(np.asarray(moved[name] - block))
    return result


def _gradient_share(symmetry: Symmetry, near: Named, grads: Named, rng: np.random.Generator, samples: int) -> float:
    """Return the largest cosine of a head's gradient with a velocity of the group, in the balanced gauge."""
    largest = 0.0
    for _ in range(samples):
        velocity = symmetry.velocity(near, symmetry.generator(near, rng))
        # a group that moves other blocks acts on all heads at once
        by_head = all(isinstance(block, Pair) for block in velocity.values())
        products, gradient_squares, velocity_squares = (np.zeros(()) for _ in range(3))
        for name, block in velocity.items():
            parts = as_factors(block)
            if name not in grads:
                moved = f"; the symmetry {symmetry.name} moves this block"
                raise ValueError(f"value_and_grad: the gradient of {name!r} is missing{moved}")
            gradients = tuple(grads[name]) if len(parts) == 2 else (grads[name],)
            heads = 0
            if len(parts) == 2:
                to, back = to_balanced(near[name])
                heads = parts[0].ndim - 2 if by_head else 0
                gradients = gradients[0] @ to.mT, gradients[1] @ back
                parts = parts[0] @ back, parts[1] @ to.mT
            for e, v in zip(gradients, parts, strict=True):
                products = products + _sum_per_head(np.multiply(e, v), heads)
                gradient_squares = gradient_squares + _sum_per_head(np.square(e), heads)
                velocity_squares = velocity_squares + _sum_per_head(np.square(v), heads)
        # a head's gradient counts as at least 1e-3 of the largest, so that rounding does not pass for a direction
        floor = 1e-3 * float(np.sqrt(np.max(gradient_squares, initial=0.0)))
        size = np.maximum(np.sqrt(gradient_squares), floor) * np.sqrt(velocity_squares)
        cosines = np.divide(np.abs(products), size, out=np.zeros_like(size), where=size > 0.0)
        largest = max(largest, float(np.max(cosines, initial=0.0)))
    return largest


def _sum_per_head(values: Array, heads: int) -> Array:
    """Sum over all axes except the leading ones, of which `heads` run over heads."""
    return np.asarray(np.sum(values, axis=tuple(range(heads, np.ndim(values)))))
