"""Judge released implementations, and write the table of those judged so far.

    python -m validation.third_party [--seeds N] [--out FOLDER]

Installed packages are judged as they are; what is not installed is said. Manopt's factories run under Octave if the
environment variable MANOPT names its folder.
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
from validation import experiment

HERE = Path(__file__).parent
COMMAND = "python -m validation.third_party"
RELEASED = (
    ("PEFT create_riemannian_optimizer, reg=0", "peft", "peft_lora.py:undamped", {}),
    ("PEFT create_riemannian_optimizer, as shipped", "peft", "peft_lora.py:shipped", {}),
    ("PEFT create_riemannian_optimizer, as shipped", "peft", "peft_lora.py:shipped", {"relaxation": 0.01}),
)


def judged(title, package, spec, options, seeds):
    """One row of the table for all seeds, or None if the package is not installed."""
    if importlib.util.find_spec(package) is None or importlib.util.find_spec("torch") is None:
        print(f"skipped: {title}: {package} or torch is not installed")
        return None
    reports = [rg.check(str(HERE / spec), seed=seed, **options) for seed in range(seeds)]
    return row(title, f"{package} {importlib.metadata.version(package)}", reports, options)


def row(title, version, reports, options):
    values = [one for report in reports for one in report.rows if one.kind == "value" and one.points]
    wrong = sorted({name for report in reports for name in report.wrong})
    diagnoses = sorted({one.diagnosis for report in reports for one in report.failures if one.diagnosis})
    return {
        "implementation": title + "".join(f", judged with {key} {value:g}" for key, value in options.items()),
        "version": version,
        "operations": ", ".join(sorted({f"`{one}`" for one in values})),
        "verdict": "WRONG: " + "; ".join(diagnoses or wrong) if wrong else "passes",
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
        vectors.write(scratch, "mat")
        command = [
            "octave",
            "--no-gui",
            "-q",
            str(HERE / "manopt.m"),
            folder,
            f"{scratch}/inputs.mat",
            f"{scratch}/results.mat",
        ]
        subprocess.run(command, check=True)
        report = vectors.grade(scratch, f"{scratch}/results.mat")
    said = re.search(r"version = \[([\d, ]+)\]", (Path(folder) / "manopt_version.m").read_text(encoding="utf-8"))
    version = "Manopt " + ".".join(said.group(1).replace(",", " ").split()) if said else "Manopt"
    return row("Manopt fixedrankfactory_2factors (inv) and _2factors_preconditioned (mix)", version, [report], {})


def shown(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = [one for one in (*(judged(*entry, options.seeds) for entry in RELEASED), manopt()) if one]
    header = ["implementation", "version", "operations", "verdict", "digits kept", "worst ratio", "seeds"]
    text = "\n".join(
        [
            "# Implementations judged so far\n",
            f"The verdicts are those of refgeo {rg.__version__}. The command `{COMMAND}` makes this table.\n",
            experiment.markdown(header, [[shown(value) for value in one.values()] for one in rows]),
        ]
    )
    (options.out / "README.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    expected = [
        one["verdict"].startswith("WRONG")
        == ("shipped" in one["implementation"] and "judged with" not in one["implementation"])
        for one in rows
    ]
    return int(not all(expected))


if __name__ == "__main__":
    sys.exit(main())
