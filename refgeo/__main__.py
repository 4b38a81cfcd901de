"""``python -m refgeo``."""

import sys

from refgeo.cli import main

sys.exit(main())
