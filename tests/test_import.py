"""What ``import refgeo`` loads."""

import subprocess
import sys

PROBE = """
import sys
before = set(sys.modules)
import refgeo
refgeo.Pair, refgeo.InvariantMetric, refgeo.ProductMetric, refgeo.worst_case_sharpness, refgeo.RankDeficientError
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(" ".join(sorted(top for top in tops if top not in sys.stdlib_module_names and not top.startswith("_"))))
print(int(any(name.startswith(("refgeo.conformance", "refgeo.exact", "refgeo.networks", "scipy.integrate",
                               "scipy.linalg"))
              for name in sys.modules)))
refgeo.check, refgeo.Report, refgeo.networks
"""


def test_import_loads_numpy_and_scipy_only():
    result = subprocess.run([sys.executable, "-W", "error", "-c", PROBE], capture_output=True, text=True, check=True)
    tops, deferred = result.stdout.splitlines()
    # cython_runtime is no package: SciPy's compiled modules make it; NumPy's f2py imports the other where it is
    assert set(tops.split()) - {"cython_runtime", "charset_normalizer"} == {"numpy", "refgeo", "scipy"}
    assert deferred == "0"


def test_what_a_backends_process_runs_does_not_load_the_referee():
    probe = "import sys, refgeo.conformance.host; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert not loaded & {"flint", "refgeo.exact", "refgeo.conformance.run", "scipy.optimize"}


def test_short_names_are_the_same_modules():
    probe = """if True:
        import refgeo, refgeo.metrics.pair, refgeo.geometry.pair, refgeo.spectrum, refgeo.toy, refgeo.metrics.product
        import refgeo.metrics.elementwise
        assert refgeo.metrics.pair.InvariantMetric is refgeo.InvariantMetric
        assert refgeo.geometry.pair.Pair is refgeo.Pair
        from refgeo.metrics import pair
        assert pair is refgeo.geometry.pair_metrics and pair.__spec__.name == pair.__name__
        assert refgeo.metrics.product.ProductMetric is refgeo.ProductMetric
        assert refgeo.metrics.elementwise.ElementwiseMetric is refgeo.ElementwiseMetric
        assert refgeo.spectrum is refgeo.landscape.spectrum
        assert not any("." in name for name in dir(refgeo))
    """
    subprocess.run([sys.executable, "-W", "error", "-c", probe], check=True)
    subprocess.run([sys.executable, "-m", "refgeo.toy"], check=True)


def test_help_needs_no_optional_package():
    """Hypothesis is not there, as in a plain install: what needs it is no attribute, and says why."""
    probe = """if True:
        import inspect, sys
        sys.modules["hypothesis"] = None
        import refgeo
        names = dict(inspect.getmembers(refgeo))
        assert "check" in names and "strategies" not in names
        try:
            refgeo.strategies
        except AttributeError as error:
            assert 'pip install "refgeo[fuzz]"' in str(error)
        else:
            raise AssertionError
    """
    subprocess.run([sys.executable, "-c", probe], check=True)


def test_public_names_exist_and_unknown_ones_do_not():
    import refgeo

    for package in (refgeo, refgeo.conformance):
        for name in package.__all__:
            assert getattr(package, name) is not None
        assert set(package.__all__) <= set(dir(package))
        assert not hasattr(package, "no_such_name")
