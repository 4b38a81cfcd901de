"""The tour, from its script in cells: ``python -m validation tour [--quick] [--notebook FILE]``.

Without an option it runs as it stands. With ``--quick`` there is one radius, and searches end after three iterations,
too early to converge; ``--notebook`` writes it for Jupyter, with jupytext.
"""

import argparse
import re
from pathlib import Path

SCRIPT = Path(__file__).with_name("minilm_tour.py")


def main():
    """Run it, or write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--notebook", type=Path, metavar="FILE")
    options = parser.parse_args()
    script = SCRIPT.read_text(encoding="utf-8")
    if options.notebook:
        import jupytext

        jupytext.write(jupytext.reads(script, "py:percent"), options.notebook)
        return
    if options.quick:
        script = re.sub(r'("n_iter": )\d+', r"\g<1>3", script).replace("shares = [0.25, 0.5, 1.0]", "shares = [1.0]")
    exec(compile(script, str(SCRIPT), "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
