"""A report as JUnit XML: a test case per check and metric, failures with all that the table says of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from refgeo.conformance.rows import Row, Verdict

if TYPE_CHECKING:
    from refgeo.conformance.report import Report

_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(report: Report) -> str:
    """JUnit XML.

    Rows that make a report fail are failures, with the diagnosis in their message; what is not provided or not judged,
    and laws that wrong values break, are skipped; findings stand in the output of their test cases.

    Parameters
    ----------
    report : Report

    Returns
    -------
    str

    Examples
    --------
    >>> import refgeo as rg
    >>> print(rg.check(checks=["christoffel"], metrics=["mix"], cases=["1x1x1"]).to_junit().splitlines()[1][:44])
    <testsuites name="refgeo check refgeo.paper"
    """
    name = f"refgeo check {report.backend}"
    failing = [row for row in report.rows if row.fails]
    skipped = [row for row in report.rows if row.verdict in _SKIPPED]
    counts = {
        "tests": str(len(report.rows)), "failures": str(len(failing)), "errors": "0", "skipped": str(len(skipped)),
    }  # fmt: skip
    root = ElementTree.Element("testsuites", {"name": _text(name), **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _text(name), **counts})
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in (
        ("dtype", report.dtype), ("profile", report.points.profile), ("seed", report.seed), ("source", report.points),
        ("relaxation", report.points.relaxation), ("process", report.where),
    ):  # fmt: skip
        ElementTree.SubElement(properties, "property", {"name": key, "value": _text(str(value))})
    for row in report.rows:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": f"{row.function}.{row.metric}", "name": str(row)}
        )
        if row.fails:
            failure = ElementTree.SubElement(
                case, "failure", {"type": row.verdict.value, "message": _text(_headline(row))}
            )
            failure.text = _text("\n".join(report.details(row)))
        elif row.verdict in _SKIPPED:
            ElementTree.SubElement(case, "skipped", {"message": _text(f"{row.verdict.value}: {row.message}")})
        else:
            said = "\n".join(f"{label}: {text}" for label, text in row.remarks)
            if said:
                ElementTree.SubElement(case, "system-out").text = _text(said)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


_SKIPPED = (Verdict.NOT_PROVIDED, Verdict.NOT_JUDGED)


def _headline(row: Row) -> str:
    return ": ".join(filter(None, (row.message or row.verdict.value, row.differs or row.diagnosis)))


def _text(text: str) -> str:
    """Without the characters that XML cannot hold, which a backend's message may contain."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
