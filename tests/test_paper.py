"""`refgeo.paper`: every function in six arithmetics, the equations that it must have, and Algorithm 1."""

import inspect
import re

import flint
import numpy as np
import pytest
from flint import arb

import refgeo as rg
from refgeo import paper
from refgeo.exact.ball import Ball, read

METRICS = ("inv", "mix")


class Arithmetic:
    """How to make a matrix, or numbers without a shape of their own, from NumPy's, and the way back."""

    tolerance = 1e-12
    batches = True

    def make(self, array):
        return np.array(array)

    numbers = make

    def back(self, result):
        return np.asarray(result, dtype=np.float64)


class Single(Arithmetic):
    tolerance = 2e-4

    def make(self, array):
        return np.array(array, dtype=np.float32)

    numbers = make

    def back(self, result):
        assert np.asarray(result).dtype == np.float32
        return np.asarray(result, dtype=np.float64)


class Torch(Arithmetic):
    def __init__(self):
        self.torch = pytest.importorskip("torch")

    def make(self, array):
        return self.torch.tensor(np.asarray(array), requires_grad=True)

    numbers = make

    def back(self, result):
        return result.detach().numpy() if hasattr(result, "detach") else np.asarray(result)


class Jax(Arithmetic):
    def __init__(self):
        self.jax = pytest.importorskip("jax")
        self.jax.config.update("jax_enable_x64", True)

    def make(self, array):
        return self.jax.numpy.asarray(np.asarray(array))

    numbers = make


class Boxes(Arithmetic):
    """Autograd's; an array is traced while a function of it is differentiated."""

    def __init__(self):
        assert rg.value_and_grad  # whose module gives boxes their transpose

    def make(self, array):
        from autograd.core import VJPNode
        from autograd.tracer import new_box, trace_stack

        with trace_stack.new_trace() as trace:
            return new_box(np.array(array), trace, VJPNode.new_root())

    numbers = make

    def back(self, result):
        return np.asarray(getattr(result, "_value", result), dtype=np.float64)


class Balls(Arithmetic):
    """Intervals: matrices as `Ball`, other arrays as objects."""

    batches = False

    def make(self, array):
        return Ball.of(np.asarray(array))

    def numbers(self, array):
        return np.vectorize(lambda x: arb(float(x)), otypes=[object])(array)[()]

    def back(self, result):
        if isinstance(result, Ball):
            return read(result.matrix)[0]
        return np.vectorize(float, otypes=[float])(result)


ARITHMETICS = {
    "float64": Arithmetic, "float32": Single, "torch": Torch, "jax": Jax, "autograd": Boxes, "balls": Balls,
}  # fmt: skip


@pytest.fixture(params=ARITHMETICS)
def arithmetic(request):
    with flint.ctx.workprec(256):
        yield ARITHMETICS[request.param]()


def point(rng, batch=(), n=5, m=4, h=3):
    """Factors near orthonormal ones, so that float32 has digits left."""
    return [np.eye(rows, h) + 0.2 * rng.standard_normal((*batch, rows, h)) for rows in (n, m)]


# Functions of matrices: (the number of pairs after the point, what follows them)
MATRICES = {
    "grams": (0, {}),
    "inner_product": (2, {}),
    "horizontal_projection": (1, {}),
    "riemannian_gradient": (1, {}),
    "christoffel": (2, {}),
    "christoffel_adjoint": (2, {}),
    "riemannian_hessian": (3, {}),
    "geodesic": (1, {"t": 0.25}),
}


def call(name, make, metric, vectors, relaxation):
    """A function of matrices in an arithmetic; G and H come first."""
    more = MATRICES[name][1]
    if relaxation > 0.0 or make is np.array:  # it is zero where nothing is said
        more = {**more, "relaxation": relaxation}
    first = [] if name == "grams" else [metric]
    result = getattr(paper, name)(*first, *(make(x) for x in vectors), **more)
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.slow
@pytest.mark.parametrize("relaxation", [0.0, 0.25])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("name", MATRICES)
def test_functions_of_matrices_agree_in_every_arithmetic(name, metric, relaxation, arithmetic):
    for batch in ((), (2, 3)) if arithmetic.batches else ((),):
        rng = np.random.default_rng(0)
        vectors = [*point(rng, batch)]
        for _ in range(MATRICES[name][0]):
            vectors += [rng.standard_normal(F.shape) for F in vectors[:2]]
        expected = call(name, np.array, metric, vectors, relaxation)
        result = call(name, arithmetic.make, metric, vectors, relaxation)
        for item, second in zip(result, expected, strict=True):
            np.testing.assert_allclose(
                arithmetic.back(item), second, rtol=0, atol=arithmetic.tolerance * np.abs(second).max()
            )


def diagonal_case():
    u, v, target = np.array([1.0, 2.0, 0.5]), np.array([1.5, 1.0, 3.0]), np.array([1.0, 2.5, 1.0])
    return u, v, target, np.array([0.1, -0.2, 0.05])


NUMBERS = {
    "diagonal_inner_product": lambda f, u, v, y, b: [f(metric, u, v, b * u, y, u, b * v) for metric in METRICS],
    "diagonal_geodesic": lambda f, u, v, y, b: [part for metric in METRICS for part in f(metric, u, v, b, 0.5)],
    "diagonal_sharpness_at_zero_residual": lambda f, u, v, y, b: [f(u, v, 0.1)],
    "diagonal_sharpness_inv": lambda f, u, v, y, b: [f(u, v, y, 0.1)],
    "diagonal_sharpness_mix": lambda f, u, v, y, b: [f(u, v, y, 0.1)],
    "toy_geodesic": lambda f, u, v, y, b: f(u[0], v[0], b[0]),
    "toy_sharpness": lambda f, u, v, y, b: [f(u[0], v[0], y, v, 0.1)],
    "toy_gradient_norms": lambda f, u, v, y, b: f(u[0], v[0], y, v),
    "toy_hessian_traces": lambda f, u, v, y, b: f(u[0], v[0], y, v),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NUMBERS)
def test_functions_of_numbers_agree_in_every_arithmetic(name, arithmetic):
    f = getattr(paper, name)
    expected = NUMBERS[name](f, *diagonal_case())
    result = NUMBERS[name](f, *map(arithmetic.numbers, diagonal_case()))
    for item, second in zip(result, expected, strict=True):
        np.testing.assert_allclose(arithmetic.back(item), second, rtol=arithmetic.tolerance)


@pytest.mark.parametrize("name", ["group_action", "vertical_vector"])
def test_the_action_agrees_in_every_arithmetic(name, arithmetic):
    rng = np.random.default_rng(1)
    arrays = [*point(rng), np.eye(3) + 0.2 * rng.standard_normal((3, 3))]
    for item, second in zip(
        getattr(paper, name)(*map(arithmetic.make, arrays)), getattr(paper, name)(*arrays), strict=True
    ):
        np.testing.assert_allclose(arithmetic.back(item), second, rtol=0, atol=10 * arithmetic.tolerance)


def quadratic(Y):
    """½‖G Hᵀ − Y‖² and its gradient in any arithmetic, and half a sum of squares of other arrays."""

    def value_and_grad(points):
        (G, H), *others = points
        E = G @ H.mT - Y
        value = 0.5 * paper.total(paper.trace(E.mT @ E)) + 0.5 * sum(paper.total(w * w) for (w,) in others)
        return value, [(E @ H, E.mT @ G), *((w,) for (w,) in others)]

    return value_and_grad


def of_pair(Y):
    """The same for a `Pair`."""

    def value_and_grad(pair):
        value, (gradient,) = quadratic(Y)([tuple(pair)])
        return float(value), rg.Pair(*gradient)

    return value_and_grad


def search(arithmetic, metric, G, H, w, Y, **more):
    make = arithmetic.make
    blocks = [paper.PairBlock(metric, (make(G), make(H)), **more), paper.ElementwiseBlock(arithmetic.numbers(w))]
    return paper.geodesic_sharpness(quadratic(make(Y)), blocks, 0.3, n_iter=8)[0]


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
def test_sharpness_agrees_in_every_arithmetic(metric, arithmetic):
    rng = np.random.default_rng(2)
    G, H = point(rng)
    arguments = G, H, np.array([1.0, 0.0, -2.0]), rng.standard_normal((5, 4))
    expected = search(Arithmetic(), metric, *arguments)
    np.testing.assert_allclose(
        arithmetic.back(search(arithmetic, metric, *arguments)), expected, rtol=arithmetic.tolerance
    )
    w, c = np.array([1.0, 2.0, -0.5]), np.array([0.5, 0.0, 2.0])
    for scale in (None, [c]):
        values = [
            made.back(
                paper.adaptive_sharpness(
                    lambda points: (paper.total(points[0][0] ** 2), [(2.0 * points[0][0],)]),
                    [made.numbers(w)], 0.2, scale=None if scale is None else [made.numbers(c)],
                )[0]
            )
            for made in (Arithmetic(), arithmetic)
        ]  # fmt: skip
        np.testing.assert_allclose(values[1], values[0], rtol=arithmetic.tolerance)


def of_point(name, metric, relaxation):
    """A number that depends on the point through Γ, a geodesic, a projection or a whole search."""
    rng = np.random.default_rng(3)
    vectors = [rng.standard_normal(F.shape) for _ in range(2) for F in point(rng)]
    Y = rng.standard_normal((5, 4))

    def number(make, G, H):
        if name == "geodesic_sharpness":
            block = paper.PairBlock(metric, (G, H), relaxation=relaxation)
            return paper.geodesic_sharpness(quadratic(make(Y)), [block], 0.1, n_iter=3)[0]
        count = {"christoffel": 4, "geodesic": 2, "horizontal_projection": 2}[name]
        parts = getattr(paper, name)(metric, G, H, *map(make, vectors[:count]), relaxation=relaxation)
        return sum(paper.total(part * part) for part in parts)

    return number


@pytest.mark.slow
@pytest.mark.parametrize("relaxation", [0.0, 0.25])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("name", ["christoffel", "geodesic", "horizontal_projection", "geodesic_sharpness"])
def test_gradients_pass_through(name, metric, relaxation):
    """PyTorch's, JAX's and autograd's derivatives along a direction, against differences in NumPy."""
    number = of_point(name, metric, relaxation)
    rng = np.random.default_rng(4)
    G, H = point(rng)
    direction = rng.standard_normal(G.shape)
    step = 1e-3 if name != "geodesic_sharpness" else 1e-4

    def along(t):
        return number(np.array, G + t * direction, H)

    expected = (8 * (along(step) - along(-step)) - (along(2 * step) - along(-2 * step))) / (12 * step)
    result = {}
    import autograd

    assert rg.value_and_grad  # whose module gives boxes their transpose
    result["autograd"] = np.sum(autograd.grad(lambda x: number(np.array, x, H))(G) * direction)
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    tensor = torch.tensor(G, requires_grad=True)
    number(torch.tensor, tensor, torch.tensor(H)).backward()
    result["torch"] = np.sum(tensor.grad.numpy() * direction)
    jax.config.update("jax_enable_x64", True)
    gradient = jax.grad(lambda x: number(jax.numpy.asarray, x, jax.numpy.asarray(H)))(jax.numpy.asarray(G))
    result["jax"] = np.sum(np.asarray(gradient) * direction)
    for library, value in result.items():
        assert value == pytest.approx(expected, rel=1e-6), library


def test_every_function_is_tried_in_every_arithmetic():
    """All but those that make their own arrays: eigenvalues, rankings and the arithmetic itself."""
    functions = {
        name for name, function in vars(paper).items()
        if inspect.isfunction(function) and function.__module__ == "refgeo.paper" and not name.startswith("_")
    }  # fmt: skip
    arithmetic = {
        "is_inv", "library", "identity", "sym", "solve", "divide", "sylvester", "trace", "total", "elementwise", "add",
        "multiply",
    }  # fmt: skip
    in_floats = {"checkpoints", "kendall_tau", "maximise_quadratic", "diagonal_sharpness_second_order"}
    searches = {"geodesic_sharpness", "adaptive_sharpness", "group_action", "vertical_vector"}
    assert functions == {*MATRICES, *NUMBERS} | arithmetic | in_floats | searches


def test_every_numbered_equation_is_there():
    """(1) to (46), in the table of the module and in the docstrings of what it names."""
    numbers, named = set(), set()
    for line in re.split("^==.*==$", paper.__doc__, flags=re.M)[1].splitlines():
        left, _, right = line.partition("  ")
        for first, last in re.findall(r"\((\d+)\)(?:-\((\d+)\))?", left):
            numbers.update(range(int(first), int(last or first) + 1))
        named.update(re.findall(r"(?<!`)`(\w+)`", right))
    assert numbers == set(range(1, 47))
    assert all(inspect.getdoc(getattr(paper, name)) for name in named)


def test_the_second_order_maximum_is_that_of_a_fine_grid():
    u, v, X = np.array([1.0, 0.5]), np.array([1.5, -2.0]), np.array([[1.0, 0.4], [0.2, 1.3], [0.5, -1.0]])
    for y in (np.array([1.0, -0.5, 2.0]), X @ (u * v)):
        beta, r = u * v, X.T @ (X @ (u * v) - y)
        angles = np.linspace(0.0, 2.0 * np.pi, 100_001)
        circle = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        for metric in METRICS:
            b = 0.3 / np.sqrt(2.0) * (circle if metric == "inv" else circle / beta)
            value = 4.0 * b @ (beta * r) + 4.0 * np.sum((b * beta @ X.T) ** 2, axis=-1)
            if metric == "inv":
                value = value + 4.0 * b**2 @ (beta * r)
            result = paper.diagonal_sharpness_second_order(metric, u, v, X, y, 0.3)
            assert value.max() <= result * (1 + 1e-12)
            assert result <= value.max() * (1 + 1e-8)


def test_diagonal_sharpness_lies_between_certified_bounds():
    u, v, target, _ = diagonal_case()
    for rho in (0.01, 0.1, 0.5):
        for metric, value in (
            ("inv", paper.diagonal_sharpness_inv(u, v, target, rho)),
            ("mix", paper.diagonal_sharpness_mix(u, v, target, rho)),
        ):
            bounds = rg.diagonal.worst_case(metric, u, v, np.eye(3), target, rho)
            assert bounds.lower * (1 - 1e-9) <= value <= bounds.upper * (1 + 1e-9)
    zero = paper.diagonal_sharpness_at_zero_residual(u, v, 1e-3)
    assert float(rg.diagonal.worst_case("inv", u, v, np.eye(3), u * v, 1e-3).lower) == pytest.approx(zero, rel=1e-2)


def test_the_toy_is_a_diagonal_network_of_width_one():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(4), rng.standard_normal(4)
    for G, H in rng.standard_normal((5, 2)):
        result = rg.diagonal.worst_case("inv", [G], [H], x[:, None], y, 0.3)
        assert result.lower * (1 - 1e-9) <= paper.toy_sharpness(G, H, x, y, 0.3) <= result.upper * (1 + 1e-9)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("metric", METRICS)
def test_sharpness_is_that_of_the_search_without_its_starts(metric, order):
    """`paper` and `worst_case_sharpness` share the checkpoints alone; both are Algorithm 1, from the centre."""
    rng = np.random.default_rng(5)
    for n_iter in (4, 9, 20, 40):
        G, H = (rng.standard_normal((rows, 3)) for rows in (5, 4))
        Y = rng.standard_normal((5, 4))
        value, _ = paper.geodesic_sharpness(quadratic(Y), [paper.PairBlock(metric, (G, H), order)], 0.5, n_iter)
        result = rg.worst_case_sharpness(
            of_pair(Y), rg.Pair(G, H), {"inv": rg.InvariantMetric(), "mix": rg.MixedMetric()}[metric], 0.5, order=order,
            n_iter=n_iter, n_restarts=1, verify=False,
        )  # fmt: skip
        assert value == pytest.approx(result.value, rel=1e-9)


def croce_and_hein(loss, w, rho, n_iter, decided):
    """Auto-PGD of Croce & Hein (2020), its histories and conditions as they print them, in a ball of plain space."""

    def pulled(x):
        return x * min(1.0, rho / max(np.linalg.norm(x), 1e-300))

    shares = [0.0, 0.22]
    while shares[-1] < 1.0:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    w_j = sorted({int(np.ceil(round(share * n_iter, 9))) for share in shares if share <= 1.0})
    x, eta, best = [np.zeros_like(w)], [2.0 * rho], 0
    (value, gradient), moved = loss(w), []
    f, f_max, points = [value], [value], [(x[0], value, gradient)]
    for k in range(n_iter):
        z = pulled(x[k] + eta[k] * gradient / np.linalg.norm(gradient))
        moved.append(x[k])  # before a return to the best point, which takes the place of one iterate
        x.append(z if k == 0 else pulled(x[k] + 0.75 * (z - x[k]) + 0.25 * (x[k] - moved[k - 1])))
        before, (value, gradient) = value, loss(w + x[-1])
        f.append(value > before)
        points.append((x[-1], value, gradient))
        best = k + 1 if value > points[best][1] else best
        f_max.append(points[best][1])
        eta.append(eta[k])
        if k + 1 in w_j:
            last = w_j[w_j.index(k + 1) - 1]
            first = sum(f[last + 1 : k + 2]) < 0.75 * (k + 1 - last)
            second = eta[max(last - 1, 0)] == eta[k] and f_max[last] == f_max[k + 1]
            decided.append((first, second, f_max[last] == f_max[k + 1]))
            if first or second:
                eta[k + 1] = eta[k] / 2.0
                x[k + 1], value, gradient = points[best]
    return f_max[-1] - points[0][1]


def plane_waves(rng):
    """Five variables, eight waves, of which some are so short that a step passes over many."""
    K = rng.standard_normal((8, 5)) * rng.choice([1.0, 3.0, 10.0])
    amplitudes, phases = rng.standard_normal(8), rng.uniform(0.0, 6.0, 8)
    return lambda w: (float(amplitudes @ np.sin(K @ w + phases)), K.T @ (amplitudes * np.cos(K @ w + phases)))


def test_steps_are_halved_where_each_condition_of_auto_pgd_says_so():
    """One condition alone, both, none; and none where the best is unchanged, as the last checkpoint has halved."""
    decided, alike, rng = [], 0, np.random.default_rng(0)
    cases = {(True, False, False), (True, False, True), (False, True, True), (True, True, True), (False, False, False),
             (False, False, True)}  # fmt: skip
    while not cases <= set(decided) or alike < 100:
        loss, w = plane_waves(rng), rng.standard_normal(5)
        expected = croce_and_hein(loss, w, 1.0, 20, decided)
        value, _ = paper.geodesic_sharpness(
            lambda points, f=loss: (f(points[0][0])[0], [(f(points[0][0])[1],)]),
            [paper.ElementwiseBlock(w, np.ones(5))], 1.0,
        )  # fmt: skip
        result = rg.worst_case_sharpness(loss, w, rg.EuclideanMetric(), 1.0, n_restarts=1, verify=False)
        assert (value, result.value) == pytest.approx((expected, expected), rel=1e-6)
        alike += 1


def test_the_ablations_leave_out_what_they_say():
    """Order 1 knows no Γ; with the Euclidean norm and straight lines it is the ball of weight space."""
    rng = np.random.default_rng(6)
    G, H = point(rng, h=2)
    Y = rng.standard_normal((5, 4))
    block = paper.PairBlock("inv", (G, H), order=1, norm="euclidean")
    value, ((a, b),) = paper.geodesic_sharpness(quadratic(Y), [block], 0.05)
    assert np.hypot(np.linalg.norm(a), np.linalg.norm(b)) == pytest.approx(0.05, rel=1e-6)
    e = quadratic(Y)([(G, H)])[1][0]
    horizontal = paper.horizontal_projection("inv", G, H, *e)
    slope = sum(np.vdot(x, y) for x, y in zip(e, horizontal, strict=True))
    assert value == pytest.approx(0.05 * slope / np.sqrt(sum(np.vdot(x, x) for x in horizontal)), rel=0.1)
    curved = paper.PairBlock("inv", (G, H), order=2, norm="euclidean")
    assert curved.move((a, b))[0] == pytest.approx(paper.geodesic("inv", G, H, a, b)[0])
    assert block.move((a, b))[0] == pytest.approx(G + a)
    relative = paper.PairBlock("mix", (G, H), order=1, norm="adaptive")
    value, ((a, b),) = paper.geodesic_sharpness(quadratic(Y), [relative], 0.05)
    assert np.hypot(np.linalg.norm(a / G), np.linalg.norm(b / H)) == pytest.approx(0.05, rel=1e-6)
    assert np.allclose(G.T @ a @ (H.T @ H), (G.T @ G) @ b.T @ H)  # horizontal in mix all the same
    every = paper.adaptive_sharpness(lambda p: separate(quadratic(Y), p), [G, H], 0.05)[0]
    assert 0.0 < value <= every * (1.0 + 1e-9)


def separate(loss, parts):
    """A loss of a pair as one of two blocks."""
    value, ((e_G, e_H),) = loss([(parts[0][0], parts[1][0])])
    return value, [(e_G,), (e_H,)]


def test_kendalls_tau():
    from scipy.stats import kendalltau

    x, y = np.random.default_rng(0).standard_normal((2, 30))
    assert paper.kendall_tau(x, y) == pytest.approx(kendalltau(x, y).statistic)


def test_what_the_paper_does_not_have_is_refused():
    item = np.ones((1, 1))
    with pytest.raises(NotImplementedError, match='metric: expected "inv" or "mix"'):
        paper.riemannian_gradient("both", item, item, item, item)
    with pytest.raises(NotImplementedError, match="order: expected 1 or 2"):
        paper.geodesic("inv", item, item, item, item, 1.0, "exact")


@pytest.mark.parametrize("name", METRICS)
def test_formulas_take_integers(name):
    G, H = np.array([[1, 2], [3, 5], [2, 2]]), np.array([[2, 1], [0, 3]])
    v = (np.array([[1, 0], [0, 2], [1, 1]]), np.array([[0, 1], [1, 0]]))
    for relaxation in (0.0, 0.5):
        as_floats = paper.horizontal_projection(name, *(x.astype(float) for x in (G, H, *v)), relaxation=relaxation)
        result = paper.horizontal_projection(name, G, H, *v, relaxation=relaxation)
        for item, second in zip(result, as_floats, strict=True):
            assert np.allclose(item, second, rtol=1e-14)


def test_single_precision_stays():
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal((2, rows, 2)).astype(np.float32) for rows in (4, 3, 4, 3)]
    for name in METRICS:
        assert {part.dtype for part in paper.horizontal_projection(name, *arguments)} == {np.dtype(np.float32)}
    # a weight whose square is no normal number takes nothing from the others
    loss = lambda points: (((points[0][0] - 1) ** 2).sum(), [(2 * (points[0][0] - 1),)])  # noqa: E731
    for least in (0.0, 1e-20, 1e-40):
        result, _ = paper.adaptive_sharpness(loss, [np.array([least, 2.0], np.float32)], 0.1)
        assert float(result) == pytest.approx(0.44, rel=1e-5)


def test_adaptive_sharpness_is_that_of_the_search_without_its_starts():
    """Of a loss that is not the same in both directions."""
    rng = np.random.default_rng(2)
    w, c = rng.standard_normal((2, 7))

    def value_and_grad(w):
        return float(np.sum(np.exp(w) + w**3)), np.exp(w) + 3.0 * w**2

    def of_points(points):
        value, gradient = value_and_grad(points[0][0])
        return value, [(gradient,)]

    for scale in (None, c):
        scales = None if scale is None else [scale]
        value, xi = paper.adaptive_sharpness(of_points, [w], 0.4, scale=scales)
        result = rg.adaptive_sharpness(value_and_grad, w, 0.4, scale=scale, n_restarts=1)
        assert value == pytest.approx(result.value, rel=1e-9)
        assert value_and_grad(w + xi[0][0])[0] - value_and_grad(w)[0] == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("size", [1e-14, 1.0, 1e14])
def test_quadratics_are_maximised_where_all_of_the_gradient_is_along_the_largest_eigenvector(size):
    """In one dimension, with a multiple of the identity, in the hard case; and whatever the units are."""
    assert paper.maximise_quadratic(size * np.array([0.3]), size * np.array([[0.7]]), 0.1) == pytest.approx(
        0.0335 * size
    )
    rng = np.random.default_rng(0)
    for _ in range(50):
        c, radius = rng.standard_normal(4), float(rng.uniform(0.1, 3.0))
        result = paper.maximise_quadratic(size * c, 0.9 * size * np.eye(4), radius)
        assert result == pytest.approx(size * (radius * np.linalg.norm(c) + 0.45 * radius**2), rel=1e-12)
    # the gradient has no part along the largest eigenvector: x₁ = 1/(2 − 1), and the rest along it
    hard = paper.maximise_quadratic(size * np.array([1.0, 0.0]), size * np.diag([1.0, 2.0]), 2.0)
    assert hard == pytest.approx(size * (1.0 + 0.5 + 3.0), rel=1e-12)
    assert paper.maximise_quadratic(np.zeros(2), size * np.diag([1.0, 2.0]), 1.0) == pytest.approx(size)


@pytest.mark.slow
def test_the_maximum_of_25_is_the_certified_one_also_where_the_target_is_far():
    rng = np.random.default_rng(0)
    for _ in range(30):
        d, rho = int(rng.integers(1, 5)), 10.0 ** rng.uniform(-2, 0.4)
        u, v = rng.standard_normal((2, d))
        target = u * v * 10.0 ** rng.uniform(-1, 2, d) * rng.choice([-1, 1], d)
        expected = rg.diagonal.worst_case("inv", u, v, np.eye(d), target, rho)
        assert paper.diagonal_sharpness_inv(u, v, target, rho) == pytest.approx(float(expected.lower), rel=1e-7)
    tiny = [paper.toy_sharpness(2.0, 3.0, 1.0, 6.0, rho) / (72.0 * rho**2) - 1.0 for rho in (1e-7, 1e-8)]
    assert tiny == pytest.approx([2**0.5 * 1e-7, 2**0.5 * 1e-8], rel=1e-4)
