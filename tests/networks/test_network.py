"""Reading networks: the function of the pairs is the network's, and the way back is lossless."""

import json
import sys
import warnings

import numpy as np
import pytest
from safetensors.numpy import save_file

import refgeo as rg
from refgeo.networks import LayoutError
from refgeo.networks.files import load, refuse_scaled


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
    with pytest.raises(LayoutError, match=r"1 tensor is missing: encoder\.layer\.1\.attention\.self\.key\.bias"):
        rg.networks.read(broken, "bert", heads=2)
    with pytest.raises(FileNotFoundError, match="no file"):
        rg.networks.read(tmp_path / "nowhere.safetensors", "bert")
    (tmp_path / "foreign.safetensors").write_bytes(b"not a safetensors file")
    with pytest.raises(LayoutError, match="expected a safetensors file"):
        rg.networks.read(tmp_path / "foreign.safetensors", "bert", heads=2)


# Every layout ---------------------------------------------------------------------------------------------------

D, HEADS, H = 6, 4, 2  # width of the stream; query heads; width of a head (so heads · h ≠ d)


def attention_weights(rng, key_heads=HEADS, bias=True):
    """Weights of one layer as maps (in, out), with one row for the bias."""
    rows = D + bool(bias)
    return {
        "query": rng.standard_normal((rows, HEADS * H)),
        "key": rng.standard_normal((rows, key_heads * H)),
        "value": rng.standard_normal((rows, key_heads * H)),
        "out": rng.standard_normal((HEADS * H, D)),
    }


def separate(prefix, names, out):
    def store(maps, bias):
        state = {}
        for role, name in zip(("query", "key", "value"), names, strict=True):
            state[f"{prefix}{name}.weight"] = maps[role][:D].T
            if bias:
                state[f"{prefix}{name}.bias"] = maps[role][D]
        state[f"{prefix}{out}.weight"] = maps["out"].T
        if bias:
            state[f"{prefix}{out}.bias"] = np.arange(D, dtype=float)
        return state

    return store


def fuse(weight, bias_name, out, transposed):
    def store(maps, bias):
        whole = np.concatenate([maps[role] for role in ("query", "key", "value")], axis=1)
        state = {
            weight: whole[:D] if transposed else whole[:D].T,
            f"{out}.weight": maps["out"] if transposed else maps["out"].T,
        }
        if bias:
            state |= {bias_name: whole[D], f"{out}.bias": np.arange(D, dtype=float)}
        return state

    return store


SELF = "model.layers.3.self_attn."
LAYOUTS = {
    # layout: (how a layer is stored, prefix of its blocks, key heads, biases)
    "bert": (
        separate("bert.encoder.layer.0.attention.", ("self.query", "self.key", "self.value"), "output.dense"),
        "bert.encoder.layer.0.attention.",
        HEADS,
        True,
    ),
    "vit": (
        separate(
            "vit.encoder.layer.7.attention.", ("attention.query", "attention.key", "attention.value"), "output.dense"
        ),
        "vit.encoder.layer.7.attention.",
        HEADS,
        True,
    ),
    "gpt2": (
        fuse(
            "transformer.h.0.attn.c_attn.weight",
            "transformer.h.0.attn.c_attn.bias",
            "transformer.h.0.attn.c_proj",
            True,
        ),
        "transformer.h.0.attn.",
        HEADS,
        True,
    ),
    "clip": (
        fuse(
            "visual.transformer.resblocks.0.attn.in_proj_weight",
            "visual.transformer.resblocks.0.attn.in_proj_bias",
            "visual.transformer.resblocks.0.attn.out_proj",
            False,
        ),
        "visual.transformer.resblocks.0.attn.",
        HEADS,
        True,
    ),
    "clip_hf": (
        separate("text_model.encoder.layers.1.self_attn.", ("q_proj", "k_proj", "v_proj"), "out_proj"),
        "text_model.encoder.layers.1.self_attn.",
        HEADS,
        True,
    ),
    "timm": (
        fuse("blocks.0.attn.qkv.weight", "blocks.0.attn.qkv.bias", "blocks.0.attn.proj", False),
        "blocks.0.attn.",
        HEADS,
        True,
    ),
    "timm without biases": (
        fuse("blocks.0.attn.qkv.weight", None, "blocks.0.attn.proj", False),
        "blocks.0.attn.",
        HEADS,
        False,
    ),
    "llama": (separate(SELF, ("q_proj", "k_proj", "v_proj"), "o_proj"), SELF, 2, False),
    "llama with biases": (separate(SELF, ("q_proj", "k_proj", "v_proj"), "o_proj"), SELF, 1, True),
    "llama_nope": (separate(SELF, ("q_proj", "k_proj", "v_proj"), "o_proj"), SELF, 2, False),
    "llama_nope with one key": (separate(SELF, ("q_proj", "k_proj", "v_proj"), "o_proj"), SELF, 1, True),
}
every_layout = pytest.mark.parametrize("name", LAYOUTS)


def read_layer(name, seed=0):
    store, prefix, key_heads, bias = LAYOUTS[name]
    maps = attention_weights(np.random.default_rng(seed), key_heads, bias)
    state = {"embedding.weight": np.ones((5, D)), **store(maps, bias), "mlp.weight": np.ones((D, D))}
    network = rg.networks.read(state, name.split()[0], heads=HEADS, key_value_heads=key_heads)
    return state, network, prefix, maps, key_heads


def head_functions(maps, key_heads):
    """Scores and outputs of every query head, straight from the maps."""
    x = np.random.default_rng(9).standard_normal((5, D))
    x = np.hstack([x, np.ones((5, 1))])[:, : maps["query"].shape[0]]
    q, k, v = (x @ maps[role] for role in ("query", "key", "value"))
    scores, outputs = [], []
    for head in range(HEADS):
        own, shared = slice(head * H, (head + 1) * H), head // (HEADS // key_heads)
        theirs = slice(shared * H, (shared + 1) * H)
        scores.append(q[:, own] @ k[:, theirs].T)
        outputs.append(v[:, theirs] @ maps["out"][own])
    return x, np.array(scores), np.array(outputs)


@every_layout
def test_pairs_of_every_layout_compute_its_attention(name):
    _, network, prefix, maps, key_heads = read_layer(name)
    x, scores, outputs = head_functions(maps, key_heads)
    group, rows = HEADS // key_heads, x.shape[1]
    value_out = network.blocks[prefix + "value_out"]
    assert value_out.G.shape == (key_heads, rows, H)
    assert value_out.H.shape == (key_heads, group * D, H)
    for head in range(HEADS):
        shared, place = divmod(head, group)
        product = value_out.product[shared][:, place * D : (place + 1) * D]
        assert np.allclose(x @ product, outputs[head], rtol=1e-12)
    if name.startswith("llama") and "nope" not in name:
        assert prefix + "query_key" not in network.blocks
        assert isinstance(network.blocks[prefix + "q_proj.weight"], np.ndarray)
        return
    query_key = network.blocks[prefix + "query_key"]
    assert query_key.G.shape == (key_heads, group * rows, H)
    for head in range(HEADS):
        shared, place = divmod(head, group)
        product = query_key.product[shared][place * rows : (place + 1) * rows]
        assert np.allclose(x @ product @ x.T, scores[head], rtol=1e-12)


@every_layout
def test_every_layout_comes_back_bit_by_bit(name):
    state, network, _, _, _ = read_layer(name)
    back = network.state_dict()
    assert list(back) == list(state)
    for tensor, values in state.items():
        assert np.array_equal(back[tensor], values), tensor


@every_layout
def test_an_orbit_changes_the_weights_and_no_head(name):
    state, network, _prefix, _maps, key_heads = read_layer(name)
    rng = np.random.default_rng(4)
    blocks = {
        block: value.transform(rng.standard_normal((key_heads, H, H))) if isinstance(value, rg.Pair) else value
        for block, value in network.blocks.items()
    }
    back = network.state_dict(blocks)
    again = rg.networks.read(back, name.split()[0], heads=HEADS, key_value_heads=key_heads)
    changed = {tensor for tensor in state if not np.allclose(back[tensor], state[tensor])}
    assert changed
    assert not changed & {"embedding.weight", "mlp.weight"}
    for block, value in again.blocks.items():
        if isinstance(value, rg.Pair):
            assert np.allclose(value.product, network.blocks[block].product, rtol=1e-9)


def test_lora_adapters_are_pairs():
    rng = np.random.default_rng(0)
    base = "base_model.model.model.layers.0.self_attn."
    state = {}
    for name in ("q_proj", "v_proj.default"):
        module, _, adapter = name.partition(".")
        dot = f".{adapter}" if adapter else ""
        state[f"{base}{module}.lora_A{dot}.weight"] = rng.standard_normal((2, 8)).astype(np.float32)
        state[f"{base}{module}.lora_B{dot}.weight"] = rng.standard_normal((6, 2)).astype(np.float32)
    network = rg.networks.read(state, "lora")
    assert set(network.blocks) == {f"{base}q_proj.lora", f"{base}v_proj.lora.default"}
    pair = network.blocks[f"{base}q_proj.lora"]
    change = state[f"{base}q_proj.lora_B.weight"].astype(float) @ state[f"{base}q_proj.lora_A.weight"].astype(float)
    assert np.array_equal(pair.product, change)
    assert all(np.array_equal(network.state_dict()[name], tensor) for name, tensor in state.items())
    with pytest.raises(LayoutError, match=r"layout lora: 1 tensor is missing: .*v_proj\.lora_B\.default\.weight"):
        rg.networks.read({n: t for n, t in state.items() if "v_proj.lora_B" not in n}, "lora")
    with pytest.raises(LayoutError, match=r"layout lora: 1 tensor is missing: .*q_proj\.lora_A\.weight"):
        rg.networks.read({n: t for n, t in state.items() if "q_proj.lora_A" not in n}, "lora")
    with pytest.raises(LayoutError, match="found none"):
        rg.networks.read({"w": np.ones((2, 2))}, "lora")


def test_what_is_left_over_in_an_attention_layer_is_named():
    state, *_ = read_layer("timm")
    with pytest.raises(LayoutError, match=r"does not know 1 tensors .*blocks\.0\.attn\.q_norm\.weight"):
        rg.networks.read({**state, "blocks.0.attn.q_norm.weight": np.ones(H)}, "timm", heads=HEADS)
    state, *_ = read_layer("llama_nope")
    with pytest.raises(LayoutError, match="found none"):
        rg.networks.read(state, "bert", heads=HEADS)
    with pytest.raises(LayoutError, match=r"1 tensor is missing: .*out_proj\.weight|4 tensors are missing"):
        rg.networks.read(state, "clip_hf", heads=HEADS)
    with pytest.raises(LayoutError, match="key_value_heads: expected a divisor"):
        rg.networks.read(state, "llama_nope", heads=HEADS, key_value_heads=3)


def test_masks_and_rotary_frequencies_are_no_parameters():
    state, *_ = read_layer("gpt2")
    mask = np.tril(np.ones((1, 1, 5, 5), dtype=np.float32))
    network = rg.networks.read({**state, "transformer.h.0.attn.bias": mask}, "gpt2", heads=HEADS)
    assert "transformer.h.0.attn.bias" not in network.blocks
    assert np.array_equal(network.state_dict()["transformer.h.0.attn.bias"], mask)
    state, *_ = read_layer("llama")
    network = rg.networks.read(
        {**state, SELF + "rotary_emb.inv_freq": np.ones(1)}, "llama", heads=HEADS, key_value_heads=2
    )
    assert SELF + "rotary_emb.inv_freq" in network.constants


def test_configuration_gives_the_heads(tmp_path):
    state, *_ = read_layer("llama_nope")
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in state.items()}, tmp_path / "model.safetensors")
    for text, message in (
        ('{"num_attention_heads": 4.5}', "config.json: expected a whole number >= 1 for num_attention_heads, got 4.5"),
        ('{"num_attention_heads": Infinity}', "expected a whole number >= 1 for num_attention_heads, got inf"),
        ('{"num_attention_heads": NaN}', "expected a whole number >= 1 for num_attention_heads, got nan"),
        ('{"num_attention_heads": 0}', "config.json: expected a whole number >= 1 for num_attention_heads, got 0"),
        ("[" * 100_000, "config.json: expected JSON"),
        ("[4]", "expected a JSON object, got list"),
        ("{", "expected JSON"),
        ("{}", "heads: expected the number of heads, because the tensors do not contain it"),
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(LayoutError, match=message):
            rg.networks.read(tmp_path / "model.safetensors", "llama_nope")
    (tmp_path / "config.json").write_text(json.dumps({"n_head": HEADS, "num_key_value_heads": 2}))
    network = rg.networks.read(tmp_path / "model.safetensors", "llama_nope")
    assert network.blocks[SELF + "query_key"].G.shape == (2, 2 * D, H)


def test_metric_of_a_network():
    _, network, prefix, _, _ = read_layer("bert")
    metric = network.metric("mix", frozen=["embedding*"])
    assert isinstance(metric.metrics[prefix + "query_key"], rg.MixedMetric)
    assert not metric.metrics["mlp.weight"].curved
    assert "embedding.weight" not in metric.metrics
    own = network.metric(rg.InvariantMetric(0.1), arrays=rg.EuclideanMetric())
    assert isinstance(own.metrics["mlp.weight"], rg.EuclideanMetric)
    with pytest.raises(ValueError, match="frozen: 'embeddingz' fits none of the blocks"):
        network.metric(frozen=["embeddingz"])
    with pytest.raises(ValueError, match="expected patterns that leave at least one block"):
        network.metric(frozen="*")
    with pytest.raises(ValueError, match='pairs: expected "inv", "mix" or one between'):
        network.metric("euclid")


# Small models ---------------------------------------------------------------------------------------------------

MODELS = {
    "pre": rg.networks.AttentionClassifier(norm="pre"),
    "post": rg.networks.AttentionClassifier(norm="post", depth=2),
}
every_model = pytest.mark.parametrize("name", MODELS)


def model_batch(model, rng):
    return rng.integers(0, model.vocabulary, (7, model.length)), rng.integers(0, model.classes, 7)


@every_model
def test_models_are_invariant_and_their_gradients_are_derivatives(name):
    model, rng = MODELS[name], np.random.default_rng(0)
    params, batch = model.init(1), model_batch(model, rng)
    loss, grads = model.value_and_grad(params, batch)
    assert loss == pytest.approx(float(model.loss(params, batch)))
    moved = {
        block: value.transform(rng.standard_normal((*value.block_shape, value.sizes[2], value.sizes[2])))
        if isinstance(value, rg.Pair)
        else value
        for block, value in params.items()
    }
    assert float(model.loss(moved, batch)) == pytest.approx(loss, rel=1e-10)
    space = model.metric("inv", arrays=rg.EuclideanMetric()).at(params)
    v = space.random_tangent_vector(rng)
    forward, back = (float(model.loss(space.geodesic(v, t, 1), batch)) for t in (1e-5, -1e-5))
    slope = (forward - back) / 2e-5
    assert float(space.inner_product(space.riemannian_gradient(grads), v)) == pytest.approx(slope, rel=1e-6, abs=1e-9)
    assert all(
        np.all(part != 0) for value in params.values() for part in (value if isinstance(value, rg.Pair) else [value])
    )


def test_attention_classifier_is_what_torch_computes():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    model = rg.networks.AttentionClassifier(norm="pre", depth=1, width=8, heads=2)
    params, (tokens, labels) = model.init(1), model_batch(model, np.random.default_rng(0))

    def tensor(x):
        return torch.tensor(np.array(x))

    p = "layer0."
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    (W_q, W_k), (W_v, W_o) = params[p + "query_key"], params[p + "value_out"]
    merged = [np.concatenate(list(W), axis=1).T for W in (W_q, W_k, W_v)]
    with torch.no_grad():
        attention.in_proj_weight.copy_(tensor(np.concatenate([W[:, :8] for W in merged])))
        attention.in_proj_bias.copy_(tensor(np.concatenate([W[:, 8] for W in merged])))
        attention.out_proj.weight.copy_(tensor(np.concatenate(list(W_o), axis=1)))
        attention.out_proj.bias.copy_(tensor(params[p + "out.bias"]))
        x = tensor(params["tokens"])[torch.tensor(tokens)] + tensor(params["positions"])
        norm1, norm2 = (
            lambda z, n=n: torch.nn.functional.layer_norm(
                z, (8,), tensor(params[f"{p}{n}.weight"]), tensor(params[f"{p}{n}.bias"]), eps=1e-12
            )
            for n in ("norm1", "norm2")
        )
        y = norm1(x)
        x = x + attention(y, y, y)[0]
        up = norm2(x) @ tensor(params[p + "up.weight"]) + tensor(params[p + "up.bias"])
        x = x + torch.nn.functional.gelu(up) @ tensor(params[p + "down.weight"]) + tensor(params[p + "down.bias"])
        logits = x.mean(1) @ tensor(params["classes.weight"]) + tensor(params["classes.bias"])
        expected = torch.nn.functional.cross_entropy(logits, torch.tensor(labels)).item()
    assert float(model.loss(params, (tokens, labels))) == pytest.approx(expected, rel=1e-12)


def test_models_refuse_impossible_sizes():
    with pytest.raises(ValueError, match="heads: expected a divisor of the width 8, got 3"):
        rg.networks.AttentionClassifier(heads=3)
    with pytest.raises(ValueError, match='norm: expected "pre" or "post"'):
        rg.networks.AttentionClassifier(norm="none")


# Found by reviewers ---------------------------------------------------------------------------------------------


def test_towers_with_different_heads_are_told_apart(tmp_path):
    rng = np.random.default_rng(0)
    state = {}
    for tower, d in (("text_model", 4), ("vision_model", 6)):
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            prefix = f"{tower}.encoder.layers.0.self_attn.{name}"
            state |= {f"{prefix}.weight": rng.standard_normal((d, d)), f"{prefix}.bias": rng.standard_normal(d)}
    with pytest.raises(LayoutError, match=r"2 different widths, \[4, 6\]; give the heads of each layer by a pattern"):
        rg.networks.read(state, "clip_hf", heads=2)
    with pytest.raises(LayoutError, match=r"no pattern of text\* fits vision_model"):
        rg.networks.read(state, "clip_hf", heads={"text*": 2})
    network = rg.networks.read(state, "clip_hf", heads={"text*": 2, "vision*": 3})
    assert network.blocks["vision_model.encoder.layers.0.self_attn.query_key"].G.shape == (3, 7, 2)
    assert all(np.array_equal(network.state_dict()[name], tensor) for name, tensor in state.items())
    save_file(state, tmp_path / "model.safetensors")
    config = {"text_config": {"num_attention_heads": 2}, "vision_config": {"num_attention_heads": 3}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = rg.networks.read(tmp_path / "model.safetensors", "clip_hf")
    assert again.blocks["text_model.encoder.layers.0.self_attn.query_key"].G.shape == (2, 5, 2)


def test_a_layer_without_its_query_is_incomplete_and_not_overlooked():
    state = bert_state(np.random.default_rng(0))
    del state["encoder.layer.1.attention.self.query.weight"]
    with pytest.raises(LayoutError, match=r"1 tensor is missing: encoder\.layer\.1\.attention\.self\.query\.weight"):
        rg.networks.read(state, "bert", heads=2)


def test_bfloat16_is_read_and_written():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    state, *_ = read_layer("llama")
    state = {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in state.items()}
    network = rg.networks.read(state, "llama", heads=HEADS, key_value_heads=2)
    back = network.state_dict()
    assert all(back[n].dtype == t.dtype and np.array_equal(back[n], t) for n, t in state.items())


def test_shapes_are_checked_on_the_way_in_and_back():
    state, network, prefix, _, _ = read_layer("gpt2")
    wrong = {**state, "transformer.h.0.attn.c_attn.bias": np.ones(5)}
    with pytest.raises(
        LayoutError, match=r"a bias as long as its outputs, got .*c_attn\.weight \(6, 24\), .*bias \(5,\)"
    ):
        rg.networks.read(wrong, "gpt2", heads=HEADS)
    for heads in (3.0, "3", 0, True):
        with pytest.raises(LayoutError, match="heads: expected an integer >= 1"):
            rg.networks.read(state, "gpt2", heads=heads)
    with pytest.raises(LayoutError, match="key_value_heads: expected an integer >= 1"):
        rg.networks.read(state, "gpt2", heads=HEADS, key_value_heads=0)
    with pytest.raises(ValueError, match=r"blocks\['mlp.weight'\]: expected the shape \(6, 6\), got \(3,\)"):
        network.state_dict({**network.blocks, "mlp.weight": np.ones(3)})
    tuples = {n: tuple(b) if isinstance(b, rg.Pair) else b for n, b in network.blocks.items()}
    assert all(np.array_equal(network.state_dict(tuples)[n], t) for n, t in state.items())
    with pytest.raises(ValueError, match=r"tensors\['mlp.weight'\]: expected the shape \(6, 6\)"):
        network.blocks_of({**state, "mlp.weight": np.ones(3)})
    with pytest.raises(KeyError, match="expected names of the checkpoint's parameters, got 'other'"):
        network.blocks_of({**state, "other": np.ones(3)})
    assert prefix + "query_key" in network.blocks


# What else stands in files ----------------------------------------------------------------------------------------


def bert_weights():
    return {name: x for name, x in bert_state(np.random.default_rng(0)).items() if x.dtype.kind == "f"}


def write_safetensors(path, tensors):
    """A safetensors file of types that NumPy may lack: name to (type, shape, bytes)."""
    header, start = {}, 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, start + len(data)]}
        start += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values()))
    return path


def in_bfloat16(array):
    return ("BF16", list(array.shape), (array.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes())


@pytest.mark.parametrize("kind", ["BOOL", "U8", "U16", "U32", "U64", "I64", "F8_E4M3", "F8_E5M2"])
def test_a_bfloat16_file_may_hold_every_other_type(kind, tmp_path, monkeypatch):
    """Without further packages; of float32 numbers, the upper halves are left."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    state = {
        name: (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32) for name, x in bert_weights().items()
    }
    data = bytes([0x38] * {"U16": 2, "U32": 4, "U64": 8, "I64": 8}.get(kind, 1) * 2)
    tensors = {name: in_bfloat16(x) for name, x in state.items()} | {"mask": (kind, [2], data)}
    network = rg.networks.read(write_safetensors(tmp_path / "model.safetensors", tensors), "bert", heads=2)
    assert all(np.array_equal(network.state_dict()[name], x) for name, x in state.items())
    if kind.startswith("F8"):  # 0x38 is 1 with four bits of exponent, and 0.5 with five
        assert network.blocks["mask"].tolist() == [1.0 if kind == "F8_E4M3" else 0.5] * 2
    else:
        assert "mask" in network.constants


def test_blocks_stand_in_the_order_of_the_file_every_time(tmp_path):
    """Random starts are drawn block by block: another order would be another search."""
    state = bert_weights()
    names = [list(state)[k] for k in np.random.default_rng(0).permutation(len(state))]
    file = write_safetensors(tmp_path / "model.safetensors", {
        name: ("F32", list(state[name].shape), state[name].astype("<f4").tobytes()) for name in names
    })  # fmt: skip
    for _ in range(5):
        assert list(load(file)) == names


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2"])
def test_float8_numbers_are_those_of_ml_dtypes(kind, tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    bits = np.arange(256, dtype=np.uint8)
    expected = bits.view(ml_dtypes.float8_e4m3fn if kind == "F8_E4M3" else ml_dtypes.float8_e5m2).astype(np.float32)
    result = load(write_safetensors(tmp_path / "model.safetensors", {"x": (kind, [256], bits.tobytes())}))["x"]
    assert np.array_equal(result, np.where(np.isfinite(expected), expected, np.nan), equal_nan=True)


def test_weights_that_need_their_scales_and_pointers_are_named(tmp_path):
    scaled = {"q.weight": ("F8_E4M3", [2], b"\0\0"), "q.weight_scale_inv": ("F32", [1], b"\0" * 4)}
    with pytest.raises(rg.networks.LayoutError, match=r"float8 numbers with others beside them.*: q.weight"):
        rg.networks.read(write_safetensors(tmp_path / "scaled.safetensors", scaled), "bert", heads=2)
    pointer = tmp_path / "pointer.safetensors"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(rg.networks.LayoutError, match="this is a git-lfs pointer, not the file; run git lfs pull"):
        rg.networks.read(pointer, "bert")


@pytest.mark.parametrize(
    "name",
    ["weight_scale", "WEIGHT_SCALE", "weight.scale", "weight_quantizer._scale", "scaling_factor", "weight_s", "SCB",
     "weight.absmax", "parametrizations.weight.original1"],
)  # fmt: skip
def test_whatever_the_name_of_a_scale_codes_are_no_weights(name):
    names = {"a.q.weight", "a.q.bias", "b.in_proj_weight", "b.in_proj_bias", "b.out_proj.weight"}
    refuse_scaled("source", ["a.q.weight", "b.in_proj_weight"], names)
    with pytest.raises(LayoutError, match=r"float8 numbers with others beside them, such as a.q.\S+, .*: a.q.weight;"):
        refuse_scaled("source", ["a.q.weight", "b.in_proj_weight"], names | {f"a.q.{name}"})
    with pytest.raises(LayoutError, match=r"float8 numbers with others beside them, such as \S+, .*: weight;"):
        refuse_scaled("source", ["weight"], {"weight", "bias", name})


@pytest.mark.parametrize("layout", ["bert", "lora"])
@pytest.mark.parametrize("dtype", ["int8", "complex64", "object"])
def test_what_is_there_and_no_number_is_not_missing(layout, dtype):
    state = bert_state(np.random.default_rng(0))
    if layout == "lora":
        state = {"q.lora_A.weight": np.ones((2, 6)), "q.lora_B.weight": np.ones((5, 2))}
    maps = [name for name in state if ".self." in name or "lora_" in name]
    for selection in (maps, maps[:1], maps[-1:]):  # a bias, too, without which the factors would have a row less
        with pytest.raises(LayoutError, match=rf"got these tensors .*{selection[0]} \({dtype}\)"):
            rg.networks.read({**state, **{name: state[name].astype(dtype) for name in selection}}, layout, heads=2)


def test_weights_that_a_module_keeps_as_buffers_are_there():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    module = torch.nn.Module()
    module.self_attn = torch.nn.Module()
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        part = torch.nn.Module()
        part.register_buffer("weight", torch.ones(4, 4))
        setattr(module.self_attn, name, part)
    with pytest.raises(LayoutError, match=r"got these tensors .*k_proj.weight \(a buffer\)"):
        rg.networks.read(module, "llama_nope", heads=2)


def test_of_a_dict_with_dicts_the_one_with_tensors_is_advised():
    state = bert_state(np.random.default_rng(0))
    with pytest.raises(TypeError, match=r"got a dict with dicts, optimizer, ema, model; pass source\['model'\]"):
        rg.networks.read({"optimizer": {"lr": 1.0}, "ema": {}, "model": state}, "bert", heads=2)
    with pytest.raises(TypeError, match=r"got a dict with dicts, optimizer$"):
        rg.networks.read({"optimizer": {"lr": 1.0}}, "bert", heads=2)
    with pytest.raises(LayoutError, match=r"layout: expected one of bert, .*got \{'attention': 'a'\}"):
        rg.networks.read(state, {"attention": "a"}, heads=2)


@pytest.mark.parametrize(
    ("config", "heads", "key_heads"),
    [
        ({"num_attention_heads": 4, "num_key_value_heads": None}, 4, 4),
        ({"num_attention_heads": None, "n_head": 2}, 2, 2),
        ({"num_attention_heads": 4, "num_key_value_heads": 2}, 4, 2),
        ({"encoder_attention_heads": 2, "decoder_attention_heads": 4}, {"*encoder.*": 2, "*decoder.*": 4}, None),
    ],
)
def test_null_is_absent_and_two_sides_have_heads_of_their_own(config, heads, key_heads, tmp_path):
    sizes = ("model.encoder", "model.decoder") if isinstance(heads, dict) else ("model.decoder",)
    rng, state = np.random.default_rng(0), {}
    for side in sizes:
        for name in ("q", "k", "v", "out"):
            rows = 8 if name in ("q", "out") or not key_heads else 8 * key_heads // heads
            state[f"{side}.layers.0.self_attn.{name}_proj.weight"] = rng.standard_normal((rows, 8))
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    network = rg.networks.read(tmp_path, "clip_hf")
    assert network.heads == heads
    counts = {"model.encoder": 2, "model.decoder": key_heads or 4}
    for side in sizes:
        assert network.blocks[f"{side}.layers.0.self_attn.query_key"].block_shape == (counts[side],)


def test_biases_are_optional_and_running_statistics_are_constants():
    state = {name: x for name, x in bert_weights().items() if not name.endswith("bias")}
    network = rg.networks.read(
        state | {"norm.running_mean": np.ones(3), "norm.running_var": np.ones(3)}, "bert", heads=2
    )
    assert not any("running" in name for name in network.blocks)
    assert {"norm.running_mean", "norm.running_var"} <= network.constants.keys()
    assert network.symmetries()
    assert {symmetry.name for symmetry in network.symmetries()} == {"GL(h)"}


def test_pytorchs_tensors_and_parameters_are_taken_as_they_are():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    arrays = {name: x.astype(np.float32) for name, x in bert_weights().items()}
    half = {name: torch.tensor(x).bfloat16() for name, x in arrays.items()}
    parameters = {name: torch.nn.Parameter(torch.tensor(x)) for name, x in arrays.items()}
    for state, exact in ((half, False), (parameters, True)):
        network = rg.networks.read(state, "bert", heads=2)
        for name, x in arrays.items():
            assert np.allclose(network.state_dict()[name], x, rtol=0 if exact else 1e-2, atol=0)


# Configurations -------------------------------------------------------------------------------------------------------


def llama_folder(path, prefixes, config, kv=2, heads=2, **more):
    """A folder with layers of attention of Llama's kind, of 2 heads of width 4."""
    rng, tensors = np.random.default_rng(0), {}
    for prefix in prefixes:
        count = heads if isinstance(heads, int) else heads[prefix]
        for name, rows in (("q_proj", 4 * count), ("k_proj", 4 * kv), ("v_proj", 4 * kv)):
            tensors[f"{prefix}.self_attn.{name}.weight"] = rng.standard_normal((rows, 8))
        tensors[f"{prefix}.self_attn.o_proj.weight"] = rng.standard_normal((8, 4 * count))
    save_file(tensors | more, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return path


BASE = {"num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 8, "num_hidden_layers": 4}
TEXT = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "hidden_size": 8, "num_hidden_layers": 2}


@pytest.mark.parametrize("other", ["mamba.in_proj", "cross_attn.q_proj", "mlp.gate"])
def test_layers_of_another_kind_are_not_missing(other, tmp_path):
    """Of a hybrid, of a network with cross attention by turns; whose tensors are gone altogether, it is missing."""
    attention = [f"model.layers.{i}" for i in (1, 3)]
    others = {f"model.layers.{i}.{other}.weight": np.ones((4, 8)) for i in (0, 2)}
    network = rg.networks.read(llama_folder(tmp_path, attention, BASE, **others), "llama")
    assert sum(isinstance(block, rg.Pair) for block in network.blocks.values()) == 2
    del others["model.layers.2." + other + ".weight"]
    with pytest.raises(LayoutError, match="there are 2 of 4 layers"):
        rg.networks.read(llama_folder(tmp_path, attention, BASE, **others), "llama")


@pytest.mark.parametrize("stem", ["language_model.model.layers", "model.language_model.layers", "model.layers"])
@pytest.mark.parametrize(
    "config",
    [
        {"text_config": TEXT, "vision_config": {"num_attention_heads": 4}},
        {"text_config": TEXT},
        {"thinker_config": {"text_config": TEXT, "audio_config": {"num_attention_heads": 8}}},
        {"llm_config": TEXT, "model_type": "something"},
    ],
)
def test_nested_configurations_give_the_heads_of_the_text(stem, config, tmp_path):
    folder = llama_folder(tmp_path, [f"{stem}.{i}" for i in range(2)], config, kv=1)
    network = rg.networks.read(folder, "llama")
    pairs = [block for block in network.blocks.values() if isinstance(block, rg.Pair)]
    assert {pair.sizes[2] for pair in pairs} == {4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = rg.networks.read(folder, "llama", heads=2)
    assert given.blocks.keys() == network.blocks.keys()


def test_towers_have_heads_of_their_own(tmp_path):
    config = {"text_config": {"num_attention_heads": 2}, "vision_config": {"num_attention_heads": 4}}
    prefixes = {"model.language_model.layers.0": 2, "model.vision_tower.layers.0": 4}
    network = rg.networks.read(llama_folder(tmp_path, prefixes, config, heads=prefixes), "llama", key_value_heads=2)
    assert network.heads == {"*vision*": 4, "*": 2}


def test_lists_of_heads_are_those_of_the_layers(tmp_path):
    heads = {"model.layers.0": 2, "model.layers.1": 4}
    config = {
        **BASE,
        "num_attention_heads": [2, 4],
        "num_key_value_heads": [2, 2],
        "head_dim": 4,
        "num_hidden_layers": 2,
    }
    network = rg.networks.read(llama_folder(tmp_path, heads, config, heads=heads), "llama")
    assert network.heads == {"*.0.*": 2, "*.1.*": 4}
    config["num_attention_heads"] = ["two", 4]
    with pytest.raises(LayoutError, match=r"expected a whole number >= 1 .* give heads, also by patterns"):
        rg.networks.read(llama_folder(tmp_path, heads, config, heads=heads), "llama")
