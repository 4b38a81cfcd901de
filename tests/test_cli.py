"""The command line: exit statuses, output, JSON."""

import contextlib
import json
import os
import py_compile
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import refgeo as rg
from refgeo.cli import main

FEW = ["--case", "10x9x4/k1", "--quiet"]


@pytest.mark.slow
def test_status_0_and_a_table(capsys):
    assert main(["check", *FEW]) == 0
    out = capsys.readouterr().out
    assert "PASS: 14 of 14 values and 6 of 6 rules of conduct" in out.splitlines()
    for word in ("ratio", "kept", "verdict", "horizontal_projection"):
        assert word in out


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_table_fits_where_it_is_shown(columns, capsys, monkeypatch):
    """Of 80 columns and more no verdict is folded; a narrow table has fewer columns."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["check", "--quiet", "--case", "10x9x4/k10000"]) == 1  # undecided, each where Gram matrices lose all
    out = capsys.readouterr().out
    table = out.split("\n\n")[3].splitlines()
    assert max(map(len, table)) <= columns
    assert all(line == line.rstrip() for line in out.splitlines())
    assert ("worst case" in table[1]) == (columns == 120)
    assert "UNDECIDED: " in out.splitlines()[2], "the conclusion comes first"


@pytest.mark.slow
def test_status_1_names_the_wrong_operation(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "from refgeo import paper\n"
        "def inner_product(*a):\n    return 2 * paper.inner_product(*a)\n"
        "def geodesic(*a):\n    return paper.geodesic(*a)\n"
    )
    report = tmp_path / "report.json"
    assert main(["check", str(file), *FEW, "--json", str(report)]) == 1
    out = capsys.readouterr().out
    assert "WRONG: inner_product[inv], inner_product[mix]" in out
    assert "not provided  horizontal_projection, riemannian_gradient, riemannian_hessian, christoffel, " in out
    assert f"  reproduce  refgeo check {file} --metric inv --checks inner_product --case 10x9x4/k1 " in out
    data = json.loads(report.read_text())
    assert data["schema"] == "refgeo-report/8"
    assert data["passed"] is False
    assert data["wrong"] == ["inner_product[inv]", "inner_product[mix]"]
    row = data["rows"][0]
    assert {"check", "metric", "verdict", "points", "worst_ratio", "scope", "digits_kept", "reproduce"} <= set(row)
    assert row["verdict"] == "WRONG"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required"),
        (["check", "no_such_backend"], "no_such_backend"),
        (["check", "--checks", "curvature"], "curvature"),
        (["check", "--metric", "euclid"], "--metric: expected"),
        (["check", "--dtype", "int8"], "invalid choice"),
        (["check", "--case", "nowhere"], "nowhere"),
        (["check", "--seed", "-1"], "--seed: expected a whole number >= 0"),
        (["check", "--checkpoint", "nowhere.safetensors", "--layout", "bert"], "nowhere.safetensors"),
        (["check", "--checkpoint", "nowhere.safetensors"], "--layout: expected one of refgeo.networks.LAYOUTS"),
        (["check", "--layout", "bert"], "expected --checkpoint PATH together with this option"),
        (["check", "--json", "nowhere/report.json"], "nowhere/report.json: No such file or directory"),
        (["check", "--json", "."], "expected a file, got a folder"),
        (["check", "--heads", "2"], "expected --checkpoint PATH together with this option"),
        (["check", "--checks", ","], "expected values separated by commas"),
        (["check", "--case", "10x9x4", "--case", "nowhere"], "called nowhere"),
    ],
)
def test_status_2_for_usage_with_the_reason_on_stderr(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.slow
def test_the_reproduce_line_reproduces(tmp_path, capsys):
    """Run what is printed, for a file with a space in its name, in single precision and with another seed."""
    import shlex

    folder = tmp_path / "my backends"
    folder.mkdir()
    file = folder / "mine.py"
    file.write_text("from refgeo import paper\ndef geodesic(*a):\n    return [1.001 * x for x in paper.geodesic(*a)]\n")
    for options in (["--dtype", "float32"], ["--seed", "3"]):
        arguments = [
            "check",
            str(file),
            "--checks",
            "geodesic_2",
            "--metric",
            "mix",
            "--quiet",
            "--case",
            "10x9x4/k1",
            *options,
        ]
        assert main(arguments) == 1
        line = next(line for line in capsys.readouterr().out.splitlines() if "  reproduce  " in line)
        command = shlex.split(line.partition("reproduce  refgeo ")[2])
        assert set(options) <= set(command)
        assert main([*command, "--quiet"]) == 1
        assert "WRONG" in capsys.readouterr().out


@pytest.mark.slow
def test_the_json_is_written_even_where_the_terminal_cannot_show_the_report(tmp_path):
    import os
    import subprocess
    import sys

    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "refgeo", "check", *FEW, "--json", str(report)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(report.read_text(encoding="utf-8"))["passed"] is True


@pytest.mark.slow
def test_an_interrupted_check_reports_what_it_has_seen(tmp_path, capsys, monkeypatch):
    from refgeo.conformance.run import Judge

    over, calls = Judge.judge_point, []

    def interrupted(self, *given):
        calls.append(1)
        if len(calls) == 40:
            raise KeyboardInterrupt
        return over(self, *given)

    monkeypatch.setattr(Judge, "judge_point", interrupted)
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "out.json"
    assert main(["check", "--checks", "inner_product,christoffel", "--quiet", "--json", str(out)]) == 130
    shown = capsys.readouterr().out
    assert re.fullmatch(r"INTERRUPTED: inv: \d+ points checked; mix: \d+ points checked", shown.splitlines()[2])
    assert "inner_product" in shown
    document = json.loads(out.read_text(encoding="utf-8"))
    assert (document["passed"], document["interrupted"].startswith("inv: ")) == (False, True)
    assert max(row["points"] for row in document["rows"]) > 0
    assert 30 < sum(map(int, re.findall(r"\d+", document["interrupted"]))) < 160


@pytest.mark.parametrize("where", ["select", "rows"])
def test_an_interruption_before_and_after_the_points_is_one_too(where, monkeypatch):
    from refgeo.conformance.judge import Judge
    from refgeo.conformance.points.sources import Points

    kind = Points if where == "select" else Judge
    given, calls = getattr(kind, where), []

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return given(*arguments, **options)

    monkeypatch.setattr(kind, where, interrupted)
    with pytest.raises(KeyboardInterrupt) as stop:
        rg.check(rg.paper, checks=["christoffel"], cases=["5x4x3"])
    report = stop.value.report
    assert not report.passed
    seen = int(where == "rows")
    assert report.conclusion == [f"INTERRUPTED: inv: {seen} points checked; mix: 0 points checked"]
    assert bool(report.judged) == (where == "rows")


@pytest.mark.slow
def test_numbers_of_numpy_are_numbers():
    report = rg.check(seed=np.int64(3), relaxation=np.float32(0.25), checks=["inner_product"], cases=["1x1x1"])
    assert json.loads(report.to_json())["seed"] == 3


def test_help_and_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("refgeo ")
    assert main(["check", "--help"]) == 0
    assert "--checkpoint" in capsys.readouterr().out


@pytest.mark.slow
def test_a_square_bracket_in_a_name_is_printed_as_it_is(capsys, monkeypatch):
    """rich would take [0] for markup."""
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["check", "--case", "20-1x1x1", "--checks", "inner_product", "--quiet"]) == 0
    assert "20-1x1x1/k3[" in capsys.readouterr().out


@pytest.mark.slow
def test_the_progress_bar_is_not_taken_for_the_backends_output(tmp_path):
    """With forced colours the bar is drawn while backends run whose output is being watched."""
    file = tmp_path / "slow.py"
    file.write_text(
        "import time\nfrom refgeo import paper\n"
        "def inner_product(*a):\n    time.sleep(0.03)\n    return paper.inner_product(*a)\n"
    )
    command = [sys.executable, "-m", "refgeo", "check", str(file), "--checks", "inner_product"]
    done = subprocess.run(
        [*command, "--case", "10x9x4/k3", "--metric", "inv"],
        env=os.environ | {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout
    assert "checking" in done.stderr


def test_a_layout_that_does_not_fit_is_told_before_heads_are_asked_for(tmp_path, capsys):

    save_file({"encoder.block.0.layer.0.SelfAttention.q.weight": np.eye(4)}, tmp_path / "model.safetensors")
    assert main(["inspect", "--checkpoint", str(tmp_path), "--layout", "bert"]) == 2
    message = capsys.readouterr().err
    assert "expected tensors named" in message
    assert "heads" not in message


def test_options_with_several_values_look_alike(capsys):
    for command in ("check", "read"):
        with contextlib.suppress(SystemExit):
            main([command, "--help"])
        shown = " ".join(capsys.readouterr().out.split())
        assert "--metric M,...]" in shown
        assert "[M,... ...]" not in shown


@pytest.mark.slow
def test_values_of_an_option_may_be_given_one_by_one(tmp_path, capsys):
    (tmp_path / "rule.py").write_text(
        "def step(state, G, H, e_G, e_H, rate=1.0):\n    return state, 1.0 * G, 1.0 * H\n"
    )
    command = ["check", str(tmp_path / "rule.py"), "--checks", "step.repeatable", "--quiet"]
    assert main([*command, "--option", "rate=0.1", "--option", "rate=0.2"]) == 0
    assert re.findall(r"rate=0\.\d", capsys.readouterr().out) == ["rate=0.1", "rate=0.2"]
    assert main(["read", str(tmp_path / "rule.py"), "--option", "rate=0.1,0.2"]) == 2
    assert "--option: expected one value of rate, got 0.1, 0.2" in capsys.readouterr().err


@pytest.fixture
def network(tmp_path):
    """A checkpoint, and the command that shows its heads."""
    rng = np.random.default_rng(0)
    names = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkvo")
    save_file({name: rng.standard_normal((4, 4)) for name in names}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"num_attention_heads": 2}')
    return ["inspect", "--checkpoint", str(tmp_path), "--layout", "llama_nope"]


def test_no_output_replaces_what_is_read_or_another_output(tmp_path, network, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("class Mine:\n    inner_product = None\n")
    (tmp_path / "link.json").symlink_to(tmp_path / "same")
    read = {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    for arguments in (
        ["check", "mine.py:Mine", "--json", "mine.py"],
        ["check", "mine", "--html", "mine.py"],
        ["check", "--json", "link.json", "--html", "same"],
        [*network, "--json", "model.safetensors"],
        [*network, "--json", "config.json"],
        ["inspect", "--checkpoint", "model.safetensors", *network[3:], "--json", "config.json"],
        [*network, "--json", "same.png", "--plot", "same.png"],
    ):
        assert main(arguments) == 2
        message = capsys.readouterr().err
        assert "is also an input" in message or "is given twice" in message
    assert {file: file.read_bytes() for file in read} == read
    assert not (tmp_path / "same").exists()


def test_an_output_that_fails_ends_no_other(tmp_path, network, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    picture = tmp_path / "heads.png"
    assert main([*network, "--json", "/dev/full", "--plot", str(picture)]) == 2
    assert "--json: /dev/full: [Errno 28] No space left on device" in capsys.readouterr().err
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([*network, "--plot", str(tmp_path / "heads.foo")]) == 2
    assert "--plot: expected a name that ends with ." in capsys.readouterr().err


@pytest.mark.slow
def test_what_becomes_of_the_printed_report_does_not_matter_to_files(tmp_path, network):
    for number, command in enumerate((["check", *FEW, "--checks", "inner_product"], network)):
        file = tmp_path / f"{number}.json"
        with open("/dev/full", "w") as full:
            status = subprocess.run(
                [sys.executable, "-m", "refgeo", *command, "--json", str(file)], stdout=full, stderr=subprocess.PIPE
            ).returncode
        assert status == 2
        assert json.loads(file.read_text())


@pytest.mark.slow
def test_a_report_is_printed_where_letters_are_missing_and_python_has_no_path(tmp_path):
    code = (
        "import sys, refgeo as rg; rg.check(checks=['inner_product'], cases=['5x4x2']).print(); sys.executable = ''\n"
        "try: rg.check('math')\nexcept Exception as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True
    )
    assert "PASS: 2 of 2 values" in done.stdout
    assert "sys.executable: expected the path of Python" in done.stdout


# Surroundings ---------------------------------------------------------------------------------------------------------

BACKEND = "def riemannian_gradient(metric, G, H, e_G, e_H):\n    return e_G @ (G.mT @ G), e_H @ (H.mT @ H)\n"
TINY = ["--metric", "inv", "--case", "1x1x1"]


def run_refgeo(folder, *arguments, **environment):
    command = [sys.executable, "-P", "-m", "refgeo", *map(os.fspath, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[1:]), **environment}
    result = subprocess.run(command, cwd=folder, capture_output=True, env=environment)
    return result.returncode, result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace")


@pytest.mark.skipif(sys.platform == "darwin", reason="file names are UTF-8 there")
def test_names_that_are_no_utf_8_are_written_to_json(tmp_path):
    name = os.fsdecode(b"backend_\xff.py")
    (tmp_path / name).write_text(BACKEND)
    status, _, errors = run_refgeo(tmp_path, "check", name, *TINY, "--json", "report.json")
    assert status == 0, errors
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["backend"] == name


@pytest.mark.parametrize("path", [r"C:\Users\me\backend.py", "C:/Users/me/backend.py"])
def test_a_path_of_windows_is_a_path(path, capsys):
    assert main(["check", path]) == 2
    assert f"backend {path}: no such file" in capsys.readouterr().err


def test_colours_may_be_forced_in_a_pipe_and_bring_no_frames_of_a_bar(tmp_path):
    (tmp_path / "backend.py").write_text(BACKEND)
    _, output, errors = run_refgeo(tmp_path, "check", "backend.py", *TINY, FORCE_COLOR="1")
    assert "\x1b[1" in output
    assert "\x1b[2K" not in errors


@pytest.mark.parametrize("package", ["flint", "scipy", "rich", "coverage", "numpy"])
def test_a_package_that_cannot_be_imported_is_named_and_not_the_backend(package, tmp_path):
    (tmp_path / "backend.py").write_text(BACKEND)
    broken = tmp_path / "broken" / package
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libthis.so.3: cannot open shared object file')")
    path = os.pathsep.join([str(tmp_path / "broken"), *sys.path[1:]])
    status, _, errors = run_refgeo(tmp_path, "check", "backend.py", *TINY, PYTHONPATH=path)
    assert status == 2
    assert errors.splitlines()[-1].startswith(f"refgeo: importing {package}, which refgeo needs, failed: libthis.so.3")


@pytest.mark.parametrize("sources", [True, False])
def test_it_runs_from_a_zip_file_and_without_sources(sources, tmp_path):
    package = Path(rg.__file__).parent
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for file in package.rglob("*.py"):
            name = file.relative_to(package.parent)
            if not sources:
                compiled = tmp_path / "compiled.pyc"
                py_compile.compile(str(file), str(compiled), doraise=True)
                file, name = compiled, name.with_suffix(".pyc")
            archive.write(file, name)
    (tmp_path / "backend.py").write_text(BACKEND)
    path = os.pathsep.join([str(tmp_path / "all.zip"), *sys.path[1:]])
    status, output, errors = run_refgeo(tmp_path, "check", "backend.py", *TINY, PYTHONPATH=path)
    assert status == 0, errors
    assert "PASS" in output


def test_key_heads_can_be_given(tmp_path, capsys):
    rng = np.random.default_rng(0)
    shapes = {"q_proj": (8, 8), "k_proj": (4, 8), "v_proj": (4, 8), "o_proj": (8, 8)}
    save_file({f"model.layers.0.self_attn.{name}.weight": rng.standard_normal(shape) for name, shape in shapes.items()},
              tmp_path / "model.safetensors")  # fmt: skip
    arguments = ["--checkpoint", str(tmp_path / "model.safetensors"), "--layout", "llama_nope", "--heads", "2"]
    assert main(["inspect", *arguments, "--key-value-heads", "1"]) == 0
    assert main(["inspect", *arguments]) == 2
    assert main(["check", *TINY, "--key-value-heads", "1"]) == 2
    assert "--key-value-heads: expected --checkpoint" in capsys.readouterr().err
