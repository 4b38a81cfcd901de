"""The product geometry of named blocks: a quotient metric on every pair, the elementwise one on every array."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from refgeo.geometry.arrays import ElementwiseMetric, EuclideanMetric, ScalingMetric
from refgeo.geometry.embedded import metric_on_pairs
from refgeo.geometry.pair import Pair
from refgeo.geometry.pair_metrics import InterpolatedMetric
from refgeo.geometry.product import ProductMetric
from refgeo.geometry.rotary import RotaryMetric
from refgeo.geometry.tangent_space import Metric, as_metric
from refgeo.support.arguments import as_list


def block_metric(
    blocks: Mapping[str, Any],
    pairs: str | Metric[Any] = "inv",
    arrays: Metric[Any] | None = None,
    frozen: Iterable[str] = (),
) -> ProductMetric:
    """Return a `ProductMetric` for the blocks of a network, as the paper has it (App. C.1).

    Parameters
    ----------
    blocks : mapping of str to Pair or array
    pairs : "inv", "mix", "s=0.5", "embedded" or a metric
        For every `Pair`.
    arrays : metric, optional
        For every array. Default: the elementwise metric with Γ = 0, ``ElementwiseMetric(curved=False)``, the paper's
        choice.
    frozen : iterable of str
        Names of blocks that do not move, with wildcards: ``"*embeddings*"``.

    Returns
    -------
    ProductMetric

    Raises
    ------
    TypeError
        `pairs` is a metric on arrays.
    ValueError
        A name in `frozen` fits no block, or everything is frozen.

    Examples
    --------
    >>> import numpy as np, refgeo as rg
    >>> blocks = {"heads": rg.Pair(np.ones((2, 3, 1)), np.ones((2, 3, 1))), "bias": np.ones(3), "table": np.ones(9)}
    >>> rg.networks.block_metric(blocks, "mix", frozen=["tab*"])
    ProductMetric({'heads': MixedMetric(relaxation=0.0), 'bias': ElementwiseMetric(curved=False)})
    """
    on_pairs = metric_on_pairs(pairs, argument="pairs") if isinstance(pairs, str) else as_metric("pairs", pairs)
    if isinstance(on_pairs, (ElementwiseMetric, EuclideanMetric, ScalingMetric)):
        raise TypeError(
            f"pairs: expected a metric on pairs, got {pairs!r}, which is for arrays; to measure the "
            "change of every weight relative to this weight, use refgeo.adaptive_sharpness"
        )
    array_metric = ElementwiseMetric(curved=False) if arrays is None else arrays
    return ProductMetric(
        {name: on_pairs if isinstance(blocks[name], Pair) else array_metric for name in moving(blocks, frozen)}
    )


def behind_rotations(metric: Metric[Any]) -> Metric[Any]:
    """Return a metric on pairs as a `RotaryMetric`.

    Examples
    --------
    >>> import refgeo as rg
    >>> behind_rotations(rg.MixedMetric())
    RotaryMetric(MixedMetric(relaxation=0.0))
    """
    if not isinstance(metric, InterpolatedMetric):
        raise TypeError(
            'pairs: expected "inv", "mix" or a metric on pairs such as refgeo.MixedMetric(), because the network has '
            f"rotary positions; got {metric!r}"
        )
    return RotaryMetric(metric)


def moving(blocks: Iterable[str], frozen: Iterable[str] = ()) -> list[str]:
    """Return the names of the blocks that are not frozen.

    Examples
    --------
    >>> moving(["embeddings.word", "layer.0", "layer.1"], "embed*")
    ['layer.0', 'layer.1']
    """
    names, patterns = list(blocks), as_list(frozen) if isinstance(frozen, Iterable) else [None]
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"frozen: expected names or patterns of blocks, got {frozen!r}; leave it out to freeze none")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"frozen: {pattern!r} fits none of the blocks {', '.join(names[:4])}, ...")
    left = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not left:
        raise ValueError(f"frozen: expected patterns that leave at least one block that can move, got {patterns}")
    return left
