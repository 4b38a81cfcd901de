"""How much of the maximum does Algorithm 1 find, from one start and from five?

    python -m validation search_methods [--problems 120] [--seeds 3]     (the last part needs torch and scikit-learn)

*Pairs*: small problems with one pair, of six kinds, in inv and mix, at the proposed radius and at ρ = 0.1, 0.5 and 1.
The truth is the best of SciPy's SLSQP from 40 random points and of a search from 48 starts of 40 iterations; a search
misses the maximum if it finds less than 99% of it. *Diagonal networks*, near a minimum and away from one: the same
beside the lower bound of `rg.diagonal.worst_case`, for mix nearly always the exact maximum. *Digits*: small vision
transformers trained on scikit-learn's digits, as a share of what a search from ten starts of 40 iterations finds.
"""

import argparse
import itertools
import sys

import numpy as np
import scipy.optimize

import refgeo as rg
from refgeo.sharpness.objective import Objective, ParameterSpace

STARTS = (1, 5)
METRICS = (rg.InvariantMetric(), rg.MixedMetric())
RADII = {"diagonal": (0.01, 0.1, 0.5), "digits": (0.02, 0.1, 0.5, 2.0)}


def one_by_one(u, v):
    return rg.Pair(u[:, None, None], v[:, None, None])


def far_from_zero():
    """Networks that are not trained, all of whose weights are at least ½."""
    for i in range(24):
        rng = np.random.default_rng([i, 77])
        d, n = int(rng.integers(4, 40)), int(rng.integers(2, 40))
        u, v = rng.standard_normal((2, d))
        u, v = u + 0.5 * np.sign(u), v + 0.5 * np.sign(v)
        X = rng.standard_normal((n, d))
        y = X @ (u * v) + (1e-3, 1e-2, 0.1, 1.0)[i % 4] * rng.standard_normal(n)
        yield u, v, X, y


def trained():
    """Networks that are trained, with entries of β near zero."""
    rng = np.random.default_rng(0)
    X, u, v = rng.standard_normal((10, 20)), *(0.3 * rng.standard_normal((2, 12, 20)))
    y = X @ (rng.standard_normal(20) * (rng.random(20) < 0.2))
    found = rg.diagonal.train(X, y, u, v, step_size=0.005)
    yield from ((u, v, X, y) for u, v in zip(found.u, found.v, strict=True))


def diagonal_problems(networks, metrics=METRICS, radii=RADII["diagonal"]):
    for u, v, X, y in networks:

        def loss(pair, X=X, y=y):
            a, b = pair.G[:, 0, 0], pair.H[:, 0, 0]
            residual = X @ (a * b) - y
            e = 2.0 * X.T @ residual
            return float(residual @ residual), one_by_one(e * b, e * a)

        for metric in metrics:
            for rho in radii:
                certified = rg.diagonal.worst_case(metric, u, v, X, y, rho, n_starts=4)
                yield loss, one_by_one(u, v), metric, rho, float(certified.lower)


def diagonal_shares(problems, n_restarts=1):
    """Of the lower bound of the maximum."""
    for loss, point, metric, rho, certified in problems:
        result = rg.worst_case_sharpness(loss, point, metric, rho, order="exact", n_restarts=n_restarts, verify=False)
        yield result.value / certified


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def of_the_product(kind, rng, n, m, here):
    """One of six losses of X = G Hᵀ, which is `here` at the point, as value and derivative; noise from 1e-3 to 2."""
    noise = 10 ** rng.uniform(-3.0, 0.3)
    inputs, others = rng.standard_normal((int(rng.integers(4, 16)), n)), rng.standard_normal((4, m))
    out = rng.standard_normal((m, 2))
    if kind == "factorisation":
        Y = here + noise * rng.standard_normal((n, m))
        return lambda X: (0.5 * np.sum((X - Y) ** 2), X - Y)
    if kind == "regression":
        Y = inputs @ here + noise * rng.standard_normal((len(inputs), m))
        return lambda X: (0.5 * np.mean((inputs @ X - Y) ** 2), inputs.T @ (inputs @ X - Y) / Y.size)
    if kind == "classification":
        classes, N = (inputs @ here + noise * rng.standard_normal((len(inputs), m))).argmax(axis=1), len(inputs)

        def classification(X):
            shares = softmax(2.0 * inputs @ X)
            value = -np.mean(np.log(shares[np.arange(N), classes] + 1e-300))
            shares[np.arange(N), classes] -= 1.0
            return value, 2.0 * inputs.T @ shares / N

        return classification
    if kind == "tanh":
        Y = np.tanh(inputs @ here) @ out + noise * rng.standard_normal((len(inputs), 2))

        def network(X):
            hidden = np.tanh(inputs @ X)
            e = (hidden @ out - Y) / Y.size
            return 0.5 * np.sum(e**2) * Y.size, inputs.T @ (e @ out.T * (1.0 - hidden**2))

        return network
    if kind == "attention":
        queries, values = inputs[:4], rng.standard_normal((4, 2))
        Y = softmax(queries @ here @ others.T) @ values + noise * rng.standard_normal((4, 2))

        def attention(X):
            weights = softmax(queries @ X @ others.T)
            e = weights @ values - Y
            back = weights * (e @ values.T - np.sum(weights * (e @ values.T), axis=1, keepdims=True))
            return 0.5 * np.sum(e**2), queries.T @ back @ others

        return attention
    slopes, size, often = 0.15 * rng.standard_normal((n, m)), rng.standard_normal((n, m)), rng.uniform(0.5, 3.0, (n, m))
    return lambda X: (np.sum(slopes * X + size * np.sin(often * X)), slopes + size * often * np.cos(often * X))


KINDS = ("factorisation", "regression", "classification", "tanh", "attention", "waves")


def pair_problem(i):
    """A loss of G Hᵀ with its gradients, a point, and a metric."""
    rng = np.random.default_rng([i, 78])
    n, m = map(int, rng.integers(2, 6, 2))
    h = int(rng.integers(1, min(n, m, 3) + 1))
    pair = rg.Pair(rng.standard_normal((n, h)), rng.standard_normal((m, h)))
    loss = of_the_product(KINDS[i % len(KINDS)], rng, n, m, pair.product)

    def value_and_grad(p):
        value, e = loss(p.product)
        return float(value), rg.Pair(e @ p.H, e.T @ p.G)

    return value_and_grad, pair, (rg.InvariantMetric(), rg.MixedMetric())[i // len(KINDS) % 2]


def maximum(value_and_grad, point, metric, rho):
    """As far as it can be found: the best of two methods, from many starts."""
    objective = Objective(value_and_grad, ParameterSpace(point, metric), 2, 2)
    rng = np.random.default_rng(1)
    found = [
        rg.worst_case_sharpness(
            value_and_grad, point, metric, rho, n_restarts=48, n_iter=40, rng=99, verify=False
        ).value
    ]
    scale = max(found) or 1.0

    def negative(x):
        value, gradient = objective(rho * x)
        return (-value / scale, -rho * gradient / scale) if np.isfinite(value) else (1e10, 0.0 * x)

    within = {"type": "ineq", "fun": lambda x: 1.0 - x @ x, "jac": lambda x: -2.0 * x}
    for _ in range(40):
        x = objective.space.random_direction(rng)
        x = scipy.optimize.minimize(
            negative, 0.99 * x / np.linalg.norm(x), jac=True, method="SLSQP", constraints=[within],
            options={"maxiter": 200, "ftol": 1e-12},
        ).x  # fmt: skip
        x = objective.space.horizontal(x)
        found.append(objective(rho * x / max(1.0, float(np.linalg.norm(x))))[0])
    return max(found)


def pair_searches(problems):
    """By radius and number of starts: shares of the maximum, evaluations, and whether it converged."""
    found = {}
    for i in range(problems):
        value_and_grad, point, metric = pair_problem(i)
        for name in ("proposed", 0.1, 0.5, 1.0):
            rho = rg.proposed_radius(value_and_grad, point, metric) if name == "proposed" else name
            truth = maximum(value_and_grad, point, metric, rho)
            for n_restarts in STARTS:
                result = rg.worst_case_sharpness(
                    value_and_grad, point, metric, rho, n_restarts=n_restarts, verify=False
                )
                row = result.value / truth, result.n_evaluations, result.converged, result.n_reached
                found.setdefault((name, n_restarts), []).append(row)
        if i % 10 == 9:
            print(f"pairs: {i + 1} of {problems}", file=sys.stderr, flush=True)
    return found


def tell_pairs(found):
    titles = ("ρ", "starts", "missed", "of them converged", "reached once", "least", "evaluations")
    print("  ".join(titles))
    for (name, n_restarts), rows in found.items():
        shares, evaluations, converged, reached = np.array(rows, dtype=float).T
        missed = shares < 0.99
        cells = (
            name, n_restarts, f"{missed.sum()} of {len(rows)}", int(converged[missed].sum()),
            int((reached[missed] == 1).sum()), f"{shares.min():.2f}", f"{evaluations.mean():.0f}",
        )  # fmt: skip
        print("  ".join(map(str, cells)), flush=True)


class Digits:
    """A vision transformer of two layers, rows of pixels as tokens, in PyTorch."""

    def __init__(self, seed, width=32, heads=4, h=8):
        import torch
        from sklearn.datasets import load_digits

        self.torch, self.h = torch, h
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images.reshape(-1, 8, 8) / 16.0)
        self.labels = torch.tensor(labels)
        torch.manual_seed(seed)
        shapes = {"emb": (8, width), "pos": (8, width), "out": (width, 10)}
        for layer in range(2):
            shapes |= {f"{name}{layer}": (heads, width, h) for name in "qkvo"}
            shapes |= {f"a{layer}": (width, 64), f"b{layer}": (64, width)}
        scale = width**-0.5
        self.weights = {name: scale * torch.randn(*shape, dtype=torch.float64) for name, shape in shapes.items()}

    def loss(self, W, chosen):
        functional, einsum = self.torch.nn.functional, self.torch.einsum
        x = self.images[chosen] @ W["emb"] + W["pos"]
        for layer in range(2):
            z = functional.layer_norm(x, x.shape[-1:])
            q, k, v = (einsum("bnd,kdh->bknh", z, W[f"{name}{layer}"]) for name in "qkv")
            attention = self.torch.softmax(q @ k.mT / self.h**0.5, -1)
            x = x + einsum("bknh,kdh->bnd", attention @ v, W[f"o{layer}"])
            z = functional.layer_norm(x, x.shape[-1:])
            x = x + self.torch.relu(z @ W[f"a{layer}"]) @ W[f"b{layer}"]
        return functional.cross_entropy(x.mean(1) @ W["out"], self.labels[chosen])

    def train(self, steps=400):
        weights = {name: w.requires_grad_() for name, w in self.weights.items()}
        optimizer = self.torch.optim.Adam(weights.values(), lr=3e-3)
        for _ in range(steps):
            loss = self.loss(weights, self.torch.randint(0, 1200, (128,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.weights = {name: w.detach() for name, w in weights.items()}
        return self

    @property
    def blocks(self):
        arrays = {name: w.numpy() for name, w in self.weights.items()}
        pairs = {a + b: rg.Pair(arrays.pop(a), arrays.pop(b)) for a, b in (("q0", "k0"), ("v0", "o0"), ("q1", "k1"),
                                                                           ("v1", "o1"))}  # fmt: skip
        return {**arrays, **pairs}

    def value_and_grad(self, blocks):
        arrays = {}
        for name, block in blocks.items():
            arrays |= {name[:2]: block.G, name[2:]: block.H} if isinstance(block, rg.Pair) else {name: block}
        weights = {name: self.torch.tensor(array).requires_grad_() for name, array in arrays.items()}
        loss = self.loss(weights, self.torch.arange(128))
        loss.backward()
        grads = {name: w.grad.numpy() for name, w in weights.items()}
        return loss.item(), {
            name: rg.Pair(grads[name[:2]], grads[name[2:]]) if isinstance(block, rg.Pair) else grads[name]
            for name, block in blocks.items()
        }

    def metric(self, pairs):
        elementwise = rg.ElementwiseMetric(curved=False)
        return rg.ProductMetric(
            {name: pairs if isinstance(block, rg.Pair) else elementwise for name, block in self.blocks.items()}
        )


def digits_shares(seeds):
    for seed in range(seeds):
        network = Digits(seed).train()
        for pairs, order in ((rg.InvariantMetric(), 1), (rg.InvariantMetric(), 2), (rg.MixedMetric(), 2)):
            metric = network.metric(pairs)
            for rho in RADII["digits"]:
                one, many = (
                    rg.worst_case_sharpness(
                        network.value_and_grad, network.blocks, metric, rho, order=order, **effort
                    ).value
                    for effort in ({"n_restarts": 1}, {"n_restarts": 10, "n_iter": 40})
                )
                yield one / max(one, many)


def told(name, shares):
    print(
        f"{name}: missed by more than 1% {np.sum(shares < 0.99)} of {len(shares)}; median {np.median(shares):.4f}, "
        f"tenth percentile {np.quantile(shares, 0.1):.4f}, least {shares.min():.3f}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=120, help="with pairs; about three minutes for ten")
    parser.add_argument("--seeds", type=int, default=3, help="transformers; 0 for none")
    options = parser.parse_args()
    tell_pairs(pair_searches(options.problems))
    for n_restarts in STARTS:
        shares = diagonal_shares(diagonal_problems(far_from_zero()), n_restarts)
        told(f"diagonal, starts {n_restarts}", np.array(list(shares)))
    for metric, rho in itertools.product(METRICS, RADII["diagonal"]):
        shares = diagonal_shares(diagonal_problems(trained(), (metric,), (rho,)), STARTS[-1])
        told(f"diagonal, trained, {metric.name}, ρ = {rho:g}, starts {STARTS[-1]}", np.array(list(shares)))
    if options.seeds:
        told("digits, one start", np.array(list(digits_shares(options.seeds))))


if __name__ == "__main__":
    main()
