"""What is said of a package, recomputed: a program without refgeo, and what it prints, also with a correction.

    python -m validation.third_party.programs [NAME ...]

The first line of a program names what it needs: packages with their versions, or a clone of a repository, which is
looked for in the folder REPOSITORIES. A correction is a patch, applied to a copy. Where there is one, ``answers.toml``
says which release has the mistake, what was read of the main branch, which limits the documentation states, whose code
or paper it says to follow, and to whom the text in ``issue.md`` is to be sent.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent / "programs"
NAMES = sorted(folder.name for folder in HERE.iterdir() if (folder / "program.py").is_file())


def needs(name):
    """Return the repository whose clone a program runs in, or ""; and versions of packages."""
    first = (HERE / name / "program.py").read_text(encoding="utf-8").splitlines()[0]
    clone = re.search(r"in a clone of ([\w/-]+)", first)
    return clone[1] if clone else "", dict(re.findall(r"([\w-]+)==([\w.]+)", first))


def missing(name):
    """Return what a program needs and is not here, in words."""
    repository, versions = needs(name)
    result = [f"{package}=={version}" for package, version in versions.items() if _version(package) != version]
    folder = os.environ.get("REPOSITORIES")
    if repository and not (folder and (Path(folder) / repository.partition("/")[2]).is_dir()):
        result.append(f"a clone of {repository} in the folder REPOSITORIES")
    return ", ".join(result)


def _version(package):
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def source_of(name):
    """The folder with the code that is judged."""
    repository, _ = needs(name)
    if repository:
        return Path(os.environ["REPOSITORIES"]) / repository.partition("/")[2]
    return Path(sysconfig.get_paths()["purelib"])


def run(name, corrected=False):
    """Return what the program prints; with the correction, beside a patched copy of the package or clone."""
    repository, _ = needs(name)
    with tempfile.TemporaryDirectory() as scratch:
        root = source_of(name)
        if corrected:
            patch = HERE / name / "correction.patch"
            (file,) = re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(encoding="utf-8"), re.M)
            part = "." if repository else file.split("/")[0]
            shutil.copytree(
                root / part, Path(scratch) / part, ignore=shutil.ignore_patterns(".git"), dirs_exist_ok=True
            )
            subprocess.run(["git", "apply", patch], cwd=scratch, check=True)
            root = Path(scratch)
        environment = os.environ | {
            "PYTHONPATH": str(root) if corrected or repository else "",
            "PYTHONWARNINGS": "ignore",
        }
        command = [sys.executable, str(HERE / name / "program.py")]
        done = subprocess.run(
            command, cwd=root if repository else scratch, env=environment, capture_output=True, text=True, timeout=300
        )
        if done.returncode not in (0, 1) or "Traceback" in done.stderr:
            raise RuntimeError(f"{name}: {done.stderr}")
        return done.stdout


def read_printed(name):
    """Return what is kept in ``printed.txt``."""
    if not is_mistake(name):
        return run(name)
    return f"as it is:\n{run(name)}\nwith correction.patch:\n{run(name, corrected=True)}"


def is_mistake(name):
    """Return whether there is something to correct."""
    return (HERE / name / "correction.patch").is_file()


def answers(name):
    """Return what was asked of an accusation, and what was found; empty where nothing is to be corrected."""
    file = HERE / name / "answers.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def main():
    for name in sys.argv[1:] or NAMES:
        if missing(name):
            print(f"skipped: {name}: {missing(name)}")
        else:
            (HERE / name / "printed.txt").write_text(text := read_printed(name), encoding="utf-8")
            print(f"{name}\n{text}", flush=True)


if __name__ == "__main__":
    main()
