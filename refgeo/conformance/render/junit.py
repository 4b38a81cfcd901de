"""A report as JUnit XML: a test case per check and metric, failures with all that the table says of them."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from refgeo.conformance.report import Report, Verdict

_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(report: Report) -> str:
    """JUnit XML.

    WRONG and undecided rows are failures, what is not provided or not judged is skipped.

    Parameters
    ----------
    report : Report

    Returns
    -------
    str

    Examples
    --------
    >>> import refgeo as rg
    >>> print(rg.check(checks=["christoffel"], metrics=["mix"], cases=["scalar"]).to_junit().splitlines()[1][:63])
    <testsuites name="refgeo check refgeo.formulas" tests="5" failu
    """
    name = f"refgeo check {report.backend}"
    verdicts = [row.verdict for row in report.rows]
    counts = {
        "tests": str(len(verdicts)),
        "failures": str(sum(verdict in _FAILURES for verdict in verdicts)),
        "errors": "0",
        "skipped": str(sum(verdict in _SKIPPED for verdict in verdicts)),
    }
    root = ElementTree.Element("testsuites", {"name": _text(name), **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _text(name), **counts})
    properties = ElementTree.SubElement(suite, "properties")
    for key in ("dtype", "profile", "seed", "source"):
        ElementTree.SubElement(properties, "property", {"name": key, "value": _text(str(getattr(report, key)))})
    for row in report.rows:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": f"{row.function}.{row.metric}", "name": str(row)}
        )
        if row.verdict in _FAILURES:
            failure = ElementTree.SubElement(
                case, "failure", {"type": row.verdict.value, "message": _text(row.message or row.verdict.value)}
            )
            failure.text = _text("\n".join(report.details(row)))
        elif row.verdict in _SKIPPED:
            ElementTree.SubElement(case, "skipped", {"message": _text(f"{row.verdict.value}: {row.message}")})
        elif row.lossy_case is not None:
            ElementTree.SubElement(case, "system-out").text = _text(f"{row.outcome} ({row.lossy_case})")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


_FAILURES = (Verdict.WRONG, Verdict.UNDECIDED)
_SKIPPED = (Verdict.NOT_PROVIDED, Verdict.NOT_JUDGED)


def _text(text: str) -> str:
    """Without the characters that XML cannot hold, which a backend's message may contain."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
