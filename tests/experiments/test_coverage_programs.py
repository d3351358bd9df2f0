"""Small models of sparse tensors: one region each, and results as in float64."""

import pytest

from experiments.coverage.programs import FORMULAS, measure


@pytest.mark.parametrize("name", ["sampled product", "convolution with loops", "laplacian"])
def test_a_formula_is_one_region(name):
    row = measure(FORMULAS[name], nodes=300)
    assert row.is_whole and row.regions == 1 and row.kernels <= 2
    assert row.error < 1e-5
