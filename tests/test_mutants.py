"""The kit on trial: every broken backend caught with the right blame, no right one accused."""

import mutants
import pytest

import refgeo as rg


def test_the_catalogue_is_large_and_each_mistake_has_its_own_name():
    names = [mutant.name for mutant in mutants.MUTANTS]
    assert len(names) >= 60
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: f"{mutant.function}: {mutant.name}")
def test_a_broken_backend_is_caught_and_blamed(mutant):
    complaints, _ = mutants.judge(mutant)
    assert complaints == []


RIGHT = mutants.right_backends(only_numpy=True)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the backends' own, where κ = 1e6 leaves float32 no digits
def test_a_right_backend_is_not_accused(name, dtype):
    report = rg.check(RIGHT[name], dtype=dtype)
    assert report.wrong == []
    assert report.passed
