"""Memo of result patterns: keyed by operands, shared, and evicted in time."""

import gc

import pytest
import torch

import sparsify
from sparsify.compiler.kernel.pattern_cache import KNOWN, KnownPatterns
from sparsify.storage.pattern import Pattern


@pytest.fixture(autouse=True)
def nothing_known():
    KNOWN.clear()
    yield
    KNOWN.clear()


def random(rows, columns, seed, form="csr"):
    draw = torch.Generator().manual_seed(seed)
    kept = torch.rand(rows, columns, generator=draw) < 0.1
    return sparsify.tensor(torch.randn(rows, columns, generator=draw) * kept, form)


def test_a_product_of_known_patterns_shares_the_pattern():
    A, B = random(50, 60, 0), random(60, 70, 1)
    first = A @ B
    again = A.with_values(A.values() * 2 + 1) @ B
    assert again.pattern is first.pattern
    torch.testing.assert_close(
        again.to_dense(), (A.with_values(A.values() * 2 + 1)).to_dense() @ B.to_dense()
    )


def test_other_patterns_have_a_result_of_their_own():
    A, B, C = random(50, 60, 0), random(60, 70, 1), random(60, 70, 2)
    first, second = A @ B, A @ C
    assert first.pattern is not second.pattern
    torch.testing.assert_close(second.to_dense(), A.to_dense() @ C.to_dense())
    torch.testing.assert_close((A @ B).to_dense(), first.to_dense())


@pytest.mark.parametrize("form", ["csc", "dcsr", "coo", "bcsr(5,5)"])
def test_any_format_is_right_the_second_time(form):
    A, B = random(50, 60, 0, form), random(60, 70, 1)
    for factor in (1, 3):
        scaled = A.with_values(A.values() * factor)
        found = sparsify.einsum("ij,jk->ik", scaled, B, format=form)
        torch.testing.assert_close(found.to_dense(), scaled.to_dense() @ B.to_dense())


def test_products_of_a_known_pattern_are_differentiable():
    A, B = random(50, 60, 0).requires_grad_(), random(60, 70, 1)
    for _ in range(2):
        (gradient,) = torch.autograd.grad((A @ B).values().sum(), A)
        wanted = (torch.ones(50, 70) @ B.to_dense().T)[tuple(A.coordinates())]
        torch.testing.assert_close(gradient.values(), wanted)


def test_operands_are_not_kept():
    A, B = random(50, 60, 0), random(60, 70, 1)
    _ = A @ B
    assert len(KNOWN) == 1
    del A
    gc.collect()
    assert len(KNOWN) == 0


def test_the_memory_is_bounded():
    patterns = [random(20, 20, seed).pattern for seed in range(4)]
    known = KnownPatterns(most_bytes=2 * sum(array.nbytes for array in patterns[0].arrays()))
    for pattern in patterns:
        known.remember(known, [pattern], patterns[0], [patterns[0]])
    assert [known.find(known, [pattern]) is not None for pattern in patterns] == [False, False, True, True]
    huge = Pattern(sparsify.Format("csr"), (10**4, 1), [None, torch.zeros(10**4 + 1)], [None, torch.zeros(0)])
    known.remember(known, [patterns[0]], huge, [huge])
    assert known.find(known, [patterns[0]]) is None
