"""The conformance kit: judge somebody's implementation of the geometry against rigorous enclosures.

Everything loads on first use: the process of a backend needs `refgeo.conformance.host` only.
"""

from typing import TYPE_CHECKING

from refgeo.support.deferred import deferred

if TYPE_CHECKING:
    from refgeo.conformance import vectors
    from refgeo.conformance.backend import Backend
    from refgeo.conformance.host import BackendError
    from refgeo.conformance.reading import Formula, read
    from refgeo.conformance.report import Report
    from refgeo.conformance.rows import Row, Verdict
    from refgeo.conformance.run import check

__all__ = ["Backend", "BackendError", "Formula", "Report", "Row", "Verdict", "check", "read", "vectors"]

__getattr__, __dir__ = deferred(
    __name__,
    {
        "Backend": "backend:Backend",
        "BackendError": "host:BackendError",
        "Formula": "reading:Formula",
        "Report": "report:Report",
        "Row": "rows:Row",
        "Verdict": "rows:Verdict",
        "check": "run:check",
        "read": "reading:read",
        "vectors": "vectors",
    },
)
