"""What the page of findings rests on: summaries of finished experiments, and one raw number each to regenerate.

    python -m validation.publish DIR        (the folder that the experiments wrote to)

Writes ``validation/results/NAME.json`` with settings, versions, the summary and a sample, and the pictures.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from validation.study.runner import versions

HERE = Path(__file__).parent
NAMES = ("sign", "teacher", "fault", "validity")


def published(source: Path) -> dict:
    """Of one experiment: the first value beside the summary is the sample."""
    document = json.loads(source.read_text(encoding="utf-8"))
    values = document["values"]
    sample = next(name for name in values if name != "summary")
    return {
        "settings": document["settings"],
        "versions": versions(),
        "summary": values["summary"],
        "sample": {sample: values[sample]},
    }


def main() -> None:
    """Publish what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    (HERE / "results").mkdir(exist_ok=True)
    for name in NAMES:
        source = folder / f"{name}.json"
        if not source.is_file() or "summary" not in json.loads(source.read_text(encoding="utf-8"))["values"]:
            print(f"{name}: not finished in {folder}, left as it is")
            continue
        text = json.dumps(published(source), indent=1, ensure_ascii=False)
        (HERE / "results" / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        shutil.copy(folder / f"{name}.png", HERE / "figures" / f"{name}.png")
        print(f"{name}: published")


if __name__ == "__main__":
    main()
