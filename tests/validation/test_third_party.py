"""The adapters of released code: all of them are there, short, and what cannot be run is said to be skipped."""

import ast
from pathlib import Path

from validation.third_party import __main__ as released

HERE = Path(released.__file__).parent


def tree(name):
    return ast.parse((HERE / name).read_text(encoding="utf-8"))


def test_every_adapter_is_there_and_short():
    for file, names in (("optimisers.py", [entry[2] for entry in released.OPTIMISERS]), ("merges.py", released.MERGES)):
        assigned = {t.id for node in tree(file).body if isinstance(node, ast.Assign) for t in node.targets}
        assert set(names) <= assigned
        functions = [node for node in ast.walk(tree(file)) if isinstance(node, ast.FunctionDef)]
        assert max(node.end_lineno - node.lineno + 1 for node in functions) <= 40
    assert set(released.SINGLE) <= {entry[2] for entry in released.OPTIMISERS}
    assert len(released.OPTIMISERS) >= 12


def test_what_is_not_there_is_skipped_with_a_line(monkeypatch, capsys):
    monkeypatch.delenv("REPOSITORIES", raising=False)
    monkeypatch.setattr(released.importlib.util, "find_spec", lambda name: None)
    assert [one for one in (released.optimiser(*entry, 1) for entry in released.OPTIMISERS) if one] == []
    assert released.merges(released.MERGES) == []
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(released.OPTIMISERS) + 1
    assert all(line.startswith("skipped: ") for line in said)


def test_a_commit_is_told_of_a_clone_only(tmp_path, monkeypatch):
    monkeypatch.setattr(released.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("REPOSITORIES", str(tmp_path))
    assert released.version_of("somebody/nothing") is None
