"""What somebody waits for, and what it takes: an import, a check, the memory of a search."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import refgeo as rg

from .in_turn import durations_of, ratio, seconds


def track_import():
    """``import refgeo`` beside NumPy and SciPy's linear algebra, each in a fresh interpreter."""
    statements = {"refgeo": "import refgeo", "plain": "import numpy, scipy.linalg"}
    functions = {
        name: lambda statement=statement: subprocess.run([sys.executable, "-c", statement], check=True)
        for name, statement in statements.items()
    }
    return ratio(durations_of(functions, 9), "refgeo", "plain")


track_import.unit = "imports of numpy and scipy.linalg"


class Check:
    """Seconds of a check of the paper's formulas, at all points and at the heads of a network in BERT's layout."""

    params = (None, (12, 65, 16), (12, 385, 32), (48, 385, 32))
    param_names = ("heads, n, h",)
    unit = "seconds"
    timeout = 600

    def track_seconds(self, sizes):
        if sizes is None:
            return seconds(lambda: rg.check("refgeo.paper"))
        state, heads = heads_of(*sizes)
        with tempfile.TemporaryDirectory() as folder:  # a file is one that two processes can read
            file = Path(folder, "heads.safetensors")
            save_file(state, file)
            return seconds(lambda: rg.check("refgeo.paper", checkpoint=file, layout="bert", heads=heads))


def heads_of(count, n, h):
    """A state dict with so many heads, half of them query and key, twelve a layer at most; and the heads of a layer."""
    rng, state = np.random.default_rng(0), {}
    each = min(count // 2, 12)
    for layer in range(count // 2 // each):
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shape = (n - 1, each * h) if name == "output.dense" else (each * h, n - 1)
            place = f"encoder.layer.{layer}.attention.{name}"
            state[f"{place}.weight"] = rng.standard_normal(shape) / np.sqrt(n)
            state[f"{place}.bias"] = rng.standard_normal(shape[0])
    return state, each


class Memory:
    """Of a search of 10.7 million parameters: 12 pairs of 12 heads (385×32), and arrays.

    The loss is a sum over blocks whose own memory is one block's. Its peak, with no start, is to be subtracted. A unit
    of the site's table is 43 MB, the size of the parameters in float32.
    """

    params = (0, 1, 5)
    param_names = ("starts",)
    timeout = 1200

    def peakmem_search(self, starts):
        params = blocks()
        if starts:
            metric = rg.ProductMetric({
                name: rg.InvariantMetric() if isinstance(block, rg.Pair) else rg.ElementwiseMetric()
                for name, block in params.items()
            })  # fmt: skip
            rg.worst_case_sharpness(value_and_grad, params, metric, rho=2.0, n_iter=20, n_restarts=starts)
        else:
            for _ in range(3):
                value_and_grad(params)


def blocks():
    """Pairs of moderate condition numbers, and arrays."""
    rng = np.random.default_rng(0)
    pairs = {f"pair{i}": rg.Pair(*rng.standard_normal((2, 12, 385, 32)) / 385**0.5) for i in range(12)}
    return pairs | {f"array{i}": rng.standard_normal((1536, 388)) for i in range(12)}


def value_and_grad(params):
    """Squares of what products GHᵀ and arrays do to a few fixed inputs, less a target: quartic in every pair."""
    loss, grads = 0.0, {}
    for seed, (name, block) in enumerate(params.items()):
        rng = np.random.default_rng(seed)
        if isinstance(block, rg.Pair):
            x = rng.standard_normal((block.H.shape[-2], 4))
            inner = block.H.mT @ x
            residual = block.G @ inner - 1.0
            grads[name] = (residual @ inner.mT, x @ (residual.mT @ block.G))
        else:
            x = rng.standard_normal((block.shape[1], 4)) / block.shape[1] ** 0.5
            residual = block @ x - 1.0
            grads[name] = residual @ x.T
        loss += 0.5 * float(np.vdot(residual, residual))
    return loss, grads
