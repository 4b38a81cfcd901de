"""What the site is made of beside its pages: files from elsewhere in the project, and formulas as MathML."""

from __future__ import annotations

import html
import inspect
import os
import re
from pathlib import Path
from typing import Any

import jupytext
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

import refgeo

PROJECT = Path(__file__).parent.parent.parent
REPOSITORY = "https://github.com/refgeo/refgeo/blob/main/"
PAGES = {
    "study.md": "validation/findings/README.md",
    "judged.md": "validation/third_party/README.md",
    "vectors.md": "refgeo/conformance/FORMAT.md",
    "frozen.md": "validation/vectors/README.md",
    "changelog.md": "CHANGELOG.md",
}
"""Pages that are files of the project, where people also read them."""
TOUR = "validation/examples/minilm_tour.py"


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add those pages, with links that hold here, the tour, an index of the API, and the figures."""
    files.append(File.generated(config, "tour.md", content=_tour((PROJECT / TOUR).read_text(encoding="utf-8"))))
    files.append(File.generated(config, "api/index.md", content=_index()))
    for name, path in PAGES.items():
        text = _with_links((PROJECT / path).read_text(encoding="utf-8"), Path(path).parent)
        files.append(File.generated(config, name, content=text))
    for figure in sorted((PROJECT / "validation/figures").glob("*.png")):
        files.append(File.generated(config, f"figures/{figure.name}", abs_src_path=str(figure)))
    return files


def _tour(script: str) -> str:
    """Return a script in cells as a page."""
    page = re.sub(r"\A---\n.*?---\n", "", jupytext.writes(jupytext.reads(script, "py:percent"), "md"), flags=re.S)
    title, rest = page.strip().split("\n\n", 1)
    return f"{title}\n\nThe same as [a script]({REPOSITORY}{TOUR}).\n\n{rest}\n"


def _index() -> str:
    """Return every public name with the first sentence about it."""
    rows = []
    for name in refgeo.__all__:
        result = getattr(refgeo, name)
        sentence = " ".join((inspect.getdoc(result) or "").split("\n\n")[0].split()).replace("|", "\\|")
        sentence = re.sub(r":math:`(.*?)`", r"\\(\1\\)", sentence)
        target = result.__name__ if inspect.ismodule(result) else f"refgeo.{name}"
        linked = name in ("conformance", "exact", "networks")
        rows.append(f"| `rg.{name}` | {sentence} |" if linked else f"| [`rg.{name}`][{target}] | {sentence} |")
    head = "# All names\n\n`import refgeo as rg`; every name loads on first use.\n\n| | |\n|---|---|\n"
    return head + "\n".join(rows)


def _with_links(text: str, folder: Path) -> str:
    """Links are those of the repository; to pages and figures of the site they stay there."""

    def move_link(match: re.Match[str]) -> str:
        label, target = match.groups()
        path, _, section = target.partition("#")
        if re.match(r"https?://|$", path) or re.match(r"(api|gallery)/", path):
            return match[0]
        place = os.path.normpath(folder / path)
        assert (PROJECT / place).exists(), f"{folder}: there is no {target}"
        here = _on_the_site(place)
        assert here or not label.startswith("!"), f"{folder}: {target} is not among the figures"
        return f"{label}({here or REPOSITORY + place}{section and f'#{section}'})"

    return re.sub(r"(!?\[[^\]]*\])\(([^)\s]+)\)", move_link, text)


def _on_the_site(place: str) -> str:
    """Return where a file of the project is on the site; "" if it is not there."""
    own = re.fullmatch(r"validation/(?:docs/((?:api/)?\w+\.md)|(figures/\w+\.png))", place)
    names = {path: name for name, path in (PAGES | {"tour.md": TOUR}).items()}
    return own[1] or own[2] if own else names.get(place, "")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links of the pages in this folder hold here. Python with prompts is what a console shows, so that prompts and
    outputs are told from what somebody types. Pages of the API are complete here, and need not say where they are.
    """
    if page.file.abs_src_path and "/" not in page.file.src_uri:
        markdown = _with_links(markdown, Path("validation/docs"))
    markdown = re.sub(r"^\*Names alone: .*?\*\n", "", markdown, flags=re.M | re.S)
    return re.sub(r"^```python\n(?=>>> )", "```pycon\n", markdown, flags=re.M)


def on_page_content(content: str, **_: Any) -> str:
    """TeX to MathML, which every browser shows without a script; and what an error prints is output, too."""
    content = re.sub(
        r'<span class="gt">.*?(?=<span class="gp">|</code>)',
        lambda m: f'<span class="go">{m[0]}</span>',
        content,
        flags=re.S,
    )
    content = re.sub(
        r'<span class="arithmatex">\\\((.*?)\\\)</span>',
        lambda m: f'<span class="inline-math">{_mathml(m[1], "inline")}</span>',
        content,
        flags=re.S,
    )
    return re.sub(
        r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', lambda m: _mathml(m[1], "block"), content, flags=re.S
    )


OPERATORS = "≥≤≠≈∈×·∘∠⊙⊘→∇"


def _mathml(tex: str, display: str) -> str:
    """Signs in Unicode are operators, and names of functions have a space behind them."""
    mathml = convert(html.unescape(tex).strip(), display=display)
    mathml = re.sub(f"<mi>([{OPERATORS}])</mi>", r"<mo>\1</mo>", mathml)
    # not in a power, which has two parts
    named = r"(?<!<msup>)<mi>(log|cos|min|max|exp)</mi>(?!<mo[^>]*>(?:&#x00028;|\())"
    return re.sub(named, r'<mi>\1</mi><mspace width="0.17em"/>', mathml)
