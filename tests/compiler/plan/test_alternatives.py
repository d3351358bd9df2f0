"""Explanations of the compared orders and paths."""

import torch

import sparsify
from sparsify.compiler.plan.alternatives import alternatives, rounded
from sparsify.compiler.schedule.sizes import UNKNOWN
from tests.compiler.schedule.nests import program_of, random


def test_the_best_order_comes_first_with_its_cost() -> None:
    matrices = [random((1000, 1000), 0.01, "csr", n) for n in range(3)]
    lines = alternatives(*program_of("ij,ik,kj->ij", *matrices))
    assert lines[0] == "Y[i,j] = sum(k, A[i,j] * B[i,k] * C[k,j])"
    assert lines[1] == "  i, k, j   210,000 iterations, 610,000 steps: a workspace a row"
    assert lines[2].endswith("steps: C is turned")


def test_split_products_show_what_the_whole_would_cost() -> None:
    a, x, w = random((2000, 2000), 0.002, "csr"), torch.ones(2000, 300).double(), torch.ones(300, 16).double()
    lines = alternatives(*program_of("ij,jf,fk->ik", a, x, w))
    assert lines[0].startswith("one product of all operands: i, j, f, k")
    assert "T[j,k] = sum(f, B[j,f] * C[f,k])" in lines


def test_nothing_is_said_of_unknown_sizes() -> None:
    program, _ = program_of("ij,j->i", random((10, 10), 0.2, "csr"), torch.ones(10).double())
    assert alternatives(program, UNKNOWN) == []


def test_explain_shows_them() -> None:
    text = sparsify.explain("ij,jk->ik", *(random((100, 100), 0.05, "csr", n) for n in range(2)))
    assert "i, j, k   " in text and "steps: a workspace a row" in text


def test_numbers_are_rounded() -> None:
    assert [rounded(n) for n in (0.0, 7.2, 99.6, 1234.0, 123456.0)] == ["0", "7", "100", "1,200", "120,000"]
