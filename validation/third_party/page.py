"""The page of what was judged: tables and sections of `judged.toml`, `results.json` and the programs."""

import json
import re
import tomllib
from pathlib import Path

from validation import experiment
from validation.third_party import programs

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
JUDGED = tomllib.loads((HERE / "judged.toml").read_text(encoding="utf-8"))
SAME = 1e-4
"""Products agree if they differ by less, as a share of both ways."""
GROUPS = {  # kinds of matrices that belong to a name, in the order in which it is looked for
    "GL(h)": ("rotations", "scalings", "general", "ill-conditioned"),
    "well-conditioned M": ("rotations", "scalings", "general"),
    "rotations and scalings": ("rotations", "scalings"),
    "rotations": ("rotations",),
    "scalings": ("scalings",),
}


def round_numbers(value):
    """Round numbers to two digits, wherever they are."""
    if isinstance(value, dict):
        return {name: round_numbers(item) for name, item in value.items()}
    return float(f"{value:.2g}") if isinstance(value, float) else value


def read_results():
    """Return what was seen until now."""
    empty = {"optimisers": {}, "geometries": {}, "merges": {}}
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else empty


def link(source, version):
    """Return a package at its version, or a repository at its commit."""
    if "/" in source:
        commit, _, date = version.partition(", ")
        return f"[{date}](https://github.com/{source}/commit/{commit})"
    return f"[{version}](https://pypi.org/project/{source}/{version}/)"


def group_of(differences):
    """Under which matrices the products are the same, of those that were tried."""
    for name, kinds in GROUPS.items():
        tried = [kind for kind in kinds if kind in differences]
        if (
            tried
            and all(differences[kind] < SAME for kind in tried)
            and (name != "GL(h)" or len(tried) == len(differences))
        ):
            return name, max(differences[kind] for kind in tried)
    return "nothing", None


def invariant_under(found):
    """In a cell: which matrices."""
    differences = found["recomputed"].get("differences")
    if not differences:
        return "–"
    name, _ = group_of(differences)
    return f"{name}, no ill-conditioned M tried" if name == "GL(h)" and "ill-conditioned" not in differences else name


def by_how_much(found):
    """In a cell: the largest difference of all."""
    differences = found["recomputed"].get("differences")
    if not differences:
        return "raises"
    largest = max(differences.values())
    return f"{largest:.2f}" if largest >= 0.01 else f"{largest:.0e}"


BESIDE = {
    "rotations": ("rotations",),
    "scalings": ("scalings", "scalings by powers of 2"),
    "general": ("general elements",),
    "ill-conditioned": ("ill-conditioned elements",),
}
"""The kinds of matrices of `recomputed`, and those of `refgeo check`."""
SEEN, NEAR = 1e-3, 30.0
"""A difference above `SEEN` is one; from other starts, with other losses and matrices, it may be `NEAR` times less."""


def agree(found):
    """Return whether refgeo and the program without it say the same: a mistake of the referee is looked for first.

    Of each kind of matrices, both see a difference or neither does; and what passes is invariant.
    """
    differences = found["recomputed"].get("differences")
    if not differences:
        return found["verdict"] not in ("pass", "not judged")
    of_refgeo = {kind: max(found["differences"].get(item, 0.0) for item in others) for kind, others in BESIDE.items()}
    pairs = [(of_refgeo[kind], value) for kind, value in differences.items()]
    alike = all(max(pair) < SEEN or min(pair) > SEEN / NEAR for pair in pairs)
    return alike and (found["verdict"] != "pass" or group_of(differences)[0] == "GL(h)")


def optimisers(results):
    rows, before = [], ""
    for entry in JUDGED["optimiser"]:
        result = results["optimisers"][entry["adapter"]]
        rows.append([
            f"{entry['title']} {link(entry['source'], result['version'])}",
            "the same" if entry["is"] == before else entry["is"],
            invariant_under(result),
            by_how_much(result),
            sign_of(entry),
            settings(entry, result["recomputed"].get("from B = 0", "moves")),
        ])  # fmt: skip
        before = entry["is"]
    header = ["optimiser", "is said to be", "invariant under", "difference", "sign", "settings, remarks"]
    return experiment.markdown(header, rows)


def settings(entry, start):
    """In a cell: what is neither a default nor the learning rate of most rows, a mistake, a remark, and B = 0."""
    parts = re.split(r", (?![^()]*\))", entry["options"])
    told = [part for part in parts if part not in ("lr = 0.01 (ours)", "all others its defaults")]
    told = [part for part in told if part.replace(" ", "").removesuffix("(ours)") not in entry["title"]]
    told = [part.replace(" (ours)", "").replace("(ours; ", "(") for part in told if not part.endswith("(its default)")]
    what = programs.answers(entry.get("mistake", "")).get("what")
    begins = "" if start == "moves" else f"From B = 0, it {FROM_ZERO[start]}"
    return ". ".join(filter(None, [", ".join(told), what, begins, entry.get("remark")]))


FROM_ZERO = {
    "does not move": "does not always move",
    "not finite": "is not always finite",
    "raises": "may raise an exception",
}


def sign_of(entry):
    """In a cell, with a link to what is to be corrected."""
    name = entry.get("mistake") or entry.get("name", "")
    sign = programs.answers(name).get("sign")
    return f"[{sign}](programs/{name})" if sign else entry.get("sign", "as documented")


def table_of_programs(group):
    """Return a table of programs."""
    rows = []
    for entry in (item for item in JUDGED["program"] if item["group"] == group):
        name, source = entry["name"], entry["source"]
        version = f"[clone](https://github.com/{source})" if "/" in source else ", ".join(versions_of(name))
        seen = programs.answers(name).get("what") or entry["remark"]
        seen = f"[{seen}](programs/{name}/program.py)"
        rows.append([f"{entry['of']} ({version})", entry["is"], seen, sign_of(entry)])
    return experiment.markdown(["code", "is said to be", "what is seen, with the program", "sign"], rows)


def versions_of(name):
    """Of the packages that a program needs, but for PyTorch."""
    _, versions = programs.needs(name)
    return [f"{package} {version}" for package, version in versions.items() if package != "torch"]


def read_answers():
    """Return the answers of each program with a correction."""
    return {name: programs.answers(name) for name in programs.NAMES if programs.answers(name)}


def counts():
    """Return the sentence with the number of programs of each sign."""
    mistakes, sentences, mended = map(count_programs, ("mistake", "imprecise", "mended upstream"))
    return (
        f"{mistakes} mistakes, {sentences} imprecise sentences or missing warnings, and {mended} mistakes that are "
        "mended upstream and not in the release"
    )


def count_programs(sign):
    """Return how many programs have a sign."""
    return sum(result["sign"] == sign for result in read_answers().values())


def merges(results):
    rows = [
        [name, *(f"{value:.2g}" if value else "–" for law, value in result.items() if law != "version")]
        for name, result in results["merges"].items()
    ]
    return experiment.markdown(["merge", "½, ½", "1, 1", "factors", "order", "1, 0", "mean"], rows)


def geometries(results):
    rows = []
    for title, result in results["geometries"].items():
        seen = f"differs: {', '.join(result['wrong'])}" if result["wrong"] else f"agrees, {result['digits']:.0f} digits"
        operations = ", ".join(f"`{item}`" for item in result["operations"])
        rows.append([title, result["version"], operations, seen, "as documented"])
    return experiment.markdown(["code", "version", "operations", "what is seen", "sign"], rows)


def text(results):
    """Return the page."""
    parts = {
        "optimisers": optimisers(results), "adapters": table_of_programs("adapters"),
        "merges": merges(results), "sharpness": table_of_programs("sharpness"), "geometries": geometries(results),
        "counts": counts(),
    }  # fmt: skip
    page = (HERE / "page.template").read_text(encoding="utf-8")
    for name, part in parts.items():
        page = page.replace(f"<!-- {name} -->", part)
    return page
