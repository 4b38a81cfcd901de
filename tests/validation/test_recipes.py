"""The recipes of the documentation: their derivatives and orbits."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers import blocks, grow_weights, linear_loss

import refgeo as rg

PAGE = Path(__file__).parents[2] / "validation" / "docs" / "sharpness.md"
BLOCKS = [block.text for block in blocks(PAGE) if block.language == "python" and not block.title]


def recipe(beginning):
    """What the first block with this text defines."""
    result = next(block for block in BLOCKS if beginning in block)
    names: dict = {}
    exec(compile(result, "sharpness.md", "exec"), names)
    return names


def test_torch_recipe(capsys):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.manual_seed(0)
    example = next(block for block in BLOCKS if "torch.nn.TransformerEncoderLayer" in block)
    exec(compile(example, "sharpness.md", "exec"), {})
    assert "evaluations, converged" in capsys.readouterr().out
    # in float64: derivatives, and the invariance of an orbit
    module = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, dtype=torch.float64)
    network = rg.networks.read({k: v.numpy() for k, v in module.state_dict().items()}, "clip", heads=4)
    x, y = torch.randn(8, 5, 16, dtype=torch.float64), torch.randn(8, 5, 16, dtype=torch.float64)
    loss = rg.adapters.torch_value_and_grad(
        module, network, lambda call: (call(x) - y).square().mean(), dtype=np.float64
    )
    space = network.metric("inv", arrays=rg.EuclideanMetric()).at(network.blocks)
    value, grads = loss(network.blocks)
    assert value == pytest.approx((module(x) - y).square().mean().item(), rel=1e-12)
    v = space.random_tangent_vector(0)
    slope = (loss(space.geodesic(v, 1e-5, 1))[0] - loss(space.geodesic(v, -1e-5, 1))[0]) / 2e-5
    gradient = space.riemannian_gradient({n: rg.Pair(*g) if isinstance(g, tuple) else g for n, g in grads.items()})
    assert float(space.inner_product(gradient, v)) == pytest.approx(slope, rel=1e-7)
    rng = np.random.default_rng(0)
    moved = {
        name: block.transform(rng.standard_normal((4, 4, 4))) if isinstance(block, rg.Pair) else block
        for name, block in network.blocks.items()
    }
    here, target = (rg.worst_case_sharpness(loss, p, network.metric("mix"), 0.1).value for p in (network.blocks, moved))
    assert target == pytest.approx(here, rel=1e-9)


PRINTING = [block for block in BLOCKS if "print(rg.worst_case_sharpness(" in block]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PEFT, which names of transformers go
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("block", range(len(PRINTING)))
def test_every_example_that_prints_a_sharpness_converges(block, seed, capsys):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    for library in ("transformers", "peft", "jax"):
        if f"import {library}" in PRINTING[block]:
            pytest.importorskip(library, reason=f"{library} is not installed")
    torch.manual_seed(seed)
    exec(compile(PRINTING[block], "sharpness.md", "exec"), {})
    shown = capsys.readouterr().out
    assert re.search(r"evaluations, converged", shown) or re.search(r"\byes$", shown, flags=re.M)
    assert "not converged" not in shown
    assert not re.search(r"\bno$|too large", shown, flags=re.M)


@pytest.mark.slow
def test_recipe_of_a_layout_of_ones_own(capsys):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    (example,) = [block for block in BLOCKS if "own_layout(" in block]
    exec(compile(example, "sharpness.md", "exec"), {})
    shown = capsys.readouterr().out
    assert shown.count(" holds") == 8
    assert "does not hold" not in shown


def test_jax_recipe():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        rng = np.random.default_rng(0)
        x, y = rng.standard_normal((7, 5)), rng.standard_normal((7, 4))
        params = {"layers": rg.Pair(rng.standard_normal((4, 2)), rng.standard_normal((5, 2)))}

        def loss(p):
            G, H = p["layers"]
            return 0.5 * jax.numpy.mean(jax.numpy.sum(((x @ H) @ G.T - y) ** 2, axis=-1))

        ours = recipe("def jax_value_and_grad")["jax_value_and_grad"](loss)
        results = [
            rg.worst_case_sharpness(f, params, rg.ProductMetric({"layers": rg.InvariantMetric()}), 0.1).value
            for f in (ours, linear_loss(x, y))
        ]
    assert results[0] == pytest.approx(results[1], rel=1e-10)


def test_gradients_come_back_as_blocks():
    rng = np.random.default_rng(0)
    names = [f"h.0.attn.{n}" for n in ("c_attn.weight", "c_attn.bias", "c_proj.weight", "c_proj.bias")]
    shapes = [(6, 18), (18,), (6, 6), (6,)]
    state = {name: rng.standard_normal(shape) for name, shape in zip(names, shapes, strict=True)}
    network = rg.networks.read(state, "gpt2", heads=2)
    blocks = network.blocks_of(state)
    for name, block in network.blocks.items():
        assert all(np.array_equal(a, b) for a, b in zip(blocks[name], block, strict=True))
    # the pairing of gradients and parameters is the same in both forms
    grads = {name: rng.standard_normal(tensor.shape) for name, tensor in state.items()}
    flat = sum(np.sum(grads[n] * state[n]) for n in state)
    paired = sum(
        sum(np.sum(g * p) for g, p in zip(network.blocks_of(grads)[n], b, strict=True))
        for n, b in network.blocks.items()
    )
    assert paired == pytest.approx(flat)
    assert "h.0.attn.c_proj.bias" not in network.blocks_of(
        {n: g for n, g in grads.items() if n != "h.0.attn.c_proj.bias"}
    )
    with pytest.raises(KeyError, match=r"missing: h\.0\.attn\.c_attn\.bias"):
        network.blocks_of({n: g for n, g in grads.items() if n != "h.0.attn.c_attn.bias"})
    assert network.state_dict(dtype=np.float32)["h.0.attn.c_proj.weight"].dtype == np.float32


@pytest.mark.slow
def test_torch_recipe_serves_hugging_face_models_in_threads():
    """Keyword arguments, an output that is an object, dropout; searches in threads find what they find one by one."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=30,
        max_position_embeddings=16,
    )  # fmt: skip
    module = grow_weights(transformers.BertForSequenceClassification(config).train())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    network = rg.networks.read({name: tensor.numpy() for name, tensor in before.items()}, "bert", heads=2)
    tokens, labels = torch.randint(0, 30, (4, 6)), torch.tensor([0, 1, 0, 1])
    metric = network.metric("inv", frozen=["*LayerNorm*", "*embeddings*", "*classifier*", "*pooler*"])
    make, frozen = rg.adapters.torch_value_and_grad, [name for name in network.blocks if name not in metric.metrics]
    loss = make(module, network, lambda call: call(input_ids=tokens, labels=labels).loss, frozen)
    whole, grads = make(module, network, lambda call: call(input_ids=tokens, labels=labels).loss)(network.blocks)
    part, moving = loss(network.blocks)
    assert part == pytest.approx(whole, rel=1e-6)
    assert moving.keys() == metric.metrics.keys() < grads.keys()

    def search(seed):
        return rg.worst_case_sharpness(loss, network.blocks, metric, 0.1, n_iter=6, n_restarts=2, rng=seed).value

    alone = [search(seed) for seed in range(3)]
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(search, range(3))) == pytest.approx(alone, rel=1e-6)
    assert min(alone) > 0.0
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])
