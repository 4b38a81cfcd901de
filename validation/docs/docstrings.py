"""Docstrings are reStructuredText for formulas and code; the site is Markdown."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
from functools import cache
from typing import Any

import griffe

import refgeo


class Docstrings(griffe.Extension):
    """Roles and directives of formulas become TeX between brackets, and names of the public API become links."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the text before it is parsed."""
        if obj.docstring:
            obj.docstring.value = as_markdown(with_imports(obj.docstring.value, obj.module.path))

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Show the values of defaults that are names of constants."""
        names = vars(importlib.import_module(func.module.path))
        for parameter in func.parameters:
            name, _, attribute = str(parameter.default).partition(".")
            if name.isidentifier() and name in names:
                value = getattr(names[name], attribute) if attribute else names[name]
                if isinstance(value, int | float | str | tuple):
                    parameter.default = repr(value)


def with_imports(text: str, module: str) -> str:
    """Examples that somebody can paste: first come imports of what they use of their module without importing it."""
    examples = doctest.DocTestParser().get_examples(text)
    if not examples:
        return text
    names = vars(importlib.import_module(module))
    nodes = list(ast.walk(ast.parse("".join(example.source for example in examples))))
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    made = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    made |= {a.asname or a.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for a in node.names}
    made |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    needed = sorted(name for name in used - made if name in names)
    first = text.splitlines()[examples[0].lineno]
    indent = first[: len(first) - len(first.lstrip())]
    lines = "".join(f"{indent}>>> {_import_of(name, names[name], module)}\n" for name in needed)
    start = text.index(first) if text.count(first) == 1 else sum(map(len, text.splitlines(True)[: examples[0].lineno]))
    return text[:start] + lines + text[start:]


def _import_of(name: str, value: Any, module: str) -> str:
    if inspect.ismodule(value):
        return f"import {value.__name__} as {name}"
    if name in refgeo.__all__ and getattr(refgeo, name) is value:
        return f"from refgeo import {name}"
    return f"from {module} import {name}"


def as_markdown(text: str) -> str:
    """Return the same in Markdown."""
    text = re.sub(r":math:`(.*?)`", lambda m: rf"\({m[1]}\)", text, flags=re.S)
    text = re.sub(r"^( *)\.\. math::\s*(.*?)(?=\n\s*\n|\Z)", _display, text, flags=re.S | re.M)
    # each parameter by itself, else all that share a description get the default of the first
    text = re.sub(r"^( *)(\w+(?:, \w+)+)( : .*)?\n((?:\1 +\S.*\n)+)", _one_by_one, text, flags=re.M)
    text = re.sub(r"(?<=\w)::$", ":", text, flags=re.M)
    # the type of a parameter is code already
    text = re.sub(r"^ *[\w*, ]+ : .*``.*$", lambda m: m[0].replace("``", ""), text, flags=re.M)
    return re.sub(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)", _link, text)


def _one_by_one(match: re.Match[str]) -> str:
    indent, names, kind, description = match.groups(default="")
    return "".join(f"{indent}{name}{kind}\n{description}" for name in names.split(", "))


def _display(match: re.Match[str]) -> str:
    lines = [match[1] + line.strip() for line in ("\\[", *match[2].strip().splitlines(), "\\]")]
    return "\n".join(lines)


def _link(match: re.Match[str]) -> str:
    name = match[1].removeprefix("refgeo.").removeprefix("rg.")
    return f"[`{match[1]}`][refgeo.{name}]" if name in public() else f"`{match[1]}`"


@cache
def public() -> set[str]:
    """Return the names that have an entry of their own."""
    return {name for name in refgeo.__all__ if not inspect.ismodule(getattr(refgeo, name))}
