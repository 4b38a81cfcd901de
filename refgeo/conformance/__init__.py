"""The conformance kit: judge somebody's implementation of the geometry against rigorous enclosures."""

from refgeo.conformance import vectors
from refgeo.conformance.backend import Backend
from refgeo.conformance.host import BackendError
from refgeo.conformance.report import Report, Row, Verdict
from refgeo.conformance.run import check

__all__ = ["Backend", "BackendError", "Report", "Row", "Verdict", "check", "vectors"]
