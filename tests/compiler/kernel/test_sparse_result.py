"""Results of unknown pattern: the fast path from the second call on, with the results of the slow path."""

import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import sparsify
from sparsify.compiler.kernel.pattern_cache import KNOWN
from sparsify.errors import FormatError
from sparsify.runtime.buffers import POOL
from sparsify.storage.tensor import SparseTensor

SPGEMM = "ij,jk->ik"


def random(rows: int, columns: int, seed: int, density: float = 0.2) -> SparseTensor:
    draw = torch.Generator().manual_seed(seed)
    kept = torch.rand(rows, columns, generator=draw) < density
    return sparsify.tensor(torch.randn(rows, columns, generator=draw) * kept, "csr")


def product(*operands: SparseTensor) -> SparseTensor:
    found = sparsify.einsum(SPGEMM, *operands)
    assert isinstance(found, SparseTensor)
    torch.testing.assert_close(found.to_dense(), operands[0].to_dense() @ operands[1].to_dense())
    return found


def test_known_and_new_patterns_leave_out_the_long_way(long_ways: list[str]) -> None:
    A, B = random(30, 40, 0), random(40, 50, 1)
    first = product(A, B)
    product(A, B)
    other = B.with_values(2 * B.values())
    # Operands of the same size in powers of two, without and with entries.
    moved = sparsify.tensor((B.coordinates().flip(1), B.values(), (40, 50)), "csr", duplicates="sum")
    product(A, moved)
    long_ways.clear()
    assert product(A, other).pattern is first.pattern
    assert product(A, moved).pattern is not first.pattern
    empty = sparsify.tensor(torch.zeros(40, 50), "csr")
    for _ in range(3):
        assert product(A, empty).nnz == 0
    assert len(long_ways) == 1


def test_large_results_come_from_the_pool(long_ways: list[str]) -> None:
    A, B = random(300, 300, 0, 0.5), random(300, 300, 1, 0.5)
    for _ in range(2):
        KNOWN.clear()
        found = sparsify.einsum(SPGEMM, A, B)
    requests = POOL._requests
    long_ways.clear()
    again = sparsify.einsum(SPGEMM, A, B)
    assert POOL._requests == requests + 1 and long_ways == []
    assert again.pattern is found.pattern and torch.equal(again.values(), found.values())
    KNOWN.clear()
    torch.testing.assert_close(sparsify.einsum(SPGEMM, A, B).to_dense(), A.to_dense() @ B.to_dense())


def test_sums_keep_the_pattern_that_they_had_before() -> None:
    generator = torch.Generator().manual_seed(0)
    dense = [torch.rand(20, 20, generator=generator).relu_().sub_(0.7).relu_() for _ in range(2)]
    A, B = (sparsify.tensor(one, "csr") for one in dense)
    first, again = A + B, A + B
    assert again.pattern is first.pattern
    assert again.nnz == len(again.values())
    torch.testing.assert_close(again.to_dense(), dense[0] + dense[1])


def test_a_known_pattern_is_out_of_reach() -> None:
    A, B = random(30, 40, 0), random(40, 50, 1)
    for _ in range(2):
        found = product(A, B)
    dense = found.to_dense()
    found.pattern.crd[1].zero_()
    for _ in range(2):
        assert torch.equal(product(A, B).to_dense(), dense)


def test_one_sparse_operand_and_results_of_several_widths() -> None:
    A = random(6, 5, 0)
    for width in (3, 7, 3, 7, 7):
        x = torch.ones(5, width)
        found = sparsify.einsum(SPGEMM, A, x, format="csr")
        assert found.shape == (6, width)
        torch.testing.assert_close(found.to_dense(), A.to_dense() @ x)


def test_gradients_of_known_patterns() -> None:
    A, B = random(6, 7, 0, 0.5), random(7, 5, 1, 0.5)
    A, B = (tensor.to(torch.float64) for tensor in (A, B))

    def values(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return sparsify.einsum(SPGEMM, A.with_values(a), B.with_values(b)).values()

    given = tuple(tensor.values().clone().requires_grad_() for tensor in (A, B))
    for _ in range(2):
        assert torch.autograd.gradcheck(values, given)


def test_references_are_given_back() -> None:
    A, B = random(30, 40, 0), random(40, 50, 1)
    for _ in range(20):
        product(A, B)
    held = (A, B, A.pattern, A._vals, None)
    for renew in (False, True):
        gc.collect()
        counts = [sys.getrefcount(value) for value in held]
        for _ in range(300):
            if renew:
                KNOWN.clear()
            result = weakref.ref(sparsify.einsum(SPGEMM, A, B))
            assert result() is None
        gc.collect()
        after = [sys.getrefcount(value) for value in held]
        assert after[:-1] == counts[:-1] and abs(after[-1] - counts[-1]) < 100
    pattern = weakref.ref(B.pattern)
    del B, held
    gc.collect()
    assert pattern() is None


def test_threads_call_at_once() -> None:
    A, others = random(30, 40, 0), [random(40, 50, seed) for seed in range(6)]
    wanted = [A.to_dense() @ other.to_dense() for other in others]

    def work(seed: int) -> bool:
        for turn in range(100):
            place = (turn * 5 + seed) % len(others)
            if turn % 10 == seed:
                KNOWN.clear()
            found = sparsify.einsum(SPGEMM, A, others[place])
            if not torch.allclose(found.to_dense(), wanted[place], atol=1e-5):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


@pytest.mark.parametrize(
    "form, pos, crd",
    [
        ("i: dense, j: compressed(crd=int16)", torch.int32, torch.int16),
        ("i: dense, j: compressed(pos=int64, crd=int8)", torch.int64, torch.int8),
    ],
)
def test_results_have_the_dtypes_that_their_format_fixes(
    form: str, pos: torch.dtype, crd: torch.dtype
) -> None:
    A, B = random(20, 30, 0), random(30, 40, 1)
    found = sparsify.einsum("ij,jk->ik", A, B, format=form)
    assert (found.pattern.pos[1].dtype, found.pattern.crd[1].dtype) == (pos, crd)
    torch.testing.assert_close(found.to_dense(), A.to_dense() @ B.to_dense())
    wide = random(30, 200, 2)
    with pytest.raises(FormatError, match="crd of the level"):
        sparsify.einsum("ij,jk->ik", A, wide, format="i: dense, j: compressed(crd=int8)")


def test_a_choice_stores_what_the_chosen_operand_does() -> None:
    """An entry unstored in the chosen operand is unstored in the result, so that infinity times it is unstored."""
    A = sparsify.tensor(torch.tensor([[1.0, 2.0, 0.0], [0.0, 3.0, 0.0]]), "csr")
    B = sparsify.tensor(torch.tensor([[4.0, 0.0, 0.0], [0.0, 5.0, 6.0]]), "csr")
    C = sparsify.tensor(torch.tensor([[0.0, 0.0, 7.0], [8.0, 0.0, 0.0]]), "csr")
    choice = sparsify.evaluate("Y[i,j] = where(stored(A[i,j]), B[i,j], C[i,j])", A=A, B=B, C=C)
    assert isinstance(choice, SparseTensor) and choice.nnz == 4
    assert choice.to_dense().tolist() == [[4.0, 0.0, 7.0], [8.0, 5.0, 0.0]]
    D = torch.tensor([[1.0, torch.inf, 1.0], [1.0, 1.0, torch.inf]])
    scaled = sparsify.evaluate("Z[i,j] = Y[i,j] * D[i,j]", Y=choice, D=D)
    assert scaled.to_dense().tolist() == choice.to_dense().tolist()
