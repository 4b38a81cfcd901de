"""Grade results with the frozen test set: python grade.py refgeo-vectors-1.json.gz results.json [single].

The results are {case: {value: number or rows}}. The folder's README.md describes both files, and what is wrong.
"""

import gzip
import json
import math
import sys
from pathlib import Path

USAGE = "usage: grade.py refgeo-vectors-1.json.gz results.json [single]"


def read(file):
    data = Path(file).read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def flat(value):
    if isinstance(value, list):
        return [x for part in value for x in flat(part)]
    try:
        return [math.nan if value is None else float(value)]
    except (TypeError, ValueError):
        return [math.nan]


def judge(expected, result, roundoff):
    """A verdict, how many digits are right, and what is wrong."""
    exact, got = flat(expected["mid"]), flat(result)
    largest = max(map(abs, exact)) or 1.0
    if len(got) != len(exact):
        return "wrong", 0.0, f"expected {len(exact)} numbers, got {len(got)}"
    allowed = 1000 * (expected["unit"] or math.inf) * roundoff / 2.0**-53
    if allowed > 0.1 * largest:
        return "not judged", 16.0, ""
    error = max(abs(x - y) if math.isfinite(y) else math.inf for x, y in zip(exact, got, strict=True))
    digits = 0.0 if error == math.inf else min(16.0, max(0.0, -math.log10(error / largest))) if error else 16.0
    verdict = "right" if error <= float(expected["rad"]) + allowed else "wrong"
    return verdict, digits, f"off by {error:.2g}, allowed are {allowed:.2g}"


def main():
    if len(sys.argv) < 3 or sys.argv[3:] not in ([], ["single"]):
        print(USAGE, file=sys.stderr)
        return 2
    cases, results = read(sys.argv[1])["cases"], read(sys.argv[2])
    for key, values in results.items():
        for name in values:
            if name not in cases.get(key, {"values": {}})["values"]:
                print(f"unknown: {key} {name}", file=sys.stderr)
                return 2
    roundoff = 2.0**-24 if sys.argv[3:] else 2.0**-53
    rows = {}
    for key, case in cases.items():
        for name, expected in case["values"].items():
            part = name[:-2] if name[-2:] in ("_G", "_H") else name
            label = f"{case['kind']} {part} {case.get('metric', case.get('network'))}"
            row = rows.setdefault(label, {"right": 0, "wrong": 0, "not judged": 0, "missing": 0, "digits": 16.0})
            if name not in results.get(key, {}):
                row["missing"] += 1
                continue
            verdict, digits, message = judge(expected, results[key][name], roundoff)
            row[verdict] += 1
            row["digits"] = min(row["digits"], digits)
            if verdict == "wrong":
                row.setdefault("first", f"{key} {name}: {message}")
    print(f"{'value':44} right wrong not judged missing digits")
    for label, row in sorted(rows.items()):
        if row["right"] + row["wrong"] + row["not judged"]:
            counts = f"{row['right']:5} {row['wrong']:5} {row['not judged']:10} {row['missing']:7}"
            print(f"{label:44} {counts} " + (f"{row['digits']:6.1f}" if row["right"] + row["wrong"] else "     -"))
    wrong = {label: row["first"] for label, row in sorted(rows.items()) if row["wrong"]}
    right = sum(row["right"] for row in rows.values())
    for first in wrong.values():
        print(f"wrong: {first}")
    if wrong:
        print("WRONG: " + ", ".join(wrong))
    else:
        print(f"All {right} judged arrays are right." if right else "No array could be judged.")
    return 1 if wrong else 0 if right else 2


if __name__ == "__main__":
    sys.exit(main())
