"""``refgeo sharpness`` and ``refgeo verify``: a checkpoint, a file with its loss, and numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from helpers import grown
from safetensors.numpy import save_file

import refgeo as rg
from refgeo.cli import main
from refgeo.networks import checkpoint

LOSS = """
import numpy as np
import refgeo as rg


def model(path, network):
    def value_and_grad(blocks, batch):
        value, grads = 0.0, {}
        for name, block in blocks.items():
            if isinstance(block, rg.Pair):
                product = batch * block.product
                slope = batch * np.cos(product)
                value += float(np.sum(np.sin(product)))
                grads[name] = rg.Pair(slope @ block.H, slope.mT @ block.G)
                EXTRA
            else:
                value += 0.5 * batch * float(np.sum(np.square(block)))
                grads[name] = batch * block
        return value, grads

    return {"value_and_grad": value_and_grad, "batches": [1.0, 0.5], "frozen": ["*embeddings*"], "gap": 0.25}
"""
BROKEN = "value += 0.5 * float(np.sum(block.G**2)); grads[name] = rg.Pair(grads[name].G + block.G, grads[name].H)"


@pytest.fixture
def files(tmp_path):
    """A small BERT in a folder, and its loss."""
    rng = np.random.default_rng(0)
    prefix = "encoder.layer.0.attention."
    state = {prefix + f"self.{name}.weight": rng.standard_normal((6, 6)) for name in ("query", "key", "value")}
    state |= {prefix + f"self.{name}.bias": rng.standard_normal(6) for name in ("query", "key", "value")}
    state |= {prefix + "output.dense.weight": rng.standard_normal((6, 6)), "embeddings.word": rng.standard_normal(9)}
    state["pooler.bias"] = rng.standard_normal(3)
    (tmp_path / "model").mkdir()
    save_file(state, tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "config.json").write_text(json.dumps({"num_attention_heads": 2}))
    (tmp_path / "loss.py").write_text(LOSS.replace("EXTRA", "pass"))
    (tmp_path / "broken.py").write_text(LOSS.replace("EXTRA", BROKEN))
    return tmp_path


def given(files, loss="loss.py"):
    return ["--checkpoint", str(files / "model"), "--layout", "bert", "--loss", str(files / loss)]


def test_a_folder_and_a_loss_file_give_a_table_json_and_a_plot(files, capsys):
    out, picture = files / "out.json", files / "out.png"
    arguments = ["--rho", "0.1", "0.01", "--metric", "inv", "s=0.5", "adaptive", "--n-iter", "6"]
    assert main(["sharpness", *given(files), *arguments, "--json", str(out), "--plot", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert picture.stat().st_size > 5000
    document = json.loads(out.read_text())
    assert document["batches"] == 2
    assert document["frozen"] == ["*embeddings*"]
    rows = {(row["name"], row["rho"]): row for row in document["sharpness"]}
    assert list(rows) == [(name, rho) for name in ("inv", "s=0.5", "adaptive") for rho in (0.01, 0.1)]
    # the same from Python, by the library's own functions
    network = rg.networks.read(files / "model" / "model.safetensors", "bert")
    names: dict = {}
    exec((files / "loss.py").read_text(), names)
    told = names["model"](None, network)
    for metric in ("inv", "s=0.5"):
        result = rg.worst_case_sharpness(
            told["value_and_grad"], network.blocks, network.metric(metric, frozen=told["frozen"]), [0.01, 0.1],
            n_iter=6, batches=told["batches"],
        )  # fmt: skip
        for one in result.results:
            assert rows[metric, one.rho]["value"] == pytest.approx(one.value, rel=1e-12)
            assert f"{one.value:.6g}" in shown
    moved = [name for name in network.blocks if name != "embeddings.word"]
    adaptive = rg.adaptive_sharpness(
        told["value_and_grad"], network.blocks, 0.1, names=moved, n_iter=6, batches=told["batches"]
    )
    assert rows["adaptive", 0.1]["value"] >= adaptive.value * (1 - 1e-12)


def test_what_an_interrupted_run_has_measured_is_written(files, monkeypatch):
    out = files / "out.json"
    measure = checkpoint.measure

    def interrupted(*arguments, **settings):
        yield next(measure(*arguments, **settings))
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "measure", interrupted)
    assert main(["sharpness", *given(files), "--n-iter", "3", "--json", str(out)]) == 130
    assert [row["name"] for row in json.loads(out.read_text())["sharpness"]] == ["inv"]


def test_verify_says_what_is_there(files, capsys):
    out = files / "out.json"
    # this loss has no softmax, so that the key's bias matters: said, and nothing that the metric divides out
    assert main(["verify", *given(files), "--json", str(out)]) == 0
    told = {(row["blocks"][0].split(".")[-1], row["symmetry"]): row["verdict"] for row in json.loads(out.read_text())}
    assert told == {
        ("query_key", "GL(h)"): "holds",
        ("query_key", "key bias"): "does not hold",
        ("value_out", "GL(h)"): "holds",
    }
    shown = capsys.readouterr().out
    assert "does not hold" in shown
    assert "[green]" not in shown
    assert "Of the symmetries in this table, inv and mix divide out 2, and the loss has them all. They do not" in shown
    assert main(["verify", *given(files, "broken.py")]) == 1
    capsys.readouterr()
    assert main(["sharpness", *given(files, "broken.py")]) == 2
    assert "divides out the symmetry GL(h)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--loss", "nothing.py"], "--loss: expected a Python file"),
        (["--metric", "invariant"], "--metric: expected"),
        (["--rho", "-1"], "rho"),
        (["--layout", "berd"], "layout: expected one of"),
        (["--json", "no/such/folder.json"], "--json: expected the name of a file in an existing folder"),
        (["--checkpoint", "."], "expected one .safetensors file in the folder"),
        (["--seed", "-1"], "--seed: expected a whole number >= 0"),
        (["--plot", "x.foo"], "--plot: expected a file that ends with one of"),
    ],
)
def test_bad_arguments_are_named(files, monkeypatch, capsys, change, message):
    monkeypatch.chdir(files)
    assert main(["sharpness", *given(files), *change]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "expected a function model"),
        ("def model(path, network): return 3", "to return a dict, got int"),
        ("def model(path, network): return {'batches': [1]}", "a dict with the entry value_and_grad"),
        ("def model(path, network): return {'value_and_grad': print, 'batches': []}", "at least one batch"),
        ("def model(path, network): return {'value_and_grad': print, 'batches': 3}", "batches to be a list"),
        (
            "def model(path, network): return {'value_and_grad': print, 'batches': [1], 'frozen': ['a']}",
            "frozen: 'a' fits",
        ),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("def model(path, network): raise ValueError('boom')", "ValueError: boom"),
        (
            "def model(path, network):\n    def f(b, x): raise KeyError('x')\n"
            "    return {'value_and_grad': f, 'batches': [1]}",
            "KeyError: 'x'",
        ),
        (
            "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n"
            "def model(path, network): return A(3)",
            "to return a dict, got A",
        ),
    ],
)
def test_a_loss_file_that_does_not_do_is_told_why(files, capsys, text, message):
    (files / "loss.py").write_text(text)
    assert main(["sharpness", *given(files)]) == 2
    assert message in capsys.readouterr().err


def test_a_loss_file_may_import_its_neighbours_when_it_runs(files, capsys):
    (files / "beside_the_loss.py").write_text("factor = 2.0")
    text = LOSS.replace("EXTRA", "from beside_the_loss import factor; value += factor")
    (files / "loss.py").write_text("import sys\nsys.path.insert(0, 'its own')\n" + text)
    assert main(["verify", *given(files), "--quiet"]) == 0
    assert "holds" in capsys.readouterr().out


def test_a_loss_without_batches_and_what_a_result_advises(files, capsys):
    alone = LOSS.replace("EXTRA", "pass").replace("blocks, batch)", "blocks)").replace('"batches": [1.0, 0.5], ', "")
    (files / "alone.py").write_text(alone.replace("batch * ", ""))
    out = files / "out.json"
    arguments = ["--metric", "mix", "--rho", "0.1", "100", "--n-iter", "4", "--json", str(out)]
    assert main(["sharpness", *given(files, "alone.py"), *arguments]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    near, far = json.loads(out.read_text())["sharpness"]
    assert (near["batches"], far["bend"] > 0.5) == (1, True)
    assert "Use a smaller rho" in far["advice"]
    assert "ρ is too large" in shown
    assert main(["verify", *given(files, "alone.py")]) == 0


LLAMA = """
import torch
import transformers

from refgeo.networks.adapters import torch_value_and_grad


def model(path, network):
    module = transformers.AutoModelForCausalLM.from_pretrained(path.parent, attn_implementation="eager").eval().double()
    frozen = ["*embed_tokens*", "lm_head*"]
    ids = torch.arange(12).reshape(2, 6)
    evaluate = torch_value_and_grad(
        module, network, lambda call: call(input_ids=ids, labels=ids).loss, frozen=frozen, dtype="float64"
    )
    return {"value_and_grad": evaluate, "frozen": frozen}
"""


def test_a_small_llama_in_the_layout_that_the_site_recommends(tmp_path, capsys):
    """Rotary positions leave a part of GL(h): the command line divides out what `Network.metric` divides out."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=13, hidden_size=16, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=24, max_position_embeddings=16,
    )  # fmt: skip
    grown(transformers.LlamaForCausalLM(config)).save_pretrained(tmp_path / "model")
    (tmp_path / "loss.py").write_text(LLAMA)
    out = tmp_path / "out.json"
    options = ["--checkpoint", str(tmp_path / "model"), "--layout", "llama_rotary", "--loss", str(tmp_path / "loss.py")]
    assert main(["verify", *options]) == 0
    assert "holds" in capsys.readouterr().out
    more = ["--metric", "inv,mix", "--rho", "0.01", "--json", str(out), "--quiet", "--n-restarts", "1"]
    assert main(["sharpness", *options, *more]) == 0
    loaded = checkpoint.load(tmp_path / "model", "llama_rotary", tmp_path / "loss.py")
    for row in json.loads(out.read_text())["sharpness"]:
        metric = loaded.network.metric(row["name"], frozen=loaded.frozen)
        assert any(isinstance(one, rg.RotaryMetric) for one in metric.metrics.values())
        found = rg.worst_case_sharpness(
            loaded.value_and_grad, loaded.network.blocks, metric, 0.01, batches=[None], n_restarts=1
        )
        assert row["value"] == pytest.approx(found.value, rel=1e-9)


def test_progress_is_lines_where_there_is_no_terminal_and_each_search_is_printed_when_it_ends(
    files, monkeypatch, capsys
):
    from refgeo.support import progress

    monkeypatch.setattr(progress, "FIRST_LINE", 1e-4)
    monkeypatch.setattr(progress, "LINE_EVERY", 1e-4)
    arguments = [*given(files), "--metric", "inv,mix", "--rho", "0.01,0.1", "--n-iter", "3", "--n-restarts", "1"]
    measure, seen = checkpoint.measure, []

    def watched(*given_arguments, **settings):
        for one in measure(*given_arguments, **settings):
            seen.append(capsys.readouterr())
            yield one

    monkeypatch.setattr(checkpoint, "measure", watched)
    assert main(["sharpness", *arguments]) == 0
    assert [len(shown.out.splitlines()) for shown in seen] == [0, 3], "the header and the rows of the first search"
    assert seen[1].out.splitlines()[1].startswith("inv ")
    assert re.search(r"^searching inv: checks of the loss: \d+ of \?, 0 s$", seen[0].err, re.M)
    assert re.search(r"^searching inv: \d+ of 16, 0 s, about \d+ s left$", seen[0].err, re.M)
    assert main(["sharpness", *arguments, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("evaluation", "rows"),
    [(3, []), (30, ["interrupted"]), (60, ["yes", "interrupted"])],
    ids=["in the checks of the loss", "in the first radius", "in the second radius"],
)
def test_an_interruption_gives_what_has_been_found(evaluation, rows, files, monkeypatch, capsys):
    """The first Ctrl-C ends the search that runs: what is there is printed and written, and what was cut is named."""
    import signal

    calls, out, before = [], files / f"out{evaluation}.json", signal.getsignal(signal.SIGINT)
    evaluate = checkpoint.Checkpoint.__init__

    def counted(self, path, network, value_and_grad, batches, *others):
        def interrupted(blocks, batch):
            calls.append(1)
            if len(calls) == evaluation:
                signal.raise_signal(signal.SIGINT)
            return value_and_grad(blocks, batch)

        evaluate(self, path, network, interrupted, batches[:1], *others)

    monkeypatch.setattr(checkpoint.Checkpoint, "__init__", counted)
    radii = ["--rho", "0.01,0.1", "--metric", "inv,mix", "--n-iter", "40", "--n-restarts", "1"]
    assert main(["sharpness", *given(files), *radii, "--json", str(out), "--quiet"]) == 130
    shown = capsys.readouterr()
    assert "interrupted" in shown.err
    assert (f"saved in {out}" in shown.err) == bool(rows)
    assert len(calls) <= evaluation + 2
    assert [line.split()[-1] for line in shown.out.splitlines()[1:] if line.startswith("inv")] == rows
    written = json.loads(out.read_text())["sharpness"] if rows else []
    assert [row["name"] for row in written] == ["inv"] * len(rows)
    assert [row.get("interrupted", False) for row in written] == [row == "interrupted" for row in rows]
    assert all(f"{row['value']:.6g}" in shown.out for row in written)
    assert signal.getsignal(signal.SIGINT) is before


def spoilt(files, text):
    (files / "spoilt.py").write_text(text)
    return ["sharpness", *given(files, "spoilt.py"), "--metric", "inv", "--rho", "0.1", "--n-restarts", "1", "--quiet"]


def in_the_loss(line):
    """A line before the loss computes anything."""
    return lambda text: text.replace("        value, grads = 0.0", f"        {line}\n        value, grads = 0.0")


LEAVING = {
    "sys.exit when imported": lambda text: "import sys; sys.exit(0)\n" + text,
    "sys.exit in model": lambda text: text.replace(
        "    def value_and", "    import sys; sys.exit()\n    def value_and"
    ),
    "sys.exit in the loss": in_the_loss("raise SystemExit(0)"),
    "an iterator that ends": in_the_loss("next(iter([]))"),
    "a generator": lambda text: text.replace("        return value, grads", "        yield value, grads"),
    "arguments that are needed": lambda text: (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('data')\nparser.parse_args()\n" + text
    ),
}


@pytest.mark.parametrize("name", LEAVING)
@pytest.mark.parametrize("command", ["sharpness", "verify"])
def test_a_loss_file_that_leaves_is_an_error_about_the_file(name, command, files, capsys):
    arguments = spoilt(files, LEAVING[name](LOSS.replace("EXTRA", "pass")))
    arguments = arguments if command == "sharpness" else ["verify", *given(files, "spoilt.py"), "--quiet"]
    assert main(arguments) == 2
    assert "spoilt.py" in capsys.readouterr().err.strip().splitlines()[-1]


READING = {
    "options of its own": "import argparse\nparser = argparse.ArgumentParser()\n"
    "parser.add_argument('--metric', default='mse')\nassert parser.parse_args().metric == 'mse'\n",
    "the command line": "import sys\nassert len(sys.argv) == 1 and sys.argv[0].endswith('spoilt.py')\n",
    "another folder": "import os, tempfile\nos.chdir(tempfile.gettempdir())\n",
}


@pytest.mark.parametrize("name", READING)
def test_a_loss_file_reads_a_command_line_of_its_own(name, files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    plain = LOSS.replace("EXTRA", "pass")
    shown = []
    for text in (plain, READING[name] + plain):
        assert main([*spoilt(files, text), "--json", "out.json"]) == 0
        shown.append(capsys.readouterr().out)
        monkeypatch.chdir(files)
    assert shown[0] == shown[1]
    assert (files / "out.json").is_file()


def test_json_of_a_search_without_a_value_is_strict(files):
    def refuse(word):
        raise AssertionError(word)

    first = "first = []\n" + LOSS.replace("EXTRA", "pass").replace(
        "        return value, grads",
        "        first.append(value)\n        return (value if value == first[0] else float('nan')), grads",
    ).replace('"batches": [1.0, 0.5]', '"batches": [1.0]')  # fmt: skip
    assert main([*spoilt(files, first), "--json", str(files / "out.json")]) in (0, 2)
    if (files / "out.json").exists():
        (row,) = json.loads((files / "out.json").read_text(), parse_constant=refuse)["sharpness"]
        assert row["residual"] is None


def test_an_option_is_called_as_it_was_typed(files, capsys):
    assert main(["sharpness", *given(files), "--metric", "euclid"]) == 2
    assert capsys.readouterr().err.startswith("refgeo: --metric: expected")
    assert main(["check", "--metric", "euclid"]) == 2
    assert capsys.readouterr().err.startswith("refgeo: --metric: expected")


@pytest.mark.parametrize("target", ["loss.py", "model/model.safetensors"])
def test_what_is_read_is_not_written(target, files, capsys):
    before = (files / target).read_bytes()
    arguments = ["--checkpoint", str(files / "model" / "model.safetensors"), "--layout", "bert", "--heads", "2"]
    arguments += ["--loss", str(files / "loss.py"), "--json", str(files / target), "--quiet"]
    assert main(["verify", *arguments]) == 2
    assert capsys.readouterr().err.startswith("refgeo: --json: ")
    assert (files / target).read_bytes() == before


def test_the_loss_of_the_page_about_sharpness_is_measured_with_torch(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    page = (Path(__file__).parents[2] / "validation" / "docs" / "sharpness.md").read_text(encoding="utf-8")
    (example,) = (one for one in re.findall(r"```python\n(.*?)```", page, re.S) if "def model(path, network):" in one)
    (tmp_path / "loss.py").write_text(example, encoding="utf-8")
    torch.manual_seed(0)
    module = torch.nn.TransformerEncoderLayer(16, 4, 32)
    save_file({name: x.numpy() for name, x in module.state_dict().items()}, tmp_path / "model.safetensors")
    given = ["--checkpoint", str(tmp_path / "model.safetensors"), "--loss", str(tmp_path / "loss.py")]
    few = ["--layout", "clip", "--heads", "4", "--rho", "0.01", "--n-iter", "2", "--n-restarts", "1", "--quiet"]
    assert main(["sharpness", *given, *few]) in (0, 1)
    printed = capsys.readouterr().out
    assert re.search(r"^inv +0.01 +\d", printed, re.M), printed
