"""The examples: files that are ready to use, the tour, and the gallery."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from helpers import grown

import refgeo as rg
from refgeo.cli import main
from validation.examples import tour

FOLDER = Path(tour.__file__).parent


GALLERY = sorted((FOLDER / "gallery").glob("plot_*.py"))


def test_the_tour_is_a_notebook_in_cells(tmp_path, monkeypatch):
    pytest.importorskip("jupytext", reason="jupytext is not installed")
    monkeypatch.setattr("sys.argv", ["tour", "--notebook", str(tmp_path / "tour.ipynb")])
    tour.main()
    cells = json.loads((tmp_path / "tour.ipynb").read_text(encoding="utf-8"))["cells"]
    assert sum(cell["cell_type"] == "code" for cell in cells) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("script", GALLERY, ids=lambda path: path.stem)
def test_the_gallery_has_short_programs_that_draw_one_picture(script, monkeypatch):
    import matplotlib.pyplot as plt

    text = script.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    with plt.style.context("default"):
        monkeypatch.setattr(plt, "show", lambda: None)
        runpy.run_path(str(script))
        assert len(plt.get_fignums()) == 1
        plt.close("all")


def test_the_gallery_has_eight_programs():
    assert len(GALLERY) == 8


@pytest.mark.slow
def test_the_template_of_a_backend_is_right_in_both_precisions():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    for dtype in ("float32", "float64"):
        report = rg.check(FOLDER / "torch_backend.py", dtype=dtype, cases=["5x4x2/k3", "2.3-6x7x2/k3"])
        assert report.passed, report.conclusion
        assert len(report.judged) > 10


@pytest.fixture
def checkpoint(tmp_path):
    """A tiny model of Hugging Face's, saved, with a tokenizer that stands for a real one."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def saved(module):
        torch.manual_seed(0)
        module.save_pretrained(tmp_path / "model")
        words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "the", "two", "."])}
        (tmp_path / "model" / "vocab.txt").write_text("\n".join(words))
        transformers.BertTokenizer(str(tmp_path / "model" / "vocab.txt")).save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return saved


@pytest.mark.parametrize("name", ["classifier", "causal"])
def test_loss_files_measure_what_the_module_computes(name, checkpoint, capsys):
    transformers = pytest.importorskip("transformers")
    if name == "classifier":
        config = transformers.BertConfig(
            vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
        )
        folder = checkpoint(grown(transformers.BertForSequenceClassification(config)))
    else:
        config = transformers.LlamaConfig(
            vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
            intermediate_size=24, max_position_embeddings=64,
        )  # fmt: skip
        folder = checkpoint(grown(transformers.LlamaForCausalLM(config)))
    given = ["--checkpoint", str(folder), "--loss", str(FOLDER / f"loss_{name}.py")]
    assert main(["verify", *given]) == 0
    assert f"layout: {'bert' if name == 'classifier' else 'llama_rotary'}" in capsys.readouterr().err
    out = folder / "out.json"
    assert main(["sharpness", *given, "--metric", "inv", "--n-iter", "4", "--quiet", "--json", str(out)]) == 0
    (row,) = json.loads(out.read_text())["sharpness"]
    assert row["value"] > 0.0
    assert row["batches"] == 2
    assert row["metric"].startswith(("InvariantMetric(relaxation=0.0) on", "RotaryMetric(InvariantMetric"))
    # the loss at the parameters is the module's own
    loss_file = runpy.run_path(str(FOLDER / f"loss_{name}.py"))
    network = rg.networks.read(folder)
    told = loss_file["model"](folder / "model.safetensors", network)
    losses = [told["value_and_grad"](network.blocks, batch)[0] for batch in told["batches"]]
    assert row["loss"] == pytest.approx(np.mean(losses), rel=1e-6)
