"""Estimated times: monotonicity in sizes, and by how much."""

import pytest
import torch

from sparsify.compiler.evaluate import _program
from sparsify.compiler.schedule.cost.machine import Curve, Machine, scaled
from sparsify.compiler.schedule.cost.matmul import Packed, dense_us, packed_loops_us
from sparsify.compiler.schedule.cost.statement import estimate_us
from sparsify.compiler.schedule.cost.weight_format import pack_matrix
from sparsify.compiler.schedule.sizes import sizes_of
from sparsify.storage.interop.tensors import tensor


def sparse(rows: int, columns: int, every: int, format: str = "csr") -> torch.Tensor:
    """One entry in `every` is stored."""
    places = torch.arange(0, rows * columns, every)
    return tensor(
        (torch.stack([places // columns, places % columns]), torch.ones(len(places)), (rows, columns)), format
    )


def cost(text: str, machine: Machine | None = None, **operands: torch.Tensor) -> float:
    program = _program(text, None, None, None, operands)
    sizes = sizes_of(program, [operands[name] for name in program.inputs])
    return estimate_us(program, sizes.extents, sizes.stored, machine or Machine())


@pytest.mark.parametrize(
    "text",
    [
        "Y[i,k] = A[i,j] * X[j,k]",
        "S[i,j] = A[i,j] * X[i,k] * X[j,k]",
        "S[i,j] = A[i,j] * sum(k, X[i,k] * X[j,k])",
        "C[i,k] = A[i,j] * B[j,k]",
        "C[i,k] = A[i,k] + B[i,k]",
    ],
)
def test_work_follows_what_is_stored_not_the_shape(text):
    X = torch.ones(4000, 32)
    few, many = ((sparse(4000, 4000, n), sparse(4000, 4000, n + 1)) for n in (4001, 401))
    operands = [{"A": A, **({"B": B} if "B" in text else {"X": X})} for A, B in (few, many)]
    least, most = (cost(text, **given) for given in operands)
    assert 2 * least < most < 120 * least
    assert most < 50_000  # 40,000 entries; the whole has 16 million


def test_attention_over_edges_costs_what_edges_do():
    text = """
    S[h,i,j] = where(stored(A[i,j]), a[j,h] + b[i,h], -inf)
    m[h,i] max= S[h,i,j]
    P[h,i,j] = exp(S[h,i,j] - where(m[h,i] == -inf, 0, m[h,i]))
    Y[i,h] += P[h,i,j] * a[j,h]
    """
    a = torch.ones(4000, 8)
    few, many = (cost(text, A=sparse(4000, 4000, every), a=a, b=a) for every in (4001, 401))
    assert few < many < 20_000  # 40,000 edges of 8 heads; all pairs of nodes would be 128 million scores


def test_a_region_costs_what_its_packing_was_chosen_for():
    mask = torch.rand(512, 384, generator=torch.Generator().manual_seed(0)) < 0.1
    chosen = pack_matrix(mask, 96, 4, Machine())[0]
    W = tensor(mask.float(), str(chosen.format))
    found = cost("Y[t,n] = X[t,k] * W[n,k]", X=torch.ones(96, 384), W=W)
    assert found == pytest.approx(chosen.us, rel=0.1)


def test_a_product_of_dense_matrices_is_torchs():
    found = cost("Y[t,n] = X[t,k] * W[n,k]", X=torch.ones(96, 384), W=torch.ones(512, 384))
    assert found == dense_us(96, 512, 384, Machine())


def test_few_rows_and_few_outputs_are_slower_dense():
    large = dense_us(1024, 1024, 1024, Machine()) / 1024**3
    assert dense_us(1, 1024, 1024, Machine()) / 1024**2 > 2 * large
    assert dense_us(4096, 16, 1024, Machine()) / (4096 * 16 * 1024) > 1.3 * large


def test_threads_help_large_work_alone():
    large, small = torch.ones(20_000, 128), torch.ones(10, 4)
    A, tiny = sparse(20_000, 20_000, 3001), sparse(10, 10, 3)
    text, two = "Y[i,k] = A[i,j] * X[j,k]", scaled(2, 32)
    assert cost(text, two, A=A, X=large) < 0.7 * cost(text, A=A, X=large)
    assert cost(text, two, A=tiny, X=small) == cost(text, A=tiny, X=small)


def test_blocks_read_a_vector_once_for_all_their_rows():
    slow = Machine(reads=Curve(((1 << 14, 1e3),)))  # nothing counts but what is read
    times = [packed_loops_us(Packed(1000, 1, height, 96, 96, 96, 0), 8, slow, 4) for height in (1, 4)]
    assert times[1] < 1.1 * times[0]


def test_arithmetic_hides_what_the_nearest_cache_brings_alone():
    caches = Machine(reads=Curve(((1 << 14, 2e5), (1 << 18, 5e4))))
    near, far = (
        packed_loops_us(Packed(10**6, 1, 4, width, 96, 96, 0), 1024, caches, 4) for width in (16, 768)
    )
    assert far > 1.1 * near
