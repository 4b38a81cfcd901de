"""What `Network.summary` and ``refgeo inspect`` say, beside dense matrices; layouts and files that are found."""

import json

import numpy as np
import pytest
import scipy.linalg
from safetensors.numpy import save_file

import refgeo as rg
from refgeo.cli import LAYOUTS, main
from refgeo.networks.summary import PairSummary, summarise


def bert(layers=2, width=12):
    rng = np.random.default_rng(0)
    state = {}
    for layer in range(layers):
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            prefix = f"encoder.layer.{layer}.attention.{name}"
            state[f"{prefix}.weight"] = rng.standard_normal((width, width)).astype(np.float32)
            state[f"{prefix}.bias"] = rng.standard_normal(width).astype(np.float32)
    return state | {"pooler.dense.weight": rng.standard_normal((3, 5)).astype(np.float32)}


def llama(norm=False):
    rng = np.random.default_rng(0)
    sizes = {"q_proj": (16, 16), "k_proj": (8, 16), "v_proj": (8, 16), "o_proj": (16, 16)}
    state = {f"model.layers.0.self_attn.{name}.weight": rng.standard_normal(size) for name, size in sizes.items()}
    return state | ({"model.layers.0.self_attn.q_norm.weight": np.ones(4)} if norm else {})


def test_numbers_are_those_of_dense_matrices():
    network = rg.networks.read(bert(), "bert", heads=3)
    for item in network.summary().pairs:
        pair = network.blocks[item.name]
        assert (item.heads, item.n, item.m, item.h) == (*pair.block_shape, *pair.sizes)
        for head in range(item.heads):
            G, H = pair.G[head], pair.H[head]
            dense = np.linalg.svd(G @ H.T, compute_uv=False)[: item.h]
            assert item.singular_values[head] == pytest.approx(dense, rel=1e-12)
            assert item.condition_G[head] == pytest.approx(np.linalg.cond(G), rel=1e-12)
            assert item.condition_H[head] == pytest.approx(np.linalg.cond(H), rel=1e-12)
            size = np.linalg.norm(G @ H.T) / np.linalg.norm(G @ H.T, 2)
            assert item.stable_rank[head] == pytest.approx(size**2, rel=1e-12)
            # A² is the geometric mean of T⁻¹ and S
            S, T = G.T @ G, H.T @ H
            root = np.real(scipy.linalg.sqrtm(T))
            mean = np.linalg.solve(root, np.linalg.solve(root, np.real(scipy.linalg.sqrtm(root @ S @ root))).T)
            assert item.imbalance[head] == pytest.approx(np.linalg.norm(np.real(scipy.linalg.logm(mean))) / 2, rel=1e-7)
            assert item.least_eigenvalue[head] == pytest.approx(min(np.linalg.eigvalsh(S)[0], np.linalg.eigvalsh(T)[0]))


def test_imbalance_is_0_at_the_balanced_representative_and_grows_away_from_it():
    pair = rg.networks.read(bert(), "bert", heads=3).blocks["encoder.layer.0.attention.query_key"]
    balanced, _ = pair.balanced()
    assert np.abs(PairSummary.of("x", balanced, 1).imbalance).max() < 1e-12
    moved = balanced.transform(2.0 * np.eye(4))
    assert PairSummary.of("x", moved, 1).imbalance == pytest.approx(np.log(2.0) * 2.0)  # ‖log 2·I‖, h = 4


def test_redundant_parameters_are_the_dimension_of_the_orbit():
    """By the rank of the velocities of the symmetries that the network has."""
    for state, layout, heads in ((bert(1), "bert", 3), (llama(), "llama_rotary", 4)):
        network = rg.networks.read(state, layout, heads=heads, key_value_heads=2 if layout != "bert" else None)
        rng, velocities = np.random.default_rng(0), []
        for group in network.symmetries():
            for _ in range(3 * 4 * 4 * 4):
                velocities.append(flat(network, group.velocity(network.blocks, group.generator(network.blocks, rng))))
        values = np.linalg.svd(np.array(velocities), compute_uv=False)
        assert network.summary().redundant == np.count_nonzero(values > 1e-7 * values[0]), layout


@pytest.mark.parametrize(("n", "m", "h"), [(4, 3, 8), (3, 9, 4), (5, 4, 4), (2, 2, 6)])
def test_a_rank_above_the_width_does_not_count_twice(n, m, h):
    rng = np.random.default_rng(0)
    state = {"x.lora_A.weight": rng.standard_normal((h, m)), "x.lora_B.weight": rng.standard_normal((n, h))}
    summary = rg.networks.read(state, "lora").summary()
    G, H = state["x.lora_B.weight"], state["x.lora_A.weight"].T
    moved = [np.r_[np.ravel(-G @ K), np.ravel(H @ K.T)] for K in np.eye(h * h).reshape(-1, h, h)]
    assert summary.redundant == np.linalg.matrix_rank(moved)


def flat(network, moved):
    blocks = {**{name: 0.0 * block for name, block in network.blocks.items()}, **moved}
    return np.concatenate(
        [np.ravel(part) for block in blocks.values() for part in (block if isinstance(block, rg.Pair) else [block])]
    )


def test_a_head_without_rank_is_said_and_nothing_divides_by_it():
    state = bert()
    state["encoder.layer.1.attention.self.value.weight"][:4] = 0.0
    state["encoder.layer.1.attention.self.value.bias"][:4] = 0.0
    summary = rg.networks.read(state, "bert", heads=3).summary()
    (result,) = (pair for pair in summary.pairs if pair.name == "encoder.layer.1.attention.value_out")
    assert np.isinf(result.condition_G).tolist() == [True, False, False]
    assert np.isinf(result.imbalance).tolist() == [True, False, False]
    assert "In 1 of 12 heads, a factor does not have full column rank" in str(summary)


@pytest.mark.parametrize("size", [1.0, 1e-200, 1e150])
def test_rank_is_that_of_the_geometry_at_any_scale(size):
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((4, 9)), rng.standard_normal((8, 4))
    full = rg.networks.read({"lora_A.weight": size * A, "lora_B.weight": size * B}, "lora").summary().pairs[0]
    plain = rg.networks.read({"lora_A.weight": A, "lora_B.weight": B}, "lora").summary().pairs[0]
    for name in ("condition_G", "condition_H", "imbalance", "stable_rank"):
        expected = getattr(plain, name)
        if name != "stable_rank" or 1e-100 < size < 1e100:  # its singular values leave the range of doubles
            assert getattr(full, name) == pytest.approx(expected, rel=1e-9), name
    for lacking in (np.zeros(8), B[:, 2]):
        B[:, 3] = lacking
        network = rg.networks.read({"lora_A.weight": size * A, "lora_B.weight": size * B}, "lora")
        with pytest.raises(rg.RankDeficientError):
            network.metric("inv").at(network.blocks)
        (result,) = network.summary().pairs
        assert np.isinf(result.condition_G).all()
        assert np.isinf(result.imbalance).all()
        assert np.isfinite(result.condition_H).all()
        assert result.to_dict()["imbalance"] == [None]
        assert "In 1 of 1 heads, a factor does not have full column rank" in str(network.summary())


def test_no_pairs_are_an_error():
    with pytest.raises(ValueError, match="at least one pair"):
        summarise("bert", 3, {}, set(), set())


@pytest.mark.parametrize("text", ["{}", "[]", '{"weight_map": []}', '{"weight_map": null}', "no JSON"])
def test_an_index_that_is_none_is_named(text, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(rg.networks.LayoutError, match=r"index.json: expected JSON with a weight_map"):
        rg.networks.read(tmp_path, "bert", heads=2)


def test_what_is_no_safetensors_file_is_named(tmp_path, capsys):
    for name in ("model.pt", "empty.safetensors"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(rg.networks.LayoutError, match="expected a safetensors file"):
            rg.networks.read(tmp_path / name, "bert")
        assert main(["inspect", "--layout", "bert", "--checkpoint", str(tmp_path / name)]) == 2
        assert "expected a safetensors file" in capsys.readouterr().err
    with pytest.raises(TypeError, match="a mapping of names to arrays or a module"):
        rg.check(rg.paper, checkpoint=type("Module", (), {"state_dict": None})(), layout="bert")


def test_the_help_lists_all_layouts():
    assert LAYOUTS.split(", ") == list(rg.networks.LAYOUTS)


@pytest.fixture
def folder(tmp_path):
    """A checkpoint in two shards, as Hugging Face saves large ones."""
    state = bert()
    names = sorted(state)
    parts = {"model-00001-of-00002.safetensors": names[:7], "model-00002-of-00002.safetensors": names[7:]}
    for file, members in parts.items():
        save_file({name: state[name] for name in members}, tmp_path / file)
    index = {"weight_map": {name: file for file, members in parts.items() for name in members}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 3, "model_type": "bert"}))
    return tmp_path


def test_a_folder_of_shards_is_one_checkpoint(folder):
    result, expected = rg.networks.read(folder, "bert"), rg.networks.read(bert(), "bert", heads=3)
    assert result.layout == "bert"
    assert set(result.blocks) == set(expected.blocks)
    for name, array in expected.state_dict().items():
        assert np.array_equal(result.state_dict()[name], array)


def test_heads_that_the_configuration_contradicts_are_warned_of(folder):
    with pytest.warns(UserWarning, match=r"heads: .*config.json says 3, got 6, which is used"):
        assert rg.networks.read(folder, "bert", heads=6).heads == 6


def test_inspect_shows_writes_and_draws(folder, capsys):
    out, picture = folder / "out.json", folder / "heads.png"
    assert (
        main(["inspect", "--layout", "bert", "--checkpoint", str(folder), "--json", str(out), "--plot", str(picture)])
        == 0
    )
    shown = capsys.readouterr()
    assert all(line == line.rstrip() for line in shown.out.splitlines())
    assert max(len(line) for line in shown.out.splitlines() if "x13x" in line) <= 80
    assert picture.stat().st_size > 5000
    document = json.loads(out.read_text())
    assert document["redundant"] == 12 * 16 + 4 * 12
    assert len(document["pairs"]) == 4
    assert len(document["pairs"][0]["singular_values"]) == 3
    assert main(["inspect", "--layout", "bert", "--checkpoint", str(folder), "--each-head"]) == 0
    assert "0.query_key[2]" in capsys.readouterr().out


@pytest.mark.slow
def test_check_takes_a_folder_and_finds_the_layout(folder, capsys):
    assert (
        main(["check", "--layout", "bert", "--checkpoint", str(folder), "--checks", "riemannian_gradient", "--quiet"])
        == 0
    )
    shown = capsys.readouterr()
    assert "bert checkpoint" in shown.out
    report = rg.check(checkpoint=folder, layout="bert", checks=["inner_product"], metrics=["inv"])
    assert report.passed
    assert "--layout bert --checkpoint" in report.reproduce(report.rows[0])
