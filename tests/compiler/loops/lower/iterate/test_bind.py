"""Loops with index variables recovered from others."""

import pytest
import torch

import sparsify


@pytest.mark.parametrize(
    "schedule",
    ["split jo joo joi 2", "split jo joo joi 2; unroll joi", "split ji jio jii 2; split jio jioo jioi 2"],
)
def test_blocks_whose_numbers_are_recovered_are_cut_at_the_edge(schedule):
    """11 = 2 blocks of 4 and 3: the padding adds nothing."""
    a = torch.randn(5, 11, generator=torch.Generator().manual_seed(0))
    stored = sparsify.tensor(a, "i: dense, j/4: dense, j%4: dense")
    found = sparsify.evaluate("Y[i] = sum(j, exp(A[i,j]))", A=stored, schedule=f"order i, jo, ji; {schedule}")
    torch.testing.assert_close(found, a.exp().sum(1))
