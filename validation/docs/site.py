"""The site in a real browser: ``python -m validation site SITE [--chromium PATH]``.

SITE is the folder that mkdocs built. Every page is opened at 1280 and at 390 pixels, light and dark, and must not be
wider than the window. On every page the copy button of each Python block is clicked, and what it put on the clipboard
is run, block after block, in a new interpreter in a folder of its own: somebody who pastes a page from top to bottom
gets no error. Needs playwright with a Chromium; prints what it has done, and ends with status 1 after a failure.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

SIZES, SCHEMES = (1280, 390), ("light", "dark")
NEEDS_MORE = ("tour/",)
"""Pages whose blocks take minutes; CI executes them."""
WIDE = "document.documentElement.scrollWidth"
BLOCKS = ".md-content .highlight:is(.language-python, .language-pycon):not(.doc-signature)"


class Silent(http.server.SimpleHTTPRequestHandler):
    """Without a line for each request."""

    def log_message(self, *_):
        """Nothing."""


def serve(folder):
    """Serve a folder at an address of this machine."""
    handler = functools.partial(Silent, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}/"


def too_wide(browser, address, pages):
    """Pages that scroll sideways."""
    result = []
    for width in SIZES:
        for scheme in SCHEMES:
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page = context.new_page()
            for name in pages:
                page.goto(address + name)
                if page.evaluate(WIDE) > width:
                    result.append(f"{name or 'index'} is {page.evaluate(WIDE)} pixels wide at {width}, {scheme}")
            context.close()
    return result


def read_copied(browser, address, name):
    """Return what the copy buttons of a page give, in order: titles of files, texts, who shows an error."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(address + name)
    texts = []
    for block in page.query_selector_all(BLOCKS):
        title = block.query_selector(".filename")
        button = block.query_selector("button.md-clipboard, .md-code__button[data-md-type=copy]")
        button.evaluate("it => it.scrollIntoView({block: 'center', behavior: 'instant'})")  # not under the header
        page.evaluate("navigator.clipboard.writeText('nothing was copied')")
        button.click(force=True)
        for _ in range(50):  # the click copies a little later
            text = page.evaluate("navigator.clipboard.readText()")
            if text != "nothing was copied":
                break
            page.wait_for_timeout(20)
        shows_an_error = "Traceback (most recent" in (block.text_content() or "")
        texts.append((title.inner_text() if title else "", text, shows_an_error))
    context.close()
    return texts


RUN = """import sys, traceback
names = {"__name__": "__main__"}
for number, path in enumerate(sys.argv[1:], 1):
    source = open(path, encoding="utf-8").read()
    try:
        exec(compile(source, f"block {number}", "exec"), names)
    except BaseException:
        if not path.endswith("_raises.py"):
            print(source)
            traceback.print_exc()
            sys.exit(1)
"""


def run(texts):
    """Run all blocks in one interpreter, and return the end of what it printed, and its status."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for i, (title, text, shows_an_error) in enumerate(texts):
            file = Path(folder) / (title or f"block{i:02}{'_raises' if shows_an_error else ''}.py")
            file.write_text(text + "\n", encoding="utf-8")
            files += [] if title else [file.name]
        done = subprocess.run(
            [sys.executable, "-c", RUN, *files], cwd=folder, capture_output=True, text=True, timeout=900,
            env=os.environ | {"MPLBACKEND": "Agg"},
        )  # fmt: skip
        return done.returncode, (done.stdout + done.stderr)[-1500:]


def main():
    """Return all pages."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("--chromium", help="default: playwright's own")
    options = parser.parse_args()
    address = serve(options.site)
    result = sorted(str(file.parent.relative_to(options.site)) + "/" for file in options.site.rglob("index.html"))
    pages = ["" if name == "./" else name for name in result]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        failures = too_wide(browser, address, pages)
        copied = {name: read_copied(browser, address, name) for name in pages}
        browser.close()
    for name, texts in copied.items():
        if texts and name not in NEEDS_MORE:
            status, printed = run(texts)
            print(f"{'ok    ' if status == 0 else 'FAILED'} {name or 'index'}: {len(texts)} blocks pasted", flush=True)
            failures += [] if status == 0 else [f"{name}:\n{printed}"]
    print("\n".join(failures) or f"{len(pages)} pages fit at {SIZES[0]} and {SIZES[1]} pixels, light and dark")
    return bool(failures)


if __name__ == "__main__":
    raise SystemExit(main())
