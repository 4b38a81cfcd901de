"""The recipe: a metric tensor and a group. It is the second judge of every geometry of the package."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from geometry.test_laws import CASES, flat, horizontal, like, vectors
from helpers import product_loss

import refgeo as rg
from refgeo import paper
from refgeo.geometry.groups import commuting_part
from refgeo.sharpness.quotient import QuotientMetric

S = 0.4


def of_product(metric):
    """Eq. (9), (10), over all heads."""
    relaxation = getattr(metric, "relaxation", 0.0)
    return lambda p, a, b: np.sum(paper.inner_product(metric.name.split()[0], *p, *a, *b, relaxation))


def block_matrix(p, weights_G, weights_H):
    """tr(M_G a_Gᵀb_G) + tr(M_H a_Hᵀb_H) over all heads, as a matrix."""
    parts = [np.kron(np.eye(F.shape[-2]), W[i]) for F, W in zip(p, (weights_G, weights_H), strict=True)
             for i in np.ndindex(p.block_shape)]  # fmt: skip
    return scipy.linalg.block_diag(*parts)


def of_family(s, relaxation=0.0):
    """S⁻¹(ST)ˢ and T⁻¹(TS)ˢ."""
    power = np.vectorize(lambda M: scipy.linalg.fractional_matrix_power(M, s), [complex], signature="(h,h)->(h,h)")

    def tensor(p):
        S_, T = (F.mT @ F + relaxation * np.eye(F.shape[-1]) for F in p)
        weights = (np.linalg.solve(A, power(A @ B)) for A, B in ((S_, T), (T, S_)))
        g = block_matrix(p, *weights)
        return g if p.G.dtype.kind == "c" else g.real

    return tensor


def embedded(p, a, b):
    """‖dX‖ of horizontal parts and mix of vertical ones: only the first matters."""

    def changed(v):
        return v.G @ p.H.mT + p.G @ v.H.mT

    def vertical(v):
        x, y = paper.horizontal_projection("mix", *p, *v)
        return v.G - x, v.H - y

    return np.sum(changed(a) * changed(b)) + np.sum(paper.inner_product("mix", *p, *vertical(a), *vertical(b)))


def planes(s):
    """Numbers in the place of Gram matrices, one a plane: S^(s−1)Tˢ and T^(s−1)Sˢ."""

    def tensor(p):
        half = p.G.shape[-1] // 2
        S_, T = (np.tile((F**2).sum(-2)[..., :half] + (F**2).sum(-2)[..., half:], 2)[..., None, :] for F in p)
        ones = (np.ones(F.shape) for F in p)
        weights = (A ** (s - 1) * B**s * item for (A, B), item in zip(((S_, T), (T, S_)), ones, strict=True))
        return np.diag(np.concatenate([w.ravel() for w in weights]))

    return tensor


def verticals(basis):
    """(GK, −HKᵀ) for every K of a basis and every head."""

    def velocities(p):
        result, h = [], p.G.shape[-1]
        for i in np.ndindex(p.block_shape):
            for K in basis(h):
                G, H = np.zeros_like(p.G), np.zeros_like(p.H)
                G[i], H[i] = p.G[i] @ K, -(p.H[i] @ K.T)
                result.append(rg.Pair(G, H))
        return result

    return velocities


def units(h):
    return np.eye(h * h).reshape(h * h, h, h)


def commuting(h):
    return [commuting_part(K) for K in units(h) if commuting_part(K).any()]


def diagonal(function):
    return lambda w: np.diag(function(w).ravel())


def network(p):
    heads = p["heads"]
    return scipy.linalg.block_diag(
        block_matrix(heads, heads.H.mT @ heads.H, heads.G.mT @ heads.G), np.diag(p["mlp"].ravel() ** -2.0), np.eye(4)
    )


def of_network(p):
    zero = {name: 0.0 * block for name, block in p.items()}
    return [zero | {"heads": v} for v in verticals(units)(p["heads"])] + [zero | {"bias": np.ones(4)}]


def rows(w):
    return [np.outer(unit, np.ones(3)) * w for unit in np.eye(2)]


def of_rows(w):
    return np.diag((np.ones((2, 3)) / np.sum(w**2, axis=1, keepdims=True)).ravel())


N = 6
GL = verticals(units)
RECIPES = {
    **{
        name: (of_family(case.metric.s, case.metric.relaxation), GL)
        for name, case in CASES.items()
        if isinstance(case.metric, rg.InterpolatedMetric)
    },
    "inv relaxed": (of_product(rg.InvariantMetric(0.3)), GL),
    "mix relaxed": (of_product(rg.MixedMetric(0.3)), GL),
    "embedded": (embedded, GL),
    "rotary inv": (planes(0.0), verticals(commuting)),
    "rotary mix": (planes(1.0), verticals(commuting)),
    f"rotary s={S}": (planes(S), verticals(commuting)),
    "elementwise": (diagonal(lambda w: 1.0 / w**2), None),
    "euclidean": (lambda w: np.eye(N), None),
    "weighted": (lambda w: np.diag(np.array([1.0, 2.0, 3.0, 0.5, 1.0, 2.0]) ** -2.0), None),
    "translation": (lambda w: np.eye(N), lambda w: np.ones((N, 1))),
    "scaling": (lambda w: np.eye(N) / np.sum(w**2), lambda w: w.reshape(N, 1)),
    "rows": (of_rows, rows),
    "product": (network, of_network),
}
everything = pytest.mark.parametrize("name", RECIPES)


def test_every_geometry_has_its_recipe():
    assert set(CASES) - set(RECIPES) == {"constant"}  # a metric that is none of its own


@pytest.mark.slow
@everything
def test_every_geometry_agrees_with_the_recipe(name):
    case = CASES[name]
    space, recipe, (a, b) = case.space, QuotientMetric(*RECIPES[name]).at(case.point), vectors(case, 2)
    heads = int(np.prod(space.block_shape))
    assert recipe.dim == (space.dim if isinstance(case.point, dict) else space.dim * heads)
    v, within = horizontal(case), 1e-11
    if name == "embedded":  # its gradient is the horizontal one, and Γ is that of the products
        pairs = [
            (space.horizontal_projection(a), recipe.horizontal_projection(a)),
            tuple(item.horizontal_projection(item.riemannian_gradient(a)) for item in (space, recipe)),
            *((space.horizontal_projection(item.christoffel(v)) for item in (space, recipe)),),
        ]
    else:
        pairs = [
            (getattr(space, method)(*given), getattr(recipe, method)(*given))
            for method, given in (
                ("horizontal_projection", (a,)), ("riemannian_gradient", (a,)), ("christoffel", (a, b)),
                ("christoffel_adjoint", (a, b)), ("geodesic", (v, 0.7, 1)), ("geodesic", (v, 0.7, 2)),
                ("riemannian_hessian", (a, b, v)), ("geodesic_gradient", (v, b, 2)),
            )
        ]  # fmt: skip
        inner = float(recipe.inner_product(a, b)), float(np.sum(space.inner_product(a, b)))
        assert inner[0] == pytest.approx(inner[1], rel=1e-11, abs=1e-11)
    for result, expected in pairs:
        np.testing.assert_allclose(
            flat(result), flat(expected), rtol=0, atol=within * (1.0 + np.abs(flat(expected)).max())
        )


@pytest.mark.parametrize("name", ["inv ((), 5, 4, 2)", "rotary mix", "scaling"])
def test_exact_geodesics_agree_with_the_recipe(name):
    """Those of a recipe are integrated; that the others solve their equation, whose Γ is the recipe's, is a law."""
    case = CASES[name]
    recipe, v = QuotientMetric(*RECIPES[name]).at(case.point), horizontal(case)
    result, expected = flat(recipe.geodesic(v, 0.8, "exact")), flat(case.space.geodesic(v, 0.8, "exact"))
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaling", "inv (5, 4, 2)", "rotary mix"])
def test_gradients_at_the_end_of_geodesics_agree_with_the_recipe(name):
    case = CASES["inv ((), 5, 4, 2)" if name.startswith("inv") else name]
    recipe = QuotientMetric(*RECIPES["inv ((), 5, 4, 2)" if name.startswith("inv") else name]).at(case.point)
    v, (e,) = horizontal(case), vectors(case, 1)
    result, expected = (flat(space.geodesic_gradient(v, e, "exact")) for space in (recipe, case.space))
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-8 * np.abs(expected).max())


# Searches, averages, spectra, Pymanopt --------------------------------------------------------------------------------


def make_fit(seed=0):
    rng = np.random.default_rng(seed)
    point = rg.Pair(rng.standard_normal((4, 2)), rng.standard_normal((3, 2)))
    return point, product_loss(rng.standard_normal((4, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inv", "mix"])
def test_everything_runs_on_it_and_gives_what_the_geometry_gives(name):
    point, loss = make_fit()
    metric = {"inv": rg.InvariantMetric(), "mix": rg.MixedMetric()}[name]
    recipe = rg.QuotientMetric(of_product(metric), rg.symmetry.general_linear("w"))
    item, second = (rg.worst_case_sharpness(loss, point, m, 0.1, n_restarts=1) for m in (metric, recipe))
    assert second.value == pytest.approx(item.value, rel=1e-9)
    averages = [rg.average_case_sharpness(lambda p: loss(p)[0], point, m, 0.1, n_samples=400) for m in (metric, recipe)]
    assert averages[0].value == pytest.approx(averages[1].value, abs=4 * averages[0].standard_error)
    spectra = [
        rg.spectrum.eigenvalues(rg.spectrum.RiemannianHessian(loss, point, m), 4).values for m in (metric, recipe)
    ]
    np.testing.assert_allclose(*spectra, rtol=1e-6)


def test_pymanopt_runs_on_it():
    pymanopt = pytest.importorskip("pymanopt")
    from refgeo.bridges.pymanopt import QuotientManifold

    point, _ = make_fit()
    target = make_fit(1)[0].product
    metric = rg.QuotientMetric(of_product(rg.MixedMetric()), rg.symmetry.general_linear("w"))
    manifold = QuotientManifold(metric, point)
    import autograd.numpy as anp

    @pymanopt.function.autograd(manifold)
    def cost(G, H):
        return anp.sum((G @ H.T - target) ** 2)

    result = pymanopt.optimizers.TrustRegions(verbosity=0).run(pymanopt.Problem(manifold, cost), initial_point=point)
    assert np.allclose(result.point.product, target, atol=1e-5)
    assert manifold.dim == rg.MixedMetric().at(point).dim


def chain(seed=0):
    """W₃ A⁻¹, A W₂ A⁻¹, A W₁ for one A: a shared hidden basis, which no other metric of the package has."""
    rng = np.random.default_rng(seed)
    theta = {
        "first": rng.standard_normal((2, 3)), "between": rng.standard_normal((2, 2)),
        "last": rng.standard_normal((3, 2)),
    }  # fmt: skip

    def velocities(t):
        return [{"first": K @ t["first"], "between": K @ t["between"] - t["between"] @ K, "last": -t["last"] @ K}
                for K in units(2)]  # fmt: skip

    def inner(t, a, b):
        S_, T = t["first"] @ t["first"].T, t["last"].T @ t["last"]
        middle = np.linalg.inv(S_) @ a["between"] @ S_ @ b["between"].T
        return (np.trace(np.linalg.inv(S_) @ a["first"] @ b["first"].T) + np.trace(middle)
                + np.trace(np.linalg.inv(T) @ a["last"].T @ b["last"]))  # fmt: skip

    def loss(t):
        W = t["last"] @ t["between"] @ t["first"]
        return float(np.sum(np.sin(W))), {
            "last": np.cos(W) @ (t["between"] @ t["first"]).T,
            "between": t["last"].T @ np.cos(W) @ t["first"].T,
            "first": (t["last"] @ t["between"]).T @ np.cos(W),
        }

    def moved(t, A):
        back = np.linalg.inv(A)
        return {"first": A @ t["first"], "between": A @ t["between"] @ back, "last": t["last"] @ back}

    return theta, velocities, inner, loss, moved


@pytest.mark.slow
def test_a_symmetry_that_the_package_does_not_have():
    theta, velocities, inner, loss, moved = chain()
    metric = rg.QuotientMetric(inner, velocities)
    result = metric.verify(theta, loss)
    assert result.holds
    assert (result.dim, [item.symmetry for item in result]) == (12, ["group", "metric", "loss"])
    assert "dimension of the quotient: 12" in str(result)
    A = np.array([[2.0, 1.0], [-0.5, 0.4]])
    target = moved(theta, A)
    for order in (1, 2):
        values = [
            rg.worst_case_sharpness(loss, t, metric, 0.2, order=order, n_restarts=1).value for t in (theta, target)
        ]
        assert values[0] == pytest.approx(values[1], rel=1e-6), order
    v = 0.3 * metric.at(theta).random_tangent_vector(0)
    end, end_there = (metric.at(t).geodesic(w, 1.0, "exact") for t, w in ((theta, v), (target, moved(v, A))))
    assert np.allclose(flat(moved(end, A)), flat(end_there), rtol=1e-9)
    flat_metric = rg.QuotientMetric(lambda t: np.eye(16), velocities)
    plain = [
        rg.worst_case_sharpness(loss, t, flat_metric, 0.2, n_restarts=1, verify=False).value for t in (theta, target)
    ]
    assert abs(plain[0] / plain[1] - 1.0) > 0.1


# What is not a quotient -----------------------------------------------------------------------------------------------


def verdicts(found):
    return {item.symmetry: item.verdict for item in found}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_metric_that_is_not_invariant_is_told_from_a_group_that_is_none_and_from_a_loss(seed):
    theta, velocities, inner, loss, _ = chain(seed)
    good = dict.fromkeys(("group", "metric", "loss"), "holds")
    wrong = rg.QuotientMetric(lambda t, a, b: inner(t, a, b) + 0.01 * np.sum(a["first"] * b["first"]), velocities)
    assert verdicts(wrong.verify(theta, loss, rng=seed)) == good | {"metric": "does not hold"}
    heavy = rg.QuotientMetric(inner, velocities)
    decayed = heavy.verify(theta, lambda t: loss(t)[0] + 0.01 * float(np.sum(t["last"] ** 2)), rng=seed)
    assert verdicts(decayed) == good | {"loss": "does not hold"}
    # two generators whose bracket is neither: the third is forgotten
    selection = rg.QuotientMetric(inner, lambda t: [velocities(t)[1], velocities(t)[2]])
    assert verdicts(selection.verify(theta, loss, rng=seed))["group"] == "does not hold"


def test_a_metric_may_change_along_the_orbit_where_nothing_is_measured():
    """Vertical lengths are no matter: the quotient is the same."""
    metric = rg.QuotientMetric(
        lambda p: np.eye(2) + 0.5 * (1.0 + np.tanh(p[0])) * np.outer([-p[1], p[0]], [-p[1], p[0]]),
        lambda p: np.array([[-p[1]], [p[0]]]),
    )
    assert metric.verify([3.0, 4.0], lambda p: float(p @ p)).holds
    assert metric.at([3.0, 4.0]).dim == 1


def test_the_balanced_point_hides_nothing():
    """There the Lie derivative of the Euclidean metric along a re-scaling vanishes on horizontal vectors."""
    group = rg.symmetry.rescaling("u", "v")
    metric = rg.QuotientMetric(lambda p: np.eye(2), group)
    point = {"u": np.ones(1), "v": np.ones(1)}
    assert verdicts(metric.verify(point, lambda p: float(p["u"][0] * p["v"][0]))) == {
        "group": "holds", "metric": "does not hold", "loss": "holds",
    }  # fmt: skip
    fixed = rg.QuotientMetric(lambda p: np.diag([p["u"][0] ** -2, p["v"][0] ** -2]), group)
    assert fixed.verify(point, lambda p: float(p["u"][0] * p["v"][0])).holds
    assert fixed.at(point).dim == 1


@pytest.mark.parametrize(
    ("group", "point", "dim"),
    [
        (rg.symmetry.general_linear("w"), rg.Pair(np.ones((2, 4, 1)), np.ones((2, 3, 1))), 12),
        (rg.symmetry.scaling("w"), np.arange(1.0, 5.0), 3),
        (rg.symmetry.translation("w", axis=0), np.arange(6.0).reshape(2, 3), 3),
        (rg.symmetry.neurons({"a": 0}, {"b": 1}), {"a": np.ones((3, 2)), "b": np.ones((2, 3))}, 9),
        ([rg.symmetry.translation("a"), rg.symmetry.scaling("b")], {"a": np.arange(3.0), "b": np.ones(2)}, 3),
    ],
)
def test_symmetries_are_drawn_until_the_rank_saturates(group, point, dim):
    size = flat(point).size
    metric = rg.QuotientMetric(lambda p: np.eye(size), group)
    assert metric.at(point).dim == dim
    given = [symmetry.blocks for symmetry in metric.symmetries()]
    assert len(given) == (2 if isinstance(group, list) else 1)


def of_norms(p, a, b):
    """mix for h = 1, by a norm, of which complex steps see nothing."""
    return np.linalg.norm(p.H) ** 2 * np.sum(a.G * b.G) + np.linalg.norm(p.G) ** 2 * np.sum(a.H * b.H)


VECTOR = np.array([1.5, -0.7, 2.0])


@pytest.mark.parametrize(
    ("tensor", "point"),
    [
        (lambda w: np.diag(np.abs(w) ** -2.0), VECTOR),
        (lambda w: np.diag(1.0 / np.array([float(x) for x in w]) ** 2), VECTOR),
        (lambda w: np.diag(1.0 / w.real**2), VECTOR),
        (lambda w: np.diag(1.0 / w.astype(np.float32 if w.dtype == float else np.complex64) ** 2), VECTOR),
        (lambda w: np.eye(3) * np.maximum(np.abs(w[2]), 1.0), np.array([0.5, 0.1, 1.0005])),
        *(
            (lambda w: np.diag(1.0 / (1.0 + np.asarray(w, dtype=np.float32) ** 2)), size * VECTOR)
            for size in (0.1, 1, 10)
        ),
        *((of_norms, rg.Pair(*(np.random.default_rng(s).standard_normal((n, 1)) for n in (3, 2)))) for s in range(20)),
    ],
)
def test_a_tensor_that_complex_steps_do_not_go_through_is_refused(tensor, point):
    space = rg.QuotientMetric(tensor).at(point)
    assert space.norm(point) > 0.0  # which needs no derivative
    for call in (lambda: space.christoffel(point), lambda: space.geodesic(point, 0.1, "exact")):
        with pytest.raises(ValueError, match=r"tensor: expected a function in double precision .* complex"):
            call()


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-5])
def test_nothing_is_probed_outside_the_domain(scale):
    """√w₀·I, which is positive for w₀ > 0 alone: there the coordinate w₀ is small beside the others."""
    w = np.array([scale, 1.0, -2.0])

    def tensor(x):
        return np.eye(3) * np.sqrt(x[0])

    space = rg.QuotientMetric(tensor).at(w)
    gamma = space.christoffel(np.array([1.0, 2.0, 0.0]))
    # Koszul of f(x₀)·I: Γ = {D_v f v − ½|v|² ∇f} / f, with f'/f = 1/(2x₀)
    assert np.allclose(gamma, np.array([1.0 - 2.5, 2.0, 0.0]) / (2.0 * scale), rtol=1e-4)
    result = rg.worst_case_sharpness(
        lambda x: (float(x @ x), 2 * x), w, rg.QuotientMetric(tensor), 1e-2 * scale, n_restarts=1
    )
    assert result.value > 0.0


@pytest.mark.parametrize(
    ("tensor", "group", "point", "said"),
    [
        (lambda w: np.eye(3), rg.symmetry.scaling("w"), [1.0, 2.0, 3.0], "metric does not hold"),
        (lambda w: np.eye(2), lambda p: np.array([[1.0], [p[0] ** 2]]), [1.0, 2.0], "metric does not hold"),
        (lambda p: np.eye(2), lambda p: np.array([[-p[1]], [p[0]]]), [0.0, 0.0], "dimension of the quotient: 2 here"),
    ],
)
def test_searches_ask_whether_there_is_a_quotient(tensor, group, point, said):
    """Not of a metric that differs along the orbit, nor at a point that its group leaves where it is."""
    metric = rg.QuotientMetric(tensor, group)

    def told(w):
        value = w[0] / w[1] if len(w) == 3 else w @ w
        return float(value), np.array([1 / w[1], -w[0] / w[1] ** 2, 0.0]) if len(w) == 3 else 2 * w

    for search in (
        lambda: rg.worst_case_sharpness(told, np.array(point), metric, 0.1, n_restarts=1),
        lambda: rg.average_case_sharpness(lambda w: told(w)[0], np.array(point), metric, 0.1, n_samples=4),
        lambda: rg.spectrum.RiemannianHessian(told, np.array(point), metric),
    ):
        with pytest.raises(ValueError, match=f"does not live on the quotient by its group: {said}"):
            search()
    assert rg.worst_case_sharpness(told, np.array(point), metric, 0.1, n_restarts=1, verify=False).value >= 0.0


def test_what_cannot_be_told_of_a_metric_is_no_accusation():
    metric = rg.QuotientMetric(lambda w: np.eye(3) / (w @ w) * (1.0 + 1e-5 * np.tanh(w[0])), rg.symmetry.scaling("w"))
    with pytest.raises(ValueError, match=r"may not live on .* undecided \(it holds to 6\.\d digits.*may differ along"):
        rg.worst_case_sharpness(lambda w: (float(w[0]), np.eye(3)[0]), np.ones(3), metric, 0.1, n_restarts=1)


def test_without_a_group_there_is_nothing_to_verify():
    with pytest.raises(ValueError, match="group: expected a group, so that there is a quotient"):
        rg.QuotientMetric(lambda w: np.eye(2)).verify([1.0, 2.0])


def test_a_group_that_moves_nothing_holds_nothing():
    result = rg.QuotientMetric(lambda w: np.eye(2), lambda w: np.zeros((2, 1))).verify(
        [1.0, 2.0], lambda w: float(w @ w)
    )
    assert set(verdicts(result).values()) == {"undecided", "holds"}
    assert not result.holds
    assert "moves nothing" in str(result)


@pytest.mark.parametrize(
    "inner",
    [
        lambda p, a, b: float(a @ b + 0.5 * a[0] * b[1]),
        lambda p, a, b: float(np.sum(np.abs(a) * np.abs(b))),
        lambda p, a, b: float(a @ b) + 1e-3,
        lambda p, a, b: float(np.sqrt(a @ a) * np.sqrt(b @ b) * (a is b)) + float(a @ b),
        lambda p, a, b: float(a @ (b * np.arange(1.0, 4.0)[:, None] * np.ones(3)).sum(0)) + float(a[0] * b[1]),
    ],
)
def test_what_is_no_inner_product_is_refused(inner):
    with pytest.raises(ValueError, match=r"tensor: expected (an inner product|a symmetric)"):
        rg.QuotientMetric(inner).at(np.array([1.0, 2.0, 3.0]))
    assert rg.QuotientMetric(lambda p, a, b: float(a @ b)).at(np.ones(3)).dim == 3


@pytest.mark.parametrize(
    "space",
    [
        rg.TranslationMetric().at([3.0]), rg.ElementwiseMetric().at([0.0, 0.0]), rg.ScalingMetric().at([2.0]),
        rg.QuotientMetric(lambda w: np.eye(1), lambda w: np.ones((1, 1))).at([1.0]),
        rg.ProductMetric({"a": rg.ElementwiseMetric()}).at({"a": np.zeros(2)}),
    ],
)  # fmt: skip
def test_of_no_dimension_there_is_no_vector(space):
    with pytest.raises(ValueError, match="this space has dimension 0 here"):
        space.random_tangent_vector(0)
    if space.n_coordinates:
        assert np.isclose(float(space.norm(space.random_tangent_vector(0, horizontal=False))), 1.0)


@pytest.mark.parametrize("square", [lambda x: abs(x) ** 2, lambda x: x * np.conj(x)])
def test_a_zero_does_not_hide_that_complex_steps_do_not_go_through(square):
    """|x|² at x = 0, where both derivatives are zero: beside it they are not."""
    space = rg.QuotientMetric(lambda p: np.diag([1.0, 1.0 + np.real_if_close(square(p[1]), 0)])).at([0.5, 0.0])
    with pytest.raises(ValueError, match="a complex step gives the slope 0, and differences give"):
        space.geodesic([0.1, 0.6], 0.2, "exact")


@pytest.mark.slow
@pytest.mark.parametrize("s", [1.0, 1e-4, 1e-8])
def test_a_badly_scaled_gauge_accuses_nobody(s):
    """G diag(1, s) and H diag(1, 1/s): elements of the group are as large as they are in the metric."""
    G, H = (np.random.default_rng(k).standard_normal((rows, 2)) for k, rows in enumerate((3, 2)))
    metric = rg.QuotientMetric(of_product(rg.InvariantMetric()), GL)
    point = rg.Pair(G @ np.diag([1.0, s]), H @ np.diag([1.0, 1.0 / s]))
    assert metric.verify(point, lambda p: float(np.sum(np.sin(p.product)))).holds


def test_a_point_that_its_group_leaves_alone_is_told():
    """Symmetric matrices under rotations, at the identity: nothing moves there, and three dimensions do nearby."""

    def matrix(p):
        return np.array([[p[0], p[1], p[2]], [p[1], p[3], p[4]], [p[2], p[4], p[5]]])

    def numbers(X):
        return X[np.triu_indices(3)]

    turns = [np.outer(a, b) - np.outer(b, a) for a, b in zip(np.eye(3), np.roll(np.eye(3), 1, 0), strict=True)]
    metric = rg.QuotientMetric(
        lambda p: np.diag([1.0, 2.0, 2.0, 1.0, 2.0, 1.0]),
        lambda p: np.array([numbers(K @ matrix(p) - matrix(p) @ K) for K in turns]).T,
    )
    assert metric.verify(numbers(np.diag([1.0, 2.0, 5.0]))).holds
    result = metric.verify(numbers(np.eye(3)))
    assert "dimension of the quotient: 6 here, and 3 nearby" in verdicts(result)
    assert not result.holds


def test_a_loss_that_is_not_the_same_twice_is_refused():
    rng = np.random.default_rng(0)
    metric = rg.QuotientMetric(lambda p: np.eye(2), lambda p: np.array([[-p[1]], [p[0]]]))
    with pytest.raises(ValueError, match="two calls with the same parameters gave the losses"):
        metric.verify([1.0, 2.0], lambda p: float(p @ p) + 1e-3 * rng.random())


def test_a_geodesic_that_leaves_the_metric_is_refused_with_its_time():
    metric = rg.QuotientMetric(lambda w: np.eye(2) * w[0])
    with pytest.raises(rg.GeodesicIncompleteError, match="positive definite") as error:
        metric.at([1.0, 0.0]).geodesic([-1.0, 0.0], 2.0, "exact")
    assert error.value.time == pytest.approx(2.0 / 3.0, rel=1e-2)  # w^(3/2) falls at the constant rate 3/2
    with pytest.raises(rg.RankDeficientError, match="positive definite matrix, got the eigenvalue -1"):
        metric.at([-1.0, 0.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rg.QuotientMetric(np.eye(2)), "tensor: expected a function"),
        (lambda: rg.QuotientMetric(lambda w: np.eye(2), "gl"), "group: expected a function of θ"),
        (lambda: rg.QuotientMetric(lambda w: np.eye(3)).at(np.ones(2)), "each of the 2 numbers .*, got shape"),
        (lambda: rg.QuotientMetric(lambda w: np.array([[1.0, 1.0], [0.0, 1.0]])).at(np.ones(2)), "is not symmetric"),
        (lambda: rg.QuotientMetric(lambda w: np.eye(2), lambda w: np.ones((3, 1))).at(np.ones(2)).dim, "with 2 rows"),
        (lambda: rg.QuotientMetric(lambda w: np.eye(2), rg.symmetry.rescaling("a", "b")).at(np.ones(2)).dim,
         r"point: expected a dict with the blocks of the symmetries, \['a', 'b'\]"),
        (lambda: rg.QuotientMetric(lambda w: np.eye(2), lambda w: [{"a": w["a"]}]).at(
            {"a": np.ones(1), "b": np.ones(1)}).dim, r"velocities of the form of the point, \{'a': .*'b'.*, got \{'a'"),
        (lambda: rg.QuotientMetric(lambda w: np.full((2, 2), np.nan)).at(np.ones(2)), "tensor: expected finite"),
        (lambda: rg.QuotientMetric(lambda w: np.eye(2)).at(np.ones(2)).norm(np.ones(3)), "the form of the point"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_vectors_keep_the_form_of_the_point():
    theta, velocities, inner, _, _ = chain()
    space = rg.QuotientMetric(inner, velocities).at(theta)
    v = space.random_tangent_vector(0)
    assert {name: part.shape for name, part in v.items()} == {name: part.shape for name, part in theta.items()}
    assert np.allclose(flat(space.from_coordinates(space.to_coordinates(v))), flat(v))
    assert flat(like(space.point, flat(theta))).tolist() == flat(theta).tolist()


def test_without_a_dimension_the_symmetry_is_asked_for_all_the_same():
    metric = rg.QuotientMetric(lambda p: np.eye(2) / (p @ p), lambda p: np.array([[-p[1], p[0]], [p[0], p[1]]]).T)
    point = np.array([1.0, 2.0])
    for search in (
        lambda f: rg.worst_case_sharpness(f, point, metric, 0.1),
        lambda f: rg.average_case_sharpness(lambda p: f(p)[0], point, metric, 0.1),
        lambda f: rg.spectrum.RiemannianHessian(f, point, metric),
    ):
        with pytest.raises(ValueError, match="which the loss does not have"):
            search(lambda p: (float(p @ p), 2.0 * p))
    mean = rg.average_case_sharpness(lambda p: float(p @ p), point, metric, 0.1, verify=False)
    assert mean.value == 0.0


def test_a_loss_without_the_group_is_told_so_where_differences_do_not_confirm_its_gradient():
    """A random slope that is nearly zero, of a loss that oscillates: it was called a wrong gradient."""
    import autograd.numpy as anp

    rng = np.random.default_rng(0)
    Y, B = rng.standard_normal((6, 3)), rng.standard_normal((6, 6))
    loss = rg.value_and_grad(lambda Y: anp.sum(anp.sin(Y @ Y.T - B)))
    metric = rg.QuotientMetric(
        lambda Y, a, b: anp.trace(anp.linalg.solve(Y.T @ Y, a.T @ b)),
        lambda Y: [Y @ K for K in np.eye(9).reshape(9, 3, 3)],
    )
    with pytest.raises(ValueError, match="which the loss does not have"):
        rg.worst_case_sharpness(loss, Y, metric, 0.1)
