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

A `Symmetry` is a group acting on some blocks of the parameters. There is one for every metric (`of_metric`) and for
every pair of a network (`of_network`), and functions make others: `general_linear`, `attention`, `rotary`,
`translation`, `key_bias`, `scaling`, `rescaling`, `neurons`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.linalg import expm

from refgeo.geometry.arrays import ScalingMetric, TranslationMetric
from refgeo.geometry.balanced import balance
from refgeo.geometry.pair import Pair, as_pair
from refgeo.geometry.pair_metrics import InterpolatedMetric
from refgeo.geometry.product import Blocks, Named, ProductMetric
from refgeo.geometry.rotary import RotaryMetric, commuting_part
from refgeo.geometry.tangent_space import Metric, five_point
from refgeo.landscape.parameters import ONLY, Parameters, as_factors, checked_loss
from refgeo.networks.layouts import LAYOUTS, AttentionLayout, heads_of
from refgeo.networks.reading import Network
from refgeo.support.arguments import Array, integer, number
from refgeo.support.console import as_text, without_common_words
from refgeo.support.errors import RankDeficientError

__all__ = [
    "Finding",
    "Symmetry",
    "Verification",
    "attention",
    "commutant",
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
        ``generator(params, rng) -> K``, a random element of the Lie algebra of about unit size in every head.
    act : callable
        ``act(params, K, t) -> blocks``, the moved blocks: those of exp(t K) θ.
    """

    name: str
    blocks: tuple[str, ...]
    generator: Callable[[Named, np.random.Generator], Any]
    act: Callable[[Named, Any, float], dict[str, Any]]

    def velocity(self, params: Named, K: Any) -> dict[str, Any]:
        """d/dt exp(t K) θ at t = 0, by differences of fourth order."""
        return dict(five_point(lambda t: Blocks(self.act(params, K, t)), 1e-3))


def _unit(shape: tuple[int, ...], rng: np.random.Generator, parts: int) -> Array:
    """Normal numbers, of length 1 over all but the first `parts` axes."""
    K = rng.standard_normal(shape)
    axes = tuple(range(parts, K.ndim))
    return np.asarray(K / np.sqrt(np.sum(K**2, axis=axes, keepdims=True)))


# Groups ---------------------------------------------------------------------------------------------------------------


def general_linear(block: str) -> Symmetry:
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

    def generator(params: Named, rng: np.random.Generator) -> Array:
        pair = as_pair(block, params[block])
        h = pair.sizes[2]
        to, back = _gauge(pair)
        return np.asarray(back @ _unit((*pair.block_shape, h, h), rng, len(pair.block_shape)) @ to)

    def act(params: Named, K: Array, t: float) -> dict[str, Any]:
        pair = as_pair(block, params[block])
        return {block: Pair.unchecked(pair.G @ expm(-t * K), pair.H @ expm(t * K).mT)}

    return Symmetry("GL(h)", (block,), generator, act)


def commutant(block: str) -> Symmetry:
    """What rotary positions leave of GL(h) on a pair of query and key: a + bJ in each of the h/2 planes (i, i + h/2),
    J a quarter turn.

    Parameters
    ----------
    block : str
        The name of a pair.

    Returns
    -------
    Symmetry

    Examples
    --------
    >>> import refgeo as rg
    >>> params = {"qk": rg.Pair(np.eye(2), np.eye(2))}
    >>> turned = commutant("qk").act(params, np.array([[0.0, -1.0], [1.0, 0.0]]), np.pi / 2)["qk"]
    >>> turned.product.round(12) + 0.0  # of turned queries and keys: q and k turn together
    array([[1., 0.],
           [0., 1.]])
    """

    def generator(params: Named, rng: np.random.Generator) -> Array:
        pair = as_pair(block, params[block])
        return _commuting(pair.sizes[2], pair.block_shape, rng)

    return replace(general_linear(block), name=ROTATIONS, generator=generator)


def attention(query: str, key: str, heads: int, key_heads: int | None = None, name: str = "GL(h)") -> Symmetry:
    r"""GL(h) on the weights of queries and keys that are kept as two arrays, ``(heads · h, n)`` each.

    Queries q = W_q x of all heads that share a key turn by :math:`A^{-\top}` where keys turn by A.

    Parameters
    ----------
    query, key : str
        Blocks. Biases, ``(heads · h,)``, turn with them if there is a block of the same name with ``bias`` for
        ``weight``.
    heads, key_heads : int

    Returns
    -------
    Symmetry

    Examples
    --------
    >>> weights = {"q.weight": np.eye(4), "k.weight": np.eye(4)}
    >>> group = attention("q.weight", "k.weight", heads=2)
    >>> moved = group.act(weights, group.generator(weights, np.random.default_rng(0)), 1.0)
    >>> scores = moved["q.weight"][:2].T @ moved["k.weight"][:2]  # of the first head, as before
    >>> bool(np.allclose(scores, np.diag([1.0, 1.0, 0.0, 0.0])))
    True
    """
    return _on_heads(name, query, key, heads, key_heads, lambda h, shape, rng: _unit((*shape, h, h), rng, len(shape)))


def rotary(query: str, key: str, heads: int, key_heads: int | None = None) -> Symmetry:
    """The same as `commutant`, on the weights of queries and keys that are kept as two arrays.

    Parameters
    ----------
    query, key, heads, key_heads
        As for `attention`.

    Returns
    -------
    Symmetry

    Examples
    --------
    >>> rotary("q.weight", "k.weight", heads=8, key_heads=2).name
    'commutant of rotations'
    """
    return _on_heads(ROTATIONS, query, key, heads, key_heads, _commuting)


ROTATIONS = "commutant of rotations"


def _commuting(h: int, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if h % 2:
        raise ValueError(f"h: expected an even number, because rotary positions rotate pairs of columns, got h = {h}")
    K = commuting_part(rng.standard_normal((*shape, h, h)))
    return np.asarray(K / np.linalg.norm(K, axis=(-2, -1), keepdims=True))


def _on_heads(
    name: str,
    query: str,
    key: str,
    heads: int,
    key_heads: int | None,
    drawn: Callable[[int, tuple[int, ...], np.random.Generator], Array],
) -> Symmetry:
    groups = heads if key_heads is None else key_heads
    several, rest = divmod(integer("heads", heads), integer("key_heads", groups))
    if rest:
        raise ValueError(f"key_heads: expected a divisor of the number of heads {heads}, got {groups}")

    def generator(params: Named, rng: np.random.Generator) -> Array:
        return drawn(len(params[key]) // groups, (groups,), rng)

    def act(params: Named, K: Array, t: float) -> dict[str, Any]:
        moved = {}
        for weight, A in ((query, np.repeat(expm(-t * K).mT, several, axis=0)), (key, expm(t * K))):
            bias = weight.removesuffix("weight") + "bias"
            for part in (weight, bias) if weight.endswith("weight") and bias in params else (weight,):
                array = np.asarray(params[part])
                moved[part] = (A @ array.reshape(len(A), len(array) // len(A), -1)).reshape(array.shape)
        return moved

    return Symmetry(name, (query, key), generator, act)


def key_bias(block: str) -> Symmetry:
    """The bias of keys, the last row of H in a pair of a network: it adds the same to all scores of a query, which
    softmax does not notice.

    Parameters
    ----------
    block : str
        The name of a pair.

    Returns
    -------
    Symmetry

    Examples
    --------
    >>> import refgeo as rg
    >>> key_bias("qk").act({"qk": rg.Pair([[1.0]], [[2.0]])}, np.array([3.0]), 1.0)["qk"].H
    array([[5.]])
    """

    def generator(params: Named, rng: np.random.Generator) -> Array:
        pair = as_pair(block, params[block])
        row = _unit(pair.H[..., -1, :].shape, rng, len(pair.block_shape))
        return np.asarray(row * np.linalg.norm(pair.H, axis=(-2, -1))[..., None] / pair.H.shape[-2] ** 0.5)

    def act(params: Named, K: Array, t: float) -> dict[str, Any]:
        pair = as_pair(block, params[block])
        H = pair.H.copy()
        H[..., -1, :] += t * K
        return {block: Pair.unchecked(pair.G, H)}

    return Symmetry("key bias", (block,), generator, act)


def translation(block: str, axis: int | None = None) -> Symmetry:
    """Add the same number to all entries of an array, or, with an axis, the same array all along it.

    The biases before a softmax, and the rows of the weight in front of it (``axis=0``).

    Parameters
    ----------
    block : str
    axis : int, optional

    Returns
    -------
    Symmetry

    Examples
    --------
    >>> translation("bias").act({"bias": np.array([1.0, -1.0])}, np.ones(()), 1.0)["bias"]
    array([2., 0.])
    """

    def generator(params: Named, rng: np.random.Generator) -> Array:
        array = np.asarray(params[block])
        return np.ones(()) if axis is None else np.expand_dims(_unit(tuple(np.delete(array.shape, axis)), rng, 0), axis)

    def act(params: Named, K: Array, t: float) -> dict[str, Any]:
        array = np.asarray(params[block])
        return {block: array + t * K * float(np.sqrt(np.mean(array**2)) or 1.0)}

    return Symmetry("translation", (block,), generator, act)


def scaling(block: str) -> Symmetry:
    """Multiply an array by a number > 0: weights before a normalisation.

    Parameters
    ----------
    block : str

    Returns
    -------
    Symmetry

    Examples
    --------
    >>> scaling("weight").act({"weight": np.array([1.0, -1.0])}, 1.0, np.log(2.0))["weight"]
    array([ 2., -2.])
    """
    return _multiplied("scaling", {block: (1.0, None)})


def rescaling(first: str, second: str) -> Symmetry:
    """Multiply one array by a number > 0 and divide another by it: layers on both sides of a ReLU.

    Parameters
    ----------
    first, second : str

    Returns
    -------
    Symmetry

    Examples
    --------
    >>> rescaling("up", "down").act({"up": np.array([1.0]), "down": np.array([4.0])}, 1.0, np.log(2.0))
    {'up': array([2.]), 'down': array([2.])}
    """
    return _multiplied("re-scaling", {first: (1.0, None), second: (-1.0, None)})


def neurons(incoming: Mapping[str, int], outgoing: Mapping[str, int], name: str = "neuron re-scaling") -> Symmetry:
    """A number > 0 for every neuron: what comes in is multiplied by it, what goes out divided.

    Hidden neurons of ReLU networks; the scale and shift of a layer norm with the weight that follows.

    Parameters
    ----------
    incoming, outgoing : mapping of str to int
        Blocks, and which axis counts the neurons: ``{"up.weight": 0, "up.bias": 0}, {"down.weight": 1}``, or
        ``{"norm.weight": 0, "norm.bias": 0}, {"linear.weight": 1}``.

    Returns
    -------
    Symmetry

    Examples
    --------
    >>> group = neurons({"up": 0}, {"down": 1})
    >>> moved = group.act({"up": np.ones((2, 1)), "down": np.ones((1, 2))}, np.array([1.0, -1.0]), np.log(2.0))
    >>> moved["up"].ravel(), moved["down"].ravel()
    (array([2. , 0.5]), array([0.5, 2. ]))
    """
    powers = {block: (1.0, axis) for block, axis in incoming.items()}
    return _multiplied(name, powers | {block: (-1.0, axis) for block, axis in outgoing.items()})


def _multiplied(name: str, powers: Mapping[str, tuple[float, int | None]]) -> Symmetry:
    """Blocks times exp(±tK): of each block the sign, and the axis along which K has a number for each place, if any."""
    first, (_, axis) = next(iter(powers.items()))

    def generator(params: Named, rng: np.random.Generator) -> Array:
        return np.asarray(rng.choice((-1.0, 1.0), () if axis is None else np.shape(params[first])[axis]))

    def act(params: Named, K: Any, t: float) -> dict[str, Any]:
        moved = {}
        for block, (sign, along) in powers.items():
            array = np.asarray(params[block])
            shape = [-1 if along is not None and k == along % array.ndim else 1 for k in range(array.ndim)]
            moved[block] = array * np.exp(sign * t * np.asarray(K)).reshape(shape)
        return moved

    return Symmetry(name, tuple(powers), generator, act)


def of_metric(metric: Metric[Any]) -> list[Symmetry]:
    """The symmetries that a metric divides out, of all blocks; none for elementwise and Euclidean metrics.

    Examples
    --------
    >>> import refgeo as rg
    >>> metrics = {"qk": rg.InvariantMetric(), "b": rg.TranslationMetric(), "w": rg.ElementwiseMetric()}
    >>> [(one.name, one.blocks) for one in of_metric(rg.ProductMetric(metrics))]
    [('GL(h)', ('qk',)), ('translation', ('b',))]
    """
    makers = (
        (InterpolatedMetric, general_linear),
        (RotaryMetric, commutant),
        (TranslationMetric, translation),
        (ScalingMetric, scaling),
    )
    return [make(block) for block, one in _parts(metric).items() for kind, make in makers if isinstance(one, kind)]


def _parts(metric: Metric[Any]) -> dict[str, Any]:
    """The metrics of all blocks, without ablations."""
    base = _innermost(metric)
    parts = base.metrics if isinstance(base, ProductMetric) else {ONLY: base}
    return {block: _innermost(part) for block, part in parts.items()}


def _innermost(metric: Any) -> Any:
    """Without ablations."""
    while hasattr(metric, "base"):
        metric = metric.base
    return metric


def of_network(network: Network) -> list[Symmetry]:
    """What the layout of a network suggests, and what it tempts to: GL(h) of every pair, the key bias, and where
    queries and keys are arrays (rotary positions) their GL(h), which is not there, and what should be left of it.

    Parameters
    ----------
    network : Network

    Returns
    -------
    list of Symmetry

    Examples
    --------
    >>> import refgeo as rg
    >>> state = {"lora_A.weight": np.ones((2, 5)), "lora_B.weight": np.ones((4, 2))}
    >>> [(one.name, one.blocks) for one in of_network(rg.networks.read(state, "lora"))]
    [('GL(h)', ('lora',))]
    """
    layout = LAYOUTS[network.layout]
    if not isinstance(layout, AttentionLayout):
        return [general_linear(block) for block, pair in network.blocks.items() if isinstance(pair, Pair)]
    found: list[Symmetry] = []
    for layer in layout.layers(network.shapes):
        names = layer.query.weight, layer.key.weight
        heads = heads_of(layer, network.heads), heads_of(layer, network.key_value_heads)
        if layer.rotary and layer.paired:
            found += [general_linear(f"{layer.prefix}query_key"), commutant(f"{layer.prefix}query_key")]
        elif layer.rotary:
            found += [attention(*names, *heads), rotary(*names, *heads)]
        else:
            found.append(general_linear(f"{layer.prefix}query_key"))
            if len(layer.key.names(network.shapes)) == 2:
                found.append(key_bias(f"{layer.prefix}query_key"))
        found.append(general_linear(f"{layer.prefix}value_out"))
    return found


def _gauge(pair: Pair) -> tuple[Array, Array]:
    """To the balanced gauge and back, (G A⁻¹, H Aᵀ); the identity where a factor lacks rank."""
    try:
        return balance(pair.G, pair.H).to_balanced
    except RankDeficientError:
        return np.eye(pair.sizes[2]), np.eye(pair.sizes[2])


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
        return as_text(self.table())

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
    geometry: Metric[Any] | Network | Symmetry | Iterable[Symmetry],
    *,
    sizes: float | Sequence[float] = (0.1, 1.0),
    samples: int = 2,
    least_digits: float | None = None,
    rng: np.random.Generator | int | None = 0,
) -> Verification:
    r"""Measure which symmetries a loss has.

    At a point θ' near θ, parameters changed by 1%, the loss is compared with that at :math:`e^{tK} θ'` for random K of
    unit size in every head: samples · sizes evaluations a symmetry. Besides, for all together, there are one evaluation
    at θ, one at θ' (with the gradient, if the function gives one), and up to eight that tell the loss's precision.

    Parameters
    ----------
    value_and_grad : callable
        ``f(params) -> (loss, gradients)``, see `refgeo.worst_case_sharpness`, or ``f(params) -> loss``.
    params : Pair, array or dict
    geometry : metric, Network, Symmetry or several
        A metric stands for the symmetries that it divides out, a network for those of its layout. Of a relaxed metric
        it is said, too, that the metric itself lacks the symmetry.
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
    missing = [block for one in symmetries for block in one.blocks if block not in blocks]
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

    near = _changed(blocks, 0.01, generator)
    (here, grads), there = at(near), loss_at(blocks)
    if not (math.isfinite(here) and math.isfinite(there)):
        raise ValueError("value_and_grad: expected a finite loss at the given parameters")
    scale = max(abs(here), abs(here - there)) or 1.0
    least = _digits(loss_at, near, here, scale, generator) if least_digits is None else least_digits
    found = []
    for one in symmetries:
        moved = [
            loss_at({**near, **one.act(near, one.generator(near, generator), t)}) for t in times for _ in range(samples)
        ]
        change = max(abs(loss - here) / scale if math.isfinite(loss) else math.inf for loss in moved)
        share = math.nan if grads is None else _share(one, near, grads, generator, samples)
        found.append(Finding(one.name, one.blocks, change, share, max(times), len(moved), least))
    found += [_of_relaxed(block, metric, near[block], times, generator) for block, metric in _relaxed(geometry)]
    return Verification(tuple(found))


def _times(sizes: float | Sequence[float]) -> list[float]:
    times = [number("sizes", t, "t of exp(t K)", above=0.0) for t in np.atleast_1d(np.asarray(sizes))]
    if not times:
        raise ValueError("sizes: expected at least one number > 0, got none")
    return times


def _relaxed(geometry: Any) -> list[tuple[str, Any]]:
    parts = _parts(geometry).items() if isinstance(geometry, Metric) else ()
    return [(block, metric) for block, metric in parts if getattr(metric, "relaxation", 0.0) > 0.0]


def _of_relaxed(block: str, metric: Any, pair: Pair, times: list[float], rng: np.random.Generator) -> Finding:
    """Sharpness is invariant only if the metric is, too: here lengths change along the orbit."""
    (group,), change = of_metric(ProductMetric({block: metric})), 0.0
    space = metric.at(pair)
    v = space.random_tangent_vector(rng)
    for t in times:
        K = group.generator({block: pair}, rng)
        there, moved = (group.act({block: x}, K, t)[block] for x in (pair, v))
        change = max(change, float(np.max(np.abs(metric.at(there).norm(moved) / space.norm(v) - 1.0))))
    return Finding(
        f"{group.name}, of the metric with ε = {metric.relaxation:g}", (block,), change, math.nan, max(times), 0, 8.0
    )


def _block(value: Any) -> Any:
    """A pair that is given as a tuple is a `Pair`."""
    return Pair(*value) if isinstance(value, tuple) and len(value) == 2 and np.ndim(value[0]) >= 2 else value


def _listed(geometry: Any) -> list[Symmetry]:
    if isinstance(geometry, Symmetry):
        return [geometry]
    if isinstance(geometry, Metric):
        found = of_metric(geometry)
        if not found:
            raise ValueError(
                f"geometry: expected a metric that divides out a symmetry, got {geometry!r}, which divides out none"
            )
        return found
    if isinstance(geometry, Network):
        return of_network(geometry)
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


def _changed(blocks: Named, share: float, rng: np.random.Generator) -> dict[str, Any]:
    """Every block changed by a share of its size, a pair in its balanced gauge; zeros by one of what is beside them."""
    found: dict[str, Any] = {}
    for name, block in blocks.items():
        to, back = _gauge(block) if isinstance(block, Pair) else (np.eye(1), np.eye(1))
        parts = [block.G @ back, block.H @ to.mT] if isinstance(block, Pair) else [np.asarray(block, dtype=np.float64)]
        sizes = [float(np.sqrt(np.mean(np.square(x)))) if x.size else 0.0 for x in parts]
        largest = max(sizes) or 1.0
        parts = [
            x + share * (size or largest) * rng.standard_normal(x.shape) for x, size in zip(parts, sizes, strict=True)
        ]
        found[name] = Pair.unchecked(parts[0] @ to, parts[1] @ back.mT) if len(parts) == 2 else parts[0]
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
        products, along, across = (np.zeros(()) for _ in range(3))
        for name, block in velocity.items():
            parts = as_factors(block)
            if name not in grads:
                moved = f"; the symmetry {symmetry.name} moves this block"
                raise ValueError(f"value_and_grad: the gradient of {name!r} is missing{moved}")
            slopes = tuple(grads[name]) if len(parts) == 2 else (grads[name],)
            heads = 0
            if len(parts) == 2:
                to, back = _gauge(near[name])
                heads = parts[0].ndim - 2
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
