r"""Which symmetries does a loss have? Measured on the loss itself.

A metric of this package divides by a symmetry, and its sharpness means something only where the loss has that symmetry.
`verify` moves the parameters by random elements exp(t K) of a group, ‖K‖ = 1, and looks at the loss; and it takes the
share of the gradient that lies along the group's orbits, which is zero where there is a symmetry. Attention has GL(h)
for queries with keys and for values with outputs, but not with rotary positions (only what commutes with the rotations
is left), nor with a normalisation of queries and keys. What a network really has is quickly measured and easily guessed
wrong.

A `Symmetry` is a group acting on some blocks of the parameters. There is one for every metric (`of_metric`) and for
every pair of a network (`of_network`), and functions make others: `general_linear`, `attention`, `rotary`,
`translation`, `key_bias`, `scaling`, `rescaling`, `neurons`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.linalg import expm

from refgeo.arguments import Array, integer, number
from refgeo.metrics.euclidean import TranslationMetric
from refgeo.metrics.pair import InterpolatedMetric
from refgeo.metrics.product import ProductMetric
from refgeo.metrics.scaling import ScalingMetric
from refgeo.metrics.tangent_space import Metric
from refgeo.networks.layouts import LAYOUTS, AttentionLayout, heads_of
from refgeo.networks.reading import Network
from refgeo.pair import Pair
from refgeo.sharpness.objective import ONLY, as_factors, checked_loss

__all__ = [
    "Finding",
    "Symmetry",
    "Verification",
    "attention",
    "general_linear",
    "key_bias",
    "neurons",
    "of_metric",
    "of_network",
    "rescaling",
    "rotary",
    "scaling",
    "translation",
    "verify",
]

Blocks = Mapping[str, Any]


@dataclass(frozen=True)
class Symmetry:
    """A group that acts on blocks of the parameters.

    Attributes
    ----------
    name : str
        What a table calls it.
    blocks : tuple of str
        The blocks that it moves.
    generator : callable
        ``generator(params, rng) -> K``, a random element of the Lie algebra with ‖K‖ = 1 in every independent part.
    act : callable
        ``act(params, K, t) -> blocks``, the moved blocks: those of exp(t K) θ.
    """

    name: str
    blocks: tuple[str, ...]
    generator: Callable[[Blocks, np.random.Generator], Any]
    act: Callable[[Blocks, Any, float], dict[str, Any]]

    def velocity(self, params: Blocks, K: Any) -> dict[str, Any]:
        """d/dt exp(t K) θ at t = 0, by differences of fourth order."""

        def at(t: float) -> dict[str, tuple[Array, ...]]:
            return {name: as_factors(block) for name, block in self.act(params, K, t).items()}

        h = 1e-3
        ahead, behind, far, back = at(h), at(-h), at(2.0 * h), at(-2.0 * h)
        return {
            name: tuple(
                (8.0 * (a - b) - (c - d)) / (12.0 * h)
                for a, b, c, d in zip(ahead[name], behind[name], far[name], back[name], strict=True)
            )
            for name in ahead
        }


def _unit(shape: tuple[int, ...], rng: np.random.Generator, parts: int) -> Array:
    """Normal numbers, of length 1 over all but the first `parts` axes."""
    K = rng.standard_normal(shape)
    axes = tuple(range(parts, K.ndim))
    return np.asarray(K / np.sqrt(np.sum(K**2, axis=axes, keepdims=True)))


# Groups ---------------------------------------------------------------------------------------------------------------


def general_linear(block: str, name: str = "") -> Symmetry:
    r"""GL(h) on a pair: :math:`(G A^{-1}, H A^\top)`, every head by itself.

    Query with key, value with output, the two factors of LoRA; queries that share a key are stacked in G.

    Examples
    --------
    >>> import refgeo as rg
    >>> group = general_linear("heads")
    >>> params = {"heads": rg.Pair([[2.0]], [[3.0]])}
    >>> moved = group.act(params, np.array([[np.log(2.0)]]), 1.0)["heads"]
    >>> moved.G.round(12), moved.H.round(12)
    (array([[1.]]), array([[6.]]))
    """

    def generator(params: Blocks, rng: np.random.Generator) -> Array:
        pair = _pair(params, block)
        h = pair.sizes[2]
        return _unit((*pair.block_shape, h, h), rng, len(pair.block_shape))

    def act(params: Blocks, K: Array, t: float) -> dict[str, Any]:
        pair = _pair(params, block)
        return {block: Pair.unchecked(pair.G @ expm(-t * K), pair.H @ expm(t * K).mT)}

    return Symmetry(name or "GL(h)", (block,), generator, act)


def attention(query: str, key: str, heads: int, key_heads: int | None = None, name: str = "GL(h)") -> Symmetry:
    r"""GL(h) on the weights of queries and keys that are kept as two arrays, ``(heads · h, n)`` each.

    Queries q = W_q x of all heads that share a key turn by :math:`A^{-\top}` where keys turn by A.

    Parameters
    ----------
    query, key : str
        Blocks. Biases, ``(heads · h,)``, turn with them if there is a block of the same name with ``bias`` for
        ``weight``.
    heads, key_heads : int
    """
    return _on_heads(name, query, key, heads, key_heads, lambda h, shape, rng: _unit((*shape, h, h), rng, len(shape)))


def rotary(query: str, key: str, heads: int, key_heads: int | None = None) -> Symmetry:
    """What rotary positions leave of GL(h): a + bJ in each of the h/2 planes (i, i + h/2), J a quarter turn.

    Parameters
    ----------
    query, key, heads, key_heads
        As for `attention`.
    """

    def commuting(h: int, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        a, b = np.moveaxis(_unit((*shape, 2, h // 2), rng, len(shape)), -2, 0)
        K = np.zeros((*shape, h, h))
        i = np.arange(h // 2)
        K[..., i, i] = K[..., i + h // 2, i + h // 2] = a
        K[..., i, i + h // 2], K[..., i + h // 2, i] = -b, b
        return K

    return _on_heads("commutant of rotations", query, key, heads, key_heads, commuting)


def _on_heads(
    name: str,
    query: str,
    key: str,
    heads: int,
    key_heads: int | None,
    drawn: Callable[[int, tuple[int, ...], np.random.Generator], Array],
) -> Symmetry:
    groups = heads if key_heads is None else key_heads
    several = integer("heads", heads) // integer("key_heads", groups)

    def blocks(params: Blocks) -> dict[str, int]:
        """All that moves, with its number of heads."""
        biases = [part.removesuffix("weight") + "bias" for part in (query, key) if part.endswith("weight")]
        found = {query: heads, key: groups}
        return found | {bias: n for bias, n in zip(biases, (heads, groups), strict=False) if bias in params}

    def generator(params: Blocks, rng: np.random.Generator) -> Array:
        return drawn(len(params[key]) // groups, (groups,), rng)

    def act(params: Blocks, K: Array, t: float) -> dict[str, Any]:
        on_key = expm(t * K)
        on_query = np.repeat(expm(-t * K).mT, several, axis=0)
        moved = {}
        for part, count in blocks(params).items():
            array = np.asarray(params[part])
            A = on_query if part in (query, query.removesuffix("weight") + "bias") else on_key
            moved[part] = (A @ array.reshape(count, len(array) // count, -1)).reshape(array.shape)
        return moved

    return Symmetry(name, (query, key), generator, act)


def key_bias(block: str) -> Symmetry:
    """The bias of keys, the last row of H in a pair of a network: it adds the same to all scores of a query, which
    softmax does not notice.
    """

    def generator(params: Blocks, rng: np.random.Generator) -> Array:
        return rng.standard_normal(_pair(params, block).H[..., -1, :].shape)

    def act(params: Blocks, K: Array, t: float) -> dict[str, Any]:
        pair = _pair(params, block)
        H = pair.H.copy()
        H[..., -1, :] += t * K
        return {block: Pair.unchecked(pair.G, H)}

    return Symmetry("key bias", (block,), generator, act)


def translation(block: str, axis: int | None = None) -> Symmetry:
    """Add the same number to all entries of an array, or, with an axis, the same array all along it.

    The biases before a softmax, and the rows of the weight in front of it (``axis=0``).
    """

    def generator(params: Blocks, rng: np.random.Generator) -> Array:
        array = np.asarray(params[block])
        return np.ones(()) if axis is None else np.expand_dims(_unit(tuple(np.delete(array.shape, axis)), rng, 0), axis)

    def act(params: Blocks, K: Array, t: float) -> dict[str, Any]:
        array = np.asarray(params[block])
        return {block: array + t * K * float(np.sqrt(np.mean(array**2)) or 1.0)}

    return Symmetry("translation", (block,), generator, act)


def scaling(block: str) -> Symmetry:
    """Multiply an array by a number > 0: weights before a normalisation."""
    return Symmetry(
        "scaling",
        (block,),
        lambda params, rng: rng.choice((-1.0, 1.0)),
        lambda p, K, t: {block: p[block] * np.exp(t * K)},
    )


def rescaling(first: str, second: str) -> Symmetry:
    """Multiply one array by a number > 0 and divide another by it: layers on both sides of a ReLU."""

    def act(params: Blocks, K: float, t: float) -> dict[str, Any]:
        return {first: params[first] * np.exp(t * K), second: params[second] / np.exp(t * K)}

    return Symmetry("re-scaling", (first, second), lambda params, rng: rng.choice((-1.0, 1.0)), act)


def neurons(incoming: Mapping[str, int], outgoing: Mapping[str, int], name: str = "neuron re-scaling") -> Symmetry:
    """A number > 0 for every neuron: what comes in is multiplied by it, what goes out divided.

    Hidden neurons of ReLU networks; the scale and shift of a layer norm with the weight that follows.

    Parameters
    ----------
    incoming, outgoing : mapping of str to int
        Blocks, and which axis counts the neurons: ``{"up.weight": 0, "up.bias": 0}, {"down.weight": 1}``, or
        ``{"norm.weight": 0, "norm.bias": 0}, {"linear.weight": 1}``.
    """
    (first, axis), *_ = incoming.items()

    def generator(params: Blocks, rng: np.random.Generator) -> Array:
        return np.asarray(rng.choice((-1.0, 1.0), np.shape(params[first])[axis]))

    def act(params: Blocks, K: Array, t: float) -> dict[str, Any]:
        moved = {}
        for blocks, sign in ((incoming, 1.0), (outgoing, -1.0)):
            for block, along in blocks.items():
                array = np.asarray(params[block])
                shape = [-1 if k == along % array.ndim else 1 for k in range(array.ndim)]
                moved[block] = array * np.exp(sign * t * K).reshape(shape)
        return moved

    return Symmetry(name, (*incoming, *outgoing), generator, act)


def of_metric(metric: Metric[Any]) -> list[Symmetry]:
    """The symmetries that a metric divides by, of all blocks; none for elementwise and Euclidean metrics.

    Examples
    --------
    >>> import refgeo as rg
    >>> metrics = {"qk": rg.InvariantMetric(), "b": rg.TranslationMetric(), "w": rg.ElementwiseMetric()}
    >>> [(one.name, one.blocks) for one in of_metric(rg.ProductMetric(metrics))]
    [('GL(h)', ('qk',)), ('translation', ('b',))]
    """
    base = getattr(metric, "base", metric)
    parts = base.metrics if isinstance(base, ProductMetric) else {ONLY: base}
    makers = ((InterpolatedMetric, general_linear), (TranslationMetric, translation), (ScalingMetric, scaling))
    found = []
    for block, part in parts.items():
        part = getattr(part, "base", part)
        found += [make(block) for kind, make in makers if isinstance(part, kind)]
    return found


def of_network(network: Network) -> list[Symmetry]:
    """What the layout of a network suggests, and what it tempts to: GL(h) of every pair, the key bias, and where
    queries and keys are arrays (rotary positions) their GL(h), which is not there, and what should be left of it.
    """
    layout = LAYOUTS[network.layout]
    if not isinstance(layout, AttentionLayout):
        return [general_linear(block) for block, pair in network.blocks.items() if isinstance(pair, Pair)]
    found: list[Symmetry] = []
    for layer in layout.layers(network.shapes):
        names = layer.query.weight, layer.key.weight
        heads = heads_of(layer, network.heads), heads_of(layer, network.key_value_heads)
        if layer.rotary:
            found += [attention(*names, *heads), rotary(*names, *heads)]
        else:
            found.append(general_linear(f"{layer.prefix}query_key"))
            if len(layer.key.names(network.shapes)) == 2:
                found.append(key_bias(f"{layer.prefix}query_key"))
        found.append(general_linear(f"{layer.prefix}value_out"))
    return found


def _pair(params: Blocks, block: str) -> Pair:
    value = params[block]
    return value if isinstance(value, Pair) else Pair(*value)


# Measured -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """What was measured of one symmetry.

    Attributes
    ----------
    symmetry : str
    blocks : tuple of str
    change : float
        Largest |L(exp(t K) θ) − L(θ)|, beside the larger of |L| and what a random step of the same length changes.
    gradient : float or nan
        Largest |⟨e, V⟩| / ‖e‖‖V‖, e the gradient near θ and V a velocity of the group; nan without gradients.
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
    """

    findings: tuple[Finding, ...]

    @property
    def holds(self) -> bool:
        """Whether every symmetry does."""
        return all(finding.holds for finding in self.findings)

    def __iter__(self) -> Any:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=120)
        with console.capture() as captured:
            console.print(self.table())
        return captured.get().rstrip("\n")

    def table(self) -> Any:
        """For `rich`."""
        from rich import box
        from rich.table import Column, Table

        where = Column("blocks", overflow="fold")
        verdict = Column("verdict", no_wrap=True)
        shown = Table(where, "symmetry", "loss changes", "gradient", "digits", verdict, box=box.SIMPLE)
        for one in self.findings:
            gradient = "" if math.isnan(one.gradient) else f"{one.gradient:.1e}"
            colour = {"holds": "green", "does not hold": "red"}.get(one.verdict, "yellow")
            shown.add_row(
                "\n".join(one.blocks), one.symmetry, f"{one.change:.1e}", gradient, f"{one.digits:.1f}",
                f"[{colour}]{one.verdict}[/]",
            )  # fmt: skip
        return shown

    def to_dict(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [
            {
                "blocks": list(one.blocks), "symmetry": one.symmetry, "change": one.change,
                "gradient": None if math.isnan(one.gradient) else one.gradient, "size": one.size,
                "evaluations": one.evaluations, "digits": one.digits, "verdict": one.verdict,
            }
            for one in self.findings
        ]  # fmt: skip


def verify(
    value_and_grad: Callable[[Any], Any],
    params: Any,
    geometry: Metric[Any] | Network | Symmetry | Iterable[Symmetry],
    *,
    sizes: Sequence[float] = (0.1, 1.0),
    samples: int = 2,
    least_digits: float | None = None,
    rng: np.random.Generator | int | None = 0,
) -> Verification:
    r"""Measure which symmetries a loss has.

    For every symmetry the loss is evaluated at :math:`e^{tK} θ` for random K, ‖K‖ = 1 in every head, and every t, and
    as often at random steps of the same length, for comparison: 2 · samples · sizes evaluations of the loss. If the
    function gives gradients, one more evaluation for all together, near θ rather than there (a random step of 1%, so
    that a gradient that is nothing at a minimum says something), tells how much of it is along the orbits.

    Parameters
    ----------
    value_and_grad : callable
        ``f(params) -> (loss, gradients)``, see `refgeo.worst_case_sharpness`, or ``f(params) -> loss``.
    params : Pair, array or dict
    geometry : metric, Network, Symmetry or several
        A metric stands for the symmetries that it divides by, a network for those of its layout.
    sizes : sequence of float
        t: 0.1 changes entries by a tenth, 1 by a factor of about e.
    samples : int
        Random K for each size.
    least_digits : float, optional
        Digits that count as a symmetry. Default: 8, or 4 where all values of the loss are float32 numbers.
    rng : numpy Generator, or a seed

    Returns
    -------
    Verification

    Raises
    ------
    ValueError
        There is nothing to verify: a metric that divides by no symmetry.

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
    single = not isinstance(params, Mapping)
    blocks: dict[str, Any] = {ONLY: params} if single else dict(params)
    symmetries = _listed(geometry)
    missing = [block for one in symmetries for block in one.blocks if block not in blocks]
    if missing:
        raise ValueError(f"params: the block {missing[0]!r} of the geometry is missing; expected a dict with it")
    integer("samples", samples)
    sizes = [number("sizes", t, "t of exp(t K)", above=0.0) for t in sizes]
    generator = np.random.default_rng(rng)

    losses: list[float] = []

    def loss_at(moved: Blocks) -> float:
        found = value_and_grad(moved[ONLY] if single else dict(moved))
        losses.append(checked_loss("value_and_grad", found[0] if isinstance(found, tuple) else found))
        return losses[-1]

    gradients = _gradients_nearby(value_and_grad, blocks, single, generator)
    here = loss_at(blocks)
    if not math.isfinite(here):
        raise ValueError("value_and_grad: expected a finite loss at the parameters themselves")
    found = []
    for one in symmetries:
        changes, references = [], [abs(here)]
        for t in sizes:
            for _ in range(samples):
                moved = one.act(blocks, one.generator(blocks, generator), t)
                changes.append(abs(loss_at({**blocks, **moved}) - here))
                references.append(abs(loss_at({**blocks, **_as_far(blocks, moved, generator)}) - here))
        scale = max((r for r in references if math.isfinite(r)), default=1.0) or 1.0
        change = max(c if math.isfinite(c) else math.inf for c in changes) / scale
        share = math.nan if gradients is None else _share(one, *gradients, generator, samples)
        found.append((one.name, one.blocks, change, share, max(sizes), 2 * len(changes)))
    if least_digits is None:
        least_digits = 4.0 if all(loss == float(np.float32(loss)) for loss in losses) else 8.0
    return Verification(tuple(Finding(*measured, least_digits) for measured in found))


def _listed(geometry: Any) -> list[Symmetry]:
    if isinstance(geometry, Symmetry):
        return [geometry]
    if isinstance(geometry, Metric):
        found = of_metric(geometry)
        if not found:
            raise ValueError(f"geometry: {geometry!r} divides by no symmetry, so there is nothing to verify")
        return found
    if isinstance(geometry, Network):
        return of_network(geometry)
    if isinstance(geometry, Iterable) and not isinstance(geometry, str | Mapping):
        listed = list(geometry)
        if listed and all(isinstance(one, Symmetry) for one in listed):
            return listed
    raise TypeError(
        "geometry: expected a metric, a network of refgeo.networks.read, or symmetries such as "
        f'refgeo.symmetry.general_linear("block"), got {type(geometry).__name__}'
    )


def _as_far(blocks: Blocks, moved: Blocks, rng: np.random.Generator) -> dict[str, Any]:
    """Every array of the moved blocks changed as much, in a random direction."""
    found: dict[str, Any] = {}
    for name, block in moved.items():
        parts = []
        for before, after in zip(as_factors(blocks[name]), as_factors(block), strict=True):
            step = rng.standard_normal(np.shape(before))
            length = float(np.linalg.norm(np.subtract(after, before)))
            parts.append(np.asarray(before) + step * (length / float(np.linalg.norm(step))))
        found[name] = Pair.unchecked(*parts) if len(parts) == 2 else parts[0]
    return found


def _gradients_nearby(
    value_and_grad: Callable[[Any], Any], blocks: Blocks, single: bool, rng: np.random.Generator
) -> tuple[dict[str, Any], Blocks] | None:
    """A point near θ with the gradients there."""
    near: dict[str, Any] = {}
    for name, block in blocks.items():
        parts = [
            np.asarray(x) + 0.01 * float(np.sqrt(np.mean(np.square(x)))) * rng.standard_normal(np.shape(x))
            for x in as_factors(block)
        ]
        near[name] = Pair.unchecked(*parts) if isinstance(block, Pair) else parts[0]
    found = value_and_grad(near[ONLY] if single else near)
    if not isinstance(found, tuple):
        return None
    return near, {ONLY: found[1]} if single else found[1]


def _share(symmetry: Symmetry, near: Blocks, grads: Blocks, rng: np.random.Generator, samples: int) -> float:
    """The largest cosine of the gradient with a velocity."""
    largest = 0.0
    for _ in range(samples):
        velocity = symmetry.velocity(near, symmetry.generator(near, rng))
        products = along = across = 0.0
        for name, parts in velocity.items():
            if name not in grads:
                raise ValueError(f"value_and_grad: the gradient of {name!r} is missing; {symmetry.name} moves it")
            given = tuple(grads[name]) if len(parts) == 2 else (grads[name],)
            for e, v in zip(given, parts, strict=True):
                products += float(np.sum(np.multiply(e, v)))
                along += float(np.sum(np.square(e)))
                across += float(np.sum(np.square(v)))
        size = math.sqrt(along * across)
        largest = max(largest, abs(products) / size if size > 0.0 else 0.0)
    return largest
