"""What an iteration of `worst_case_sharpness` costs beside the user's loss, on a real checkpoint.

Loss and gradient of MiniLM (6 layers, 10.6 million parameters that move) on 8 sequences of 64 tokens in plain NumPy,
float64, against everything else in an iteration: coordinates, geodesics, gradients, projections, steps. All of that is
some fifteen passes over vectors of 85 MB, too long for a cache, and ten products with the heads' matrices; what one
pass costs is printed too.

    python -m validation sharpness_overhead [--rounds 10]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import refgeo as rg

try:
    from validation.examples import minilm
except ImportError:  # run from inside validation/
    import minilm  # type: ignore[no-redef]


def measure(metric_name: str, order: int, rounds: int) -> tuple[float, float]:
    """Seconds in the loss and elsewhere, medians over iterations."""
    network = minilm.network()
    loss = minilm.SentenceLoss(*minilm.tokens(minilm.sentence_pairs(4), 64))
    inside: list[float] = []
    ends: list[float] = []

    def measure_time(blocks):
        start = time.perf_counter()
        result = loss(blocks)
        inside.append(time.perf_counter() - start)
        return result

    metric = network.metric(metric_name, frozen=minilm.FROZEN)
    rg.worst_case_sharpness(
        measure_time,
        network.blocks,
        metric,
        0.1,
        order=order,
        verify=False,  # whose evaluations are no iterations
        n_iter=rounds,
        n_restarts=1,
        callback=lambda _: ends.append(time.perf_counter()),
    )
    whole = np.diff(ends)
    return float(np.median(inside[1:])), float(np.median(whole - np.array(inside[1:])))


def one_pass(length: int, rounds: int) -> float:
    """Seconds to multiply two vectors entry by entry into a third, median."""
    a, b, product = np.ones((3, length))
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        np.multiply(a, b, out=product)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    print("metric  order   loss and gradient   everything else   share")
    for metric in ("inv", "mix"):
        for order in (1, 2):
            loss, rest = measure(metric, order, rounds)
            print(f"{metric:6}  {order:5}   {loss:15.3f} s   {rest:13.4f} s   {rest / loss:5.1%}", flush=True)
    network = minilm.network()
    length = network.metric("inv", frozen=minilm.FROZEN).at(network.blocks).n_coordinates
    print(f"one pass over three vectors of {length} numbers: {one_pass(length, rounds):.4f} s")


if __name__ == "__main__":
    main()
