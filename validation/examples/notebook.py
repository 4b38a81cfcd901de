"""The tour as a notebook: ``python -m validation tour`` writes it from the script, ``--run`` executes it,
and ``--quick`` executes it with searches of three iterations, which end before they have converged.

The script is divided by ``# %%`` into cells, ``# %% [markdown]`` ones in comments; the notebook holds no outputs.
"""

import json
import re
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("minilm_tour.py")
NOTEBOOK = SCRIPT.with_suffix(".ipynb")


def notebook(script):
    """Version 4.5 of Jupyter's format, as plain data."""
    cells = []
    for i, part in enumerate(re.split(r"^# %%", script, flags=re.M)[1:]):
        kind, _, text = part.partition("\n")
        text = text.strip("\n")
        common = {"id": f"cell{i:02}", "metadata": {}}
        if "[markdown]" in kind:
            text = re.sub(r"^# ?", "", text, flags=re.M)
            cells.append({"cell_type": "markdown", **common, "source": text.splitlines(keepends=True)})
        else:
            source = text.splitlines(keepends=True)
            cells.append({"cell_type": "code", **common, "execution_count": None, "outputs": [], "source": source})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def main():
    """Write it; with ``--run`` or ``--quick`` execute it instead, which needs nbclient and ipykernel."""
    script = SCRIPT.read_text(encoding="utf-8")
    if "--quick" in sys.argv:
        script = re.sub(r'("n_iter": )\d+', r"\g<1>3", script)
    made = notebook(script)
    if {"--run", "--quick"} & set(sys.argv):
        import nbclient
        import nbformat

        cells = nbformat.reads(json.dumps(made), as_version=4)
        done = nbclient.NotebookClient(cells, timeout=900, kernel_name="python3").execute()
        printed = [out["text"] for cell in done.cells for out in cell.get("outputs", []) if out.get("name") == "stdout"]
        print("".join(printed))
    else:
        NOTEBOOK.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
