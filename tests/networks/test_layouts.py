"""What a layout claims of a real architecture, measured."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import refgeo as rg

KINDS = {
    "bert": ("bert", "roberta", "electra", "mobilebert"),
    "vit": ("vit", "dinov2"),
    "gpt2": ("gpt2", "openai-gpt"),
    "clip_hf": ("clip", "siglip", "opt", "bart", "m2m_100"),
    "llama": ("qwen3", "olmo2", "qwen3_moe"),
    "llama_rotary": ("llama", "mistral", "mixtral", "qwen2", "gemma2"),
}
"""A few of those whose weights have these names."""
SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "image_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("num_attention_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "num_key_value_heads", "bos_token_id"), 2),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim"), 24),
    **dict.fromkeys(("head_dim", "patch_size", "moe_intermediate_size", "shared_expert_intermediate_size"), 8),
    "vocab_size": 50, "num_experts_per_tok": 1, "pad_token_id": 1, "eos_token_id": 3,
}  # fmt: skip
MORE = {}


def configuration(of, **more):
    """The smallest of its kind, with the parts that it has."""
    transformers = pytest.importorskip("transformers")
    base = of()
    small = {name: x for name, x in SMALL.items() if getattr(base, name, None) is not None}
    for name in getattr(of, "sub_configs", None) or {}:
        if isinstance(part := getattr(base, name, None), transformers.PretrainedConfig):
            small[name] = configuration(type(part)).to_dict()
    return of(**small | more)


def save_model(kind, folder, **more):
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


def verify(network, folder):
    """Measure the symmetries that a layout claims, on the outputs of the model that transformers makes of a folder.

    The pairs get random weights, for which scores and outputs are of the order of 1: of fresh ones nothing is seen.
    """
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    kinds = transformers.AutoConfig.from_pretrained(folder).architectures
    module = getattr(transformers, kinds[0]).from_pretrained(folder)
    if hasattr(module, "set_experts_implementation"):
        module.set_experts_implementation("eager")  # others have no double precision
    module, rng = module.double().eval(), np.random.default_rng(0)
    # read again, since tensors of files may have older names than the module's
    network = rg.networks.read(module, network.form, network.heads, network.key_value_heads)
    pairs = {name for claim in network.symmetries() for name in claim.blocks}

    def draw(name, block):
        if name in pairs and isinstance(block, rg.Pair):
            return rg.Pair(*(1.5 * rng.standard_normal(F.shape) / F.shape[-2] ** 0.5 for F in block))
        return block + 0.1 * rng.standard_normal(np.shape(block)) if name in pairs else block

    generator = torch.Generator().manual_seed(0)
    takes, config = inspect.signature(module.forward).parameters, module.config
    text, vision = getattr(config, "text_config", config), getattr(config, "vision_config", config)
    inputs = {}
    for name in {"input_ids", "decoder_input_ids"} & takes.keys():
        inputs[name] = torch.randint(0, text.vocab_size, (2, 8), generator=generator)
    if "pixel_values" in takes:
        shape = 2, vision.num_channels, vision.image_size, vision.image_size
        inputs["pixel_values"] = torch.randn(shape, generator=generator, dtype=torch.float64)

    def loss(blocks):
        state = network.state_dict(blocks, np.float64)
        tensors = {name: torch.from_numpy(state[name]) for name in network.shapes}
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)  # for models that draw what they look at
            outputs = torch.func.functional_call(module, tensors, (), inputs).to_tuple()
        squares = torch.cat([x.double().ravel() for x in outputs if isinstance(x, torch.Tensor)]) ** 2
        return float(squares @ torch.linspace(1.0, 2.0, len(squares), dtype=torch.float64))

    blocks = {name: draw(name, block) for name, block in network.blocks.items()}
    verification = rg.symmetry.verify(loss, blocks, network.symmetries())
    assert not any(finding.obstacle for finding in verification)
    return verification


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("layout", "kind"), [(layout, kind) for layout, kinds in KINDS.items() for kind in kinds])
def test_every_claim_about_an_architecture_is_true(layout, kind, tmp_path):
    save_model(kind, tmp_path)
    network = rg.networks.read(tmp_path, layout)
    result = verify(network, tmp_path)
    assert result.holds, str(result)
    assert min(item.digits for item in result) > 4  # what float32 inside of some lets be seen
    assert len(result) == len(network.symmetries()) >= len({name for name, block in network.blocks.items()
                                                     if isinstance(block, rg.Pair)})  # fmt: skip


PLANES = {
    "stablelm": ({"rotated": 0.25}, "o_proj"),
    "phi": ({"rotated": 0.5}, "dense"),
    "cohere": ({"interleaved": True}, "o_proj"),
    "helium": ({"interleaved": True}, "o_proj"),
    "ernie4_5": ({"interleaved": True}, "o_proj"),
    "glm": ({"rotated": 0.5, "interleaved": True}, "o_proj"),
}
"""Which columns are rotated, and what the output is called."""


def read_with_planes(kind, folder, planes, out):
    layout = rg.networks.own_layout("layers.*.self_attn", "q_proj", "k_proj", "v_proj", out, rotary=True, **planes)
    return rg.networks.read(folder, layout)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", PLANES)
def test_partial_and_interleaved_planes_are_layouts_of_your_own(kind, tmp_path):
    planes, out = PLANES[kind]
    more = {"partial_rotary_factor": planes["rotated"]} if "rotated" in planes else {}
    save_model(kind, tmp_path, **more)
    network = read_with_planes(kind, tmp_path, planes, out)
    claimed = {(item.name, item.blocks[0].rpartition(".")[2]) for item in network.symmetries()}
    assert ("commutant of rotations", "query_key") in claimed
    assert (("GL(h)", "query_key_rest") in claimed) == ("rotated" in planes)
    held = {(item.symmetry, item.blocks[0]): item.verdict for item in verify(network, tmp_path)}
    for item in network.symmetries():
        assert held[item.name, item.blocks[0]] == "holds", item
    target, back = network.state_dict(), network.constants
    for name, tensor in rg.networks.read(tmp_path, "llama_nope").state_dict().items() if out == "o_proj" else ():
        assert name in back or np.array_equal(target[name], tensor), name
    # other planes than these are none
    wrong = read_with_planes(kind, tmp_path, {**planes, "interleaved": not planes.get("interleaved", False)}, out)
    if planes.get("rotated", 1.0) * 8 > 2:  # of a single plane both orders are the same
        verdicts = {(item.symmetry, item.blocks[0]): item.verdict for item in verify(wrong, tmp_path)}
        assert verdicts["commutant of rotations", next(b for n, b in verdicts if n.startswith("commutant"))] != "holds"


@pytest.mark.filterwarnings("ignore")
def test_multi_head_latent_attention_has_gl_h_without_positions_and_of_values(tmp_path):
    """There is no layout for it: each head has a pair in q_b_proj and kv_b_proj, and one in kv_b_proj and o_proj."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.DeepseekV3Config(
        hidden_size=32, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
        kv_lora_rank=12, q_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=6, v_head_dim=5, vocab_size=50,
        first_k_dense_replace=1, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.DeepseekV3Model(config).double().eval()
    for parameter in model.parameters():
        parameter.data = 2.0 * parameter.data + 0.1 * torch.randn_like(parameter)
    tokens, attention = torch.randint(0, 50, (2, 7)), model.layers[0].self_attn
    with torch.no_grad():
        q, kv = attention.q_b_proj.weight.view(4, 10, 16), attention.kv_b_proj.weight.view(4, 11, 12)
        out = attention.o_proj.weight.view(32, 4, 5)

        def changed(rows, A):
            before = model(tokens).last_hidden_state.clone()
            if rows == "keys":
                kv[:, :6] = A @ kv[:, :6]
            else:
                q[:, rows] = torch.linalg.solve(A.mT, q[:, rows].clone())
            return float((model(tokens).last_hidden_state - before).abs().max())

        A, B = torch.randn(4, 6, 6).double(), torch.randn(4, 5, 5).double()
        start = model(tokens).last_hidden_state.clone()
        assert changed(slice(0, 6), A) > 1e-2
        assert changed("keys", A) > 1e-2
        assert float((model(tokens).last_hidden_state - start).abs().max()) < 1e-5  # norms round to single precision
        kv[:, 6:] = torch.linalg.solve(B.mT, kv[:, 6:].clone())
        out[:] = torch.einsum("dhv,hwv->dhw", out.clone(), B)
        assert float((model(tokens).last_hidden_state - start).abs().max()) < 1e-5
        assert changed(slice(6, 10), torch.randn(4, 4, 4).double()) > 1e-2  # rotated by positions, with a key for all


@pytest.mark.parametrize("rotated", [0.0, 0.3, 1.5])
def test_a_share_of_columns_that_is_no_even_number_is_refused(rotated):
    layout = rg.networks.own_layout("l.*", "q", "k", "v", "o", rotary=True, rotated=rotated)
    state = {f"l.0.{name}.weight": np.eye(8) for name in "qkvo"}
    with pytest.raises(rg.networks.LayoutError, match="rotated: expected a share of 4 columns"):
        rg.networks.read(state, layout, heads=2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "layout", "holds"),
    [
        ("CohereModel", "llama_rotary", False), ("HeliumModel", "llama_rotary", False),
        ("RoFormerModel", "bert", False), ("RoFormerForMaskedLM", "bert", False), ("BertForMaskedLM", "bert", True),
        ("LlamaForCausalLM", "llama_rotary", True),
    ],
)  # fmt: skip
def test_symmetries_are_measured_on_fresh_weights_with_and_without_the_head_of_a_task(model, layout, holds, tmp_path):
    """Fresh weights are so small, and norms so often in single precision, that of themselves nothing is seen."""
    model = getattr(pytest.importorskip("transformers"), model)
    model(configuration(model.config_class)).save_pretrained(tmp_path)
    assert verify(rg.networks.read(tmp_path, layout), tmp_path).holds == holds


@pytest.mark.filterwarnings("ignore")
def test_a_decoder_has_heads_of_its_own(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = configuration(
        transformers.ViTMAEConfig, decoder_hidden_size=32, decoder_num_attention_heads=8, decoder_num_hidden_layers=1,
        decoder_intermediate_size=24,
    )  # fmt: skip
    transformers.ViTMAEForPreTraining(config).save_pretrained(tmp_path)
    network = rg.networks.read(tmp_path, "vit")
    assert network.heads == {"*decoder.*": 8, "*": 4}
    assert verify(network, tmp_path).holds
    for heads, message in ((4, "num_attention_heads = 2 contradicts"), ("4", "expected a whole number")):
        config = {"num_attention_heads": 2, "encoder_attention_heads": heads}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(rg.networks.LayoutError, match=message):
            rg.networks.read(tmp_path, "vit")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "layout"), [("dinov2", "vit"), ("qwen3_moe", "llama")])
def test_a_module_and_its_file_may_have_other_names(kind, layout, tmp_path):
    """Then a network of the file is refused where one of its tensors is to move, and one of the module is not."""
    torch = pytest.importorskip("torch")
    module = save_model(kind, tmp_path).double().eval()
    if hasattr(module, "set_experts_implementation"):
        module.set_experts_implementation("eager")
    by_file = rg.networks.read(tmp_path, layout)
    own = rg.networks.read(module, layout, heads=4, key_value_heads=by_file.key_value_heads)
    assert set(own.blocks) != set(by_file.blocks)
    assert own.summary().redundant == by_file.summary().redundant
    given = (
        {"input_ids": torch.arange(6).reshape(1, 6)}
        if kind == "qwen3_moe"
        else {"pixel_values": torch.randn(1, 3, 32, 32, dtype=torch.float64)}
    )

    def loss(call):
        return call(**given).last_hidden_state.square().sum()

    with pytest.raises(ValueError, match=r"is to move, and the module has no parameter of this name"):
        rg.adapters.torch_value_and_grad(module, by_file, loss)
    evaluate = rg.adapters.torch_value_and_grad(module, own, loss, dtype=np.float64)
    value, _ = evaluate(own.blocks)
    heads = next(name for name in own.blocks if name.endswith("value_out"))
    moved = own.blocks | {heads: own.blocks[heads].transform(2.0 * np.eye(8))}
    assert evaluate(moved)[0] == pytest.approx(value, rel=1e-12)


def test_a_module_that_lacks_a_tensor_is_named():
    torch = pytest.importorskip("torch")
    state = {"layer.lora_A.weight": np.ones((1, 3)), "layer.lora_B.weight": np.ones((2, 1))}
    network = rg.networks.read(state, "lora")
    with pytest.raises(ValueError, match=r"'layer\.lora_A\.weight' is to move, and the module has no parameter of"):
        rg.adapters.torch_value_and_grad(torch.nn.Linear(3, 2), network, lambda call: call(torch.ones(3)).sum())


def test_adapters_of_experts_are_no_pair(tmp_path):
    """E experts of rank r in one lora_A and one lora_B have GL(r)ᴱ, which is less than GL(E r)."""
    state = {"experts.lora_A.weight": np.ones((4, 5)), "experts.lora_B.weight": np.ones((6, 4))}
    save_file(state, tmp_path / "adapter_model.safetensors")
    config = tmp_path / "adapter_config.json"
    config.write_text(json.dumps({"peft_type": "LORA", "r": 2, "target_parameters": ["experts.weight"]}))
    with pytest.raises(rg.networks.LayoutError, match=r"target_parameters = \['experts.weight'\]"):
        rg.networks.read(tmp_path, "lora")
    with pytest.raises(rg.networks.LayoutError, match="does not know 1 tensors of the adapters"):
        rg.networks.read(state | {"experts.lora_diag": np.ones(4)}, "lora")
    convolution = {"c.lora_A.weight": np.ones((3, 5, 3)), "c.lora_B.weight": np.ones((3, 3, 1))}
    with pytest.raises(rg.networks.LayoutError, match=r"expected a matrix, got the shape .* convolutions are not"):
        rg.networks.read(convolution, "lora")
    config.write_text(json.dumps({"peft_type": "LORA", "r": 4, "target_parameters": None, "use_dora": True}))
    assert rg.networks.read(tmp_path, "lora").summary().redundant == 16
    assert rg.networks.read(state, "lora").summary().redundant == 16


DISTILBERT = {
    f"distilbert.transformer.layer.{i}.attention.{name}.{kind}": np.ones((6, 6) if kind == "weight" else 6)
    for i in range(2) for name in ("q_lin", "k_lin", "v_lin", "out_lin") for kind in ("weight", "bias")
}  # fmt: skip


def test_a_layout_of_ones_own():
    with pytest.raises(TypeError, match="layout"):
        rg.networks.read(DISTILBERT, heads=2)
    layout = rg.networks.own_layout("transformer.layer.*.attention", "q_lin", "k_lin", "v_lin", "out_lin")
    rng = np.random.default_rng(0)
    state = {name: rng.standard_normal(x.shape) for name, x in DISTILBERT.items()} | {"embeddings": np.ones((3, 6))}
    network = rg.networks.read(state, layout, heads=2)
    assert network.layout == "own"
    pairs = [name for name, block in network.blocks.items() if isinstance(block, rg.Pair)]
    assert len(pairs) == 4
    assert all(np.array_equal(x, network.state_dict()[name]) for name, x in state.items())
    assert network.summary().redundant == 2 * 2 * (2 * 9 + 2 * 3)
    assert {symmetry.name for symmetry in network.symmetries()} == {"GL(h)", "key bias", "value bias"}
    turned = rg.networks.own_layout("layer.*.attention", "q_lin", "k_lin", "v_lin", "out_lin", rotary=True)
    with pytest.raises(rg.networks.LayoutError, match="layout own: heads"):
        rg.networks.read(state, turned, heads=4)
    even = {name: x[:4, :4] if x.ndim == 2 else x[:4] for name, x in state.items()}
    assert isinstance(rg.networks.read(even, turned, heads=2).metric("mix").metrics[pairs[0]], rg.RotaryMetric)
    with pytest.raises(rg.networks.LayoutError, match="does not know 2 tensors"):
        rg.networks.read(state | {f"layer.{i}.attention.norm.weight": np.ones(6) for i in range(2)}
                         | {f"distilbert.transformer.layer.{i}.attention.norm.weight": np.ones(6) for i in range(2)},
                         layout, heads=2)  # fmt: skip


@pytest.mark.parametrize("positions", [{"rotated": 0.5}, {"interleaved": True}])
def test_how_positions_rotate_is_said_of_positions_that_rotate(positions):
    with pytest.raises(ValueError, match="rotary: expected True together with rotated or interleaved"):
        rg.networks.own_layout("l.*", "q", "k", "v", "o", **positions)
