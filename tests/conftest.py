"""One thread of linear algebra a test process: pytest-xdist uses all cores already, and thread pools would fight."""

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
