"""Objects of the interface go to other processes and back, and do there what they do here."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import refgeo as rg

RNG = np.random.default_rng(0)
POINT = rg.Pair(RNG.standard_normal((3, 2)), RNG.standard_normal((4, 2)))
BERT = {
    f"encoder.layer.0.attention.{name}": RNG.standard_normal(size)
    for name, size in {
        "self.query.weight": (4, 4), "self.key.weight": (4, 4), "self.value.weight": (4, 4),
        "output.dense.weight": (4, 4), "self.query.bias": (4,), "self.key.bias": (4,), "self.value.bias": (4,),
        "output.dense.bias": (4,),
    }.items()
}  # fmt: skip
OWN = {f"a.0.b.{name}.weight": RNG.standard_normal((4, 4)) for name in "qkvo"}
OWN_LAYOUT = rg.networks.own_layout("a.*.b", "q", "k", "v", "o", rotary=True, rotated=0.5, interleaved=True)


def loss(p):
    slope = np.cos(p.product)
    return float(np.sum(np.sin(p.product))), rg.Pair(slope @ p.H, slope.mT @ p.G)


def tensor(w):
    return np.eye(2)


def turning(w):
    return np.array([[-w[1]], [w[0]]])


NETWORKS = {
    "a layout of the package": rg.networks.read(BERT, "bert", heads=2),
    "one of one's own": rg.networks.read(OWN, OWN_LAYOUT, heads=1),
    "adapters": rg.networks.read({"lora_A.weight": np.ones((1, 3)), "lora_B.weight": np.ones((2, 1))}, "lora"),
}
WAYS = {"pickle": lambda x: pickle.loads(pickle.dumps(x)), "deepcopy": copy.deepcopy}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@ways
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_network(network, way):
    target = way(network)
    assert repr(target) == repr(network)
    for item, second in zip(target.state_dict().items(), network.state_dict().items(), strict=True):
        assert item[0] == second[0]
        assert np.array_equal(item[1], second[1])
    assert target.summary().redundant == network.summary().redundant


@ways
@pytest.mark.parametrize("name", sorted(rg.networks.LAYOUTS))
def test_layouts(name, way):
    assert way(rg.networks.LAYOUTS[name]) == rg.networks.LAYOUTS[name]


GROUPS = {
    "networks": NETWORKS["a layout of the package"].symmetries(),
    "rotary": NETWORKS["one of one's own"].symmetries(),
    "inv": rg.InvariantMetric().symmetries("encoder.layer.0.attention.query_key"),
    "embedded": rg.EmbeddedMetric().symmetries("encoder.layer.0.attention.query_key"),
    "arrays": [rg.symmetry.scaling("w"), rg.symmetry.translation("w", axis=0), rg.symmetry.rescaling("w", "v"),
               rg.symmetry.neurons({"w": 0}, {"v": 1})],
    "any": rg.QuotientMetric(tensor, turning).symmetries("u"),
}  # fmt: skip
BLOCKS = {
    **NETWORKS["a layout of the package"].blocks, **NETWORKS["one of one's own"].blocks,
    "w": RNG.standard_normal((3, 3)), "v": RNG.standard_normal((3, 3)), "u": np.array([3.0, 4.0]),
}  # fmt: skip


@ways
@pytest.mark.parametrize("name", GROUPS)
def test_symmetries_act_there_as_they_do_here(name, way):
    for group in GROUPS[name]:
        target = way(group)
        K = group.generator(BLOCKS, np.random.default_rng(0))
        moved, expected = (
            target.act(BLOCKS, target.generator(BLOCKS, np.random.default_rng(0)), 0.5),
            group.act(BLOCKS, K, 0.5),
        )
        for block in expected:
            for a, b in zip(as_list(moved[block]), as_list(expected[block]), strict=True):
                assert np.array_equal(a, b)


def as_list(block):
    return list(block) if isinstance(block, rg.Pair) else [block]


@ways
def test_gradients_with_nan_and_interruptions(way):
    target = way(rg.Pair.unchecked(np.full((2, 1), np.nan), np.ones((1, 1))))
    assert np.isnan(target.G).all()
    assert not target.H.flags.writeable
    result = rg.worst_case_sharpness(loss, POINT, rg.InvariantMetric(), 0.1, n_iter=1)
    target = way(result)
    assert target.to_dict() == result.to_dict()
    assert np.array_equal(target.trace, result.trace)
