"""Version 1 of the test set, which never changes: a new version is a new module, with a file of its own.

All inputs are integers times powers of two: exact as doubles, and most of them exact in single precision. They are
drawn with ``random.Random.random``, whose sequence Python guarantees. Every value is computed in ball arithmetic, and
rounded where its ball is certain.
"""

import contextlib
import random
from decimal import Decimal
from functools import partial

import numpy as np
from flint import arb, arb_mat, ctx, fmpq, fmpq_mat

from refgeo.exact import EnclosureError, ExactTangentSpace
from validation.vectors import networks

SEED, DIGITS = 20261125, 25
BITS, MORE_BITS = 512, 2048  # of operations; of everything else, where nothing adapts them
METRICS = {"inv": 0.0, "half": 0.5, "mix": 1.0}
SHAPES = ((1, 1, 1), (3, 2, 1), (2, 2, 2), (5, 4, 2), (3, 6, 2), (3, 3, 3), (6, 5, 3), (4, 9, 3))  # n, m, h
MOST_CONDITION = 8.0
"""Of the factors that are drawn; worse points are these, moved along their orbits."""
HALF = fmpq(500000001, 1000000000)
"""Rounds to nearest, but where an exact value lies just between two decimal numbers, a ball need not be told apart."""
MOST_LOST = 1e-6
"""Where careless formulas in double precision can be off by more, beside the largest entry, nothing is judged."""
TIME = 1 / 32
STEPS = (1, 2, 5, 10)


def cases(wanted=lambda name: True, progress=lambda name: None):
    """Return the wanted cases by name, as plain data."""
    made, before = {}, ctx.prec
    ctx.prec = MORE_BITS
    try:
        for kind in (_operations, _distances, _trajectories, _networks):
            for name, make in kind(random.Random(f"{SEED} {kind.__name__}")):
                if wanted(name):
                    made[name] = make()
                    progress(name)
    finally:
        ctx.prec = before
    return made


# Numbers ---------------------------------------------------------------------------------------------------------


def integers(rng, rows, columns, most=8, over=4):
    """Return a matrix of ±1 to ±`most`, divided by `over`."""
    drawn = [(1 if rng.random() < 0.5 else -1) * (1 + int(rng.random() * most)) for _ in range(rows * columns)]
    return fmpq_mat(rows, columns, [fmpq(k, over) for k in drawn])


def near(number):
    """Return the next double."""
    return int(number.p) / int(number.q)


def floats(matrix):
    """Return the doubles that a matrix consists of, exactly."""
    rows = [[near(x) for x in row] for row in matrix.tolist()]
    assert fmpq_mat([[fmpq(*map(int, z.as_integer_ratio())) for z in row] for row in rows]) == matrix
    return rows


def balls(matrix):
    """Return the same numbers as balls without a radius."""
    return arb_mat(matrix.nrows(), matrix.ncols(), [arb(x) for x in matrix.entries()])


def to_published(ball, condition):
    """Return midpoint, radius, and the unit of errors that a careless order of operations in doubles can cause.

    All entries have the decimal places of the 25th digit of the largest one.
    """
    entries = ball.entries() if isinstance(ball, arb_mat) else [ball]
    largest = max(abs(float(entry.mid())) for entry in entries) or 1.0
    place = int(np.floor(np.log10(largest))) - DIGITS + 1
    whole = [(entry / arb(10) ** place + HALF).floor().unique_fmpz() for entry in entries]
    if None in whole:
        raise EnclosureError(f"the ball is too wide for {DIGITS} digits")
    texts = [str(Decimal(int(k)).scaleb(place)) for k in whole]
    columns = ball.ncols() if isinstance(ball, arb_mat) else 1
    rows = [texts[i : i + columns] for i in range(0, len(texts), columns)]
    careless = 2.0**-53 * condition
    unit = float(f"{careless * largest:.3g}") if careless < MOST_LOST else None
    return {"mid": rows if isinstance(ball, arb_mat) else texts[0], "rad": f"1e{place}", "unit": unit}


def condition(*factors):
    """(κ(G) κ(H))²: what a formula with Gram matrices can lose."""
    return float(np.prod([np.linalg.cond(np.array(floats(factor))) for factor in factors])) ** 2


# Points and the group --------------------------------------------------------------------------------------------


def factor(rng, n, h):
    """Not ill-conditioned."""
    while True:
        drawn = integers(rng, n, h)
        if np.linalg.cond(np.array(floats(drawn))) <= MOST_CONDITION:
            return drawn


def point(rng, n, m, h):
    """G and H."""
    return factor(rng, n, h), factor(rng, m, h)


def identity(h):
    """Return the h×h identity."""
    return fmpq_mat(h, h, [int(i == j) for i in range(h) for j in range(h)])


def element(rng, h, steep):
    """Return an element of the group with an exact inverse: a diagonal of 2ᵏ between triangles of 0 and ±1."""
    lower, upper, powers = identity(h), identity(h), identity(h)
    for i in range(h):
        powers[i, i] = fmpq(2) ** (steep - 2 * steep * i // max(h - 1, 1))
        for j in range(i):
            lower[i, j], upper[j, i] = (int(3 * rng.random()) - 1 for _ in range(2))
    return lower * powers * upper


def move(A, tangent):
    """Return A·(G, H) = (GA⁻¹, HAᵀ); tangent vectors move alike."""
    return tangent[0] * A.inv(), tangent[1] * A.transpose()


def move_dual(A, e):
    """Return A·e = (e_GAᵀ, e_HA⁻¹) for Euclidean gradients."""
    return e[0] * A.transpose(), e[1] * A.inv()


# Operations ------------------------------------------------------------------------------------------------------

COVECTORS = ("e", "hessian_e", "hessian_w")


def _operations(rng):
    for metric in METRICS:
        for n, m, h in SHAPES:
            name = f"{metric}-{n}x{m}x{h}"
            given = _inputs(rng, metric, point(rng, n, m, h), fmpq(0))
            yield name, partial(_operation, metric, given, fmpq(0))
            for label, steep in (("moved", 2), ("steep", 10)):
                A = element(rng, h, steep)
                target = {key: (move_dual if key in COVECTORS else move)(A, x) for key, x in given.items()}
                if label == "steep":  # where these have too many digits to be doubles
                    target = {key: x for key, x in target.items() if not key.startswith("hessian")}
                yield f"{name}-{label}", partial(_operation, metric, target, fmpq(0), moved_from=name, A=floats(A))
            place = point(rng, n, m, h)
            for label, epsilon in (("relaxed", fmpq(1, 64)), ("relaxed-more", fmpq(2))):
                relaxed = _inputs(rng, metric, place, epsilon)
                yield f"{name}-{label}", partial(_operation, metric, relaxed, epsilon)
            scaled = _inputs(rng, metric, (place[0] * fmpq(2) ** 20, place[1] / fmpq(2) ** 7), fmpq(0))
            yield f"{name}-scaled", partial(_operation, metric, scaled, fmpq(0))


def _inputs(rng, metric, place, epsilon):
    """Vectors as long as the point; a Hessian's only where a horizontal vector can be written down exactly."""
    n, m, h = place[0].nrows(), place[1].nrows(), place[0].ncols()
    scales = [fmpq(2) ** int(np.floor(np.log2(max(map(abs, map(near, F.entries())))))) for F in place]
    given = {"point": place}
    for key in ("v", "a", "b", "e"):
        given[key] = integers(rng, n, h) * scales[0], integers(rng, m, h) * scales[1]
    given["b"] = tuple(2 * x + y for x, y in zip(given["a"], given["b"], strict=True))  # so that ⟨a, b⟩ is not small
    if metric != "half":
        given |= _hessian_inputs(rng, metric, place, epsilon)
    return given


def _hessian_inputs(rng, metric, place, epsilon):
    """e, w and v of a function of X = GHᵀ with gradient E and Hessian Ė along v, which is horizontal."""
    G, H = place
    E, change, second = (integers(rng, G.nrows(), H.nrows(), 2, 2) for _ in range(3))
    S, T = (F.transpose() * F + identity(F.ncols()) * epsilon for F in place)
    inverse_weights = (S, T) if metric == "inv" else (T.inv() * T.det(), S.inv() * S.det())
    if metric == "mix":  # both parts times both determinants, which makes them exact
        inverse_weights = inverse_weights[0] * S.det(), inverse_weights[1] * T.det()
    v = (second * H * inverse_weights[0], second.transpose() * G * inverse_weights[1])
    longest = [max(abs(near(x)) for part in both for x in part.entries()) for both in (v, place)]
    v = tuple(part * fmpq(2) ** int(np.floor(np.log2(longest[1] / longest[0]))) for part in v)
    return {
        "hessian_e": (E * H, E.transpose() * G),
        "hessian_w": (change * H + E * v[1], change.transpose() * G + E.transpose() * v[0]),
        "hessian_v": v,
    }


def _operation(metric, given, epsilon, **orbit):
    arrays = {key: tuple(np.array(floats(part)) for part in both) for key, both in given.items()}
    relaxation = near(epsilon)
    space = ExactTangentSpace(METRICS[metric], *arrays["point"], relaxation, least_bits=BITS)
    v, a, b, e = (arrays[key] for key in ("v", "a", "b", "e"))
    result = {
        "inner_product": (space.inner_product(a, b),),
        "horizontal_projection": space.horizontal_projection(v),
        "riemannian_gradient": space.riemannian_gradient(e),
        "christoffel": space.christoffel(a, b),
        "geodesic_1": space.geodesic(v, TIME, 1),
        "geodesic_2": space.geodesic(v, TIME, 2),
    }
    if "hessian_v" in arrays:
        result["riemannian_hessian"] = space.riemannian_hessian(*(arrays[f"hessian_{key}"] for key in "ewv"))
    values, lost = {}, condition(*given["point"])
    for name, parts in result.items():
        values |= _parts(name, parts, lost)
    if not orbit or metric == "inv" or arrays["point"][0].shape[1] == 1:  # others are long to integrate
        with contextlib.suppress(EnclosureError):  # some cannot be enclosed so narrowly, or end before
            values |= _parts("geodesic_exact", space.geodesic(v, TIME, "exact"), lost)
    named = {}
    for key, parts in arrays.items():
        ends = ("G", "H") if key == "point" else (f"{key}_G", f"{key}_H")
        named |= {end: part.tolist() for end, part in zip(ends, parts, strict=True)}
    head = {"kind": "operations", "metric": metric, "relaxation": relaxation, **orbit}
    return {**head, "given": named | {"t": TIME}, "values": values}


def _parts(name, parts, lost):
    ends = ("_G", "_H") if len(parts) == 2 else ("",)
    return {
        name + end: to_published(part.ball if end else part.ball[0, 0], lost)
        for end, part in zip(ends, parts, strict=True)
    }


# Distances -------------------------------------------------------------------------------------------------------


def _distances(rng):
    for metric, s in METRICS.items():
        for n, m in ((1, 3), (3, 2), (2, 5), (4, 4)):
            ends = point(rng, n, m, 1), point(rng, n, m, 1)
            yield f"distance-{metric}-{n}x{m}x1", partial(_distance, metric, ends, partial(_on_the_cone, s))
    ends = point(rng, 3, 2, 1), point(rng, 3, 2, 1)
    while not _turn(arb(1), *ends) > 3.4:  # so that the way leads through the apex
        ends = point(rng, 3, 2, 1), point(rng, 3, 2, 1)
    yield "distance-mix-3x2x1-apex", partial(_distance, "mix", ends, partial(_on_the_cone, 1.0))
    for h in (2, 3):
        for count in (1, 2):
            ends = _definite(rng, h), _definite(rng, h)
            yield f"distance-mix-{h}x{h}x{h}-{count}", partial(_distance, "mix", ends, _on_a_line)


def _distance(metric, ends, length):
    names = ("G_1", "H_1", "G_2", "H_2")
    given = {name: floats(F) for name, F in zip(names, (*ends[0], *ends[1]), strict=True)}
    values = {"length": to_published(length(*ends), max(condition(*end) for end in ends))}
    return {"kind": "distance", "metric": metric, "given": given, "values": values}


def _on_a_line(first, second):
    """With n = m = h in mix: ‖X₁ − X₂‖/√2."""
    return _length(first[0] * first[1].transpose() - second[0] * second[1].transpose()) / arb(2).sqrt()


def _on_the_cone(s, first, second):
    """With h = 1: unrolled, a triangle with the sides σˢ/s; through the apex where its angle is beyond π."""
    sizes = [_length(G) * _length(H) for G, H in (first, second)]
    if s == 0.0:
        return ((sizes[0] / sizes[1]).log() ** 2 / 2 + _angle(first, second) ** 2).sqrt()
    near_side, far_side = (x ** arb(s) / s for x in sizes)
    turned = _turn(arb(s), first, second)
    cosine = turned.cos() if turned < arb.pi() else arb(-1)
    return ((near_side**2 + far_side**2 - 2 * near_side * far_side * cosine) / 2).sqrt()


def _turn(s, first, second):
    return arb(2).sqrt() * s * _angle(first, second)


def _angle(first, second):
    """On both spheres together; the least of both signs, because −1 is in the group."""
    angles = [
        (arb((F.transpose() * K)[0, 0]) / (_length(F) * _length(K))).acos() for F, K in zip(first, second, strict=True)
    ]
    squares = [sum((x * x for x in both), arb(0)) for both in (angles, [arb.pi() - x for x in angles])]
    return (squares[0] if squares[0] < squares[1] else squares[1]).sqrt()


def _length(F):
    return arb(sum((x * x for x in F.entries()), fmpq(0))).sqrt()


def _definite(rng, h):
    """Factors of a matrix X with xᵀXx > 0, so that no matrix between two such ones is singular."""
    root, skew = factor(rng, h, h), integers(rng, h, h)
    A = element(rng, h, 1)
    X = root * root.transpose() + skew - skew.transpose()
    return move(A, (identity(h), X.transpose()))


# Trajectories of gradient descent --------------------------------------------------------------------------------


def _trajectories(rng):
    for metric in ("inv", "mix"):
        for n, m, h in ((1, 1, 1), (2, 2, 2), (5, 4, 2), (4, 6, 3)):
            name = f"descent-{metric}-{n}x{m}x{h}"
            place, target = point(rng, n, m, h), integers(rng, n, m)
            largest = np.linalg.norm(np.array(floats(place[0] * place[1].transpose())), 2)
            rate = fmpq(1, 4) if metric == "mix" else fmpq(2) ** -int(np.ceil(np.log2(2 * largest**2)))
            yield name, partial(_trajectory, metric, place, target, rate)
            A = element(rng, h, 2)
            elsewhere = partial(_trajectory, metric, move(A, place), target, rate, moved_from=name, A=floats(A))
            yield f"{name}-moved", elsewhere


def _trajectory(metric, place, target, rate, **orbit):
    G, H, Y, eta = balls(place[0]), balls(place[1]), balls(target), arb(rate)
    lost, result = condition(*place), {}
    for k in range(1, max(STEPS) + 1):
        E = G * H.transpose() - Y
        S, T = G.transpose() * G, H.transpose() * H
        weights = (S, T) if metric == "inv" else (T.inv(), S.inv())
        G, H = G - E * H * weights[0] * eta, H - E.transpose() * G * weights[1] * eta
        if k in STEPS:
            result |= {f"step_{k}_G": G, f"step_{k}_H": H, f"product_{k}": G * H.transpose()}
    given = {"G": floats(place[0]), "H": floats(place[1]), "Y": floats(target), "rate": near(rate)}
    values = {name: to_published(ball, 10 * lost) for name, ball in result.items()}
    return {"kind": "descent", "metric": metric, **orbit, "given": given, "values": values}


# Networks --------------------------------------------------------------------------------------------------------


def _networks(rng):
    for name, network in networks.ALL.items():
        weights = {key: integers(rng, *shape, over=8) for key, shape in network.shapes.items()}
        inputs = {key: integers(rng, *shape) for key, shape in network.inputs.items()}
        yield f"network-{name}", partial(_network, name, weights, inputs)
        for steep in (0, 1, 2, 4):
            elements = network.elements(rng, steep, element, integers)
            target = network.move(weights, elements)
            orbit = {"moved_from": f"network-{name}", "elements": {key: floats(A) for key, A in elements.items()}}
            yield f"network-{name}-moved-{steep}", partial(_network, name, target, inputs, **orbit)


def _network(name, weights, inputs, **orbit):
    network = networks.ALL[name]
    output = network.output({key: balls(x) for key, x in {**weights, **inputs}.items()})
    rest = output - balls(inputs["target"])
    loss = sum((x * x for x in rest.entries()), arb(0)) / (rest.nrows() * rest.ncols())
    lost = max(condition(x) for x in weights.values())  # a score q·k of large parts is a small difference
    values = {"output": to_published(output, lost), "loss": to_published(loss, lost)}
    given = {key: floats(x) for key, x in {**weights, **inputs}.items()}
    return {"kind": "network", "network": name, **orbit, "given": given, "values": values}
