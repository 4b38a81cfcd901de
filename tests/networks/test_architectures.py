"""What a layout claims of a real architecture, measured: on every one that is read without the user's word."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from safetensors.numpy import save_file

import refgeo as rg
from refgeo.cli import main
from refgeo.networks.evidence import KNOWN

SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "image_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("num_attention_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "num_key_value_heads", "bos_token_id"), 2),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim"), 24),
    **dict.fromkeys(("head_dim", "patch_size", "moe_intermediate_size", "shared_expert_intermediate_size"), 8),
    "vocab_size": 50, "num_experts_per_tok": 1, "pad_token_id": 1, "eos_token_id": 3,
}  # fmt: skip
MORE = {
    "yolos": {"image_size": [32, 32]},
    "qwen2_vl_text": {"hidden_size": 512},  # three kinds of planes, 64 of them
    "qwen2_5_vl_text": {"hidden_size": 512},
}


def configuration(of, **more):
    """The smallest of its kind, with the parts that it has."""
    transformers = pytest.importorskip("transformers")
    base = of()
    small = {name: x for name, x in SMALL.items() if getattr(base, name, None) is not None}
    for name in getattr(of, "sub_configs", None) or {}:
        if isinstance(part := getattr(base, name, None), transformers.PretrainedConfig):
            small[name] = configuration(type(part)).to_dict()
    return of(**small | more)


def saved(kind, folder, **more):
    """A model of this type with random weights."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = configuration(transformers.CONFIG_MAPPING[kind], **MORE.get(kind, {}) | more)
    torch.manual_seed(0)
    module = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for parameter in module.parameters():  # away from zeros and ones, where a symmetry is there by accident
            parameter.copy_(2.0 * parameter + 0.1 * torch.randn_like(parameter))
    module.save_pretrained(folder)
    return module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("layout", "kind"), [(layout, kind) for layout in KNOWN for kind in sorted(KNOWN[layout])])
def test_every_claim_about_an_architecture_that_is_known_is_true(layout, kind, tmp_path):
    from refgeo.networks.trial import verify

    saved(kind, tmp_path)
    network = rg.networks.read(tmp_path)
    assert network.layout == layout
    found = verify(network, tmp_path)
    assert found.holds, str(found)
    assert min(one.digits for one in found) > 8
    assert len(found) == len(network.claims) >= len({name for name, block in network.blocks.items()
                                                     if isinstance(block, rg.Pair)})  # fmt: skip


KINDS = ["roformer", "yoso", "mlcd_vision_model", "cohere", "glm", "glm4", "helium", "stablelm", "ernie4_5"]
LOOK_ALIKE = dict.fromkeys(KINDS)
LOOK_ALIKE |= {"nemotron": {"num_key_value_heads": 4}, "olmo": {"clip_qkv": 0.1}}
"""Names that fit a layout, and something else done with the weights."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", LOOK_ALIKE)
def test_names_that_fit_are_no_evidence(kind, tmp_path, capsys):
    saved(kind, tmp_path, **LOOK_ALIKE[kind] or {})
    with pytest.raises(
        rg.networks.LayoutError, match=r"no evidence of its symmetries: .*config.json has (model_type|cl)"
    ):
        rg.networks.read(tmp_path)
    assert main(["inspect", "--checkpoint", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "redundant" not in said
    assert "inspect --verify" in said
    assert main(["inspect", "--checkpoint", str(tmp_path), "--verify", "--quiet"]) == 1
    shown = capsys.readouterr().out
    assert "does not hold" in shown
    assert "parameters (" not in shown
    assert rg.networks.read(tmp_path, rg.networks.layout_of(tmp_path)).blocks, "the user's word"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["cohere", "glm", "helium", "roformer"])
def test_fresh_weights_do_not_hide_what_is_missing(kind, tmp_path, capsys):
    """They are so small, and norms so often in single precision, that of the weights themselves nothing is seen."""
    transformers = pytest.importorskip("transformers")
    transformers.AutoModel.from_config(configuration(transformers.CONFIG_MAPPING[kind])).save_pretrained(tmp_path)
    assert main(["inspect", "--checkpoint", str(tmp_path), "--verify", "--quiet"]) == 1
    assert "does not hold" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["BertForMaskedLM", "RoFormerForMaskedLM", "LlamaForCausalLM"])
def test_heads_of_a_task_are_no_obstacle(kind, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, kind)
    model(configuration(model.config_class)).save_pretrained(tmp_path)
    expected = 1 if kind.startswith("RoFormer") else 0
    assert main(["inspect", "--checkpoint", str(tmp_path), "--verify", "--quiet"]) == expected
    capsys.readouterr()


@pytest.mark.filterwarnings("ignore")
def test_a_decoder_has_heads_of_its_own(tmp_path):
    from refgeo.networks.trial import verify

    transformers = pytest.importorskip("transformers")
    config = configuration(
        transformers.ViTMAEConfig, decoder_hidden_size=32, decoder_num_attention_heads=8, decoder_num_hidden_layers=1,
        decoder_intermediate_size=24,
    )  # fmt: skip
    transformers.ViTMAEForPreTraining(config).save_pretrained(tmp_path)
    network = rg.networks.read(tmp_path)
    assert network.heads == {"*decoder.*": 8, "*": 4}
    assert verify(network, tmp_path).holds
    for heads, message in ((4, "num_attention_heads = 2 contradicts"), ("4", "expected a whole number")):
        config = {"num_attention_heads": 2, "encoder_attention_heads": heads}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(rg.networks.LayoutError, match=message):
            rg.networks.read(tmp_path, "vit")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_inspect_measures_before_it_counts(kind, tmp_path, capsys):
    saved(kind, tmp_path)
    assert main(["inspect", "--checkpoint", str(tmp_path), "--verify", "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"has all \d symmetries that the layout \w+ claims", shown)
    assert "parameters (" in shown
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    assert main(["inspect", "--checkpoint", str(tmp_path), "--verify", "--quiet"]) == 2
    assert "transformers could not load" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["vit", "dinov2", "qwen3_moe"])
def test_a_module_and_its_file_may_have_other_names(kind, tmp_path):
    """By the module's names and by those of its file: the same loss, and the same gradients where they are the same."""
    torch = pytest.importorskip("torch")
    module = saved(kind, tmp_path).double().eval()
    if hasattr(module, "set_experts_implementation"):
        module.set_experts_implementation("eager")
    layout = "llama" if kind == "qwen3_moe" else "vit"
    by_file = rg.networks.read(tmp_path)
    own = rg.networks.read(module.state_dict(), layout, heads=4, key_value_heads=by_file.key_value_heads)
    assert set(own.blocks) != set(by_file.blocks)
    given = (
        {"input_ids": torch.arange(6).reshape(1, 6)}
        if kind == "qwen3_moe"
        else {"pixel_values": torch.randn(1, 3, 32, 32, dtype=torch.float64)}
    )

    def loss(call):
        return call(**given).last_hidden_state.square().sum()

    frozen, found = ["*experts*"] if kind == "qwen3_moe" else [], []
    if kind == "qwen3_moe":
        with pytest.raises(ValueError, match=r"moves, and the module has it as a part of 'layers.0.mlp.experts"):
            rg.adapters.torch_value_and_grad(module, by_file, loss)
    for network in (by_file, own):
        evaluate = rg.adapters.torch_value_and_grad(module, network, loss, frozen, dtype=np.float64)
        value, grads = evaluate(network.blocks)
        length = sum(float(np.sum(np.square(part))) for block in grads.values() for part in block)
        found.append((value, length))
        heads = next(name for name in network.blocks if name.endswith("value_out"))
        moved = network.blocks | {heads: network.blocks[heads].transform(2.0 * np.eye(8))}
        assert evaluate(moved)[0] == pytest.approx(value, rel=1e-12)
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_a_module_that_lacks_a_tensor_is_named():
    torch = pytest.importorskip("torch")
    state = {"layer.lora_A.weight": np.ones((1, 3)), "layer.lora_B.weight": np.ones((2, 1))}
    network = rg.networks.read(state, "lora")
    with pytest.raises(ValueError, match=r"the module has no parameter 'layer\.lora_[AB]\.weight'"):
        rg.adapters.torch_value_and_grad(torch.nn.Linear(3, 2), network, lambda call: call(torch.ones(3)).sum())


def test_adapters_of_experts_are_no_pair(tmp_path):
    """E experts of rank r in one lora_A and one lora_B have GL(r)ᴱ, which is less than GL(E r)."""
    state = {"experts.lora_A.weight": np.ones((4, 5)), "experts.lora_B.weight": np.ones((6, 4))}
    save_file(state, tmp_path / "adapter_model.safetensors")
    with pytest.raises(
        rg.networks.LayoutError, match=r"there is no .*adapter_config.json that says whether PEFT has packed"
    ):
        rg.networks.read(tmp_path)
    with pytest.raises(rg.networks.LayoutError, match="a state dict does not say whether"):
        rg.networks.read(state)
    config = tmp_path / "adapter_config.json"
    config.write_text(json.dumps({"peft_type": "LORA", "r": 2, "target_parameters": ["experts.weight"]}))
    for layout in (None, "lora"):
        with pytest.raises(rg.networks.LayoutError, match=r"target_parameters = \['experts.weight'\]"):
            rg.networks.read(tmp_path, layout)
    config.write_text(json.dumps({"peft_type": "ADALORA", "r": 4}))
    with pytest.raises(rg.networks.LayoutError, match="has peft_type 'ADALORA'"):
        rg.networks.read(tmp_path)
    config.write_text(json.dumps({"peft_type": "LORA", "r": 4, "use_bdlora": {"nblocks": 2}}))
    with pytest.raises(rg.networks.LayoutError, match="has use_bdlora"):
        rg.networks.read(tmp_path)
    with pytest.raises(rg.networks.LayoutError, match="does not know 1 tensors of the adapters"):
        rg.networks.read(state | {"experts.lora_diag": np.ones(4)}, "lora")
    convolution = {"c.lora_A.weight": np.ones((3, 5, 3)), "c.lora_B.weight": np.ones((3, 3, 1))}
    with pytest.raises(rg.networks.LayoutError, match=r"expected a matrix, got the shape .* convolutions are not"):
        rg.networks.read(convolution, "lora")
    config.write_text(json.dumps({"peft_type": "LORA", "r": 4, "target_parameters": None, "use_dora": True}))
    assert rg.networks.read(tmp_path).summary().redundant == 16
    assert rg.networks.read(state, "lora").summary().redundant == 16


DISTILBERT = {
    f"distilbert.transformer.layer.{i}.attention.{name}.{kind}": np.ones((6, 6) if kind == "weight" else 6)
    for i in range(2) for name in ("q_lin", "k_lin", "v_lin", "out_lin") for kind in ("weight", "bias")
}  # fmt: skip


def test_a_layout_of_ones_own_and_the_way_to_it(tmp_path):
    with pytest.raises(rg.networks.LayoutError) as told:
        rg.networks.read(DISTILBERT, heads=2)
    said = str(told.value)
    assert "distilbert.transformer.layer.N.attention.q_lin.weight" in said
    assert "own_layout(attention, query, key, value, out)" in said
    assert re.search(r"The nearest layout is (bert|vit)", said)
    layout = rg.networks.own_layout("transformer.layer.*.attention", "q_lin", "k_lin", "v_lin", "out_lin")
    rng = np.random.default_rng(0)
    state = {name: rng.standard_normal(x.shape) for name, x in DISTILBERT.items()} | {"embeddings": np.ones((3, 6))}
    network = rg.networks.read(state, layout, heads=2)
    assert network.layout == "own"
    pairs = [name for name, block in network.blocks.items() if isinstance(block, rg.Pair)]
    assert len(pairs) == 4
    assert all(np.array_equal(x, network.state_dict()[name]) for name, x in state.items())
    assert network.summary().redundant == 2 * 2 * (2 * 9 + 2 * 3)
    assert {one.name for one in network.claims} == {"GL(h)", "key bias", "value bias"}
    turned = rg.networks.own_layout("layer.*.attention", "q_lin", "k_lin", "v_lin", "out_lin", rotary=True)
    with pytest.raises(rg.networks.LayoutError, match="layout own: heads"):
        rg.networks.read(state, turned, heads=4)
    even = {name: x[:4, :4] if x.ndim == 2 else x[:4] for name, x in state.items()}
    assert isinstance(rg.networks.read(even, turned, heads=2).metric("mix").metrics[pairs[0]], rg.RotaryMetric)
    with pytest.raises(rg.networks.LayoutError, match="does not know 2 tensors"):
        rg.networks.read(state | {f"layer.{i}.attention.norm.weight": np.ones(6) for i in range(2)}
                         | {f"distilbert.transformer.layer.{i}.attention.norm.weight": np.ones(6) for i in range(2)},
                         layout, heads=2)  # fmt: skip
