"""How much memory a search needs beside its loss: 12 pairs of 12 heads (385×32) and arrays, 10.7 million parameters.

The loss is a sum over blocks whose own memory is one block's, so that what is measured is the search. Each line is a
process of its own; its peak beyond that of the loss alone is given in sizes of the moving parameters in float32.

    python -m validation memory [--n-iter 20]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import numpy as np

import refgeo as rg

PAIRS, HEADS, N, H = 12, 12, 385, 32
ARRAYS, SHAPE = 12, (1536, 388)
SIDES = {
    "loss": None,
    "default": {},
    "one start": {"n_restarts": 1},
}


def blocks():
    """Pairs of moderate condition numbers, and arrays."""
    rng = np.random.default_rng(0)
    pairs = {f"pair{i}": rg.Pair(*rng.standard_normal((2, HEADS, N, H)) / N**0.5) for i in range(PAIRS)}
    return pairs | {f"array{i}": rng.standard_normal(SHAPE) for i in range(ARRAYS)}


def value_and_grad(params):
    """Squares of what products GHᵀ and arrays do to a few fixed inputs, less a target: quartic in every pair."""
    loss, grads = 0.0, {}
    for seed, (name, block) in enumerate(params.items()):
        rng = np.random.default_rng(seed)
        if isinstance(block, rg.Pair):
            x = rng.standard_normal((N, 4))
            inner = block.H.mT @ x
            residual = block.G @ inner - 1.0
            grads[name] = (residual @ inner.mT, x @ (residual.mT @ block.G))
        else:
            x = rng.standard_normal((block.shape[1], 4)) / block.shape[1] ** 0.5
            residual = block @ x - 1.0
            grads[name] = residual @ x.T
        loss += 0.5 * float(np.vdot(residual, residual))
    return loss, grads


def child(side, n_iter):
    """The loss alone, or one search."""
    params, begun = blocks(), time.perf_counter()
    if side == "loss":
        value, converged = max(value_and_grad(params)[0] for _ in range(3)), True
    else:
        metric = rg.ProductMetric({
            name: rg.InvariantMetric() if isinstance(block, rg.Pair) else rg.ElementwiseMetric()
            for name, block in params.items()
        })  # fmt: skip
        found = rg.worst_case_sharpness(value_and_grad, params, metric, rho=2.0, n_iter=n_iter, **SIDES[side])
        value, converged = found.value, found.converged
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    size = 4 * sum(sum(x.size for x in b) if isinstance(b, rg.Pair) else b.size for b in params.values())
    print(json.dumps({"peak": peak, "size": size, "value": value, "converged": converged, "seconds": seconds}))


def main():
    """A process for each line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-iter", type=int, default=20)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return child(options.side, options.n_iter)
    environment, alone = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}, 0
    for side in SIDES:
        command = [
            sys.executable,
            "-m",
            "validation.benchmarks.memory",
            "--side",
            side,
            "--n-iter",
            str(options.n_iter),
        ]
        run = json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
        if side == "loss":
            alone = run["peak"]
            print(f"{run['size'] / 4e6:.1f} million parameters, {run['size'] / 1e6:.0f} MB in float32")
            continue
        sizes = (run["peak"] - alone) / run["size"]
        print(f"{side:20} {sizes:6.1f} sizes  {run['seconds']:6.1f} s  {run['value']!r}  converged: {run['converged']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
