"""Enclosures: rational arithmetic and many-digit differences of the definition must lie inside, always."""

import flint
import numpy as np
import pytest
import scipy.integrate
from flint import arb, arb_mat, fmpq, fmpq_mat
from helpers import FAMILY, METRICS, factor_of_condition

import refgeo as rg
from refgeo import exact
from refgeo.exact import EnclosureError, ExactTangentSpace
from refgeo.exact import ball as ball_module
from refgeo.exact.ball import Ball, read
from refgeo.exact.family import BetweenPoint
from refgeo.exact.flow import flow

everything = pytest.mark.parametrize("name", METRICS)
family = pytest.mark.parametrize("name", FAMILY)
relaxations = pytest.mark.parametrize("relaxation", [0.0, 0.25])


def rational(array):
    rows, columns = np.shape(array)
    numbers = (float(x).as_integer_ratio() for x in np.ravel(array))
    return fmpq_mat(rows, columns, [fmpq(*number) for number in numbers])


def contains(enclosures, rationals):
    """Every exact entry within its interval, compared in rational arithmetic."""
    for enclosure, exact_values in zip(enclosures, rationals, strict=True):
        entries = zip(enclosure.mid.ravel(), enclosure.rad.ravel(), exact_values.entries(), strict=True)
        for mid, rad, value in entries:
            if abs(value - fmpq(*mid.as_integer_ratio())) > fmpq(*rad.as_integer_ratio()):
                return False
    return True


def narrow(enclosures):
    return all(np.all(item.rad <= 1.01 * np.finfo(float).eps * np.abs(item.mid) + 1e-300) for item in enclosures)


def setting(n=5, m=4, h=3, condition=10.0, seed=0):
    rng = np.random.default_rng(seed)
    G, H = factor_of_condition(rng, n, h, condition), factor_of_condition(rng, m, h, condition)
    vectors = [(rng.standard_normal((n, h)), rng.standard_normal((m, h))) for _ in range(3)]
    return G, H, vectors


def rational_weights(name, G, H, relaxation):
    h = G.ncols()
    shift = fmpq(*relaxation.as_integer_ratio()) * fmpq_mat(h, h, [int(i == j) for i in range(h) for j in range(h)])
    S, T = G.transpose() * G + shift, H.transpose() * H + shift
    return (S.inv(), T.inv()) if name == "inv" else (T, S)


def rational_inner(weights, a, b):
    total = fmpq(0)
    for W, x, y in zip(weights, a, b, strict=True):
        product = W * x.transpose() * y
        total += sum((product[i, i] for i in range(product.nrows())), fmpq(0))
    return total


@everything
@relaxations
@pytest.mark.parametrize("condition", [1.0, 1e3])
def test_inner_product_and_gradient_contain_the_rational_value(name, relaxation, condition):
    G, H, (a, b, e) = setting(condition=condition)
    space = ExactTangentSpace(name, G, H, relaxation)
    weights = rational_weights(name, rational(G), rational(H), relaxation)
    value = rational_inner(weights, [rational(x) for x in a], [rational(x) for x in b])
    inner = space.inner_product(a, b)
    assert contains([inner], [fmpq_mat(1, 1, [value])])
    assert narrow([inner])
    gradient = space.riemannian_gradient(e)
    assert contains(gradient, [rational(x) * W.inv() for x, W in zip(e, weights, strict=True)])
    assert narrow(gradient)


@everything
@relaxations
@pytest.mark.parametrize(
    ("sizes", "condition"), [((5, 4, 3), 1.0), ((5, 4, 3), 1e6), ((3, 3, 3), 50.0), ((4, 5, 1), 1.0)]
)
def test_projection_contains_the_rational_solution_of_the_dense_normal_equations(name, relaxation, sizes, condition):
    """The h²×h² system ⟨V_i, V_j⟩ k_j = ⟨V_i, v⟩ in rational arithmetic: no Sylvester equation, no rounding."""
    G, H, (v, _, _) = setting(*sizes, condition)
    h = sizes[2]
    rG, rH, rv = rational(G), rational(H), [rational(x) for x in v]
    weights = rational_weights(name, rG, rH, relaxation)
    basis = []
    for index in range(h * h):
        K = fmpq_mat(h, h, [int(k == index) for k in range(h * h)])
        basis.append((rG * K, rH * K.transpose() * fmpq(-1)))
    gram = fmpq_mat(h * h, h * h, [rational_inner(weights, x, y) for x in basis for y in basis])
    right_side = fmpq_mat(h * h, 1, [rational_inner(weights, x, rv) for x in basis])
    k = gram.solve(right_side)
    K = fmpq_mat(h, h, k.entries())
    projection = ExactTangentSpace(name, G, H, relaxation).horizontal_projection(v)
    assert contains(projection, [rv[0] - rG * K, rv[1] + rH * K.transpose()])
    assert all(item.rad.max() < 1e-15 * np.abs(item.mid).max() for item in projection)


def ball(array):
    return arb_mat(*np.shape(array), [float(x) for x in np.ravel(array)])


def ball_weights(name, G, H, relaxation):
    """(9) and (10); between them, for h = 2, (ST)ˢ = a + b ST by Cayley and Hamilton."""
    h = G.ncols()
    eye = arb_mat(h, h, [int(i == j) for i in range(h) for j in range(h)])
    S, T = G.transpose() * G + arb(relaxation) * eye, H.transpose() * H + arb(relaxation) * eye
    if name in METRICS:
        return (S.inv(), T.inv()) if name == "inv" else (T, S)
    s, P = arb(FAMILY[name]().s), S * T
    half, root = P.trace() / 2, (P.trace() ** 2 / 4 - P.det()).sqrt()
    larger, smaller = half + root, half - root
    b = (larger**s - smaller**s) / (larger - smaller)
    a = larger**s - b * larger
    return S.inv() * (a * eye + b * P), T.inv() * (a * eye + b * T * S)


def ball_inner(name, G, H, a, b, relaxation):
    weights = ball_weights(name, G, H, relaxation)
    return sum(((W * x.transpose() * y).trace() for W, x, y in zip(weights, a, b, strict=True)), arb(0))


def exact_space(name, G, H, relaxation=0.0):
    return ExactTangentSpace(FAMILY[name]().s, G, H, relaxation)


@pytest.mark.slow
@family
@relaxations
@pytest.mark.parametrize("condition", [1.0, 1e4])
def test_christoffel_and_adjoint_satisfy_koszul_to_many_digits(name, relaxation, condition):
    """Central differences of the definition with step 2⁻²⁰⁰ in 900-bit arithmetic, for every unit vector c."""
    G, H, (a, b, e) = setting(4, 3, 2, condition)
    space = exact_space(name, G, H, relaxation)
    gamma, adjoint = space.christoffel(a, b), space.christoffel_adjoint(a, e)
    with flint.ctx.workprec(900):
        point = [ball(G), ball(H)]
        A, B, E = ([ball(x) for x in pair] for pair in (a, b, e))
        step = arb(2) ** -200
        units = []
        for part, rows in ((0, 4), (1, 3)):
            for index in range(rows * 2):
                unit = [arb_mat(4, 2), arb_mat(3, 2)]
                unit[part][index // 2, index % 2] = 1
                units.append(unit)

        def along(direction, x, y):
            ahead, behind = (
                ball_inner(name, *(p + s * d for p, d in zip(point, direction, strict=True)), x, y, relaxation)
                for s in (step, -step)
            )
            return (ahead - behind) / (2 * step)

        def koszul(x, y, c):
            return (along(x, y, c) + along(y, x, c) - along(c, x, y)) / 2

        # Γ(a, b) from its products with all unit vectors, and Γ(a, ·)* e from ⟨e, Γ(a, c)⟩ likewise
        metric = arb_mat(14, 14, [ball_inner(name, *point, x, y, relaxation) for x in units for y in units])
        expected = metric.solve(arb_mat(14, 1, [koszul(A, B, c) for c in units])).entries()
        flat_E = arb_mat(1, 14, [*E[0].entries(), *E[1].entries()])
        gammas = arb_mat(14, 14, [koszul(A, x, y) for y in units for x in units])
        expected_adjoint = (flat_E * metric.inv() * gammas).entries()
        for enclosures, values in ((gamma, expected), (adjoint, expected_adjoint)):
            mids = np.concatenate([item.mid.ravel() for item in enclosures])
            rads = np.concatenate([item.rad.ravel() for item in enclosures])
            for mid, rad, value in zip(mids, rads, values, strict=True):
                assert value.rad() < 1e-25
                assert abs(value.mid() - arb(float(mid))) <= arb(float(rad)) + arb(1e-25)


@pytest.mark.parametrize("name", [name for name in FAMILY if name not in METRICS])
@relaxations
@pytest.mark.parametrize("condition", [1.5, 1e4])
def test_projection_between_inv_and_mix_is_orthogonal_to_every_vertical_vector(name, relaxation, condition):
    """⟨Pv, (GK, −HKᵀ)⟩ = 0 for every unit K and v − Pv = (GK, −HKᵀ) for one, with weights by Cayley and Hamilton."""
    G, H, (v, e, _) = setting(4, 3, 2, condition)
    space = exact_space(name, G, H, relaxation)
    projection, gradient = space.horizontal_projection(v), space.riemannian_gradient(e)
    with flint.ctx.workprec(600):
        bG, bH, V, E = ball(G), ball(H), [ball(x) for x in v], [ball(x) for x in e]
        P = [enclosure.ball for enclosure in projection]
        size = ball_inner(name, bG, bH, V, V, relaxation).sqrt()
        for index in range(4):
            K = arb_mat(2, 2, [int(k == index) for k in range(4)])
            vertical = [bG * K, bH * K.transpose() * arb(-1)]
            length = ball_inner(name, bG, bH, vertical, vertical, relaxation).sqrt()
            product = ball_inner(name, bG, bH, P, vertical, relaxation) / (size * length)
            assert product.contains(0)
            assert product.rad() < 1e-18
        removed = (bG.transpose() * bG).inv() * bG.transpose() * (V[0] - P[0])
        assert (V[0] - P[0]).overlaps(bG * removed)
        assert (P[1] - V[1]).overlaps(bH * removed.transpose())
        for item, x, W in zip(gradient, E, ball_weights(name, bG, bH, relaxation), strict=True):
            assert item.ball.overlaps(x * W.inv())


def test_the_mean_for_a_half_solves_its_equation():
    """X = S⁻¹ #_½ T is the solution of X S X = T; and its eigenvalues must be told apart."""
    G, H, _ = setting(6, 5, 4)
    with flint.ctx.workprec(256):
        point = BetweenPoint(0.5, Ball.of(G), Ball.of(H), arb(0))
        X, Y = (weight.matrix for weight in point.weights)
        S, T = point.S.matrix, point.T.matrix
        assert (X * S * X).overlaps(T)
        assert (Y * T * Y).overlaps(S)
        assert max(float(x.rad()) for x in X.entries()) < 1e-60
    with pytest.raises(EnclosureError, match="refgeo cannot prove this"):
        ExactTangentSpace(0.5, np.eye(3), np.eye(3), max_bits=256).inner_product((np.eye(3),) * 2, (np.eye(3),) * 2)


@pytest.mark.parametrize("apart", [1.0, 1e-6, 1e-13, 1e-16])
@pytest.mark.parametrize("name", [name for name in FAMILY if name not in METRICS])
def test_the_core_keeps_its_digits_where_singular_values_nearly_coincide(name, apart):
    """Divided differences without cancellation: Γ and the projection at gaps down to rounding, against enclosures."""
    rng = np.random.default_rng(0)
    Q, W = (np.linalg.qr(rng.standard_normal((n, 3)))[0] for n in (6, 5))
    sigma = np.array([2.0, 2.0 * (1.0 + apart), 0.5])
    G, H = Q * np.sqrt(sigma), W * np.sqrt(sigma)
    a, b = (rg.Pair(rng.standard_normal((6, 3)), rng.standard_normal((5, 3))) for _ in range(2))
    exact_one, space = exact_space(name, G, H), FAMILY[name]().at(rg.Pair(G, H))
    for enclosures, values in (
        (exact_one.christoffel(a, b), space.christoffel(a, b)),
        (exact_one.horizontal_projection(a), space.horizontal_projection(a)),
        (exact_one.christoffel_adjoint(a, b), space.christoffel_adjoint(a, b)),
    ):
        for enclosure, value in zip(enclosures, values, strict=True):
            assert np.abs(value - enclosure.mid).max() < 2e-14 * np.abs(enclosure.mid).max()


@pytest.mark.parametrize("name", [name for name in FAMILY if name not in METRICS])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e5])
@pytest.mark.parametrize("scale", [1.0, 1e-80, 1e80])
def test_the_core_between_inv_and_mix_agrees_with_enclosures(name, condition, scale):
    """Every operation, to κ(GHᵀ) times rounding, also where all is tiny or huge."""
    G, H, vectors = setting(6, 5, 3, condition)
    G, H, (a, b, e) = scale * G, scale * H, [rg.Pair(*v) for v in vectors]
    a, b, e = a * scale, b * scale, e / scale
    exact_one, space = exact_space(name, G, H), FAMILY[name]().at(rg.Pair(G, H))
    for function, arguments in (
        ("horizontal_projection", (a,)),
        ("riemannian_gradient", (e,)),
        ("christoffel", (a, b)),
        ("christoffel_adjoint", (a, e)),
        ("riemannian_hessian", (e, e, a)),
        ("geodesic", (a, 0.3)),
    ):
        enclosures, values = getattr(exact_one, function)(*arguments), getattr(space, function)(*arguments)
        error, size = (
            max(np.abs(x).max() for x in parts)
            for parts in (
                [value - enclosure.mid for enclosure, value in zip(enclosures, values, strict=True)],
                [enclosure.mid for enclosure in enclosures],
            )
        )
        assert error <= 1e-14 * condition**2 * size, function
    inner = exact_one.inner_product(a, b)
    assert abs(space.inner_product(a, b) - inner.mid) <= 1e-14 * condition**2 * space.norm(a) * space.norm(b)


@pytest.mark.parametrize("s", [1e-3, 0.3, 0.8])
@pytest.mark.parametrize("seed", range(4))
def test_cones_of_the_family_are_enclosed(s, seed):
    rng = np.random.default_rng(seed)
    point = rg.Pair(rng.standard_normal((4, 1)), 2.0 * rng.standard_normal((3, 1)))
    v = 0.3 * rg.Pair(rng.standard_normal((4, 1)), rng.standard_normal((3, 1)))
    values = rg.InterpolatedMetric(s).at(point).geodesic(v, 0.7, "exact")
    for enclosure, value in zip(ExactTangentSpace(s, *point).geodesic(v, 0.7, "exact"), values, strict=True):
        assert np.abs(value - enclosure.mid).max() < 1e-14 * np.abs(enclosure.mid).max()
    with pytest.raises(EnclosureError, match="h = 1"):
        ExactTangentSpace(s, np.eye(3, 2), np.eye(3, 2) + 0.1).geodesic((np.eye(3, 2), np.eye(3, 2)), 1.0, "exact")


@family
@relaxations
def test_hessian_is_the_second_derivative_less_the_first_along_gamma(name, relaxation):
    """⟨Hess[v], u⟩ = ⟨w, u⟩ − ⟨e, Γ(v, u)⟩ in the Euclidean pairing for horizontal u; no derivative of g⁻¹ in it."""
    G, H, (e, w, v) = setting()
    space = exact_space(name, G, H, relaxation)
    hessian = space.riemannian_hessian(e, w, v)
    assert narrow(hessian)
    result = tuple(part.mid for part in hessian)
    float_space = FAMILY[name](relaxation=relaxation).at(rg.Pair(G, H))
    assert float_space.norm(float_space.vertical_projection(rg.Pair(*result))) < 1e-13 * float_space.norm(result)
    rng = np.random.default_rng(7)
    for _ in range(4):
        u = float_space.random_tangent_vector(rng)
        bend = [part.mid for part in space.christoffel(v, tuple(u))]
        expected = sum(np.vdot(x, y) for x, y in zip(w, u, strict=True)) - sum(
            np.vdot(x, y) for x, y in zip(e, bend, strict=True)
        )
        actual = space.inner_product(result, tuple(u)).mid
        assert abs(actual - expected) < 1e-12 * float_space.norm(result)


@family
@relaxations
def test_geodesics_of_order_1_and_2_follow_from_christoffel(name, relaxation):
    G, H, (v, _, _) = setting()
    space = exact_space(name, G, H, relaxation)
    t = 0.375
    gamma = space.christoffel(v)
    for order, bend in ((1, 0.0), (2, 0.5 * t * t)):
        for place, start, velocity, curvature in zip(space.geodesic(v, t, order), (G, H), v, gamma, strict=True):
            expected = start + t * velocity - bend * curvature.mid
            assert np.allclose(place.mid, expected, rtol=1e-13, atol=1e-13 * np.abs(expected).max())


@pytest.mark.slow
@everything
@pytest.mark.parametrize("condition", [1.0, 1e6])
def test_large_blocks_are_enclosed_narrowly(name, condition):
    """n = m = 769, h = 64: the certified iteration, and the residual of horizontality as a check of the result."""
    rng = np.random.default_rng(0)
    G, H = factor_of_condition(rng, 769, 64, condition), factor_of_condition(rng, 769, 64, condition)
    v = rng.standard_normal((2, 769, 64))
    projection = ExactTangentSpace(name, G, H).horizontal_projection(v)
    assert all(item.rad.max() <= 1e-15 * np.abs(item.mid).max() for item in projection)
    space = METRICS[name]().at(rg.Pair(G, H))
    assert space.is_horizontal(rg.Pair(*(item.mid for item in projection)), 1e-15 * 1e2 * condition)


@pytest.mark.parametrize(("name", "relaxation"), [("inv", 0.0), ("inv", 0.25), ("mix", 0.25)])
def test_a_poor_diagonalisation_costs_steps_but_never_correctness(name, relaxation, monkeypatch):
    G, H, (v, _, _) = setting()
    good = ExactTangentSpace(name, G, H, relaxation).horizontal_projection(v)
    basis_of = ball_module._diagonalising

    def spoiled(*roots):
        basis = read(basis_of(*roots).matrix)[0]
        return Ball.of(basis * (1 + 1e-2 * np.random.default_rng(0).standard_normal(basis.shape)))

    monkeypatch.setattr(ball_module, "_diagonalising", spoiled)
    for item, second in zip(ExactTangentSpace(name, G, H, relaxation).horizontal_projection(v), good, strict=True):
        assert np.all(np.abs(item.mid - second.mid) <= item.rad + second.rad)
        assert item.rad.max() < 1e-15 * np.abs(item.mid).max()
    monkeypatch.setattr(ball_module, "_diagonalising", lambda *roots: Ball.of(np.ones((3, 3))))
    with pytest.raises(EnclosureError, match="ill-conditioned"):
        ExactTangentSpace(name, G, H, relaxation, max_bits=256).horizontal_projection(v)


@pytest.mark.parametrize(("name", "relaxation"), [("inv", 0.0), ("inv", 0.25), ("mix", 0.25)])
@pytest.mark.parametrize("condition", [1.0, 10.0, 1e3])
@pytest.mark.parametrize("seed", range(4))
def test_the_certificate_covers_an_iteration_stopped_too_early(name, relaxation, monkeypatch, condition, seed):
    """With the update switched off, Y = 0: the radius must still cover the solution, however wide."""
    G, H, (v, _, _) = setting(condition=condition, seed=seed)
    good = ExactTangentSpace(name, G, H, relaxation).horizontal_projection(v)
    monkeypatch.setattr(exact, "NARROW", np.inf)
    monkeypatch.setattr(ball_module, "_steps", lambda contraction: 0)
    for item, second in zip(ExactTangentSpace(name, G, H, relaxation).horizontal_projection(v), good, strict=True):
        assert item.rad.max() > 1e-3
        assert np.all(np.abs(item.mid - second.mid) <= item.rad)


def test_the_certificate_is_as_wide_as_the_bound_says(monkeypatch):
    """Where it is nearly reached: 2X = C in a basis whose Gram matrix is (1 s; s 1), with Y = 0 as the solution."""
    s = 0.27
    L, M = np.array([[1.0, s], [0.0, np.sqrt(1.0 - s * s)]]), np.array([[1.0, s], [s, 1.0]])
    monkeypatch.setattr(ball_module, "_diagonalising", lambda *roots: Ball.of(L))
    monkeypatch.setattr(ball_module, "_steps", lambda contraction: 0)
    row = np.linalg.inv(M)[:, 1:]  # the residual whose solution is the longest in its last entry
    C = np.linalg.solve(L.T, row @ row.T) @ np.linalg.inv(L)
    unit = Ball.of(np.eye(2))
    mid, rad = read(
        ball_module.solve_sylvester(unit @ Ball.of(np.eye(2)), unit @ Ball.of(np.eye(2)), Ball.of(C)).matrix
    )
    assert np.all(np.abs(mid - C / 2.0) <= rad)
    assert rad[1, 1] <= 2.2 * abs(C[1, 1] / 2.0), "and not much wider"


def test_wide_balls_are_refined_and_never_returned():
    G, H, (v, _, _) = setting(condition=1e12)
    space = ExactTangentSpace("inv", G, H)
    assert all(item.rad.max() < 1e-15 * np.abs(item.mid).max() for item in space.christoffel(v))
    assert max(space._points) > exact.INITIAL_BITS
    with pytest.raises(EnclosureError, match="128 bits"):
        ExactTangentSpace("inv", G, H, max_bits=128).christoffel(v)
    singular = np.ones((4, 2))
    with pytest.raises(EnclosureError):
        ExactTangentSpace("inv", singular, singular, max_bits=512).inner_product((singular,) * 2, (singular,) * 2)


def test_precision_of_the_process_is_left_alone():
    before = flint.ctx.prec, flint.ctx.threads
    G, H, (v, _, _) = setting()
    ExactTangentSpace("mix", G, H).horizontal_projection(v)
    assert (flint.ctx.prec, flint.ctx.threads) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ExactTangentSpace("both", np.eye(2), np.eye(2)), ValueError, "metric: expected"),
        (lambda: ExactTangentSpace("inv", np.ones((2, 3, 1)), np.ones((2, 3, 1))), ValueError, "one block"),
        (
            lambda: ExactTangentSpace("inv", np.eye(2), np.eye(2)).geodesic((np.eye(2),) * 2, 1.0, 3),
            ValueError,
            "order",
        ),
        (
            lambda: ExactTangentSpace("mix", np.eye(2), np.eye(2)).geodesic((-2 * np.eye(2),) * 2, 1.0, "exact"),
            EnclosureError,
            "ends before this time",
        ),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


@everything
@pytest.mark.parametrize("scale", [(1e80, 1e80), (1e150, 1e10), (1e-78, 1e-78), (1e-160, 1.0), (1e100, 1e-100)])
def test_any_scale_is_enclosed(name, scale):
    """v = (1, 0) at two numbers projects to (½, ½H/G)."""
    item = np.ones((1, 1))
    space = ExactTangentSpace(name, scale[0] * item, scale[1] * item)
    G, H = space.horizontal_projection((item, 0 * item))
    assert abs(G.mid[0, 0] - 0.5) <= G.rad[0, 0] < 1e-15
    assert abs(H.mid[0, 0] / (0.5 * scale[1] / scale[0]) - 1) < 1e-15


@everything
@pytest.mark.parametrize("p", [(332, -332), (300, 40), (-200, -130)])
def test_powers_of_two_change_nothing_but_exponents(name, p):
    """The metric is homogeneous in each factor, so scaling by powers of two must scale every result exactly."""
    G, H, (v, w, _) = setting()
    here = ExactTangentSpace(name, G, H)
    alpha, beta = 2.0 ** p[0], 2.0 ** p[1]
    target = ExactTangentSpace(name, alpha * G, beta * H)
    moved = [(alpha * x, beta * y) for x, y in (v, w)]
    for item, second in (
        (here.horizontal_projection(v), target.horizontal_projection(moved[0])),
        (here.christoffel(v, w), target.christoffel(*moved)),
        (here.geodesic(v, 0.25, 2), target.geodesic(moved[0], 0.25, 2)),
    ):
        for x, y, scale in zip(item, second, (alpha, beta), strict=True):
            np.testing.assert_array_equal(scale * x.mid, y.mid)
    constant = 1.0 if name == "inv" else alpha**2 * beta**2
    e, moved_e = w, (w[0] / alpha, w[1] / beta)
    for x, y, scale in zip(
        here.riemannian_gradient(e), target.riemannian_gradient(moved_e), (alpha, beta), strict=True
    ):
        np.testing.assert_array_equal(scale / constant * x.mid, y.mid)
    np.testing.assert_array_equal(constant * here.inner_product(v, w).mid, target.inner_product(*moved).mid)


def integrate(metric, G, H, v, t, relaxation=0.0):
    """Geodesics by a route that shares nothing: SciPy's integrator on the literal formulas."""
    from refgeo import paper

    size = G.size + H.size

    def parts(x):
        return x[: G.size].reshape(G.shape), x[G.size :].reshape(H.shape)

    def derivative(_, state):
        place, velocity = parts(state[:size]), parts(state[size:])
        bend = paper.christoffel(metric, *place, *velocity, *velocity, relaxation=relaxation)
        return np.concatenate([state[size:], -bend[0].ravel(), -bend[1].ravel()])

    start = np.concatenate([G.ravel(), H.ravel(), v[0].ravel(), v[1].ravel()])
    end = scipy.integrate.solve_ivp(derivative, (0.0, t), start, method="DOP853", rtol=1e-12, atol=1e-13).y[:, -1]
    return parts(end[:size])


@pytest.mark.slow
@everything
@pytest.mark.parametrize("relaxation", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 3, 1), (5, 4, 2), (3, 3, 3)])
def test_exact_geodesics_of_any_velocity(name, relaxation, shape):
    """Closed forms and validated integration against an integrator; the velocities are not horizontal."""
    n, m, h = shape
    rng = np.random.default_rng(5)
    G, H = np.eye(n, h) + 0.2 * rng.standard_normal((n, h)), np.eye(m, h) + 0.2 * rng.standard_normal((m, h))
    v = 0.3 * rng.standard_normal((n, h)), 0.3 * rng.standard_normal((m, h))
    space = ExactTangentSpace(name, G, H, relaxation)
    for enclosure, second in zip(
        space.geodesic(v, -0.75, "exact"), integrate(name, G, H, v, -0.75, relaxation), strict=True
    ):
        np.testing.assert_allclose(enclosure.mid, second, rtol=0, atol=1e-10)
        assert enclosure.rad.max() < 1e-15 * np.abs(enclosure.mid).max() + 1e-16


@pytest.mark.slow
def test_long_steps_have_wide_balls_that_hold_the_geodesic():
    rng = np.random.default_rng(6)
    point, velocity = ([Ball.of(rng.standard_normal((n, 2))).matrix for n in (4, 3)] for _ in range(2))
    with exact._precision(256):
        fine, wide = (flow("mix", point, velocity, arb(0), arb(0.2), narrow) for narrow in (2.0**-66, 2.0**6))
    for a, b in zip(fine, wide, strict=True):
        assert b.contains(a)
        assert max(x.rad() for x in b.entries()) > 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("t", [2.0**-180, -(2.0**180)])
def test_the_unit_of_time_does_not_matter(t):
    rng = np.random.default_rng(4)
    G, H, v_G, v_H = (rng.standard_normal((n, 2)) for n in (4, 3, 4, 3))
    space = ExactTangentSpace("mix", G, H)
    item, second = (space.geodesic((x * v_G, x * v_H), 0.1 / x, "exact") for x in (1.0, 1.0 / t))
    for a, b in zip(item, second, strict=True):
        assert np.array_equal(a.mid, b.mid)


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "h"), [("inv", 1), ("mix", 1), ("inv", 2)])
def test_the_validated_integration_encloses_the_closed_forms(metric, h, monkeypatch):
    rng = np.random.default_rng(3)
    G, H = np.eye(3, h) + 0.1 * rng.standard_normal((3, h)), np.eye(2, h) + 0.1 * rng.standard_normal((2, h))
    v = 0.4 * rng.standard_normal((3, h)), 0.4 * rng.standard_normal((2, h))
    closed = ExactTangentSpace(metric, G, H).geodesic(v, 0.8, "exact")
    monkeypatch.setattr(ExactTangentSpace, "_is_closed", False)
    flowing = ExactTangentSpace(metric, G, H).geodesic(v, 0.8, "exact")
    for item, second in zip(closed, flowing, strict=True):
        assert np.all(np.abs(item.mid - second.mid) <= item.rad + second.rad)


@pytest.mark.slow
def test_long_geodesics_take_shorter_steps_and_more_bits():
    """Where a point moves along itself, X = GGᵀ grows like 1 + 2t."""
    G = np.eye(3, 2)
    for factor in ExactTangentSpace("mix", G, G).geodesic((G, G), 10.0, "exact"):
        assert np.all(np.abs(factor.mid - 21.0**0.5 * G) <= factor.rad + 4e-16 * factor.mid)


def test_a_geodesic_that_ends_is_refused():
    """mix: the product of two numbers moves on a line, which passes zero at t = ½."""
    item = np.ones((1, 1))
    space = ExactTangentSpace("mix", item, item)
    assert abs(space.geodesic((-item, -item), 0.4375, "exact")[0].mid.item() - 0.125**0.5) < 1e-15
    with pytest.raises(EnclosureError, match="ends before this time"):
        space.geodesic((-item, -item), 0.75, "exact")


def test_vectors_are_checked():
    space = ExactTangentSpace("inv", np.eye(3, 2), np.eye(3, 2))
    with pytest.raises(ValueError, match="vector: expected the shapes"):
        space.riemannian_gradient((np.eye(4, 2), np.eye(3, 2)))
    with pytest.raises(TypeError, match="complex"):
        space.riemannian_gradient((1j * np.eye(3, 2), np.eye(3, 2)))
    with pytest.raises(ValueError, match="relaxation"):
        ExactTangentSpace("inv", np.eye(3, 2), np.eye(3, 2), -0.1)
