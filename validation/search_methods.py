"""Alg. 1 literally beside Auto-PGD with model steps, at the default budget: which finds more?

    python -m validation.search_methods [--seeds 3]      (the second part needs torch and scikit-learn)

On diagonal networks, near a minimum and away from one, as a share of the certified maximum; on small vision
transformers trained on scikit-learn's digits, as a share of the best that both find. Prints shares and who is ahead by
more than a thousandth.
"""

import argparse

import numpy as np

import refgeo as rg

METHODS = ("auto_pgd", "model_steps")
RADII = {"diagonal": (0.01, 0.1, 0.5), "digits": (0.02, 0.1, 0.5, 2.0)}


def one_by_one(u, v):
    return rg.Pair(u[:, None, None], v[:, None, None])


def diagonal_shares():
    for i in range(24):
        rng = np.random.default_rng([i, 77])
        d, n = int(rng.integers(4, 40)), int(rng.integers(2, 40))
        u, v = rng.standard_normal((2, d))
        u, v = u + 0.5 * np.sign(u), v + 0.5 * np.sign(v)
        X = rng.standard_normal((n, d))
        y = X @ (u * v) + (1e-3, 1e-2, 0.1, 1.0)[i % 4] * rng.standard_normal(n)

        def loss(pair, X=X, y=y):
            a, b = pair.G[:, 0, 0], pair.H[:, 0, 0]
            residual = X @ (a * b) - y
            e = 2.0 * X.T @ residual
            return float(residual @ residual), one_by_one(e * b, e * a)

        for metric in (rg.InvariantMetric(), rg.MixedMetric()):
            for rho in RADII["diagonal"]:
                certified = rg.diagonal.worst_case(metric, u, v, X, y, rho, n_starts=4)
                found = [
                    rg.worst_case_sharpness(
                        loss, one_by_one(u, v), metric, rho, order="exact", method=method, verify=False
                    )
                    for method in METHODS
                ]
                yield [result.value / float(certified.lower) for result in found]


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
        elementwise = rg.ConstantMetric(rg.ElementwiseMetric())
        return rg.ProductMetric(
            {name: pairs if isinstance(block, rg.Pair) else elementwise for name, block in self.blocks.items()}
        )


def digits_shares(seeds):
    for seed in range(seeds):
        network = Digits(seed).train()
        pairs = (rg.ConstantMetric(rg.InvariantMetric()), rg.InvariantMetric(), rg.MixedMetric())
        for metric in map(network.metric, pairs):
            for rho in RADII["digits"]:
                found = [
                    rg.worst_case_sharpness(network.value_and_grad, network.blocks, metric, rho, method=method).value
                    for method in METHODS
                ]
                yield [value / max(found) for value in found]


def told(name, shares):
    literal, model = np.array(list(shares)).T
    for method, values in zip(METHODS, (literal, model), strict=True):
        print(
            f"{name:9s} {method:12s} median {np.median(values):.4f}, tenth percentile {np.quantile(values, 0.1):.4f}, "
            f"least {values.min():.3f}"
        )
    ahead = [int(np.sum(a > 1.001 * b)) for a, b in ((literal, model), (model, literal))]
    print(f"{name:9s} of {len(literal)}, auto_pgd is ahead in {ahead[0]} and model_steps in {ahead[1]}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="transformers")
    seeds = parser.parse_args().seeds
    told("diagonal", diagonal_shares())
    told("digits", digits_shares(seeds))


if __name__ == "__main__":
    main()
