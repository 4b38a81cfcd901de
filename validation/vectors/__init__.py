"""A frozen set of test vectors: ``README.md`` describes it, ``python -m validation vectors`` computes it anew."""

import gzip
import json
from pathlib import Path

FOLDER = Path(__file__).parent
FILE = FOLDER / "refgeo-vectors-1.json.gz"


def read_published():
    """Return what the file holds."""
    return json.loads(gzip.decompress(FILE.read_bytes()))
