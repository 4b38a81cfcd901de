"""The README and the pages of the documentation: every block of code there does what it shows."""

from __future__ import annotations

import ast
import csv
import doctest
import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import fields

import pytest
from helpers import ROOT, Block, blocks

from refgeo import cli
from refgeo.conformance.judging.checks import CHECKS
from refgeo.conformance.points.features import Features
from validation import experiment

DOCS = ROOT / "validation" / "docs"
PAGES = [
    ROOT / "README.md",
    *(ROOT / "validation" / f"{n}README.md" for n in ("", "findings/")),
    *sorted(DOCS.glob("*.md")),
]
ELSEWHERE = (
    "python3 -m venv",
    "pip install",
    "source",
    "octave",
    "pytest",
    "ruff",
    "python -m mkdocs",
    "cd validation",
    ".ci/run",
    "python -m validation",
)
"""Commands of other programs: installation, and what `.ci/run` runs."""


BLOCKS = [block for page in PAGES for block in blocks(page)]
EXAMPLES = [page for page in PAGES if any(">>>" in block.text for block in blocks(page))]
PROGRAMS = [b for b in BLOCKS if b.language == "python" and ">>>" not in b.text and not b.title]


def commands(block: Block) -> list[tuple[Block, str, str]]:
    """Those of a console with what it prints; without prompts every line is one."""
    if not block.text.startswith("$ "):
        return [(block, line, "") for line in block.text.splitlines()]
    pieces = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.M)
    return [(block, command, shown) for command, shown in pieces]


COMMANDS = [one for block in BLOCKS if block.language == "console" for one in commands(block)]


def test_every_language_is_known():
    assert {block.language for block in BLOCKS} <= {"python", "console", "yaml", "bibtex"}
    assert len(EXAMPLES) >= 5
    assert len(PROGRAMS) >= 4
    assert len(COMMANDS) > 20


@pytest.mark.slow
@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.name)
def test_examples_give_what_they_show(page):
    failed, tried = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert tried > 0
    assert failed == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PEFT, which names of transformers go
@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_programs_run(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree = ast.parse(block.text)
    names = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    names |= {node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    for name in names & {"torch", "transformers", "jax", "peft"}:
        pytest.importorskip(name)
    exec(compile(tree, str(block.page), "exec"), {"__name__": "page"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With all files that have a title."""
    path = tmp_path_factory.mktemp("page")
    written: dict[str, str] = {}
    for block in BLOCKS:
        if block.title:
            assert written.setdefault(block.title, block.text) == block.text, "one name, one text"
            (path / block.title).write_text(block.text, encoding="utf-8")
    files = {"my_backend.py", "my_optimiser.py"}
    assert set(written) == {*files, "test_geometry.py"}
    return path


SHOWN = list(dict.fromkeys(command for _, command, shown in COMMANDS if shown.strip()))


def is_row(shown, printed):
    """Whether all cells are the same; of ratios and digits, which are rounding and another machine's affair, nearly."""
    cells, others = shown.split(), printed.split()
    return len(cells) == len(others) and all(
        a == b or (re.fullmatch(pattern := r"[\d.]+(e\+\d+)?", a) and re.fullmatch(pattern, b)
                   and float(a) == pytest.approx(float(b), rel=0.25))
        for a, b in zip(cells, others, strict=True)
    )  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", SHOWN, ids=lambda text: text[:60])
def test_commands_print_what_is_shown(command, folder):
    """Wherever it is shown."""
    shown = "".join(text for _, item, text in COMMANDS if item == command)
    words = shlex.split(command.removeprefix("python -m "))
    done = subprocess.run(
        [sys.executable, "-m", *words, *(["-p", "no:cacheprovider"] if words[0] == "pytest" else [])],
        cwd=folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    printed = [" ".join(line.split()) for line in done.stdout.splitlines()]
    for line in filter(None, (" ".join(line.split()) for line in shown.splitlines())):
        if line.endswith("..."):  # shortened
            assert any(item.startswith(line.removesuffix("...").rstrip()) for item in printed), line
        elif line.split()[0] in CHECKS:
            assert any(is_row(line, item) for item in printed), line
        elif words[0] == "pytest":
            assert line in done.stdout
        else:
            assert line in printed, line


@pytest.mark.parametrize("command", sorted({command for _, command, _ in COMMANDS}), ids=lambda text: text[:60])
def test_commands_are_such(command, capsys):
    """The options are those of the program; what others do is run elsewhere."""
    words = shlex.split(command, comments=True)
    if words[:2] == ["python", "-m"] and words[2] == "validation":
        assert words[3] in importlib.import_module("validation.__main__").EXPERIMENTS
    elif not command.startswith(ELSEWHERE):
        assert words[0] == "refgeo" or command.startswith("python -m pytest"), command
        if words[0] == "refgeo":
            cli._parser().parse_args(words[1:])
    elif words[:2] == ["python", "-m"]:
        pytest.importorskip(words[2])  # what an extra installs


WORKFLOWS = [*(ROOT / ".github" / "workflows").glob("*.yml"), ROOT / ".ci" / "run"]
RUN = {run for path in WORKFLOWS for run in re.findall(r"python -m validation (\w+)([^\n|]*)", path.read_text())}


@pytest.mark.parametrize(("name", "options"), sorted(RUN))
def test_programs_that_workflows_run_are_there_and_have_these_options(name, options):
    programs = importlib.import_module("validation.__main__").EXPERIMENTS
    validation = ROOT / "validation"
    files = [validation / f"{programs[name].replace('.', '/')}.py", validation / "experiment.py"]
    known = "".join(file.read_text(encoding="utf-8") for file in files)
    assert all(f'"{option}"' in known for option in re.findall(r"--\w+", options)), options


TESTS = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("name", ["mathematics.md", "paper_tests.toml"])
def test_tests_that_are_named_are_there(name):
    """Both files name a test of each formula."""
    page = (DOCS / name).read_text(encoding="utf-8")
    named = set(re.findall(r"[`\"](test_\w+)[`\"]", page))
    assert len(named) > 15
    assert {name for name in named if not any(f"def {name}(" in text for text in TESTS.values())} == set()
    assert {name for name in re.findall(r"`tests/([\w/]+\.py)`", page) if not (ROOT / "tests" / name).exists()} == set()


VERDICTS = ("holds with a correction", "does not hold", "not tested here", "holds", "open")
CLAIMS = tomllib.loads((DOCS / "paper_tests.toml").read_text(encoding="utf-8"))["claim"]
LISTED = re.sub(
    r"\[(.*?)\]\([^)]*\)", r"\1", (DOCS / "paper.md").read_text(encoding="utf-8").split("## Counterexamples")[0]
)
VERDICT_OF = {
    (row[0], row[1]): row[2]
    for line in LISTED.splitlines()
    if len(row := [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]) == 3 and row[0] not in ("item", "---")
}
AS_PRINTED = [item for line in re.findall(r"^Hold as printed: (.*)\.$", LISTED, re.M) for item in line.split("; ")]
ITEMS = [(claim["item"], claim["says"], VERDICT_OF.get((claim["item"], claim["says"]), "**holds**"), claim["tests"])
         for claim in CLAIMS]  # fmt: skip


def test_every_claim_is_in_a_table_or_in_a_line_of_those_that_hold_as_printed():
    others = [item for item, says, _, _ in ITEMS if (item, says) not in VERDICT_OF]
    assert len(VERDICT_OF) + len(others) == len(ITEMS)
    assert [line.startswith(f"{item}, ") for item, line in zip(others, AS_PRINTED, strict=True)] == [True] * len(others)


def test_every_item_of_the_paper_is_on_its_page():
    listed = ", ".join(row[0] for row in ITEMS)
    sections = ("1", "2", "3.1", "3.2", "3.3", "4", "5.1", "5.2", "6.1", "6.2", "7")
    appendices = (
        "A.1",
        "A.2",
        "A.3",
        *(f"B.{k}" for k in range(1, 7)),
        "C.1",
        "C.2",
        "C.3",
        "D",
        "D.1",
        "E.1",
        "F",
        "G",
    )
    expected = [
        *(f"({k})" for k in range(1, 47)), *(f"Figure {k}" for k in range(1, 10)), "Table 1", "Algorithm 1",
        "Def. 3.1", "Def. 3.2", "Ass. 5.1", *(f"Sec. {k}" for k in sections), *(f"App. {k}" for k in appendices),
        "App. H.1", "App. H.2", "App. I.1", "App. I.2", "App. I.3",
    ]  # fmt: skip
    assert [item for item in expected if item not in re.split(r", ", listed)] == []
    assert len(ITEMS) > 75


def test_the_overview_of_the_paper_s_page_counts_its_items():
    page = " ".join((DOCS / "paper.md").read_text(encoding="utf-8").split())
    result = {word: [row for row in ITEMS if f"**{word}**" in row[2]] for word in VERDICTS}
    bad, corrected = result["does not hold"], result["holds with a correction"]
    right = [row for row in result["holds"] if row not in bad and row not in corrected]
    numbers = len(ITEMS), len(right), len(corrected), len(bad), len(result["open"]), len(result["not tested here"])
    names = " and ".join([", ".join(row[0] for row in bad[:-1]), bad[-1][0]])
    assert (
        "Of {} items, {} hold, {} hold with a correction, {} do not hold in a part or as a whole (of {}), {} are open, "
        "and {} are not tested here.".format(*numbers[:4], names, *numbers[4:])
        in page
    )
    assert numbers[0] == sum(numbers[1:])


@pytest.mark.parametrize("row", ITEMS, ids=lambda row: f"{row[0]}: {row[1][:40]}")
def test_every_item_has_a_verdict_and_what_shows_it(row):
    _, statement, verdict, tests = row
    assert statement.endswith(".")
    assert next(v for v in VERDICTS if f"**{v}**" in verdict)
    assert all(bold in VERDICTS for bold in re.findall(r"\*\*(.*?)\*\*", verdict))
    if "**not tested here**" not in verdict:
        assert tests, "a test says so"
    if "**holds with a correction**" in verdict:
        assert len(verdict) > len("**holds with a correction**: "), "printed and correct"
    assert verdict.strip("*") not in ("not tested here", "does not hold"), "the reason, or the numbers"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_reads_where_the_repository_shows_it(page):
    """There, formulas stand between dollars, no file is included, no box is drawn, items of lists have lines
    of their own, and every link has a target.
    """
    text = re.sub(r"^```.*?^```$|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert not re.search(r"--8<--|^ *(!!!|\?\?\?|===) ", text, re.M)
    assert not re.search(r"\S (\d\.|-) \*\w", text), "an item of a list begins a line"
    assert not re.search(r"\\\(|\\\)|^\\\[", text, re.M), "formulas between dollars"
    defined = set(re.findall(r"^\[([^\]]+)\]:", text, re.M))
    assert set(re.findall(r"\]\[([^\]]+)\]", text)) <= defined


RESULTS = ROOT / "validation" / "results"


def test_tables_of_results_are_those_of_their_files_and_so_are_numbers_of_sentences():
    pages = {name: (DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("judging", "symmetries")}
    files = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in RESULTS.glob("*.csv")}
    tables = {name: list(csv.reader(lines)) for name, lines in files.items()}
    for name, page in (("accuracy", "judging"), ("spectrum", "symmetries")):
        assert experiment.markdown(tables[name][0], tables[name][1:]) in pages[page]
    judging, cells = " ".join(pages["judging"].split()), {name: table[1:] for name, table in tables.items()}
    for column, says in ((1, "takes {:g} to {:g}, once"), (2, "and a projection {:g} to {:g} (")):
        times = [float(row[column]) for row in cells["operations"]]
        assert says.format(min(times), max(times)) in judging
    ratios = [float(row[3].split()[0]) for row in cells["first_call"]]
    assert f"takes {min(ratios):g} to {max(ratios):g} times as long" in judging
    rows = cells["implementations"]
    runs, accused = (sum(int(row[k]) for row in rows) for k in (2, 3))
    largest = max(float(cell) for row in rows for cell in row[4:6])
    assert f"{accused} of {runs} runs accused one of {len(rows)} right implementations" in judging
    assert f"the largest ratio was {largest:g} (" in judging


def test_files_that_are_linked_are_there():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path = target.split("#")[0]
            if match := re.match(r"https://github.com/refgeo/refgeo/(?:blob|tree)/main/(.*)", path):
                assert (ROOT / match[1]).exists(), target
            elif path and not path.startswith("http"):
                assert (page.parent / path).exists() or path == "api/index.md", f"{page.name}: {target}"


def anchors_of(page):
    """Of the headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = (re.sub(r"\]\([^)]*\)", "", item) for item in re.findall(r"^#+ (.*)$", text, re.M))
    return {re.sub(r"[^\w\- ]", "", item.lower()).strip().replace(" ", "-") for item in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_anchors_that_are_linked_are_there(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        second = page.parent / path if path else page
        if anchor and not path.startswith("http") and not anchor.startswith("refgeo."):
            assert anchor in anchors_of(second), f"{page.name}: {target}"
            assert anchor.isascii(), "the site leaves other letters out, and the repository does not"


def test_every_feature_in_the_name_of_a_test_point_is_explained():
    page = (ROOT / "validation" / "docs" / "judging.md").read_text(encoding="utf-8")
    named = {field.name for field in fields(Features)} - {"blocks", "n", "m", "h", "condition_G", "condition_H"}
    assert [name for name in sorted(named) if f"`{name}=" not in page] == []
