"""Judge released implementations, and write the tables of those judged so far.

    python -m validation third_party [--seeds N] [--out FOLDER] [--only WORD]

Installed packages are judged as they are; what is not installed is said. Manopt's factories run under Octave if the
environment variable MANOPT names its folder. Optimisers that are no packages are judged in clones, in the folder that
the environment variable REPOSITORIES names.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import refgeo as rg
from refgeo.conformance import vectors
from refgeo.conformance.backend import Backend
from refgeo.conformance.verdict import Verdict
from validation import experiment
from validation.third_party.merges import LAWS, MERGES
from validation.third_party.merges import judged as judged_merge

HERE = Path(__file__).parent
COMMAND = "python -m validation third_party"
RELEASED = (
    ("PEFT create_riemannian_optimizer, reg=0", "peft", "peft_lora.py:undamped", {}),
    ("PEFT create_riemannian_optimizer, as shipped", "peft", "peft_lora.py:shipped", {}),
    ("PEFT create_riemannian_optimizer, as shipped", "peft", "peft_lora.py:shipped", {"relaxation": 0.01}),
    ("Rangamani et al., riemannian_hess_vec_prod, away from minima", "akshay-r/scale-invariant-flatness",
     "rangamani.py:hessian", {"dtype": "float32", "metrics": ["inv"], "checks": ["riemannian_hessian"],
                              "cases": ["7x4x1/k3", "3.1-1x1x1/k1"]}),
)  # fmt: skip

IMUON = "1bang118/manifold-intrinsic-muon"
OPTIMISERS = (  # title, package or repository, adapter, the rule whose step it is said to be, whether it is invariant
    ("PEFT create_riemannian_optimizer, SGD, as shipped", "peft", "peft_sgd", "mix", False),
    ("PEFT create_riemannian_optimizer, SGD, reg=0", "peft", "peft_sgd_undamped", "mix", True),
    ("PEFT create_riemannian_optimizer, AdamW, as shipped", "peft", "peft_adamw", "", False),
    ("PEFT create_riemannian_optimizer, AdamW, reg=0", "peft", "peft_adamw_undamped", "", False),
    ("PEFT LoraFAOptimizer", "peft", "peft_lorafa", "", False),
    ("pytorch_optimizer LoRARite, as shipped", "pytorch_optimizer", "rite_package", "", True),
    ("pytorch_optimizer LoRARite, update_skipping=0", "pytorch_optimizer", "rite_package_moving", "", True),
    ("lora-pro-adamw LoRAProAdamW, full", "lora-pro-adamw", "lora_pro_full", "", False),
    ("lora-pro-adamw LoRAProAdamW, efficient", "lora-pro-adamw", "lora_pro_efficient", "", False),
    ("lora-pro-adamw LoRAProAdamW, efficient, efficient_solver=eig", "lora-pro-adamw",
     "lora_pro_efficient_by_eigenvectors", "", False),
    ("Pymanopt FixedRankEmbedded, gradient and retraction", "pymanopt", "pymanopt_embedded", "embedded", True),
    ("LoRA-RITE, the authors' code", "gkevinyen5418/LoRA-RITE", "rite", "", True),
    ("LoRA-RITE, the authors' code, update_skipping=0", "gkevinyen5418/LoRA-RITE", "rite_moving", "", True),
    ("LoFT LoFTAdamW, as shipped", "tnurbek/loft", "loft", "", False),
    ("LoFT LoFTAdamW, weight_decay=0", "tnurbek/loft", "loft_undecayed", "", False),
    ("RefLoRA with SGD", "zhangyilang/RefLoRA", "reflora_sgd", "s=0.5", True),
    ("RefLoRA with AdamW", "zhangyilang/RefLoRA", "reflora_adamw", "", False),
    ("RefLoRA-S with AdamW", "zhangyilang/RefLoRA", "reflora_scalar", "", False),
    ("LoRA-Pro AdamWLoraPro (unofficial)", "laihongphuc/lora_pro", "lora_pro", "", False),
    ("LoRA-Pro, the authors' code", "mrflogs/LoRA-Pro", "lora_pro_of_authors", "", False),
    ("LORO, exact update without Adam", "mzf666/LORO-main", "loro_plain", "embedded", True),
    ("LORO LOROAdamW, exact update", "mzf666/LORO-main", "loro_adam", "", False),
    ("Riemannion in takenoko", "seruva19/takenoko", "riemannion", "", False),
    ("Riemannian-preconditioned LoRA, SGDr", "pilancilab/Riemannian_Preconditioned_LoRA", "preconditioned_sgd", "mix",
     False),
    ("Riemannian-preconditioned LoRA, AdamWr", "pilancilab/Riemannian_Preconditioned_LoRA", "preconditioned_adamw",
     "", False),
    ("RiemannianSGD of Riemannion's authors", IMUON, "riemannion_sgd", "", False),
    ("iMuon for LoRA, v5, as in its run script", IMUON, "intrinsic_muon_v5", "", False),
    ("iMuon for LoRA, v5_compact", IMUON, "intrinsic_muon_compact", "", False),
    ("iMuon for fixed rank, scaled_muon", IMUON, "scaled_muon", "spectral", False),
    ("Spectron in iMuon's experiments", IMUON, "spectron", "", False),
    ("LoRA-Muon in Mirai", "seruva19/mirai", "lora_muon", "spectral", True),
    ("LoRA-Pro in Mirai", "seruva19/mirai", "lora_pro_of_mirai", "", False),
    ("AltLoRA, as in its trainer", "LucasXinYu/AltLoRA", "altlora", "", False),
    ("AltLoRA, reg=0, weight_decay=0", "LucasXinYu/AltLoRA", "altlora_undamped", "", True),
    ("AltLoRA+, as in its trainer", "LucasXinYu/AltLoRA", "altlora_plus", "", False),
)  # fmt: skip
DOCUMENTED = ("PEFT create_riemannian_optimizer",)
"""Whose documentation names the damping."""
SINGLE = ("loro_plain", "loro_adam", "riemannion", "intrinsic_muon_v5", "intrinsic_muon_compact", "lora_muon",
          "lora_pro_of_mirai")  # fmt: skip
"""What computes in float32 whatever it is given is judged in float32."""


def version_of(source):
    """A package's version, or the commit of a clone; None if it is not there, or torch is not."""
    if importlib.util.find_spec("torch") is None:
        return None
    if "/" not in source:
        try:
            return f"{source} {importlib.metadata.version(source)}"
        except importlib.metadata.PackageNotFoundError:
            return None
    clone = Path(os.environ.get("REPOSITORIES", "")) / source.partition("/")[2]
    if not os.environ.get("REPOSITORIES") or not clone.is_dir():
        return None
    commit = subprocess.run(["git", "-C", clone, "log", "-1", "--format=%h, %cs"], capture_output=True, text=True)
    return f"{source} {commit.stdout.strip()}"


def optimiser(title, source, adapter, claim, invariant, seeds):
    """One row of the second table, and whether it is as it was: the first step, trajectories, starts at zero."""
    version = version_of(source)
    if version is None:
        print(f"skipped: {title}: {source} is not there (packages: pip; repositories: REPOSITORIES)")
        return None
    dtype = "float32" if adapter in SINGLE else "float64"
    checks = ["step.invariant", "step.reads", "step.starts"]
    backend = Backend(f"{HERE / 'optimisers.py'}:{adapter}")  # one process, in which torch is imported once
    try:
        first, *others = (
            rg.check(backend, seed=seed, dtype=dtype, checks=checks[: len(checks) if seed == 0 else 1])
            for seed in range(seeds)
        )
    finally:
        backend.close()
    rows = {one.check: one for one in first.rows}
    law, reading = rows["step.invariant"], rows["step.reads"].message
    verdicts = [law.verdict, *(one.rows[0].verdict for one in others)]
    raises = law.verdict is Verdict.WRONG and not law.measurements
    words = {Verdict.PASS: "invariant", Verdict.INACCURATE: "damped", Verdict.WRONG: "not invariant"}
    alike = verdicts.count(law.verdict)
    return {
        "optimiser": title,
        "version": version + (", in float32" if adapter in SINGLE else ""),
        "first step": "–" if raises else reading.removeprefix("the first step is "),
        "said to be": said_to_be(title, claim, reading, law.verdict) if claim and not raises else "–",
        "trajectories": f"**{'raises' if raises else words[law.verdict]}**: {law.message}",
        "starts": "–"
        if raises
        else re.sub(r"(there is no result): .*?(?=; from|; with|$)", r"\1", rows["step.starts"].message) or "–",
        "seeds": f"{alike} of {len(verdicts)}",
    }, (alike == len(verdicts) and (law.verdict is Verdict.PASS) == invariant)


def said_to_be(title, claim, reading, verdict):
    """The rule that its documentation names, and whether its first step is read as that; a damping is no mistake."""
    if verdict is Verdict.INACCURATE:
        return f"{claim}, {damped(title)}"
    read = re.search(rf"(that of|as) {re.escape(claim)}\b", reading) is not None
    return f"{claim}, which is {'read' if read else 'not read'}"


def damped(title):
    return "damped, as documented" if title.startswith(DOCUMENTED) else "damped"


def merges(names):
    """A row for each of PEFT's merges: which laws hold, and what happens to an adapter merged with itself."""
    version = version_of("peft")
    if version is None or not names:
        print("skipped: PEFT add_weighted_adapter: peft or torch is not installed, or none of them chosen")
        return []
    found = []
    for name in names:
        said = [judged_merge(MERGES[name], law) for law in LAWS.values()]
        found.append([f"add_weighted_adapter, {name}", version, *said])
    return [["merge", "version", *LAWS], *found]


def judged(title, source, spec, options, seeds):
    """One row of the first table for all seeds, or None if the code is not there."""
    version = version_of(source)
    if version is None:
        print(f"skipped: {title}: {source} is not there (packages: pip; repositories: REPOSITORIES)")
        return None
    count = seeds if "cases" in options else max(1, seeds // 4)  # a check of all points takes a minute
    reports = [rg.check(str(HERE / spec), seed=seed, **options) for seed in range(count)]
    return row(title, version, reports, options)


def row(title, version, reports, options):
    values = [one for report in reports for one in report.rows if one.kind == "value" and one.points]
    wrong = sorted({name for report in reports for name in report.wrong})
    found = {one.differs or one.diagnosis for report in reports for one in report.failures}
    diagnoses = sorted(found - {""})
    said = "; ".join(diagnoses if len(diagnoses) == 1 else wrong)
    verdict = f"{damped(title)}: {said}" if "+ εI" in said else f"WRONG: {said}"
    return {
        "implementation": title
        + (f", judged with relaxation {options['relaxation']:g}" if "relaxation" in options else ""),
        "version": version,
        "operations": ", ".join(sorted({f"`{one}`" for one in values})),
        "verdict": verdict if wrong else "passes",
        "digits": round(min((one.digits_kept for one in values if one.digits_kept is not None), default=0.0), 1) + 0.0,
        "worst_ratio": float(f"{max((one.worst_ratio or 0.0 for one in values), default=0.0):.3g}"),
        "seeds": len(reports),
    }


def manopt():
    """Manopt's two factories, by files: inner, proj, egrad2rgrad, ehess2rhess."""
    folder = os.environ.get("MANOPT")
    if not folder or shutil.which("octave") is None:
        print("skipped: Manopt: set MANOPT to its folder, and install Octave")
        return None
    with tempfile.TemporaryDirectory() as scratch:
        vectors.write(scratch, "json")
        command = [
            "octave",
            "--no-gui",
            "-q",
            str(HERE / "manopt.m"),
            folder,
            f"{scratch}/inputs.json",
            f"{scratch}/results.json",
        ]
        subprocess.run(command, check=True)
        report = vectors.grade(scratch, f"{scratch}/results.json")
    said = re.search(r"version = \[([\d, ]+)\]", (Path(folder) / "manopt_version.m").read_text(encoding="utf-8"))
    version = "Manopt " + ".".join(said.group(1).replace(",", " ").split()) if said else "Manopt"
    return row("Manopt fixedrankfactory_2factors (inv) and _2factors_preconditioned (mix)", version, [report], {})


def shown(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--only", default="", metavar="WORD,...", help="only what has one of these words in its title")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    def chosen(title):
        return any(word in title for word in options.only.split(","))

    released = [entry for entry in RELEASED if chosen(entry[0])]
    judgements = [*(judged(*entry, options.seeds) for entry in released), chosen("Manopt") and manopt()]
    rows = [one for one in judgements if one]
    found = (optimiser(*entry, options.seeds) for entry in OPTIMISERS if chosen(entry[0]))
    optimisers, as_known = [], []
    for one in filter(None, found):
        optimisers.append(one[0])
        as_known.append(one[1])
        print(" | ".join(map(str, one[0].values())), flush=True)
    merged = merges([name for name in MERGES if chosen(f"add_weighted_adapter, {name}")])
    header = ["implementation", "version", "operations", "verdict", "digits kept", "worst ratio", "seeds"]
    text = "\n".join(
        [
            "# Implementations judged so far\n",
            f"After this page you know what refgeo {rg.__version__} says of released implementations, and why. "
            f"The command `{COMMAND}` makes these tables.\n",
            experiment.markdown(header, [[shown(value) for value in one.values()] for one in rows]),
            (HERE / "optimisers.md").read_text(encoding="utf-8"),
            experiment.markdown(
                list(optimisers[0]) if optimisers else [], [list(map(str, one.values())) for one in optimisers]
            ),
            (HERE / "merges.md").read_text(encoding="utf-8"),
            experiment.markdown(merged[0], merged[1:]) if merged else "",
            (HERE / "mistakes.md").read_text(encoding="utf-8"),
        ]
    )
    (options.out / "README.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    expected = [
        (one["verdict"] != "passes") == (re.search("shipped$|away from", one["implementation"]) is not None)
        for one in rows
    ]
    return int(not all(expected + as_known))


if __name__ == "__main__":
    sys.exit(main())
