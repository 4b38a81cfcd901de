"""The constants on which a verdict rests: how far off, at how many points, and what acquits."""

import cmath
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import refgeo as rg
from refgeo.conformance.judging import laws
from refgeo.conformance.judging.checks import CHECKS
from refgeo.conformance.judging.evidence import (
    MAX_RATIO,
    REFERENCE_ERROR,
    Evidence,
    compare,
    error_units,
    is_beyond_rounding,
)
from refgeo.conformance.judging.verdict import Verdict, make_row
from refgeo.conformance.points.features import Features
from refgeo.conformance.points.scene import from_arrays, generate
from refgeo.conformance.protocol.call import Answer, Event
from refgeo.conformance.protocol.operations import RETRACTION, VALUES


@pytest.mark.parametrize(
    ("ratios", "is_wrong"),
    [((1001.0,), True), ((999.0,), False), ((101.0, 101.0), False), ((101.0,) * 3, True), ((99.0,) * 9, False)],
)
def test_one_ratio_beyond_doubt_or_three_points_that_agree_are_wrong(ratios, is_wrong):
    result = [Evidence(str(i), relative_error=ratio) for i, ratio in enumerate(ratios)]
    assert is_beyond_rounding(result) == is_wrong
    assert not is_beyond_rounding([Evidence("the same", relative_error=101.0) for _ in range(9)])


@pytest.mark.parametrize(("ratio", "is_failure"), [(29.0, False), (31.0, True), (np.nan, True)])
def test_a_result_is_a_failure_from_thirty_on(ratio, is_failure):
    assert Evidence("a", relative_error=ratio).is_failure == is_failure
    assert not Evidence("a", relative_error=ratio, decisive=False).is_failure


def answer_off_by(scene, value, wanted):
    """The right parts, but for this relative error of every block."""
    parts, rng = scene.reference(value), np.random.default_rng(0)
    noise = tuple(rng.standard_normal(part.shape) for part in parts)
    factor = (wanted * scene.size(value) / scene.length(noise))[..., None, None]
    return Answer(tuple(part + factor * item for part, item in zip(parts, noise, strict=True)))


def test_of_many_blocks_one_stands_for_those_of_which_nothing_is_to_be_said():
    scene, value = generate(Features((200,), 6, 5, 3), "inv", "float64"), VALUES["inner_product"]
    message = list(compare(scene, value, Answer(scene.reference(value))))
    assert len(message) < 10
    assert sum(item.multiplicity for item in message) == 200


def test_a_row_counts_blocks_once_and_no_failure_of_a_circumstance():
    result = [
        Evidence("a", (0,), relative_error=2.0),
        Evidence("a", (0,), relative_error=1.0, enclosed=True, circumstance="beside another"),
        Evidence("a", (1,)),
        Evidence("b", event=Event.FAILED),
        Evidence("d", event=Event.FAILED),
        Evidence("c", event=Event.FAILED, circumstance="beside another"),
    ]
    row = make_row(CHECKS["christoffel"], "inv", result)
    assert (row.points, row.decisive_points) == (4, 2)
    (first, _) = row.measurements
    assert (first.relative_error, first.enclosed) == (2.0, True)


def test_the_worst_case_is_one_without_a_circumstance_where_there_is_one():
    beside = Evidence("a", relative_error=9e9, circumstance="beside another")
    plain = Evidence("b", relative_error=2e3)
    assert make_row(CHECKS["christoffel"], "inv", [beside, plain, Evidence("c")]).worst_case == plain
    assert make_row(CHECKS["christoffel"], "inv", [beside, Evidence("c")]).worst_case == beside


@pytest.mark.parametrize(
    ("demanding", "others", "verdict"),
    [
        (True, [Evidence("a")], Verdict.PARTIAL),
        (False, [Evidence("a")], Verdict.NOT_JUDGED),
        (True, [], Verdict.NOT_JUDGED),
    ],
)
def test_who_runs_out_of_time_passes_at_large_points_alone_and_if_others_were_judged(demanding, others, verdict):
    late = Evidence("late", event=Event.EXHAUSTED, detail="no time", demanding=demanding)
    row = make_row(CHECKS["christoffel"], "inv", [*others, late])
    assert (row.verdict, row.fails) == (verdict, verdict is Verdict.NOT_JUDGED)


def test_an_inaccurate_value_says_by_how_much_and_where():
    row = make_row(CHECKS["christoffel"], "inv", [Evidence("a", relative_error=40.0), Evidence("b")])
    assert row.verdict is Verdict.INACCURATE
    assert row.message.startswith("the error is up to 40 times the usual rounding error, at 1 of 2 decisive points (a)")
    search = make_row(CHECKS["sharpness_2"], "inv", [Evidence("a", relative_error=40.0)], message="it finds little")
    assert (search.verdict, search.message) == (Verdict.INACCURATE, "it finds little")


@pytest.mark.parametrize("name", ["christoffel", "horizontal_projection", "geodesic_2"])
def test_what_the_factorised_route_may_have_lost_itself_does_not_acquit(name):
    """Where an error and the own one of the reference may pass the limit together, an enclosure tells."""
    scene, value = generate(Features((3,), 6, 5, 3), "inv", "float64"), VALUES[name]
    unit = error_units(scene, value)
    own = REFERENCE_ERROR * unit.attainable
    last = np.array([0.0, 0.0, 1.0])
    for wanted, is_enclosed in ((MAX_RATIO * unit.gram - 1.2 * own, False), (MAX_RATIO * unit.gram - 0.5 * own, True)):
        message = list(compare(scene, value, answer_off_by(scene, value, last * wanted)))
        assert [item.enclosed for item in message] == [False, False, is_enclosed]
        assert message[2].relative_error == pytest.approx(wanted[2], rel=0.1)


def test_of_a_wrong_batch_the_worst_block_is_enclosed_and_all_where_it_contradicts(monkeypatch):
    scene, value = generate(Features((5,), 6, 5, 3), "inv", "float64"), VALUES["christoffel"]
    wanted = np.array([0.0, 1e-3, 1e-2, 1e-3, 1e-30])
    answer = answer_off_by(scene, value, wanted)
    message = list(compare(scene, value, answer))
    assert [item.enclosed for item in message] == [False, False, True, False, False]
    assert [item.relative_error for item in message][1:4] == pytest.approx(wanted[1:4].tolist(), rel=1e-6)
    monkeypatch.setattr(type(scene), "reference", lambda *_: answer.parts)  # it acquits all, and is wrong
    right = Answer(tuple(map(np.array, generate(Features((5,), 6, 5, 3), "inv", "float64").space.christoffel(
        *(scene.vectors[name] for name in "ab")
    ))))  # fmt: skip
    message = list(compare(scene, value, right))
    assert [item.enclosed for item in message] == [False, True, True, True, False]
    assert max(item.relative_error for item in message[1:4]) < 1e-13, "enclosures alone decide"


def test_what_lies_within_an_enclosure_is_right(monkeypatch):
    """However wide it is: only what certainly lies outside counts."""
    scene, value = generate(Features((), 3, 3, 2), "mix", "float64"), VALUES["christoffel"]
    parts = scene.reference(value)
    for off, error in ((0.4, 0.0), (0.6, 0.1)):
        wide = [SimpleNamespace(mid=part + off, rad=np.full_like(part, 0.5)) for part in parts]
        monkeypatch.setattr(type(scene), "enclosures", lambda *_, wide=wide: wide)
        (message,) = compare(scene, value, Answer(tuple(map(np.array, parts))), "worst")
        outside = scene.length(tuple(np.full_like(part, error) for part in parts))
        assert message.relative_error == pytest.approx(float(outside / scene.size(value)), rel=1e-9)


def test_the_worst_block_is_enclosed_on_request_though_its_error_acquits():
    scene, value = generate(Features((3,), 3, 3, 2), "mix", "float64"), VALUES["christoffel"]
    answer = answer_off_by(scene, value, np.array([0.0, 1e-15, 0.0]))
    assert [item.enclosed for item in compare(scene, value, answer, "worst")] == [False, True, False]
    assert not any(item.enclosed for item in compare(scene, value, answer))


@pytest.mark.parametrize(("entry", "event"), [(np.nan, Event.FAILED), (np.inf, Event.FAILED), (1.0, Event.RESULT)])
def test_no_number_is_no_result(entry, event):
    scene, value = generate(Features((), 3, 3, 2), "mix", "float64"), VALUES["christoffel"]
    parts = tuple(np.array(part) for part in scene.reference(value))
    parts[0][0, 0] *= entry
    (message,) = compare(scene, value, Answer(parts))
    assert message.event is event
    assert np.isinf(message.relative_error) == (event is Event.FAILED)


@pytest.mark.parametrize("metric", ["inv", "mix"])
def test_laws_of_curves_follow_velocities_along_which_factors_change_slowly(metric):
    """Whose fifth derivatives matter: differences of such curves keep their digits."""
    for features in (Features(h=2), Features((2,), 6, 5, 3), Features(length=1e3)):
        scene = generate(features, metric, "float64")
        for velocity, factor in zip(laws._draw_velocity(scene), scene.point, strict=True):
            assert np.all(np.linalg.norm(velocity, axis=(-2, -1)) <= 0.25 * np.linalg.norm(factor, axis=(-2, -1)))


def past_the_end(seed, distance):
    """A geodesic of mix with h = 1 that passes the end of the manifold, where G Hᵀ = 0, at this relative distance."""
    rng = np.random.default_rng(seed)
    (u, d_u), (w, d_w) = (np.linalg.qr(rng.standard_normal((n, 2)))[0].T for n in (3, 4))
    size, rate = rng.uniform(0.5, 2.0, 2), -rng.uniform(1.2, 8.0)  # X = G Hᵀ would be 1 + t · rate times as large
    across = distance * abs(rate) / 2.0
    return {
        "G": size[0] * u[:, None], "v_G": size[0] * (0.5 * rate * u + across * d_u)[:, None],
        "H": size[1] * w[:, None], "v_H": size[1] * (0.5 * rate * w + across * d_w)[:, None], "t": 1.0,
    }  # fmt: skip


def cone_geodesic(G, H, v_G, v_H, t):
    """In closed form: unit vectors turn in proportion to an angle in the unrolled cone."""
    (r_G, u), (r_H, w) = ((np.sqrt(np.sum(x * x)), x / np.sqrt(np.sum(x * x))) for x in (G, H))
    rates = np.sum(u * v_G) / r_G, np.sum(w * v_H) / r_H
    turns = v_G / r_G - u * rates[0], v_H / r_H - w * rates[1]
    speed = np.sqrt((rates[0] - rates[1]) ** 2 + 2 * sum(np.sum(x * x) for x in turns))
    z = 1 + t * (rates[0] + rates[1]) + 1j * t * speed
    share, growth = np.angle(z) / speed if speed else z.real * 0.0, np.sqrt(np.abs(z))
    skew = np.exp(0.5 * (rates[0] - rates[1]) * share)

    def turn(x, rate):
        size = np.sqrt(np.sum(rate * rate))
        return x * np.cos(size * share) + (rate / size * np.sin(size * share) if size else 0.0 * x)

    return r_G * growth * skew * turn(u, turns[0]), r_H * growth / skew * turn(w, turns[1])


def polar_geodesic(G, H, v_G, v_H, t):
    """The same without square roots of sums: the motion of G Hᵀ, a point of a cone, by powers of complex numbers."""
    a, b = float(np.vdot(G, G)), float(np.vdot(H, H))
    along = [float(np.vdot(x, v)) / c for x, v, c in ((G, v_G, a), (H, v_H, b))]
    across = [v - x * rate for x, v, rate in ((G, v_G, along[0]), (H, v_H, along[1]))]
    squares = [float(np.vdot(x, x)) / c for x, c in zip(across, (a, b), strict=True)]
    speed = math.sqrt((along[0] - along[1]) ** 2 + 2.0 * (squares[0] + squares[1]))
    logarithm = cmath.log(complex(1.0 + t * sum(along), t * speed))
    angle = logarithm.imag / speed if speed else 0.0
    factors = []
    for x, v, square, sign in ((G, across[0], squares[0], 1.0), (H, across[1], squares[1], -1.0)):
        turn = cmath.exp(1j * math.sqrt(square) * angle)
        sine = turn.imag / math.sqrt(square) if square else angle
        growth = math.exp(0.5 * (logarithm.real + sign * (along[0] - along[1]) * angle))
        factors.append(growth * (turn.real * x + sine * v))
    return tuple(factors)


@pytest.mark.parametrize("exponent", range(0, -17, -1))
def test_no_geodesic_that_passes_the_end_accuses_a_right_program(exponent):
    """However close: there a rounding of the inputs, which no program can undo, changes the way out."""
    value = VALUES["geodesic_exact"]
    for seed in range(10):
        scene = from_arrays("mine", past_the_end(seed, 10.0**exponent), "mix", "float64")
        arrays = [*scene.point, *scene.vectors["v"]]
        in_long_doubles = cone_geodesic(*(x.astype(np.longdouble) for x in arrays), scene.t)
        for parts in (tuple(x.astype(float) for x in in_long_doubles), polar_geodesic(*arrays, scene.t)):
            (evidence,) = compare(scene, value, Answer(parts))
            assert not evidence.is_failure, (seed, evidence.ratio)
            if exponent >= -8:
                (evidence,) = compare(scene, value, Answer((parts[0], 1.01 * parts[1])))
                assert evidence.is_likely_wrong, "what no rounding explains is wrong still"


def test_a_whole_check_of_geodesics_that_pass_the_end_is_green():
    """Also where refgeo's own set-up draws them: radial velocities lead away from the end, or stay before it."""

    def geodesic(metric, G, H, v_G, v_H, t, order):
        return polar_geodesic(G, H, v_G, v_H, t)

    points = {f"distance {exponent}": past_the_end(1, 10.0**exponent) for exponent in (0, -8, -15)}
    report = rg.check(SimpleNamespace(geodesic=geodesic), checks=["geodesic_exact"], metrics=["mix"], points=points)
    assert report.passed
    features = (
        Features((), 3, 2, 1, t=t, radial=1.0, speed=speed) for t in (-2.0, -0.75, 1.0) for speed in (None, 7.9)
    )
    for scene in (generate(f, "mix", "float64") for f in features):
        sizes = (
            np.vdot(point, v) / np.vdot(point, point) for point, v in zip(scene.point, scene.vectors["v"], strict=True)
        )
        assert 1.0 + scene.t * sum(sizes) > 0.0


@pytest.mark.parametrize("t", [1.0, 0.3])
def test_a_law_accuses_no_retraction_where_it_must_jump(t):
    """The best approximation of rank h jumps where singular values cross, at t = 1; elsewhere it does not."""
    v_G, v_H = np.array([[-0.5], [1.0]]), np.array([[-0.5], [1.0]])
    arrays = {"G": np.eye(2, 1), "H": np.eye(2, 1), "v_G": v_G, "v_H": v_H, "t": t}
    scene = from_arrays("mine", arrays, "inv", "float64")

    def retraction(call):
        G, H, v_G, v_H = call.arrays
        U, s, Vt = np.linalg.svd(G @ H.mT + call.extra[0] * (v_G @ H.mT + G @ v_H.mT))
        return Answer((U[:, :1] * s[0], Vt[:1].mT))

    def move(call):
        """A rounding where the result jumps, and more elsewhere."""
        return replace(call, arrays=[call.arrays[0], call.arrays[1] + (-1e-15 if t == 1.0 else 1e-3), *call.arrays[2:]])

    evidence = laws.evaluate(scene, RETRACTION, retraction, move)
    (reproducibility,) = (e for e in evidence if e.law.startswith("the result depends on the contents"))
    assert reproducibility.relative_error > 1e-4
    assert reproducibility.is_failure == (t != 1.0)
