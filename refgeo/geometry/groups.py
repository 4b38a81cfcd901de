r"""Groups that act on parameters: what a metric divides out.

Every metric says which (`Metric.symmetries`), and so does every network that is read (`Network.symmetries`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy  # whose modules load where they are used

from refgeo.geometry.blocks import Blocks, Named
from refgeo.geometry.gauge import balance
from refgeo.geometry.pair import Pair, as_pair
from refgeo.support.arguments import Array
from refgeo.support.differences import five_point
from refgeo.support.errors import RankDeficientError

ROTATIONS = "commutant of rotations"


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
    whole : bool
        Whether it moves all blocks if none has the name in `blocks`.
    """

    name: str
    blocks: tuple[str, ...]
    generator: Callable[[Named, np.random.Generator], Any]
    act: Callable[[Named, Any, float], dict[str, Any]]
    whole: bool = False

    def velocity(self, params: Named, K: Any) -> dict[str, Any]:
        """Return d/dt exp(t K) θ at t = 0, by differences of fourth order."""
        return dict(five_point(lambda t: Blocks(self.act(params, K, t)), 1e-3))


def together(groups: Sequence[Symmetry]) -> Symmetry:
    """Make one group of several, whose elements are one element of each, one after the other.

    Examples
    --------
    >>> both = together([scaling("w"), translation("b")])
    >>> both.blocks, sorted(both.act({"w": np.ones(2), "b": np.ones(2)}, [1.0, 1.0], 1.0))
    (('w', 'b'), ['b', 'w'])
    """
    blocks = tuple(dict.fromkeys(block for group in groups for block in group.blocks))
    drawn, moved = partial(_draw_each, groups), partial(_act_with_each, groups)
    return Symmetry("all together", blocks, drawn, moved, any(group.whole for group in groups))


def _draw_each(groups: Sequence[Symmetry], params: Named, rng: np.random.Generator) -> list[Any]:
    return [group.generator(params, rng) for group in groups]


def _act_with_each(groups: Sequence[Symmetry], params: Named, K: Sequence[Any], t: float) -> dict[str, Any]:
    moved: dict[str, Any] = {}
    for group, part in zip(groups, K, strict=True):
        moved |= group.act({**params, **moved}, part, t)
    return moved


def _unit(shape: tuple[int, ...], rng: np.random.Generator, parts: int) -> Array:
    """Return normal numbers, of length 1 over all but the first `parts` axes."""
    K = rng.standard_normal(shape)
    axes = tuple(range(parts, K.ndim))
    return np.asarray(K / np.sqrt(np.sum(K**2, axis=axes, keepdims=True)))


def general_linear(block: str) -> Symmetry:
    r"""Return GL(h) on a pair: :math:`(G A^{-1}, H A^\top)`, every head by itself.

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
    return Symmetry("GL(h)", (block,), partial(_of_heads, block), partial(_transform, block))


def _of_heads(block: str, params: Named, rng: np.random.Generator) -> Array:
    pair = as_pair(block, params[block])
    h = pair.sizes[2]
    to, back = to_balanced(pair)
    return np.asarray(back @ _unit((*pair.block_shape, h, h), rng, len(pair.block_shape)) @ to)


def _transform(block: str, params: Named, K: Array, t: float) -> dict[str, Any]:
    pair = as_pair(block, params[block])
    return {block: Pair.unchecked(pair.G @ scipy.linalg.expm(-t * K), pair.H @ scipy.linalg.expm(t * K).mT)}


def commutant(block: str) -> Symmetry:
    """Return what rotary positions leave of GL(h) on a pair of query and key.

    These are the elements a + bJ in each of the h/2 planes (i, i + h/2), J a quarter turn.

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
    generator = partial(_of_planes, block)
    return replace(general_linear(block), name=ROTATIONS, generator=generator)


def _of_planes(block: str, params: Named, rng: np.random.Generator) -> Array:
    pair = as_pair(block, params[block])
    return _draw_commuting(pair.sizes[2], pair.block_shape, rng)


def _draw_commuting(h: int, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if h % 2:
        raise ValueError(f"h: expected an even number, because rotary positions rotate pairs of columns, got h = {h}")
    K = commuting_part(rng.standard_normal((*shape, h, h)))
    return np.asarray(K / np.linalg.norm(K, axis=(-2, -1), keepdims=True))


def key_bias(block: str) -> Symmetry:
    """Return the group that shifts the bias of keys, the last row of H in a pair: it adds the same to all scores of a
    query, which softmax does not notice.

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
    return Symmetry("key bias", (block,), partial(_like_the_last_row, block, 1), partial(_with_key_bias, block))


def _with_key_bias(block: str, params: Named, K: Array, t: float) -> dict[str, Any]:
    pair = as_pair(block, params[block])
    H = pair.H.copy()
    H[..., -1, :] += t * K
    return {block: Pair.unchecked(pair.G, H)}


def value_bias(block: str, out_bias: str) -> Symmetry:
    """Return the group that shifts the bias of values, the last row of G in a pair, against that of the output.

    The weights of a softmax add up to 1, so the bias adds its image under the output matrices, of all heads together,
    to every output.

    Parameters
    ----------
    block : str
        The name of a pair.
    out_bias : str
        An array.

    Returns
    -------
    Symmetry

    Examples
    --------
    >>> import refgeo as rg
    >>> params = {"vo": rg.Pair([[1.0], [1.0]], [[2.0]]), "b": np.zeros(1)}
    >>> value_bias("vo", "b").act(params, np.array([3.0]), 1.0)["b"]
    array([-6.])
    """
    act = partial(_with_value_bias, block, out_bias)
    return Symmetry("value bias", (block, out_bias), partial(_like_the_last_row, block, 0), act)


def _with_value_bias(block: str, out_bias: str, params: Named, K: Array, t: float) -> dict[str, Any]:
    pair, bias = as_pair(block, params[block]), np.asarray(params[out_bias])
    G = pair.G.copy()
    G[..., -1, :] += t * K
    outputs = (pair.H @ np.asarray(K)[..., None])[..., 0].reshape(-1, bias.size)
    return {block: Pair.unchecked(G, pair.H), out_bias: bias - t * outputs.sum(axis=0)}


def _like_the_last_row(block: str, factor: int, params: Named, rng: np.random.Generator) -> Array:
    """Return a random change of the last row of G (0) or H (1), as long as a typical row, for every head."""
    pair = as_pair(block, params[block])
    F = tuple(pair)[factor]
    row = _unit(F[..., -1, :].shape, rng, len(pair.block_shape))
    return np.asarray(row * np.linalg.norm(F, axis=(-2, -1))[..., None] / F.shape[-2] ** 0.5)


def translation(block: str, axis: int | None = None) -> Symmetry:
    """Return the group that adds a number to all entries of an array, or, with an axis, an array all along it.

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
    drawn, moved = partial(_direction, block, axis), partial(_shift, block, axis)
    return Symmetry("translation", (block,), drawn, moved)


def _direction(block: str, axis: int | None, params: Named, rng: np.random.Generator) -> Array:
    array = np.asarray(params[block])
    return np.ones(()) if axis is None else np.expand_dims(_unit(tuple(np.delete(array.shape, axis)), rng, 0), axis)


def _shift(block: str, axis: int | None, params: Named, K: Array, t: float) -> dict[str, Any]:
    array = np.asarray(params[block])
    return {block: array + t * K * float(np.sqrt(np.mean(array**2)) or 1.0)}


def scaling(block: str) -> Symmetry:
    """Return the group that multiplies an array by a number > 0: weights before a normalisation.

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
    return _make_scaling("scaling", {block: (1.0, None)})


def rescaling(first: str, second: str) -> Symmetry:
    """Return the group that multiplies one array by a number > 0 and divides another by it: both sides of a ReLU.

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
    return _make_scaling("re-scaling", {first: (1.0, None), second: (-1.0, None)})


def neurons(incoming: Mapping[str, int], outgoing: Mapping[str, int], name: str = "neuron re-scaling") -> Symmetry:
    """Return the group of a number > 0 for every neuron, which multiplies what comes in and divides what goes out.

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
    for argument, given in (("incoming", incoming), ("outgoing", outgoing)):
        if not isinstance(given, Mapping):
            raise TypeError(f'{argument}: expected blocks and axes such as {{"up.weight": 0}}, got {given!r}')
    powers = {block: (1.0, axis) for block, axis in incoming.items()}
    return _make_scaling(name, powers | {block: (-1.0, axis) for block, axis in outgoing.items()})


def _make_scaling(name: str, powers: Mapping[str, tuple[float, int | None]]) -> Symmetry:
    """Return the group that multiplies blocks by exp(±tK): of each block the sign, and the axis along which K has a
    number for each place, if any.
    """
    powers = dict(powers)
    return Symmetry(name, tuple(powers), partial(_signs, powers), partial(_times, powers))


def _signs(powers: Mapping[str, tuple[float, int | None]], params: Named, rng: np.random.Generator) -> Array:
    first, (_, axis) = next(iter(powers.items()))
    return np.asarray(rng.choice((-1.0, 1.0), () if axis is None else np.shape(params[first])[axis]))


def _times(powers: Mapping[str, tuple[float, int | None]], params: Named, K: Any, t: float) -> dict[str, Any]:
    moved = {}
    for block, (sign, along) in powers.items():
        array = np.asarray(params[block])
        shape = [-1 if along is not None and k == along % array.ndim else 1 for k in range(array.ndim)]
        moved[block] = array * np.exp(sign * t * np.asarray(K)).reshape(shape)
    return moved


def to_balanced(pair: Pair) -> tuple[Array, Array]:
    """Return the matrices to the balanced gauge and back, (G A⁻¹, H Aᵀ); the identity if a factor lacks rank.

    Examples
    --------
    >>> to, back = to_balanced(Pair([[4.0]], [[1.0]]))
    >>> to.item(), back.item()
    (2.0, 0.5)
    """
    try:
        return balance(pair.G, pair.H).to_balanced
    except RankDeficientError:
        return np.eye(pair.sizes[2]), np.eye(pair.sizes[2])


def commuting_part(K: Array) -> Array:
    """Return the nearest matrix that is a + bJ in each plane (i, i + h/2).

    Examples
    --------
    >>> commuting_part(np.array([[1.0, 2.0], [0.0, 3.0]]))
    array([[ 2.,  1.],
           [-1.,  2.]])
    """
    half = K.shape[-1] // 2
    i, part = np.arange(half), np.zeros(K.shape)
    part[..., i, i] = part[..., i + half, i + half] = (K[..., i, i] + K[..., i + half, i + half]) / 2
    part[..., i, i + half] = (K[..., i, i + half] - K[..., i + half, i]) / 2
    part[..., i + half, i] = -part[..., i, i + half]
    return part
