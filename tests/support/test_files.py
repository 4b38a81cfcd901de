"""Files that are written whole, with their rights, through links and into devices; strict JSON."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

import refgeo as rg
from refgeo.support.files import refuse_unwritable, strict_json, write_text

posix = pytest.mark.skipif(os.name != "posix", reason="files of POSIX")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@posix
@pytest.mark.parametrize("rights", [0o600, 0o640, 0o444])
def test_a_file_keeps_its_rights(rights, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("old")
    file.chmod(rights)
    write_text(file, "new")
    assert mode(file) == rights
    assert file.read_text() == "new"
    assert [item.name for item in tmp_path.iterdir()] == ["a.txt"]


@posix
def test_what_others_may_not_read_they_may_not_read_on_the_way(tmp_path, monkeypatch):
    file, seen, write = tmp_path / "secret", [], Path.write_bytes
    file.write_text("old")
    file.chmod(0o600)

    def watched(self, content):
        write(self, content)
        seen.append(mode(self))

    monkeypatch.setattr(Path, "write_bytes", watched)
    write_text(file, "new")
    assert seen == [0o600]


@posix
def test_links_stay_links(tmp_path):
    (tmp_path / "deep").mkdir()
    target, link = tmp_path / "deep" / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "text")
    assert link.is_symlink()
    assert target.read_text() == "text"
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "deep" / "new")
    write_text(dangling, "text")
    assert dangling.is_symlink()
    assert (tmp_path / "deep" / "new").read_text() == "text"
    with pytest.raises(OSError, match="nowhere"):
        write_text(tmp_path / "nowhere" / "file", "text")


def test_nothing_of_somebodys_beside_a_file_is_touched(tmp_path, monkeypatch):
    (tmp_path / ".out.part").write_text("mine")

    def failing(self, content):
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", failing)
        with pytest.raises(RuntimeError):
            write_text(tmp_path / "out", "half")
    assert [item.name for item in tmp_path.iterdir()] == [".out.part"]
    assert (tmp_path / ".out.part").read_text() == "mine"


def test_what_cannot_be_written_is_told_before_the_work(tmp_path):
    for place, error in ((tmp_path, IsADirectoryError), (tmp_path / "no" / "a", FileNotFoundError),
                         (tmp_path / ("a" * 300), OSError)):  # fmt: skip
        with pytest.raises(error):
            refuse_unwritable(place)
    refuse_unwritable(tmp_path / ("a" * 255))  # the name beside it is no longer
    refuse_unwritable(os.devnull)
    assert list(tmp_path.iterdir()) == []


@posix
def test_names_need_not_be_unicode(tmp_path):
    write_text(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"), "text")
    assert os.listdir(os.fsencode(tmp_path)) == [b"\xff"]


def test_no_temporary_folder_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    write_text(tmp_path / "a", "text")
    write_text(os.devnull, "text")
    assert rg.check("refgeo.paper", checks=["inner_product"], metrics=["inv"], cases=["5x4x2"]).passed


def test_half_of_a_module_is_none(tmp_path):
    from refgeo.support.files import import_file

    (tmp_path / "breaks_halfway.py").write_text("one = 1\nraise RuntimeError\n")
    with pytest.raises(RuntimeError):
        import_file(tmp_path / "breaks_halfway.py", "alias")
    assert not {"breaks_halfway", "alias"} & set(sys.modules)


@posix
def test_devices_and_pipes_are_written_into(tmp_path):
    write_text("/dev/null", "nothing")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "through")
    reader.join(10)
    assert got == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(OSError, match="expected a file, got a folder"):
        write_text(tmp_path, "text")


@pytest.mark.slow
@posix
@pytest.mark.parametrize("command", ["check", "inspect"])
def test_the_command_line_writes_json_to_standard_output(command, tmp_path):
    from safetensors.numpy import save_file

    save_file({"m.lora_A.weight": np.eye(2, 5), "m.lora_B.weight": np.eye(4, 2)}, tmp_path / "m.safetensors")
    given = {
        "check": ["refgeo.paper", "--checks", "inner_product", "--case", "1x1x1"],
        "inspect": ["--checkpoint", "m.safetensors", "--layout", "lora"],
    }[command]
    quiet = ["--quiet"] if command == "check" else []
    done = subprocess.run(
        [sys.executable, "-m", "refgeo", command, *given, *quiet, "--json", "/dev/stdout"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    text = done.stdout[done.stdout.index("{\n") :]
    assert json.JSONDecoder().raw_decode(text)[0]


def test_json_is_read_by_a_strict_reader():
    def refuse(word):
        raise AssertionError(word)

    content = {"a": [1.0, float("inf"), (float("nan"), "NaN")], "b": {"c": -float("inf"), "d": True}}
    read = json.loads(strict_json(content), parse_constant=refuse)
    assert read == {"a": [1.0, None, [None, "NaN"]], "b": {"c": None, "d": True}}
