"""A report as plain data and JSON (``report.schema.json``)."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refgeo.conformance.report import Report


SCHEMA = "refgeo-report/4"


def to_dict(report: Report) -> dict[str, Any]:
    """Plain data; infinities become strings.

    Examples
    --------
    >>> import refgeo as rg
    >>> to_dict(rg.check(checks=["christoffel"], metrics=["inv"], cases=["1x1x1"]))["passed"]
    True
    """
    from refgeo import __version__

    rows = []
    for row in report.rows:
        data = asdict(row)
        data["verdict"] = row.verdict.value
        data["outcome"], data["fails"] = row.outcome, row.fails
        del data["harmful"], data["options"]  # the latter are in the column of metrics
        for place in filter(None, (data["worst_case"], data["example"], data["lossy_case"])):
            del place["oddity"]
        data["measurements"] = {
            key: [getattr(one, key) for one in row.measurements]
            for key in ("case", "block", "condition", "relative_error", "decisive", "enclosed", "dtype")
        }
        data["reproduce"] = report.reproduce(row)
        data["reproduce_in_python"] = report.reproduce_in_python(row)
        rows.append(data)
    plain: dict[str, Any] = _finite(
        {
            "schema": SCHEMA,
            "refgeo": __version__,
            "passed": report.passed,
            "passed_strictly": report.passed_strictly,
            "wrong": report.wrong,
            "backend": report.backend,
            "process": report.where,
            "dtype": report.dtype,
            "profile": report.points.profile,
            "relaxation": report.points.relaxation,
            "seed": report.seed,
            "source": str(report.points),
            "not_run": [{"file": file, "lines": ranges} for file, ranges in report.not_run.items()],
            "rows": rows,
        }
        | ({"interrupted": report.interrupted} if report.interrupted else {})
    )
    return plain


def to_json(report: Report) -> str:
    """JSON text.

    Examples
    --------
    >>> import refgeo as rg
    >>> to_json(rg.check(checks=["christoffel"], metrics=["inv"], cases=["1x1x1"])).splitlines()[1]
    '  "schema": "refgeo-report/4",'
    """
    return json.dumps(to_dict(report), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return repr(value)
    return value
