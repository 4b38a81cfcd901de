"""Compute a version of the test set anew, and compare every digit with the file.

    python -m validation vectors [--write]

``--write`` makes the file of a version that has none yet; a file that exists is never written again.
"""

import argparse
import gzip
import hashlib
import json
import sys

from validation.vectors import FILE, FOLDER, read_published, version_1


def main():
    """Exit status: 0 if every digit is the same."""
    parser = argparse.ArgumentParser(prog="python -m validation vectors", description=__doc__.split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help="make the file of a version that has none yet")
    wanted = parser.parse_args()
    shown = sys.stderr.isatty()
    cases = version_1.cases(progress=lambda name: shown and print(f"\r\033[K{name}", end="", file=sys.stderr))
    if shown:
        print("\r\033[K", end="", file=sys.stderr)
    if wanted.write:
        write(cases)
        return 0
    known = read_published()["cases"]
    differ = [name for name in {**known, **cases} if known.get(name) != cases.get(name)]
    print(f"{len(known)} cases; {len(differ)} differ" + "".join(f"\n{name}" for name in differ))
    return int(bool(differ))


def write(cases):
    """One case a line, compressed, with its hash beside it."""
    if FILE.exists():
        raise SystemExit(f"{FILE}: exists, and a published version never changes; make a new version")
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items())
    text = f'{{"set": "refgeo-vectors", "version": 1, "cases": {{\n{lines}\n}}}}\n'
    FILE.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    digest = hashlib.sha256(FILE.read_bytes()).hexdigest()
    (FOLDER / "SHA256SUMS").write_text(f"{digest}  {FILE.name}\n")


if __name__ == "__main__":
    sys.exit(main())
