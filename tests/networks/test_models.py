"""What is counted as a network is the whole of it, and has what its names and its configuration say."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import refgeo as rg
from refgeo.cli import main
from refgeo.networks import LayoutError

D, HEADS, H, LAYERS = 16, 4, 4, 4
CONFIG = {"model_type": "llama", "num_attention_heads": HEADS, "hidden_size": D, "num_hidden_layers": LAYERS}


def llama(layers=range(LAYERS), heads=HEADS):
    rng = np.random.default_rng(0)
    sizes = {"q": (heads * H, D), "k": (heads * H, D), "v": (heads * H, D), "o": (D, heads * H)}
    state = {f"model.layers.{i}.self_attn.{name}_proj.weight": rng.standard_normal(size)
             for i in layers for name, size in sizes.items()}  # fmt: skip
    return state | {"model.embed_tokens.weight": rng.standard_normal((11, D))}


def write_tensors(folder, tensors, name="model.safetensors", **config):
    save_file(tensors, folder / name)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    return folder


def shard(folder, index, names=("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")):
    parts = {names[0]: llama([0, 1]), names[1]: {n: t for n, t in llama([2, 3]).items() if "embed" not in n}}
    for name, part in parts.items():
        write_tensors(folder, part, name)
    if index is not None:
        weights = {tensor: name for name, part in parts.items() for tensor in part}
        (folder / index).write_text(json.dumps({"weight_map": weights}))
    return names


@pytest.mark.parametrize(
    "index", ["model.safetensors.index.json", "model.fp16.safetensors.index.json", "x.safetensors.index.json"]
)
def test_shards_are_read_whole_or_not_at_all(index, tmp_path):
    names = shard(tmp_path, index)
    for place in (tmp_path, tmp_path / index):
        network = rg.networks.read(place, "llama_rotary")
        assert len([block for block in network.blocks if block.endswith("value_out")]) == LAYERS
    for name in names:
        with pytest.raises(LayoutError, match="is one of 2 shards, a part of the network"):
            rg.networks.read(tmp_path / name, "llama_rotary")
        assert main(["inspect", "--layout", "llama_rotary", "--checkpoint", str(tmp_path / name)]) == 2
    (tmp_path / names[1]).unlink()
    with pytest.raises(LayoutError, match="files that are not there"):
        rg.networks.read(tmp_path, "llama_rotary")
    (tmp_path / index).unlink()
    with pytest.raises(LayoutError, match="is one of 2 shards"):
        rg.networks.read(tmp_path, "llama_rotary")


def test_shards_have_what_their_index_lists_once(tmp_path):
    first, second = shard(tmp_path, "model.safetensors.index.json")
    lost = {
        name: tensor for name, tensor in llama([2, 3]).items() if "embed" not in name and "3.self_attn.q" not in name
    }
    write_tensors(tmp_path, lost, second)
    with pytest.raises(
        LayoutError, match=r"lists 1 tensors that are in no shard: 'model\.layers\.3\.self_attn\.q_proj"
    ):
        rg.networks.read(tmp_path, "llama_rotary")
    write_tensors(tmp_path, llama([1, 2, 3]), second)
    with pytest.raises(LayoutError, match="and in another shard, too"):
        rg.networks.read(tmp_path, "llama_rotary")
    assert first


def test_a_file_of_some_layers_is_no_network(tmp_path):
    assert rg.networks.read(write_tensors(tmp_path, llama()), "llama_rotary").summary().redundant > 0
    for layers in ([0, 1, 2], [0, 3], [0, 1, 2, 5], [0, 1, 2, 3, 4]):
        with pytest.raises(LayoutError, match=rf"there are {len(layers)} of 4 layers that .*config.json tells of"):
            rg.networks.read(write_tensors(tmp_path, llama(layers)), "llama_rotary")
    assert rg.networks.read(llama([0, 1]), "llama_rotary", HEADS).blocks  # a state dict is what it is
    assert rg.networks.read(write_tensors(tmp_path, llama([0, 1]), num_hidden_layers=2), "llama_rotary").blocks


@pytest.mark.parametrize("more", [{}, {"head_dim": H}])
def test_heads_that_have_been_removed_are_not_counted(more, tmp_path):
    """Two of four heads are left: four heads of half the width would have another group, which changes the outputs."""
    write_tensors(tmp_path, llama(heads=2), **more)
    with pytest.raises(LayoutError, match=r"queries of width 8, which are not 4 heads of the width 4 .* removed\?"):
        rg.networks.read(tmp_path, "llama_rotary")
    for heads in (2, {"*": 2}):
        with pytest.warns(UserWarning, match="says 4"):
            network = rg.networks.read(tmp_path, "llama_rotary", heads=heads, key_value_heads=2)
        assert network.blocks["model.layers.0.self_attn.value_out"].block_shape == (2,)
    write_tensors(tmp_path, llama(), pruned_heads={"0": [1]})
    with pytest.raises(LayoutError, match="has pruned_heads"):
        rg.networks.read(tmp_path, "llama_rotary")


def test_keys_that_do_not_fit_their_heads_are_told(tmp_path):
    with pytest.raises(
        LayoutError, match=r"key_value_heads: .* has queries of 4 heads of the width 4, and keys of 1 heads"
    ):
        rg.networks.read(write_tensors(tmp_path, llama(), num_key_value_heads=1), "llama_rotary")


PREFIX = "base.q_proj."
ADAPTER = {
    PREFIX + "lora_A.default.weight": np.ones((2, 5)), PREFIX + "lora_B.default.weight": np.ones((4, 2)),
    PREFIX + "base_layer.weight": np.ones((4, 5)), PREFIX + "base_layer.bias": np.ones(4), "head.weight": np.eye(2),
}  # fmt: skip


@pytest.mark.parametrize(
    "between",
    ["lora_AB.default.weight", "lora_A_mixer.weight", "default_lora_latent_mapping.weight", "lora_mid.weight", "core",
     "loraR.weight"],
)  # fmt: skip
def test_what_stands_between_the_factors_of_an_adapter_takes_its_group_away(between):
    with pytest.raises(LayoutError, match="which may stand between B and A"):
        rg.networks.read(ADAPTER | {PREFIX + between: np.eye(2)}, "lora")


@pytest.mark.parametrize(
    "beside", ["lora_magnitude_vector.default.weight", "lora_B.default.bias", "base_layer.weight", "scaling"]
)
def test_what_stands_beside_does_not(beside):
    shape = {"base_layer.weight": (4, 5), "scaling": ()}.get(beside, (4,))
    network = rg.networks.read(ADAPTER | {PREFIX + beside: np.ones(shape)}, "lora")
    assert [name for name, block in network.blocks.items() if isinstance(block, rg.Pair)] == [
        "base.q_proj.lora.default"
    ]


LOSS = """
import numpy as np
def model(path, network):
    def value_and_grad(blocks):
        value, grads = 0.0, {}
        for name, block in blocks.items():
            if hasattr(block, "product"):
                slope = np.cos(block.product)
                value += float(np.sum(np.sin(block.product)))
                grads[name] = (slope @ block.H, slope.mT @ block.G)
            else:
                value, grads[name] = value + float(np.sum(block)), np.ones_like(block)
        return value, grads
    return {"value_and_grad": value_and_grad}
"""
