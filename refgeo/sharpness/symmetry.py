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
functions make others: `general_linear`, `attention`, `rotary`, `translation`, `key_bias`, `value_bias`, `scaling`,
`rescaling`, `neurons`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from refgeo.geometry.blocks import ONLY, Blocks, Named
from refgeo.geometry.groups import (
    Symmetry,
    attention,
    commutant,
    general_linear,
    key_bias,
    neurons,
    rescaling,
    rotary,
    scaling,
    to_balanced,
    translation,
    value_bias,
)
from refgeo.geometry.pair import Pair, as_factors
from refgeo.geometry.product import ProductMetric
from refgeo.geometry.tangent_space import Metric
from refgeo.sharpness.parameters import Parameters, checked_loss
from refgeo.support.arguments import Array, integer, number
from refgeo.support.console import as_text, without_common_words
from refgeo.support.differences import five_point

__all__ = [
    "Finding",
    "Symmetry",
    "Verification",
    "attention",
    "commutant",
    "general_linear",
    "key_bias",
    "neurons",
    "rescaling",
    "rotary",
    "scaling",
    "translation",
    "value_bias",
    "verify",
]


_STEP = 1e-3
"""Of differences along a vector that is carried, as a share of the point; linear actions have no error at any step."""
_MOST, _FEWEST = 8.0, 3.0
"""Digits that a metric must be invariant to; fewer where these differences do not give them."""


class HasSymmetries(Protocol):
    """A metric, or a network that was read."""

    def symmetries(self) -> list[Symmetry]:
        """The groups that it divides out, or that its layout claims."""


# Measured -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """What was measured of one symmetry.

    Attributes
    ----------
    symmetry : str
    blocks : tuple of str
    change : float
        Largest relative change of the loss.
    gradient : float or nan
        Largest |⟨e, V⟩| / ‖e‖‖V‖ of a head, e the gradient and V a velocity of the group; nan without gradients.
    size : float
        The largest t.
    evaluations : int
        Of the loss.
    least_digits : float
        What it takes to hold.
    """

    symmetry: str
    blocks: tuple[str, ...]
    change: float
    gradient: float
    size: float
    evaluations: int
    least_digits: float = field(repr=False)

    def called(self, name: str) -> Finding:
        """With another name for the symmetry."""
        return replace(self, symmetry=name)

    @property
    def digits(self) -> float:
        """To how many digits it holds: of the loss and of the gradient, whichever is worse."""
        worst = np.nanmax([self.change, self.gradient, 1e-17])
        return float(-math.log10(worst)) if math.isfinite(worst) else -math.inf

    @property
    def holds(self) -> bool:
        """Whether these are enough."""
        return self.digits >= self.least_digits

    @property
    def verdict(self) -> str:
        """One of "holds", "does not hold", and "undecided": a few digits, but not enough."""
        if self.holds:
            return "holds"
        return "does not hold" if self.digits < 0.75 * self.least_digits else "undecided"


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
        """Whether every symmetry does."""
        return all(finding.holds for finding in self.findings)

    def __iter__(self) -> Any:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __str__(self) -> str:
        dimension = "" if self.dim is None else f"\ndimension of the quotient: {self.dim}"
        return as_text(self.table()) + dimension

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
                "size": one.size, "evaluations": one.evaluations, "digits": one.digits, "verdict": one.verdict,
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
    geometry: HasSymmetries | Symmetry | Iterable[Symmetry],
    *,
    sizes: float | Sequence[float] = (0.1, 1.0),
    samples: int = 2,
    least_digits: float | None = None,
    rng: np.random.Generator | int | None = 0,
) -> Verification:
    r"""Measure which symmetries a loss has.

    At a point θ' near θ, parameters changed by 1%, the loss is compared with that at :math:`e^{tK} θ'` for random K of
    unit size in every head: samples · sizes evaluations a symmetry. Besides, for all together, there are one evaluation
    at θ, two at θ' (with the gradient, if the function gives one), and up to eight that tell the loss's precision.

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
        Digits that count as a symmetry. Default: 8, 4 or 2, as the loss is computed in float64, float32 or less, which
        is measured: how much it is in proportion to changes of 1e-9 of the parameters, or of 1e-5.
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
    >>> loss = rg.value_and_grad(lambda p: np.sum((p.G @ p.H.T - 1.0) ** 2))
    >>> rg.symmetry.verify(loss, rg.Pair([[2.0], [1.0]], [[3.0]]), rg.InvariantMetric()).holds
    True
    >>> broken = rg.value_and_grad(lambda p: np.sum((p.G @ p.H.T - 1.0) ** 2) + 0.01 * np.sum(p.G**2))
    >>> rg.symmetry.verify(broken, rg.Pair([[2.0], [1.0]], [[3.0]]), rg.InvariantMetric()).findings[0].verdict
    'does not hold'
    """
    parameters, symmetries = Parameters(params), _listed(geometry)
    blocks = {name: _block(x) for name, x in parameters.blocks.items()}
    missing = [block for one in symmetries for block in one.blocks if block not in blocks and not one.whole]
    if missing:
        raise ValueError(f"params: expected the block {missing[0]!r} of the geometry as a key, but it is missing")
    integer("samples", samples)
    times = _times(sizes)
    generator = np.random.default_rng(rng)

    def at(moved: Named) -> tuple[float, Any]:
        found = value_and_grad(parameters.assembled(moved))
        value, grads = found if isinstance(found, tuple) else (found, None)
        return checked_loss("value_and_grad", value), None if grads is None else parameters.gradients(grads)

    def loss_at(moved: Named) -> float:
        return at(moved)[0]

    near = nearby(blocks, generator)
    (here, grads), there = at(near), loss_at(blocks)
    if not (math.isfinite(here) and math.isfinite(there)):
        raise ValueError("value_and_grad: expected a finite loss at the given parameters")
    scale = max(abs(here), abs(here - there)) or 1.0
    if abs(loss_at(near) - here) > 1e-6 * scale:
        raise ValueError("value_and_grad: expected the same loss twice at the same parameters, got two; is dropout on?")
    least = _digits(loss_at, near, here, scale, generator) if least_digits is None else least_digits
    found = []
    for one in symmetries:
        moved = [
            loss_at({**near, **one.act(near, one.generator(near, generator), t)}) for t in times for _ in range(samples)
        ]
        change = max(abs(loss - here) / scale if math.isfinite(loss) else math.inf for loss in moved)
        share = math.nan if grads is None else _share(one, near, grads, generator, samples)
        found.append(Finding(one.name, one.blocks, change, share, max(times), len(moved), least))
    of_metrics = [
        one.called(f"the {one.symmetry}, of {metric}")
        for block, metric in _metrics(geometry).items()
        for one in invariance(metric, block, near, times, generator)
    ]
    return Verification((*found, *(one for one in of_metrics if not one.holds)))


def _times(sizes: float | Sequence[float]) -> list[float]:
    times = [number("sizes", t, "t of exp(t K)", above=0.0) for t in np.atleast_1d(np.asarray(sizes))]
    if not times:
        raise ValueError("sizes: expected at least one number > 0, got none")
    return times


def _metrics(geometry: Any) -> dict[str, Metric[Any]]:
    """By block."""
    if not isinstance(geometry, Metric):
        return {}
    return geometry.base.metrics if isinstance(geometry.base, ProductMetric) else {ONLY: geometry}


def invariance(
    metric: Metric[Any], block: str, near: Named, times: Iterable[float] = (0.1, 1.0), rng: Any = 0
) -> list[Finding]:
    """Whether a metric lives on the quotient by its groups (App. B.4).

    Elements of a group carry vectors from a point to another of the orbit. Vertical vectors must stay vertical, and
    horizontal parts must keep their lengths; a vertical part that a horizontal vector gets is no matter.

    Parameters
    ----------
    metric : Metric
    block : str
        That it measures; one that is not there means all.
    near : dict
        The point.
    times : iterable of float
        t of exp(tK).
    rng : numpy Generator, or a seed

    Returns
    -------
    list of Finding
        "group" and "metric" for every group that moves something.

    Examples
    --------
    >>> point = {"w": Pair([[2.0], [1.0]], [[3.0]])}
    >>> from refgeo.geometry.pair_metrics import InvariantMetric
    >>> [(one.symmetry, one.holds) for one in invariance(InvariantMetric(0.1), "w", point)]
    [('group', True), ('metric', False)]
    """
    generator = np.random.default_rng(rng)
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
            for t in times if v is not None else ():
                K = group.generator(near, generator)
                once, twice = (horizontal_share(group, v, K, t, step) for step in (size, 2.0 * size))
                worst = max(worst, float(np.max(np.abs(once - expected))))
                error = max(error, float(np.max(np.abs(once - twice))))
            least = float(np.clip(-0.5 - np.log10(error + 1e-17), _FEWEST, _MOST))
            found.append(Finding(name, group.blocks, worst, math.nan, max(times), 0, least))
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
    """Every block changed by 1%.

    Examples
    --------
    >>> bool(np.allclose(nearby({"w": np.ones(3)}, 0)["w"], 1.0, atol=0.05))
    True
    """
    return _changed(blocks, 0.01, np.random.default_rng(rng))


def _changed(blocks: Named, share: float, rng: np.random.Generator) -> dict[str, Any]:
    """Every block changed by a share of its size, a pair in its balanced gauge; zeros by one of what is beside them."""
    found: dict[str, Any] = {}
    for name, block in blocks.items():
        to, back = to_balanced(block) if isinstance(block, Pair) else (np.eye(1), np.eye(1))
        parts = [block.G @ back, block.H @ to.mT] if isinstance(block, Pair) else [np.asarray(block, dtype=np.float64)]
        sizes = [float(np.sqrt(np.mean(np.square(x)))) if x.size else 0.0 for x in parts]
        largest = max(sizes) or 1.0
        parts = [
            x + share * (size or largest) * rng.standard_normal(x.shape) for x, size in zip(parts, sizes, strict=True)
        ]
        found[name] = Pair.unchecked(parts[0] @ to, parts[1] @ back.mT) if len(parts) == 2 else parts[0]
    return found


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


def _digits(
    loss_at: Callable[[Named], float], near: Named, here: float, scale: float, rng: np.random.Generator
) -> float:
    """What to expect of a loss of this precision: how far it is from linear under tiny changes,
    and whether it sees such changes at all.
    """
    seeds = rng.integers(2**32, size=2)
    for step, noise, digits in ((1e-9, 1e-11, 8.0), (1e-5, 1e-5, 4.0)):
        changes = [
            [loss_at(_changed(near, k * step, np.random.default_rng(seed))) - here for k in (1.0, 2.0)]
            for seed in seeds
        ]
        if all(once != 0.0 and abs(twice - 2.0 * once) <= noise * scale for once, twice in changes):
            return digits
    return 2.0


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
