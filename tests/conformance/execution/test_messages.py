"""Arrays that cannot change are sent to a backend's process once, and arrive as they are."""

import pickle

import numpy as np
import pytest

import refgeo as rg
from refgeo.conformance.execution import messages
from refgeo.conformance.execution.messages import CallDecoder, CallEncoder
from refgeo.conformance.protocol.call import Call

WRITES_TO_ITS_INPUTS = """
from refgeo import paper


def riemannian_gradient(metric, *arrays):
    result = paper.riemannian_gradient(metric, *arrays)
    for array in arrays:
        if array.flags.writeable:
            array *= 3.0
    return result
"""


def constant(x):
    x = np.array(x, dtype=float)
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(("limit", "expected"), [(3, [2, 2, 2]), (messages._MAX_KEPT, [2, 0, 0])])
def test_a_call_arrives_as_it_was_sent_and_constant_arrays_travel_once(limit, expected, monkeypatch):
    monkeypatch.setattr(messages, "_MAX_KEPT", limit)
    encoder, decoder = CallEncoder(), CallDecoder()
    G, H, other = constant([[1.0, 2.0]]), constant([[3.0, np.nan]]), np.ones((1, 2))
    counts = []
    for scale in (1.0, 2.0, 3.0):
        call = Call("geodesic", "inv", [G, H, scale * other, G]).after(Call("christoffel", "mix", [H, G]))
        data = encoder.encode(call)
        counts.append(len(data[1]))
        arrived = decoder.decode(*pickle.loads(pickle.dumps(data)))
        for mine, theirs in ((call, arrived), (call.preceding[0], arrived.preceding[0])):
            assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(mine.arrays, theirs.arrays, strict=True))
    assert counts == expected


def test_what_a_backend_writes_to_its_inputs_does_not_reach_later_calls(tmp_path):
    file = tmp_path / "writes.py"
    file.write_text(WRITES_TO_ITS_INPUTS, encoding="utf-8")
    report = rg.check(str(file), checks=["riemannian_gradient"], cases=["5x4x2/k3", "2-6x7x2"])
    assert report.wrong == []
    assert [row.check for row in report.rows if row.fails] == ["inputs_unchanged"]
