"""Reading networks: the function of the pairs is the network's, and the way back is lossless."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import refgeo as rg
from refgeo.networks import LayoutError


def bert_state(rng, layers=2, d=6, prefix="", dtype=np.float32):
    state = {}
    for layer in range(layers):
        base = f"{prefix}encoder.layer.{layer}."
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            state[f"{base}{name}.weight"] = rng.standard_normal((d, d)).astype(dtype)
            state[f"{base}{name}.bias"] = rng.standard_normal(d).astype(dtype)
        state[f"{base}intermediate.dense.weight"] = rng.standard_normal((2 * d, d)).astype(dtype)
    state["embeddings.position_ids"] = np.arange(5)[None, :]
    return state


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_pairs_compute_what_attention_computes(prefix):
    """Scores and outputs of every head from the pairs' products, against the linear layers of the checkpoint."""
    rng = np.random.default_rng(0)
    state = bert_state(rng, prefix=prefix)
    blocks = rg.networks.read(state, "bert", heads=3).blocks
    x = rng.standard_normal((4, 6))
    x_one = np.hstack([x, np.ones((4, 1))])
    for layer in range(2):
        base = f"{prefix}encoder.layer.{layer}.attention."

        def linear(name, base=base):
            return x @ state[f"{base}self.{name}.weight"].T + state[f"{base}self.{name}.bias"]

        for head in range(3):
            part = slice(2 * head, 2 * head + 2)
            scores = linear("query")[:, part] @ linear("key")[:, part].T
            assert np.allclose(x_one @ blocks[base + "query_key"].product[head] @ x_one.T, scores, rtol=1e-12)
            output = linear("value")[:, part] @ state[f"{base}output.dense.weight"][:, part].T
            assert np.allclose(x_one @ blocks[base + "value_out"].product[head], output, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_there_and_back_is_bit_by_bit(tmp_path, dtype):
    state = bert_state(np.random.default_rng(1), dtype=dtype)
    file = tmp_path / "model.safetensors"
    save_file(state, file)
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 2}))
    network = rg.networks.read(file, "bert")
    back = network.state_dict()
    assert set(back) == set(state)
    for name, tensor in state.items():
        assert back[name].dtype == tensor.dtype
        assert np.array_equal(back[name], tensor)
    assert sum(isinstance(block, rg.Pair) for block in network.blocks.values()) == 4
    assert network.blocks["encoder.layer.0.attention.value_out"].G.shape == (2, 7, 3)
    assert network.blocks["encoder.layer.0.attention.output.dense.bias"].shape == (6,)


def test_changed_blocks_come_back_in_place():
    state = bert_state(np.random.default_rng(2))
    network = rg.networks.read(state, "bert", heads=2)
    name = "encoder.layer.1.attention.query_key"
    back = network.state_dict({**network.blocks, name: 2 * network.blocks[name]})
    changed = {key for key in state if not np.array_equal(back[key], state[key])}
    prefix = "encoder.layer.1.attention.self."
    assert changed == {prefix + f"{part}.{kind}" for part in ("query", "key") for kind in ("weight", "bias")}
    assert np.array_equal(back[prefix + "key.weight"], 2 * state[prefix + "key.weight"])
    with pytest.raises(KeyError, match="query_key"):
        network.state_dict({key: block for key, block in network.blocks.items() if key != name})


def test_what_does_not_fit_is_named(tmp_path):
    state = bert_state(np.random.default_rng(3))
    with pytest.raises(LayoutError, match="layout: expected one of bert"):
        rg.networks.read(state, "alexnet", heads=2)
    with pytest.raises(LayoutError, match=r"heads: .*config\.json"):
        rg.networks.read(state, "bert")
    with pytest.raises(LayoutError, match="heads: expected a divisor of the width 6"):
        rg.networks.read(state, "bert", heads=4)
    with pytest.raises(LayoutError, match="found none"):
        rg.networks.read({"conv.weight": np.ones((2, 2))}, "bert", heads=1)
    broken = {name: tensor for name, tensor in state.items() if name != "encoder.layer.1.attention.self.key.bias"}
    with pytest.raises(LayoutError, match=r"1 tensors are missing: encoder\.layer\.1\.attention\.self\.key\.bias"):
        rg.networks.read(broken, "bert", heads=2)
    with pytest.raises(FileNotFoundError, match="no file"):
        rg.networks.read(tmp_path / "nowhere.safetensors", "bert")
    (tmp_path / "foreign.safetensors").write_bytes(b"not a safetensors file")
    with pytest.raises(LayoutError, match="expected a safetensors file"):
        rg.networks.read(tmp_path / "foreign.safetensors", "bert", heads=2)
