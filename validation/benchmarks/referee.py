"""How long a check takes: as a whole, and for heads of real networks beside the backend's own time.

python -m validation referee [--backend FILE] [--large]

The second table grows in n, h and the number of heads; the backend's own time is that of its values alone, called once
in this process. Of large blocks few are enclosed, one of every value at least.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import refgeo as rg
from refgeo.conformance.host import load
from refgeo.conformance.operations import VALUES

SIZES = ((12, 65, 16), (12, 385, 32), (24, 385, 32), (48, 385, 32), (12, 769, 64))
LARGE = ((144, 385, 32), (288, 769, 64), (32, 4096, 128))
TARGETS = {(144, 385, 32): 15.0, (288, 769, 64): 60.0, (32, 4096, 128): 60.0}


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def heads(count, n, h):
    """A state dict of a network in BERT's layout with so many query-key heads, twelve a layer."""
    rng, state = np.random.default_rng(0), {}
    each = min(count, 12)
    for layer in range(max(count // each, 1)):
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shape = (n - 1, each * h) if name == "output.dense" else (each * h, n - 1)
            place = f"encoder.layer.{layer}.attention.{name}"
            state[f"{place}.weight"] = rng.standard_normal(shape) / np.sqrt(n)
            state[f"{place}.bias"] = rng.standard_normal(shape[0])
    return state, each


def own(implementation, count, n, h):
    """Seconds of the backend's own for all values of both metrics at so many heads."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((count, n, h)) for _ in range(8)]
    convert = getattr(implementation, "asarray", lambda x: x)
    given = [convert(x) for x in arrays]

    def all_values():
        for value in VALUES.values():
            function = getattr(implementation, value.operation.name, None)
            if function is not None and value.order != "exact":
                for metric in ("inv", "mix"):
                    function(metric, *given[: 2 + 2 * len(value.operation.vectors)], *value.extra(0.5))

    return seconds(all_values)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="refgeo.paper")
    parser.add_argument("--large", action="store_true", help="also the sizes of the targets")
    options = parser.parse_args()
    whole = seconds(lambda: rg.check(options.backend))
    print(f"refgeo check {options.backend}: {whole:.1f} s (target: 5 s for the paper's formulas)")
    print(f"{'heads':>6s} {'n':>6s} {'h':>4s} {'check, s':>10s} {'own, s':>8s} {'ratio':>7s}  target, s")
    implementation = load(options.backend)
    for count, n, h in (*SIZES, *(LARGE if options.large else ())):
        state, each = heads(count // 2, n, h)  # a layer has as many of query and key as of value and output
        with tempfile.TemporaryDirectory() as folder:  # a file is one that two processes can read
            file = Path(folder, "heads.safetensors")
            save_file(state, file)
            judged = seconds(
                lambda file=file, each=each: rg.check(options.backend, checkpoint=file, layout="bert", heads=each)
            )
        alone = own(implementation, count, n, h)
        target = TARGETS.get((count, n, h))
        print(f"{count:6d} {n:6d} {h:4d} {judged:10.1f} {alone:8.2f} {judged / alone:7.1f}  {target or ''}", flush=True)


if __name__ == "__main__":
    main()
