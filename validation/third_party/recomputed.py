"""By how much a released optimiser depends on the factors of its product; computed without refgeo.

    python -m validation.third_party.recomputed peft_sgd

W = B A, and the loss is ½c‖B A − Y‖². From (A, B) and from (M A, B M⁻¹) an optimiser takes 25 steps. The *difference*
of two trajectories is the largest distance of their products after a step, divided by the length of both ways until
then: 0 means that they are the same, and 1 that no two of them could differ by more. The size c is the one, among
powers of 4, with which the product moves by about 40% of its length.
"""

import itertools
import json
import sys

import numpy as np
import torch

SIZES = ((6, 5, 2), (5, 8, 3), (9, 7, 4))
SEEDS = range(2)
STARTS = ((1.4, 1.4), (0.1, 1.0))
"""Largest singular values of A and B: of one size, and of sizes beside which an ε counts."""
CONDITION = {"float64": 5.0, "float32": 2.0}
"""Of A and of B."""
TELLS = 1e-4
"""A start from which rounding alone makes a larger difference tells nothing."""
NO_RESULT = (RuntimeError, TypeError, ValueError, np.linalg.LinAlgError)
STEPS = 25
KINDS = {
    "rotations": lambda rng, r: draw_matrix(rng, r, r, 1.0, 1.0),
    "scalings": lambda rng, r: 4.0 * np.eye(r),
    "general": lambda rng, r: draw_matrix(rng, r, r, 0.7, 2.1),
    "ill-conditioned": lambda rng, r: draw_matrix(rng, r, r, 0.1, 10.0),
}
"""Of matrices M."""


def draw_matrix(rng, rows, columns, least, largest):
    """Draw a matrix with singular values between two numbers."""
    small = min(rows, columns)
    left, right = (np.linalg.qr(rng.standard_normal((k, small)))[0] for k in (rows, columns))
    return (left * np.geomspace(largest, least, small)) @ right.T


def model_of(A, B):
    """Return a module with the names of PEFT's parameters."""

    def holder(values):
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(torch.tensor(values))
        return torch.nn.ModuleDict({"default": module})

    model = torch.nn.Module()
    model.layer = torch.nn.Module()
    model.layer.lora_A, model.layer.lora_B = holder(A), holder(B)
    return model


def walk(backend, A, B, Y, size, dtype):
    """B A after every step."""
    A, B, Y = (np.ascontiguousarray(x, dtype) for x in (A, B, Y))
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    torch.manual_seed(0)
    try:
        if hasattr(backend, "step"):
            with np.errstate(all="ignore"):
                return _steps_of_arrays(backend.step, A, B, Y, size)
        return _steps_of_model(backend.of_model, A, B, Y, size)
    finally:
        torch.set_default_dtype(before)


def _steps_of_model(of_model, A, B, Y, size):
    model = model_of(A, B)
    optimiser = of_model(model)
    A, B = model.layer.lora_A["default"].weight, model.layer.lora_B["default"].weight
    products = [(B @ A).detach().double().numpy()]
    for _ in range(STEPS):
        E = size * (B.detach() @ A.detach() - torch.tensor(Y))
        A.grad, B.grad = B.detach().T @ E, E @ A.detach().T
        optimiser.step()
        products.append((B @ A).detach().double().numpy())
    return products


def _steps_of_arrays(step, A, B, Y, size):
    state, G, H = None, B, np.ascontiguousarray(A.T)
    products = [G @ H.T]
    for _ in range(STEPS):
        E = size * (G @ H.T - Y)
        state, G, H = step(state, G, H, E @ H, E.T @ G)
        products.append(G @ H.T)
    return products


def way(products):
    """Return the length of the way, step by step."""
    return np.cumsum([np.linalg.norm(y - x) for x, y in itertools.pairwise(products)])


def difference(one, other):
    """The largest distance of two trajectories as a share of both their ways; 1 where one of them is not finite."""
    with np.errstate(all="ignore"):
        apart = np.array([np.linalg.norm(x - y) for x, y in zip(one[1:], other[1:], strict=True)])
        both = way(one) + way(other)
        shares = apart / np.where(both > 0.0, both, np.inf)
    return float(np.max(np.nan_to_num(shares, nan=1.0, posinf=1.0)))


def good_size(backend, A, B, Y, dtype):
    def unease(size):
        try:
            with np.errstate(all="ignore"):
                length = way(walk(backend, A, B, Y, size, dtype))[-1] / np.linalg.norm(B @ A)
        except NO_RESULT:
            return np.inf
        return abs(np.log(length / 0.4)) if 0.0 < length < np.inf else np.inf

    return min((4.0**j for j in range(-8, 13)), key=unease)


def compute_differences(backend, dtype="float64"):
    """Return the largest difference for each kind of matrices M, over sizes and seeds; and what happens from B = 0."""
    kinds = [kind for kind in KINDS if dtype == "float64" or kind != "ill-conditioned"]
    result, from_zero = dict.fromkeys(kinds, 0.0), []
    for (n, m, r), (of_A, of_B), seed in itertools.product(SIZES, STARTS, SEEDS):
        rng, least = np.random.default_rng([n, m, r, seed]), 1.0 / CONDITION[dtype]
        A, B = draw_matrix(rng, r, m, least * of_A, of_A), draw_matrix(rng, n, r, least * of_B, of_B)
        Y = B @ A + np.linalg.norm(B @ A) / np.sqrt(n * m) * rng.standard_normal((n, m))
        size = good_size(backend, A, B, Y, dtype)
        item = walk(backend, A, B, Y, size, dtype)
        noisy = A * (1.0 + np.finfo(dtype).eps * rng.standard_normal(A.shape))
        if difference(item, walk(backend, noisy, B, Y, size, dtype)) > TELLS:
            continue
        for kind in kinds:
            M = KINDS[kind](rng, r)
            second = walk(backend, M @ A, B @ np.linalg.inv(M), Y, size, dtype)
            result[kind] = max(result[kind], difference(item, second))
        M = KINDS["general"](rng, r)
        from_zero.append(_from_zero(backend, A, M @ A, np.zeros_like(B), Y, size, dtype))
    worst = min(from_zero, key=["raises", "not finite", "does not move", "moves"].index)
    return {"differences": result, "from B = 0": worst}


def _from_zero(backend, A, other, B, Y, size, dtype):
    try:
        with np.errstate(all="ignore"):
            result = [walk(backend, x, B, Y, size, dtype) for x in (A, other)]
    except NO_RESULT:
        return "raises"
    if not np.isfinite(result).all():
        return "not finite"
    return "moves" if all(way(products)[-1] > 0.0 for products in result) else "does not move"


def main(adapter, dtype="float64"):
    """Print it as JSON."""
    from validation.third_party import optimisers

    assert "refgeo" not in sys.modules
    backend = getattr(optimisers, adapter)
    try:
        result = compute_differences(backend, dtype)
    except NotImplementedError:  # the code is not there
        raise
    except NO_RESULT as error:
        result = {"raises": f"{type(error).__name__}: {error}".splitlines()[0]}
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
