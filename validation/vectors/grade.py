"""Grade results with the frozen test set: python grade.py refgeo-vectors-1.json.gz results.json [single].

The results are {case: {value: number or rows}}. The folder's README.md describes both files, and what is wrong.
"""

import gzip
import json
import math
import sys
from pathlib import Path


def read(file):
    data = Path(file).read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def flat(value):
    if isinstance(value, list):
        return [x for part in value for x in flat(part)]
    return [math.nan if value is None else float(value)]


def judge(expected, result, roundoff):
    """An array is right, wrong or not judged; and how many digits of it are right."""
    exact, got = flat(expected["mid"]), flat(result)
    largest = max(map(abs, exact)) or 1.0
    if len(got) != len(exact):
        return "wrong", 0.0
    error = max(abs(x - y) if math.isfinite(y) else math.inf for x, y in zip(exact, got, strict=True))
    digits = 16.0 if error == 0 else min(16.0, max(0.0, -math.log10(error / largest))) if error < math.inf else 0.0
    allowed = 1000 * (expected["unit"] or math.inf) * roundoff / 2.0**-53
    if allowed > 0.1 * largest:
        return "not judged", digits
    return ("right" if error <= float(expected["rad"]) + allowed else "wrong"), digits


def main():
    cases, results = read(sys.argv[1])["cases"], read(sys.argv[2])
    roundoff = 2.0**-24 if "single" in sys.argv[3:] else 2.0**-53
    given = [(key, name) for key, values in results.items() for name in values]
    unknown = [f"{key} {name}" for key, name in given if name not in cases.get(key, {"values": {}})["values"]]
    if unknown or not given:
        print(f"unknown: {unknown[0]}" if unknown else "no results")
        return 2
    rows = {}
    for key, case in cases.items():
        for name, expected in case["values"].items():
            part = name[:-2] if name[-2:] in ("_G", "_H") else name
            label = f"{case['kind']} {part} {case.get('metric', case.get('network'))}"
            row = rows.setdefault(label, {"right": 0, "wrong": 0, "not judged": 0, "missing": 0, "digits": 16.0})
            result = results.get(key, {}).get(name)
            verdict, digits = ("missing", 16.0) if result is None else judge(expected, result, roundoff)
            row[verdict] += 1
            row["digits"] = min(row["digits"], 16.0 if verdict == "not judged" else digits)
    print(f"{'value':44} right wrong not judged missing digits")
    for label, row in sorted(rows.items()):
        if row["right"] + row["wrong"] + row["not judged"]:
            counts = f"{row['right']:5} {row['wrong']:5} {row['not judged']:10} {row['missing']:7}"
            print(f"{label:44} {counts} {row['digits']:6.1f}")
    wrong = [label for label, row in sorted(rows.items()) if row["wrong"]]
    right = sum(row["right"] for row in rows.values())
    print("WRONG: " + ", ".join(wrong) if wrong else f"All {right} arrays that can be judged are right.")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
