"""What ``import refgeo`` loads."""

import subprocess
import sys

PROBE = """
import sys
before = set(sys.modules)
import refgeo
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(" ".join(sorted(top for top in tops if top not in sys.stdlib_module_names and not top.startswith("_"))))
print(int(any(name.startswith(("refgeo.conformance", "refgeo.exact", "refgeo.networks", "scipy.integrate"))
              for name in sys.modules)))
refgeo.check, refgeo.Report, refgeo.networks
"""


def test_import_loads_numpy_and_scipy_only():
    result = subprocess.run([sys.executable, "-W", "error", "-c", PROBE], capture_output=True, text=True, check=True)
    tops, deferred = result.stdout.splitlines()
    # cython_runtime is no package: SciPy's compiled modules make it; NumPy's f2py imports the other where it is
    assert set(tops.split()) - {"cython_runtime", "charset_normalizer"} == {"numpy", "refgeo", "scipy"}
    assert deferred == "0"


def test_public_names_exist_and_unknown_ones_do_not():
    import refgeo

    for name in refgeo.__all__:
        assert getattr(refgeo, name) is not None
    assert set(refgeo.__all__) <= set(dir(refgeo))
    assert not hasattr(refgeo, "no_such_name")
