"""The kit on trial: every broken backend caught with a right diagnosis or none, no right one accused."""

import re
from functools import cache

import numpy as np
import pytest
from helpers import sample

import refgeo as rg
from refgeo.conformance.protocol.operations import OPERATIONS
from validation.backends import implementations
from validation.mutants import catalogue as mutants


def test_the_catalogue_is_large_and_each_mistake_has_its_own_name():
    names = [mutant.name for mutant in mutants.MUTANTS]
    assert len(names) >= 60
    assert len(set(names)) == len(names)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", sample(mutants.MUTANTS, 24, ids=lambda mutant: f"{mutant.function}: {mutant.name}"))
def test_a_broken_backend_is_caught_and_blamed(mutant):
    complaints, _ = mutants.judge(mutant)
    assert complaints == []


@cache  # and not while tests are collected, which it would take three times as long
def matrix():
    return list(mutants.matrix())


@pytest.mark.slow
def test_the_matrix_has_every_operation_and_nearly_every_feature():
    targets = {cell[0] for cell in matrix()}
    assert targets == {*OPERATIONS, "geodesic_exact"}
    names = {name for target in targets for name in mutants.values_of(target)}
    assert len({name for name in names if any(cell[1].startswith(name) for cell in matrix())}) >= len(names) - 7
    assert len(matrix()) > 350


@pytest.mark.slow
@pytest.mark.parametrize("place", sample([(i,) for i in range(0, 350, 41)], 22))
def test_a_generated_mistake_is_caught(place):
    """A sample, without exact geodesics, which take longest; all of them: python -m validation mutants --matrix."""
    complaints, _ = mutants.judge_cell([cell for cell in matrix() if cell[0] != mutants.EXACT][place])
    assert complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["given Fortran order", mutants.KEPT[3], mutants.RESULTS_KEPT[0]])
def test_what_depends_on_circumstances_is_wrong_where_nothing_is_known_of_the_result(name):
    (cell,) = (cell for cell in matrix() if cell[:2] == ("retraction", name))
    complaints, message = mutants.judge_cell(cell)
    assert complaints == []
    plain = r"(at some points, |does not obey: .*; at other points, )?"  # plain calls fail where two points share G = I
    assert re.match(plain + "right in a plain call, and wrong ", message)


RIGHT = implementations.right_backends(only_numpy=True)
EVERYWHERE = ("pseudo-inverse of the Gram matrix",)
FEW = ["7x4x1/k3/cosine=1", "4x4x4", "2-6x7x2", "10x9x4/k10", "10x9x4/k1e+06"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"), sample([(name, ("float64", "float32")[i // 4 % 2]) for i, name in enumerate(RIGHT)], 8)
)
def test_a_right_backend_is_not_accused(name, dtype):
    """A sample; every point, both precisions and many seeds: python -m validation implementations."""
    with np.errstate(all="ignore"):
        report = rg.check(RIGHT[name], dtype=dtype, cases=None if name in EVERYWHERE else FEW)
    assert report.wrong == []
    assert report.passed
