"""What ``import refgeo`` loads, and which module imports which."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import refgeo

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


ALONE = """
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in {"numpy", "scipy", "refgeo"} or top in sys.stdlib_module_names or top.startswith("_"):
            return None
        raise ModuleNotFoundError(f"blocked: {name}", name=name)


sys.meta_path.insert(0, Blocked())
import numpy as np, refgeo as rg

rng = np.random.default_rng(0)
pair, Y = rg.Pair(rng.standard_normal((5, 2)), rng.standard_normal((4, 2))), rng.standard_normal((5, 4))


def loss(params):
    E = params["qk"].G @ params["qk"].H.T - Y
    return 0.5 * float(np.sum(E * E) + params["w"] @ params["w"]), {
        "qk": rg.Pair(E @ params["qk"].H, E.T @ params["qk"].G), "w": params["w"]
    }


params = {"qk": pair, "w": rng.standard_normal(20_000)}  # so long that threads of BLAS are a matter
for of_pairs in (rg.InvariantMetric(), rg.MixedMetric(), rg.EmbeddedMetric(), rg.RotaryMetric()):
    if not isinstance(of_pairs, rg.RotaryMetric):
        metric = rg.ProductMetric({"qk": of_pairs, "w": rg.ElementwiseMetric()})
        rg.worst_case_sharpness(loss, params, metric, 0.1, n_iter=4)
        rg.average_case_sharpness(lambda p: loss(p)[0], params, metric, 0.1, n_samples=4)
    of_pairs.at(pair).geodesic(0.1 * pair, order=1)
rg.adaptive_sharpness(loss, params, 0.1, n_iter=4)
rg.proposed_radius(loss, params, metric)
small = {"qk": pair, "w": np.ones(3)}
rg.spectrum.eigenvalues(rg.spectrum.RiemannianHessian(loss, small, metric), 2)
assert rg.symmetry.verify(loss, small, metric).holds
rg.paper.christoffel("inv", *pair, *pair, *pair)
rg.diagonal.worst_case("inv", np.ones(2), np.ones(2), np.eye(2), np.zeros(2), 0.1)
weights = {f"h.0.attn.{name}.weight": np.ones((4, size)) for name, size in (("c_attn", 12), ("c_proj", 4))}
assert len(rg.networks.read(weights, "gpt2", heads=2).blocks) > 0
"""


def test_the_geometry_and_its_searches_run_with_numpy_and_scipy_alone():
    subprocess.run([sys.executable, "-W", "error", "-c", ALONE], check=True)


def test_what_a_backends_process_runs_does_not_load_the_referee():
    probe = "import sys, refgeo.conformance.execution.host; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert not loaded & {"flint", "refgeo.exact", "refgeo.conformance.run", "scipy.optimize"}


def test_names_stand_once_and_load_on_first_use():
    probe = """if True:
        import sys, refgeo, refgeo.sharpness.spectrum
        assert refgeo.spectrum is refgeo.sharpness.spectrum
        assert refgeo.paper is sys.modules["refgeo.paper"]
        assert not any("." in name for name in dir(refgeo))
    """
    subprocess.run([sys.executable, "-W", "error", "-c", probe], check=True)


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
            assert 'pip install "refgeo[strategies]"' in str(error)
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


ORDER = (
    ("__main__",), ("cli",), ("bridges",), ("conformance",), ("networks",), ("sharpness", "diagonal"),
    ("geometry", "exact"), ("paper",), ("support",),
)  # fmt: skip


def imports():
    """By module, the modules of the package that it imports, also in functions and for types alone."""
    root = Path(refgeo.__file__).parent
    modules = {".".join(path.relative_to(root.parent).with_suffix("").parts): path for path in root.rglob("*.py")}
    result = {}
    for name, path in modules.items():
        result[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            targets = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                targets = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "import_module"
            ):
                targets = [item.value for item in node.args if isinstance(item, ast.Constant)]
            result[name] |= {target for target in targets if target in modules and target != name}
    return result


@pytest.mark.slow
def test_imports_run_one_way():
    """Folders have an order, and no module imports itself through others."""
    level = {folder: number for number, folders in enumerate(ORDER) for folder in folders}
    edges = {name: targets for name, targets in imports().items() if name.count(".") and not name.endswith("__init__")}
    assert len(edges) > 80
    for name, targets in edges.items():
        folder = name.split(".")[1]
        for target in targets:
            if target.count("."):
                second = target.split(".")[1]
                assert second == folder or level[second] > level[folder], f"{name} imports {target}"
    assert len(list(graphlib.TopologicalSorter(edges).static_order())) >= len(edges)
