"""``import refgeo`` beside ``import numpy, scipy.linalg``, each in a fresh interpreter, in turn.

python -m validation import_time
"""

import argparse
import statistics
import subprocess
import sys

STATEMENTS = {"refgeo": "import refgeo", "plain": "import numpy, scipy.linalg"}
PROBE = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"


def seconds(statement):
    command = [sys.executable, "-c", PROBE.format(statement)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    rounds = [{name: seconds(statement) for name, statement in STATEMENTS.items()} for _ in range(options.rounds + 1)]
    rounds = rounds[1:]  # the first fills the disk cache
    ratios = sorted(one["refgeo"] / one["plain"] for one in rounds)
    for name, statement in STATEMENTS.items():
        print(f"{statement:30s} {1e3 * statistics.median(one[name] for one in rounds):.0f} ms")
    print(f"ratio {statistics.median(ratios):.2f} (range {ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
