"""Workspaces of several modes: hash tables accumulate sums in any order, and results of any format are sorted."""

import itertools
import random

import numpy as np
import pytest
import torch

import sparsify
from sparsify.compiler.cpp.call.foreign_call import STATUSES
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.interpret import interpret
from sparsify.errors import ScheduleError

TABLE = "precompute w = Y at root in memory listed"


def sparse(draw: random.Random, shape: tuple[int, ...], format: str, dtype: torch.dtype = torch.float32):
    """A random tensor, some without any entry, as a dense and as a sparse one."""
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    share = draw.choice([0.0, 0.1, 0.3])
    values = torch.randint(-4, 5, shape, generator=generator).to(dtype)
    values *= torch.rand(shape, generator=generator) < share
    return values, sparsify.tensor(values, format=format)


def check(subscripts, dense, operands, format, schedule):
    found = sparsify.einsum(subscripts, *operands, format=format, schedule=schedule)
    expected = torch.einsum(subscripts, *(values.double() for values in dense))
    assert found.format == sparsify.tensor(expected, format=format).format
    torch.testing.assert_close(found.to_dense().double(), expected, rtol=0, atol=0)
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("format", ["csr", "csc", "dcsr", "coo"])
@pytest.mark.parametrize("order", ["k, i, j", "k, j, i"])
def test_matrices(format, order):
    draw = random.Random(f"{format} {order}")
    for _ in range(4):
        k, i, j = (draw.randrange(1, 40) for _ in range(3))
        pairs = [sparse(draw, (k, n), "csr") for n in (i, j)]
        dense, operands = zip(*pairs, strict=True)
        check("ki,kj->ij", dense, operands, format, f"order {order}; {TABLE}")


@pytest.mark.parametrize("format", ["csf", "coo", "dense, dense, compressed"])
def test_three_modes_and_a_table_for_each_row(format):
    draw = random.Random(format)
    for parallel in ("", "; parallel i"):
        i, j, k, m = (draw.randrange(1, 12) for _ in range(4))
        T, t = sparse(draw, (i, k, j), "csf")
        M, n = sparse(draw, (k, m), "csr")
        step = "precompute w = Y at i in thread listed"
        check("ikj,kl->ijl", (T, M), (t, n), format, f"order i, k, j, l; {step}{parallel}")


def test_all_modes_of_three_are_scattered():
    draw = random.Random(3)
    for modes in itertools.permutations("ijl"):
        T, t = sparse(draw, (9, 8, 7), "csf")
        M, n = sparse(draw, (9, 6), "csr")
        format = ", ".join(f"{name}: compressed" for name in modes)
        check("kij,kl->ijl", (T, M), (t, n), format, f"order k, i, j, l; {TABLE}")


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bfloat16])
def test_dtypes(dtype):
    draw = random.Random(5)
    (A, a), (B, b) = (sparse(draw, (20, n), "csr", dtype) for n in (15, 11))
    check("ki,kj->ij", (A, B), (a, b), "csr", f"order k, i, j; {TABLE}")


def test_many_entries_grow_the_table():
    i = torch.arange(300).repeat_interleave(300)
    A = sparsify.tensor(torch.ones(1, 300), format="csr")
    found = sparsify.einsum("ki,kj->ij", A, A, format="coo", schedule=f"order k, i, j; {TABLE}")
    assert (
        found.nnz == 300 * 300 and torch.equal(found.to_dense(), torch.ones(300, 300)) and len(i) == found.nnz
    )


def test_other_reductions():
    draw = random.Random(6)
    (_, a), (_, b) = (sparse(draw, (20, n), "csr") for n in (15, 11))
    program = "Y[i,j] = max(k, A[k,i] + B[k,j])"
    with pytest.raises(sparsify.SparsifyError):  # the sum is everywhere, a table has no place for that
        sparsify.evaluate(program, A=a, B=b, format="csr", schedule=f"order k, i, j; {TABLE}")


def test_the_cost_chooses_a_table_where_turning_an_operand_costs_more():
    generator = torch.Generator().manual_seed(0)
    A = torch.rand(3000, 400, generator=generator) * (torch.rand(3000, 400, generator=generator) < 0.2)
    B = torch.zeros(3000, 300)
    B[torch.arange(0, 3000, 300), torch.arange(10)] = 1.0
    a, b = sparsify.tensor(A, format="csr"), sparsify.tensor(B, format="csr")
    text = str(sparsify.explain("ki,kj->ij", a, b))
    assert "a hash table of 2 modes" in text and "precompute table_Y = Y" in text
    torch.testing.assert_close(sparsify.einsum("ki,kj->ij", a, b).to_dense(), A.T @ B)
    # As many products as entries that would be turned: the table costs more.
    assert "table_Y = Y" not in str(sparsify.explain("ki,kj->ij", a, a))


def test_refusals():
    draw = random.Random(7)
    (_, a), (_, b) = (sparse(draw, (20, n), "csr") for n in (15, 11))
    with pytest.raises(ScheduleError, match="one index if they are marked"):
        check("ki,kj->ij", (), (a, b), "csr", "order k, i, j; precompute w = Y at root in memory marked")
    with pytest.raises(sparsify.SparsifyError, match="its iterations all write w"):
        check("ki,kj->ij", (), (a, b), "csr", f"order k, i, j; {TABLE}; parallel k")


def test_keys_that_do_not_fit_end_the_kernel():
    """Extents with a product above 62 bits raise an error, never give a wrong coordinate."""
    draw = random.Random(8)
    (_, a), (_, b) = (sparse(draw, (20, n), "csr") for n in (15, 11))
    program = "Y[i,j] = sum(k, A[k,i] * B[k,j])"
    text = str(sparsify.explain(program, A=a, B=b, schedule=f"order k, i, j; {TABLE}"))
    assert "if 1.0 * float64(i_extent) * float64(j_extent) > 4.6" in text and "return 5" in text
    assert "no key of 63 bits" in STATUSES[5]


def test_the_interpreter_enters_sorts_and_clears():
    var = {name: loops.Var(name, loops.INT) for name in ("p", "q")}

    def number(value: int) -> loops.Expr:
        return loops.Literal(value, loops.INT)

    body: list[loops.Stmt] = [
        loops.Table("t", "v", "k", "float64"),
        *(loops.Declare(variable, number(0), True) for variable in var.values()),
    ]
    for key, value in ((9, 1.0), (4, 2.0), (9, 3.0)):
        body.append(loops.Enter(var["p"], "t", number(key)))
        body.append(loops.Store("v", var["p"], loops.Literal(value, loops.Type("float64"))))
    body.append(loops.SortTable("t", number(2)))
    for place in range(2):
        body.append(loops.Store("x", number(place), loops.Load("v", number(place), loops.Type("float64"))))
        body.append(loops.Store("c", number(place), loops.Load("k", number(place), loops.INT)))
    body += [
        loops.ClearTable("t"),
        loops.Enter(var["q"], "t", number(7)),
        loops.Store("c", number(2), var["q"]),
    ]
    buffers = (loops.Buffer("x", "float64", True), loops.Buffer("c", "int64", True))
    function = loops.Function((), buffers, loops.Block(tuple(body)), 32)
    x, c = np.zeros(2), np.zeros(3, np.int64)
    interpret(function, {}, {"x": x, "c": c})
    assert x.tolist() == [2.0, 3.0] and c.tolist() == [4, 9, 0]
    assert "t" in str(function) and "p = place of 9 in t" in str(function)
