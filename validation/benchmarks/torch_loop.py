"""One search on MiniLM beside the same loop written plainly in PyTorch: time and peak memory.

A loss of a BERT-type encoder in float32 PyTorch (8 texts of 64 tokens, 10.6 million parameters that move, inv on the
heads, second-order geodesics). Four programs, each in a process of its own with one thread:

    loss     loss and gradient alone
    refgeo   `rg.worst_case_sharpness` with the README's recipe
    float32  project, step, second-order geodesic and autograd through it, in float32 PyTorch
    float64  the same, float64 beside the loss

Printed: seconds of an iteration beside those of the loss, medians; peak memory beyond that of the loss alone, in sizes
of the moving parameters in float32; and how far the largest increase found differs from that of refgeo.

    python -m validation torch_loop [--rounds 20] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

import numpy as np

import refgeo as rg
from validation.examples import minilm

RHO = 0.1
SIDES = ("loss", "refgeo", "float32", "float64")


def encoder():
    """The module, its loss as a function of a call of it, and its blocks."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    module = transformers.AutoModel.from_pretrained(minilm.folder(), attn_implementation="eager").eval()
    ids, mask = map(torch.from_numpy, minilm.tokens(minilm.sentence_pairs(4), 64))

    def loss(call):
        hidden = call(input_ids=ids, attention_mask=mask).last_hidden_state
        pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        unit = torch.nn.functional.normalize(pooled, dim=1)
        first, second = unit.chunk(2)
        return torch.nn.functional.cross_entropy(minilm.SCALE * first @ second.T, torch.arange(len(first)))

    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    return module, loss, rg.networks.read(state, "bert", heads=12)


def with_refgeo(rounds):
    module, loss, network = encoder()
    metric, ends = network.metric("inv", frozen=minilm.FROZEN), []
    result = rg.worst_case_sharpness(
        rg.adapters.torch_value_and_grad(module, network, loss, minilm.FROZEN),
        network.blocks, metric, RHO, n_iter=rounds, n_restarts=1,
        verify=False, callback=lambda _: ends.append(time.perf_counter()),
    )  # fmt: skip
    return list(np.diff(ends)), result.value


# The same in PyTorch --------------------------------------------------------------------------------------------------


class Heads:
    """Both factors of all heads of an attention layer's pair, with what its base point fixes, for the metric inv."""

    def __init__(self, G, H):
        import torch

        self.G, self.H = G, H
        self.S, self.T = G.mT @ G, H.mT @ H
        self.S_inverse, self.T_inverse = torch.linalg.inv(self.S), torch.linalg.inv(self.T)
        L = torch.linalg.cholesky(self.S)
        self.values, Q = torch.linalg.eigh(L.mT @ self.T @ L)
        self.V = L @ Q
        self.V_inverse = torch.linalg.solve_triangular(L.mT, Q, upper=True).mT

    def zero(self):
        return self.G * 0, self.H * 0

    def at(self, v):
        v_G, v_H = v
        return (
            self.G + v_G - 0.5 * christoffel(self.G, self.S_inverse, v_G),
            self.H + v_H - 0.5 * christoffel(self.H, self.T_inverse, v_H),
        )

    def raised(self, e):
        return e[0] @ self.S, e[1] @ self.T

    def horizontal(self, v):
        v_G, v_H = v
        right = self.S @ (self.H.mT @ v_H) - (v_G.mT @ self.G) @ self.T
        X = self.V_inverse @ right @ self.V / (self.values.unsqueeze(-1) + self.values.unsqueeze(-2))
        K = (self.V @ X @ self.V_inverse).mT
        return v_G + self.G @ K, v_H - self.H @ K.mT

    def squared_length(self, v):
        return sum(((x @ M) * x).sum() for x, M in zip(v, (self.S_inverse, self.T_inverse), strict=True))


def christoffel(G, S_inverse, v):
    along, square = v.mT @ G, v.mT @ v
    return G @ (S_inverse @ square) - v @ (S_inverse @ (along + along.mT))


class Entries:
    """An array with the elementwise metric, Γ off."""

    def __init__(self, w):
        self.w, self.squares = w, w * w
        self.weights = self.squares.reciprocal().nan_to_num(posinf=0.0)

    def zero(self):
        return (self.w * 0,)

    def at(self, v):
        return (self.w + v[0],)

    def raised(self, e):
        return (self.squares * e[0],)

    def horizontal(self, v):
        return v

    def squared_length(self, v):
        return (v[0] * v[0] * self.weights).sum()


def with_torch(rounds, dtype):
    """Auto-PGD (Alg. 1) on the tangent vector, a list of tensors."""
    import torch

    module, loss, network = encoder()
    moving = network.metric("inv", frozen=minilm.FROZEN).metrics
    blocks = {}
    for name in moving:
        block = network.blocks[name]
        tensors = [torch.tensor(x, dtype=dtype) for x in (block if isinstance(block, rg.Pair) else (block,))]
        blocks[name] = (Heads if len(tensors) == 2 else Entries)(*tensors)

    def weights(v):
        """The parameters of the module at γ_v(1)."""
        made = {}
        for name, block in blocks.items():
            parts = block.at(v[name])
            made |= as_parameters(name, parts)
        return {name: tensor.to(torch.float32) for name, tensor in made.items()}

    def evaluate(v):
        v = {name: tuple(x.detach().requires_grad_() for x in parts) for name, parts in v.items()}
        tensors = weights(v)
        value = loss(lambda **kw: torch.func.functional_call(module, tensors, (), kw))
        leaves = [x for parts in v.values() for x in parts]
        grads = iter(torch.autograd.grad(value, leaves))
        with torch.no_grad():
            e = {name: tuple(next(grads) for _ in parts) for name, parts in v.items()}
            g = {name: block.horizontal(block.raised(e[name])) for name, block in blocks.items()}
        return value.item(), g

    def length(v):
        return float(torch.sqrt(sum(block.squared_length(v[name]) for name, block in blocks.items())))

    def combined(*terms):
        return {
            name: tuple(sum(c * v[name][i] for c, v in terms) for i in range(len(terms[0][1][name]))) for name in blocks
        }

    def in_ball(v):
        norm = length(v)
        return v if norm <= RHO else combined((RHO / norm, v))

    x, seconds = {name: block.zero() for name, block in blocks.items()}, []
    start_value, gradient = evaluate(x)
    best, best_value, best_gradient, previous = x, start_value, gradient, None
    value, size, improved, since, last = start_value, 2 * RHO, 0, 0, (2 * RHO, start_value)
    halvings = rg.paper.checkpoints(rounds)
    for iteration in range(1, rounds + 1):
        begun, before = time.perf_counter(), value
        z = in_ball(combined((1.0, x), (size / length(gradient), gradient)))
        new = z if previous is None else in_ball(combined((0.75, z), (0.5, x), (-0.25, previous)))
        previous, x = x, new
        value, gradient = evaluate(x)
        improved, since = improved + (value > before), since + 1
        if value > best_value:
            best, best_value, best_gradient = x, value, gradient
        if iteration in halvings:
            stuck = last == (size, best_value)
            last = (size, best_value)
            if stuck or improved < 0.75 * since:
                size, x, previous, value, gradient = 0.5 * size, best, None, best_value, best_gradient
            improved = since = 0
        seconds.append(time.perf_counter() - begun)
    return seconds, best_value - start_value


def as_parameters(name, parts):
    """A block as the module's own parameters: heads side by side, biases apart."""
    import torch

    def merged(factor):
        return factor.transpose(0, 1).reshape(factor.shape[1], -1)

    if len(parts) == 1:
        return {name: parts[0]}
    prefix = name.rsplit(".", 1)[0] + "."
    G, H = map(merged, parts)
    firsts = {"self.query": G, "self.key": H} if name.endswith("query_key") else {"self.value": G}
    made = {}
    for part, matrix in firsts.items():
        made |= {f"{prefix}{part}.weight": matrix[:-1].mT, f"{prefix}{part}.bias": matrix[-1]}
    if name.endswith("value_out"):
        made[f"{prefix}output.dense.weight"] = H
    assert all(isinstance(tensor, torch.Tensor) for tensor in made.values())
    return made


# Measuring ------------------------------------------------------------------------------------------------------------


def loss_alone(rounds):
    module, loss, network = encoder()
    evaluate = recipe_of_the_module(module, loss, network)
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        evaluate()
        seconds.append(time.perf_counter() - begun)
    return seconds, 0.0


def recipe_of_the_module(module, loss, network):
    """The loss with gradients for what moves, no weight copied."""
    import torch

    frozen = network.blocks.keys() - network.metric("inv", frozen=minilm.FROZEN).metrics.keys()
    names = network.state_dict(network.blocks, np.float32, without=frozen).keys()
    moving = [parameter for name, parameter in module.named_parameters() if name in names]
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    for parameter in moving:
        parameter.requires_grad_()
    return lambda: torch.autograd.grad(loss(module), moving, materialize_grads=True)


def child(side, rounds):
    import torch

    if side == "loss":
        seconds, value = loss_alone(rounds)
    elif side == "refgeo":
        seconds, value = with_refgeo(rounds)
    else:
        seconds, value = with_torch(rounds, getattr(torch, side))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": statistics.median(seconds[2:]), "peak": peak, "value": float(value)}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3, help="of each program, in turn; the median counts")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return child(options.side, options.rounds)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    runs = {side: [] for side in SIDES}
    for side in SIDES * options.repeats:
        command = [sys.executable, "-m", "validation.benchmarks.torch_loop", "--side", side]
        output = subprocess.run(
            [*command, "--rounds", str(options.rounds)], env=environment, capture_output=True, text=True, check=True
        ).stdout
        runs[side].append(json.loads(output.splitlines()[-1]))
    found = {
        side: {what: statistics.median(run[what] for run in several) for what in several[0]}
        for side, several in runs.items()
    }
    network = minilm.network()
    size = 4 * network.metric("inv", frozen=minilm.FROZEN).at(network.blocks).n_coordinates
    loss, truth = found["loss"], found["refgeo"]["value"]
    print(f"loss and gradient alone: {loss['seconds']:.3f} s; parameters that move: {size / 1e6:.0f} MB in float32")
    print("program    beside the loss    peak memory beyond it    largest increase found, beside refgeo's")
    for side in SIDES[1:]:
        beside, memory = found[side]["seconds"] - loss["seconds"], (found[side]["peak"] - loss["peak"]) / size
        print(f"{side:9}  {beside:13.3f} s    {memory:13.1f} sizes    {found[side]['value'] / truth - 1:+.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
