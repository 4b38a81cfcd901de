"""Judge published code, and write the page of what was judged so far.

    python -m validation third_party [--seeds N] [--only WORD,...] [--workers N] [--page] [--out FOLDER]

Results are kept in ``results.json``; what is judged anew replaces what was there, and ``--page`` only writes the page.
Installed packages are judged as they are; what is not installed is said. Optimisers that are no packages are judged in
clones, in the folder that the environment variable REPOSITORIES names. Manopt's factories run under Octave if MANOPT
names its folder. The programs of ``programs`` and ``recomputed`` know no refgeo; the former are run by
``python -m validation.third_party.programs``.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import refgeo as rg
from refgeo.conformance import vectors
from refgeo.conformance.execution.backend import Backend
from refgeo.support.files import write_text
from validation.third_party import merges, page

HERE = Path(__file__).parent
GEOMETRIES = {  # adapter and options of a check
    "PEFT's Riemannian preconditioning, SGD, reg=0": ("peft", "peft_lora.py:undamped", {}),
    "PEFT's Riemannian preconditioning, SGD, judged with relaxation 0.01": (
        "peft", "peft_lora.py:shipped", {"relaxation": 0.01}),
    "Rangamani et al., riemannian_hess_vec_prod, away from minima": (
        "akshay-r/scale-invariant-flatness", "rangamani.py:hessian",
        {"dtype": "float32", "metrics": ["inv"], "checks": ["riemannian_hessian"],
         "cases": ["7x4x1/k3", "3.1-1x1x1/k1"]}),
}  # fmt: skip
MANOPT = "Manopt fixedrankfactory_2factors (inv) and _2factors_preconditioned (mix)"


def version_of(source):
    """A package's version, or the commit of a clone; None if it is not there, or torch is not."""
    if importlib.util.find_spec("torch") is None:
        return None
    if "/" not in source:
        try:
            return importlib.metadata.version(source).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            return None
    clone = Path(os.environ.get("REPOSITORIES", "")) / source.partition("/")[2]
    if not os.environ.get("REPOSITORIES") or not clone.is_dir():
        return None
    commit = subprocess.run(["git", "-C", clone, "log", "-1", "--format=%h, %cs"], capture_output=True, text=True)
    return commit.stdout.strip()


def optimiser(entry, seeds):
    """Return what is seen of an optimiser: by `refgeo check`, for each of some seeds, and by `recomputed`."""
    dtype = entry.get("dtype", "float64")
    backend = Backend(f"{HERE / 'optimisers.py'}:{entry['adapter']}")  # one process, in which torch is imported once
    try:
        reports = [
            rg.check(backend, seed=seed, dtype=dtype, checks=["step.invariant", "step.starts"]) for seed in range(seeds)
        ]
    finally:
        backend.close()
    laws = [row for report in reports for row in report.rows if row.check == "step.invariant"]
    rows = {row.check: row for row in reports[0].rows}
    differences = {}
    for item in (item for law in laws for item in law.measurements if item.decisive):
        differences[item.subject] = max(differences.get(item.subject, 0.0), item.relative_error)
    command = [sys.executable, "-W", "ignore", "-m", "validation.third_party.recomputed", entry["adapter"], dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {
        "version": version_of(entry["source"]),
        "verdict": laws[0].verdict.value,
        "seeds": [sum(law.verdict is laws[0].verdict for law in laws), len(laws)],
        "differences": {kind: float(f"{value:.2g}") for kind, value in differences.items()},
        "said": laws[0].message,
        "starts": rows["step.starts"].message,
        "recomputed": page.round_numbers(json.loads(done.stdout.splitlines()[-1])),
    }


def geometry(reports):
    """Return what is seen of values, over some seeds."""
    values = [item for report in reports for item in report.rows if item.kind == "value" and item.points]
    wrong = sorted({name for report in reports for name in report.wrong})
    return {
        "operations": sorted({str(item) for item in values}),
        "wrong": wrong,
        "digits": round(min((item.digits_kept for item in values if item.digits_kept is not None), default=0.0), 1)
        + 0.0,
        "seeds": len(reports),
    }


def manopt(seeds):
    """Manopt's two factories, by files: inner, proj, egrad2rgrad, ehess2rhess."""
    folder = os.environ.get("MANOPT")
    if not folder or shutil.which("octave") is None:
        print("skipped: Manopt: set MANOPT to its folder, and install Octave")
        return None
    reports = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as scratch:
            vectors.write(scratch, "json", seed=seed)
            files = [folder, f"{scratch}/inputs.json", f"{scratch}/results.json"]
            subprocess.run(["octave", "--no-gui", "-q", str(HERE / "manopt.m"), *files], check=True)
            reports.append(vectors.grade(scratch, f"{scratch}/results.json"))
    message = re.search(r"version = \[([\d, ]+)\]", (Path(folder) / "manopt_version.m").read_text(encoding="utf-8"))
    version = ".".join(message.group(1).replace(",", " ").split()) if message else ""
    return {"version": version} | geometry(reports)


def is_here(title, source):
    """Return whether the code is there; if not, that is said."""
    if version_of(source) is None:
        print(f"skipped: {title}: {source} is not there (packages: pip; repositories: REPOSITORIES)")
        return False
    return True


def _optimiser(entry, seeds):  # in a process of its own
    return entry["adapter"], optimiser(entry, seeds)


def judge(results, chosen, seeds, workers, save):
    """Judge anew what is chosen and there."""
    entries = [
        item for item in page.JUDGED["optimiser"] if chosen(item["title"]) and is_here(item["title"], item["source"])
    ]
    with ProcessPoolExecutor(workers) as pool:
        for done in as_completed([pool.submit(_optimiser, entry, seeds) for entry in entries]):
            adapter, result = done.result()
            results["optimisers"][adapter] = result
            save(results)
            print(f"{adapter}: {result['verdict']} {result['recomputed']}", flush=True)
    for title, (source, spec, options) in GEOMETRIES.items():
        if chosen(title) and is_here(title, source):
            reports = [rg.check(str(HERE / spec), seed=seed, **options) for seed in range(seeds)]
            results["geometries"][title] = {"version": version_of(source)} | geometry(reports)
            save(results)
    if chosen(MANOPT) and (result := manopt(seeds)):
        results["geometries"][MANOPT] = result
    for name, merge in merges.MERGES.items():
        if chosen(f"add_weighted_adapter, {name}") and is_here("PEFT add_weighted_adapter", "peft"):
            laws = {law: merges.error(merge, function) for law, function in merges.LAWS.items()}
            results["merges"][name] = {"version": version_of("peft")} | page.round_numbers(laws)


def as_known(results):
    """Return whether the verdicts of refgeo and what is recomputed agree, for every optimiser."""
    return all(map(page.agree, results["optimisers"].values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", default="", metavar="WORD,...", help="only what has one of these words in its title")
    parser.add_argument("--page", action="store_true", help="judge nothing, only write the page")
    parser.add_argument("--out", type=Path, default=HERE, help="where the results and the page are written")
    options = parser.parse_args()
    results = page.read_results()
    if not options.page:
        words = options.only.split(",")
        options.out.mkdir(parents=True, exist_ok=True)

        def save(results):
            write_text(options.out / "results.json", json.dumps(results, indent=1, ensure_ascii=False) + "\n")

        judge(results, lambda title: any(word in title for word in words), options.seeds, options.workers, save)
        save(results)
    write_text(options.out / "README.md", page.text(results))
    return int(not as_known(results))


if __name__ == "__main__":
    sys.exit(main())
