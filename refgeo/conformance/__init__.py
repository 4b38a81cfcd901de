"""The conformance kit: judge somebody's implementation of the geometry against rigorous enclosures.

Everything loads on first use: the process of a backend needs `refgeo.conformance.execution.host` only.
"""

from typing import TYPE_CHECKING

from refgeo.support.deferred import defer

if TYPE_CHECKING:
    from refgeo.conformance import vectors as vectors
    from refgeo.conformance.diagnosis.formulas import Formula as Formula
    from refgeo.conformance.diagnosis.reading import read as read
    from refgeo.conformance.execution.backend import Backend as Backend
    from refgeo.conformance.judging.verdict import Row as Row
    from refgeo.conformance.judging.verdict import Verdict as Verdict
    from refgeo.conformance.protocol.call import BackendError as BackendError
    from refgeo.conformance.report import Report as Report
    from refgeo.conformance.run import check as check

__getattr__, __dir__, __all__ = defer(__name__)
