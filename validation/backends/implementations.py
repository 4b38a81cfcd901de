"""Right implementations, each in its own way, that nobody may accuse.

    python -m validation implementations [--seeds N] [--sample N] [--profile quick|full] [--out DIR] [--workers N]

A run that is interrupted goes on where it was; runs with other seeds, samples and profiles add to the same table.
"""

import concurrent.futures
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import refgeo as rg
from refgeo import paper
from refgeo.conformance.protocol.operations import OPERATIONS
from validation import experiment

DTYPES = ("float64", "float32", "bfloat16", "float16")
FUNCTIONS = [name for name in OPERATIONS if hasattr(paper, name)]


def T(matrix):
    return np.swapaxes(matrix, -1, -2)


def _backend(inverse_product, projection=None, christoffel=None):
    """Return all functions from `inverse_product(F, M)` = (FᵀF)⁻¹ M."""

    def gram_weights(metric, G, H):
        return (lambda M: inverse_product(G, M), lambda M: inverse_product(H, M)) if metric == "inv" else (
            lambda M: T(H) @ (H @ M), lambda M: T(G) @ (G @ M))  # fmt: skip

    def inner_product(metric, G, H, a_G, a_H, b_G, b_H):
        W_G, W_H = gram_weights(metric, G, H)
        return np.einsum("...ii", W_G(T(a_G) @ b_G)) + np.einsum("...ii", W_H(T(a_H) @ b_H))

    def riemannian_gradient(metric, G, H, e_G, e_H):
        if metric == "inv":
            return (e_G @ T(G)) @ G, (e_H @ T(H)) @ H
        return T(inverse_product(H, T(e_G))), T(inverse_product(G, T(e_H)))

    def geodesic(metric, G, H, v_G, v_H, t, order):
        if order not in (1, 2):
            raise NotImplementedError
        if order == 1:
            return G + t * v_G, H + t * v_H
        c_G, c_H = (christoffel or gamma)(metric, G, H, v_G, v_H, v_G, v_H)
        return G + (t * v_G - 0.5 * t * t * c_G), H + (t * v_H - 0.5 * t * t * c_H)

    def gamma(metric, G, H, a_G, a_H, b_G, b_H):
        def sums(x, y):
            return T(x) @ y + T(y) @ x

        if metric == "inv":
            return tuple(
                0.5
                * (
                    F @ inverse_product(F, sums(a, b))
                    - a @ inverse_product(F, sums(b, F))
                    - b @ inverse_product(F, sums(a, F))
                )
                for F, a, b in ((G, a_G, b_G), (H, a_H, b_H))
            )  # fmt: skip
        return tuple(
            0.5 * T(inverse_product(K, T(a @ sums(d, K) + b @ sums(c, K) - F @ sums(c, d))))
            for F, K, a, b, c, d in ((G, H, a_G, b_G, a_H, b_H), (H, G, a_H, b_H, a_G, b_G))
        )

    def project(metric, G, H, v_G, v_H):
        if metric == "mix":
            L = 0.5 * (T(inverse_product(H, T(H) @ v_H)) - inverse_product(G, T(G) @ v_G))
        else:
            S, T_ = T(G) @ G, T(H) @ H
            d, Q = np.linalg.eigh(S)
            root, white = Q * np.sqrt(d)[..., None, :], Q / np.sqrt(d)[..., None, :]
            s, U = np.linalg.eigh(T(root) @ T_ @ root)
            V, V_inverse = root @ U, T(U) @ T(white)
            B = S @ T(H) @ v_H - T(v_G) @ G @ T_
            L = T(V @ ((V_inverse @ B @ V) / (s[..., :, None] + s[..., None, :])) @ V_inverse)
        return v_G + G @ L, v_H - H @ T(L)

    def riemannian_hessian(metric, G, H, e_G, e_H, w_G, w_H, v_G, v_H):
        S_dot, T_dot = T(v_G) @ G + T(G) @ v_G, T(v_H) @ H + T(H) @ v_H
        g_G, g_H = riemannian_gradient(metric, G, H, e_G, e_H)
        if metric == "inv":
            d_G, d_H = w_G @ T(G) @ G + e_G @ S_dot, w_H @ T(H) @ H + e_H @ T_dot
        else:
            d_G, d_H = riemannian_gradient(metric, G, H, w_G - g_G @ T_dot, w_H - g_H @ S_dot)
        c_G, c_H = (christoffel or gamma)(metric, G, H, g_G, g_H, v_G, v_H)
        return (projection or project)(metric, G, H, d_G + c_G, d_H + c_H)

    return SimpleNamespace(
        inner_product=inner_product,
        horizontal_projection=projection or project,
        riemannian_gradient=riemannian_gradient,
        riemannian_hessian=riemannian_hessian,
        christoffel=christoffel or gamma,
        geodesic=geodesic,
    )


def _by_cholesky(F, M):
    L = np.linalg.cholesky(T(F) @ F)
    return np.linalg.solve(T(L), np.linalg.solve(L, M))


def _by_cofactors(F, M):
    """Return the adjugate over the determinant for h ≤ 4, which loses κ(S)²."""
    S = T(F) @ F
    h = S.shape[-1]
    if h > 4:
        return np.linalg.solve(S, M)

    def determinant(A):
        if A.shape[-1] < 3:
            a = A if A.shape[-1] else np.ones((*A.shape[:-2], 1, 1), dtype=A.dtype)
            return a[..., 0, 0] if A.shape[-1] < 2 else a[..., 0, 0] * a[..., 1, 1] - a[..., 0, 1] * a[..., 1, 0]
        return sum((-1) ** j * A[..., 0, j] * determinant(without(A, 0, j)) for j in range(A.shape[-1]))

    def without(A, i, j):
        rows, columns = ([k for k in range(A.shape[-1]) if k != item] for item in (i, j))
        return A[..., rows, :][..., columns]

    size = np.abs(S).max(axis=(-2, -1), keepdims=True)
    S = S / size
    cofactors = np.empty_like(S)
    for i, j in np.ndindex(h, h):
        cofactors[..., i, j] = (-1) ** (i + j) * determinant(without(S, i, j))
    return (T(cofactors) / determinant(S)[..., None, None]) @ M / size


def _by_qr(F, M):
    R = np.linalg.qr(F, mode="r")
    return np.linalg.solve(R, np.linalg.solve(T(R), M))


def _by_pinv(F, M):
    pinv = np.linalg.pinv(F)
    return pinv @ (T(pinv) @ M)


def _by_lstsq(F, M):
    """F⁺(F⁺)ᵀM, one least-squares problem a block."""
    result = np.empty_like(M)
    for block in np.ndindex(F.shape[:-2]):
        dual = np.linalg.lstsq(F[block].T, M[block], rcond=None)[0]
        result[block] = np.linalg.lstsq(F[block], dual, rcond=None)[0]
    return result


def _dense_projection(metric, G, H, v_G, v_H):
    """Normal equations of the vertical space with an h²×h² matrix, by einsum."""
    S, T_ = T(G) @ G, T(H) @ H
    W_G, W_H = (np.linalg.inv(S), np.linalg.inv(T_)) if metric == "inv" else (T_, S)
    h = G.shape[-1]
    # ⟨(GK, −HKᵀ), (GL, −HLᵀ)⟩ = tr(W_G KᵀSL) + tr(W_H K T Lᵀ)
    operator = np.einsum("...ik,...lj->...ijkl", S, W_G) + np.einsum("...ik,...lj->...ijkl", W_H, T_)
    right_side = W_H @ T(v_H) @ H - T(G) @ v_G @ W_G
    L = np.linalg.solve(
        operator.reshape(*G.shape[:-2], h * h, h * h), right_side.reshape(*G.shape[:-2], h * h, 1)
    ).reshape(right_side.shape)
    return v_G + G @ L, v_H - H @ T(L)


def _call_each_block(function, results, arrays):
    """Call a function block by block, and join the results; there can be no block."""
    if function.__name__ == "inner_product":
        return np.array(results, arrays[0].dtype).reshape(arrays[0].shape[:-2])
    parts = zip(*results, strict=True) if results else ((), ())
    return tuple(np.array(x, a.dtype).reshape(a.shape) for x, a in zip(parts, arrays[:2], strict=True))


def _loop(backend):
    """One block at a time."""

    def wrap(function):
        def call(metric, *arguments):
            arrays = [a for a in arguments if isinstance(a, np.ndarray)]
            extra = [a for a in arguments if not isinstance(a, np.ndarray)]
            blocks = np.ndindex(arrays[0].shape[:-2])
            results = [function(metric, *(a[block] for a in arrays), *extra) for block in blocks]
            return _call_each_block(function, results, arrays)

        return call

    return SimpleNamespace(**{name: wrap(getattr(backend, name)) for name in FUNCTIONS})


# Other ways to the same numbers ------------------------------------------------------------------------------------


def _solve_by(solve):
    """Return (FᵀF)⁻¹M by a routine for one symmetric system."""

    def inverse_product(F, M):
        S = T(F) @ F
        result = np.empty(np.broadcast_shapes(M.shape, (*F.shape[:-2], *M.shape[-2:])), dtype=M.dtype)
        for block in np.ndindex(F.shape[:-2]):
            result[block] = solve(S[block], M[block])
        return result

    return inverse_product


def _by_conjugate_gradients(S, M):
    """To convergence, until the residual is rounding; of a system of size one, so that no square underflows."""
    scale = np.abs(S).max()
    S, result = S / scale, np.zeros_like(M)
    for j in range(M.shape[1]):
        size = np.abs(M[:, j]).max()
        if size == 0.0:
            continue
        x, r = np.zeros_like(M[:, j]), M[:, j] / size
        p, rho = r.copy(), r @ r
        target = (8 * np.finfo(M.dtype).eps) ** 2 * rho
        for _ in range(60 * len(x)):
            if rho <= target:
                break
            q = S @ p
            step = rho / (p @ q)
            x, r = x + step * p, r - step * q
            p, rho = r + (r @ r) / rho * p, r @ r
        result[:, j] = x * (size / scale)
    return result


def _by_newton_schulz(S, M):
    """To convergence: until a step changes nothing but rounding."""
    X, eye = S.T / (np.abs(S).sum(0).max() * np.abs(S).sum(1).max()), np.eye(len(S), dtype=S.dtype)
    for _ in range(200):
        following = X @ (2 * eye - S @ X)
        if np.abs(following - X).max() <= 4 * np.finfo(S.dtype).eps * np.abs(X).max():
            break
        X = following
    return X @ (M + (M - S @ (X @ M)))


def _by_svd_of_the_gram(S, M):
    """Return the inverse product by a pseudo-inverse of a Gram matrix, which loses tens of roundings, not one."""
    return np.linalg.pinv(S) @ M


def _in_extended_precision(backend):
    """Everything in long doubles, by elimination written out."""

    def inverse_product(F, M):
        F, M = F.astype(np.longdouble), M.astype(np.longdouble)
        result = np.empty(M.shape, dtype=np.longdouble)
        for block in np.ndindex(F.shape[:-2]):
            result[block] = _eliminate(F[block].T @ F[block], M[block])
        return result

    names = [name for name in FUNCTIONS if name not in ("horizontal_projection", "riemannian_hessian")]
    return _convert_calls(backend(inverse_product), np.longdouble, names)


def _convert_calls(backend, dtype, names=FUNCTIONS):
    """Return a backend that is called with arrays in another dtype, and whose results have that of the arguments."""

    def wrap(function):
        def call(metric, *arguments):
            result = function(metric, *(x.astype(dtype) if isinstance(x, np.ndarray) else x for x in arguments))
            own = arguments[0].dtype
            return tuple(x.astype(own) for x in result) if isinstance(result, tuple) else np.asarray(result, own)

        return call

    return SimpleNamespace(**{name: wrap(getattr(backend, name)) for name in names if hasattr(backend, name)})


def _eliminate(S, M):
    """Solve S X = M by Gauss–Jordan with pivoting: NumPy has no solver for long doubles."""
    A, h = np.concatenate([S, M], axis=1), len(S)
    for i in range(h):
        k = i + int(np.argmax(np.abs(A[i:, i])))
        A[[i, k]] = A[[k, i]]
        A[i] /= A[i, i]
        for j in range(h):
            if j != i:
                A[j] -= A[j, i] * A[i]
    return A[:, h:]


def _in_another_gauge(backend):
    """Moves everything by a random element of GL(h) first, and back at the end."""
    covectors = {"riemannian_gradient": (1,), "riemannian_hessian": (1, 2)}

    def wrap(name):
        function = getattr(backend, name)

        def call(metric, *arguments):
            arrays = [x for x in arguments if isinstance(x, np.ndarray)]
            extra = [x for x in arguments if not isinstance(x, np.ndarray)]
            h, dtype = arrays[0].shape[-1], arrays[0].dtype
            rng = np.random.default_rng(h)
            left, right = (np.linalg.qr(rng.standard_normal((h, h)))[0] for _ in range(2))
            A = (left * np.linspace(0.8, 1.25, h)) @ right
            B = np.linalg.inv(A)
            A, B = A.astype(dtype), B.astype(dtype)
            moved = []
            for i, x in enumerate(arrays):
                covector = i // 2 in covectors.get(name, ())
                right_factor = (A.T if covector else B) if i % 2 == 0 else (B if covector else A.T)
                moved.append(x @ right_factor)
            result = function(metric, *moved, *extra)
            return (result[0] @ A, result[1] @ B.T) if isinstance(result, tuple) else result

        return call

    return SimpleNamespace(**{name: wrap(name) for name in FUNCTIONS})


def _with_rows_shuffled(backend):
    """Sums the rows in another order, every time."""
    rng = np.random.default_rng(0)

    def wrap(name):
        function = getattr(backend, name)

        def call(metric, *arguments):
            arrays = [x for x in arguments if isinstance(x, np.ndarray)]
            extra = [x for x in arguments if not isinstance(x, np.ndarray)]
            orders = [rng.permutation(x.shape[-2]) for x in arrays[:2]]
            result = function(metric, *(x[..., orders[i % 2], :] for i, x in enumerate(arrays)), *extra)
            if not isinstance(result, tuple):
                return result
            return tuple(x[..., np.argsort(order), :] for x, order in zip(result, orders, strict=True))

        return call

    return SimpleNamespace(**{name: wrap(name) for name in FUNCTIONS})


def _in_threads(backend):
    """One thread a block."""
    pool = concurrent.futures.ThreadPoolExecutor(4)

    def wrap(function):
        def call(metric, *arguments):
            arrays = [a for a in arguments if isinstance(a, np.ndarray)]
            extra = [a for a in arguments if not isinstance(a, np.ndarray)]
            blocks = list(np.ndindex(arrays[0].shape[:-2]))
            results = list(pool.map(lambda block: function(metric, *(a[block] for a in arrays), *extra), blocks))
            return _call_each_block(function, results, arrays)

        return call

    return SimpleNamespace(**{name: wrap(getattr(backend, name)) for name in FUNCTIONS})


def _in_python_lists():
    """Return the simplest functions with lists and loops, one number at a time."""

    def gram(F):
        return [[sum(row[i] * row[j] for row in F) for j in range(len(F[0]))] for i in range(len(F[0]))]

    def times(A, B):
        return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*B, strict=True)] for row in A]

    def inverse(S):
        return _eliminate(np.array(S), np.eye(len(S))).tolist()

    def blockwise(function):
        def call(metric, *arrays):
            blocks = np.ndindex(arrays[0].shape[:-2])
            results = [function(metric, *(x[block].tolist() for x in arrays)) for block in blocks]
            return _call_each_block(function, results, arrays)

        return call

    def inner_product(metric, G, H, a_G, a_H, b_G, b_H):
        W_G, W_H = (inverse(gram(G)), inverse(gram(H))) if metric == "inv" else (gram(H), gram(G))
        return sum(
            x * y
            for W, a, b in ((W_G, a_G, b_G), (W_H, a_H, b_H))
            for row, second in zip(times(a, W), b, strict=True)
            for x, y in zip(row, second, strict=True)
        )

    def riemannian_gradient(metric, G, H, e_G, e_H):
        W_G, W_H = (gram(G), gram(H)) if metric == "inv" else (inverse(gram(H)), inverse(gram(G)))
        return times(e_G, W_G), times(e_H, W_H)

    return SimpleNamespace(inner_product=blockwise(inner_product), riemannian_gradient=blockwise(riemannian_gradient))


def _by_complex_step():
    """Γ from the acceleration of the metric: Koszul's identity with exact derivatives, by complex steps."""
    step = 1e-150

    def inner(metric, G, H, a, b):
        S, T_ = T(G) @ G, T(H) @ H
        W_G, W_H = (np.linalg.inv(S), np.linalg.inv(T_)) if metric == "inv" else (T_, S)
        return np.trace(W_G @ T(a[0]) @ b[0], axis1=-2, axis2=-1) + np.trace(W_H @ T(a[1]) @ b[1], axis1=-2, axis2=-1)

    def christoffel(metric, G, H, a_G, a_H, b_G, b_H):
        dtype = G.dtype
        G, H, a_G, a_H, b_G, b_H = (x.astype(float) for x in (G, H, a_G, a_H, b_G, b_H))  # for so small a step
        a, b = (a_G, a_H), (b_G, b_H)

        def derivative(direction, x, y):
            moved = (F.astype(complex) + 1j * step * d for F, d in zip((G, H), direction, strict=True))
            return inner(metric, *moved, x, y).imag / step

        batch, sizes = G.shape[:-2], (G.shape[-2:], H.shape[-2:])
        covector = [np.zeros(G.shape), np.zeros(H.shape)]
        for part in (0, 1):
            for i, j in np.ndindex(sizes[part]):
                c = [np.zeros((*batch, *size)) for size in sizes]
                c[part][..., i, j] = 1.0
                covector[part][..., i, j] = 0.5 * (derivative(a, b, c) + derivative(b, a, c) - derivative(c, a, b))
        S, T_ = T(G) @ G, T(H) @ H
        W_G, W_H = (S, T_) if metric == "inv" else (np.linalg.inv(T_), np.linalg.inv(S))
        return (covector[0] @ W_G).astype(dtype), (covector[1] @ W_H).astype(dtype)

    return SimpleNamespace(christoffel=christoffel)


def right_backends(only_numpy=False):
    """Return the backends by name; unless `only_numpy` also refgeo's own, and Torch and JAX if they are installed."""
    by_qr = _backend(_by_qr)
    backends = {
        "Gram, solve": paper,
        "Gram, explicit inverse, eigh": _backend(lambda F, M: np.linalg.inv(T(F) @ F) @ M),
        "Cholesky": _backend(_by_cholesky),
        "QR": by_qr,
        "cofactors": _backend(_by_cofactors),
        "pseudo-inverse": _backend(_by_pinv),
        "pseudo-inverse of the Gram matrix": _backend(_solve_by(_by_svd_of_the_gram)),
        "least squares": _backend(_by_lstsq),
        "einsum, dense normal equations": _backend(_by_qr, projection=_dense_projection),
        "conjugate gradients": _backend(_solve_by(_by_conjugate_gradients)),
        "Newton–Schulz": _backend(_solve_by(_by_newton_schulz)),
        "long doubles": _in_extended_precision(_backend),
        "a loop over blocks": _loop(by_qr),
        "another gauge first": _in_another_gauge(by_qr),
        "rows in another order": _with_rows_shuffled(by_qr),
        "threads": _in_threads(by_qr),
        "Python lists": _in_python_lists(),
        "complex step": _by_complex_step(),
    }
    if only_numpy:
        return backends
    folder = Path(__file__).parent
    backends["balanced gauge"] = str(folder / "balanced.py")
    for name, module in (("PyTorch", "torch"), ("JAX", "jax")):
        if importlib.util.find_spec(module):
            backends[name] = str(folder / f"{module}_backend.py")
    return backends


def judge_implementations(names, profile, dtype, seed):
    """Return the verdict on each implementation by name; enclosures are shared."""
    result = {}
    backends = right_backends()
    for name in names:
        cases = FEW if name in SLOW else None
        with np.errstate(all="ignore"):
            backend = backends[name]
            if dtype == "float16" and not isinstance(backend, str):  # NumPy has no linear algebra of halves
                backend = _convert_calls(backend, np.float32)
            report = rg.check(backend, dtype=dtype, profile=profile, seed=seed, cases=cases)
        result[name] = {
            "accused": [] if report.passed else report.wrong or ["not passed"],
            "findings": [f"{row} {row.message[:150]}" for row in report.findings],
            "worst": max((row.worst_ratio or 0.0 for row in report.rows if row.kind == "value"), default=0.0),
        }
    return result


SLOW = ("complex step", "Python lists", "conjugate gradients", "long doubles", "einsum, dense normal equations")
FEW = ["1x1x1", "7x4x1", "5x4x2", "4x4x4", "3-7x4x1", "2-6x7x2", "10x9x4/k10", "1x5x1"]
"""The points that the slow ones are judged at."""


def main():
    """Judge, and say who was accused."""
    parser = experiment.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--profile", choices=("quick", "full"), default="quick")
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--only", action="append", help="only these implementations")
    parser.add_argument("--sample", type=int, help="how many of them, in turn, judge a seed; default: all")
    options = parser.parse_args()
    names = [name for name in right_backends() if options.only is None or name in options.only]
    for missing in {"PyTorch", "JAX"}.difference(right_backends()):
        experiment.console.print(f"not installed, not tried: {missing}")
    count = min(options.sample or (2 if options.quick else len(names)), len(names))
    tasks = {}
    for seed in range(options.first, options.first + (3 if options.quick else options.seeds)):
        chosen = [names[(seed * count + i) % len(names)] for i in range(count)]
        for dtype in options.dtype or DTYPES[:2]:
            key = f"{options.profile}, {dtype}, seed {seed}: {', '.join(chosen)}"
            tasks[key] = chosen, options.profile, dtype, seed
    results = experiment.Results(options.out / "implementations.json", {"refgeo": rg.__version__})
    results.measure_all(judge_implementations, tasks, options.workers, "right implementations")
    accused = report(results.values, options.out / "implementations.csv")
    return int(accused > 0)


def report(values, path):
    """Return all that has been judged so far, as a table; the number of accusations."""
    rows = {}
    for key, result in values.items():
        profile, dtype, seed = key.split(":")[0].split(", ")
        for name, verdict in result.items():
            row = rows.setdefault((name, profile), {"runs": 0, "accused": 0} | dict.fromkeys(DTYPES, 0.0))
            row["runs"] += 1
            row["accused"] += bool(verdict["accused"])
            row[dtype] = max(row[dtype], verdict["worst"])
            for line in [f"WRONG {item}" for item in verdict["accused"]] + verdict["findings"]:
                experiment.console.print(f"{name}, {dtype}, {seed}: {line}", soft_wrap=True, highlight=False)
    header = ["implementation", "profile", "runs", "accused", "worst ratio, float64", *DTYPES[1:]]
    lines = [
        [name, profile, str(row["runs"]), str(row["accused"]), *(f"{row[dtype]:.1f}" for dtype in DTYPES)]
        for (name, profile), row in sorted(rows.items())
    ]
    experiment.table(header, lines, path)
    return sum(row["accused"] for row in rows.values())


if __name__ == "__main__":
    sys.exit(main())
