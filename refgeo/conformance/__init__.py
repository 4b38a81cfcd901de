"""The conformance kit: judge somebody's implementation of the geometry against rigorous enclosures."""

from refgeo.conformance import vectors
from refgeo.conformance.backend import Backend, BackendError
from refgeo.conformance.report import Report, Row
from refgeo.conformance.runner import check

__all__ = ["Backend", "BackendError", "Report", "Row", "check", "vectors"]
