"""Products of matrices in every format into every format: right, compiled, not square, differentiable."""

from itertools import product

import pytest
import torch

import sparsify
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.text.subscripts import read_subscripts
from sparsify.compiler.operands.arguments import index_dtypes
from sparsify.compiler.pipeline import compile_stages
from sparsify.compiler.plan.plan import Step, steps
from sparsify.options import Options
from sparsify.storage.format import Format
from sparsify.storage.tensor import SparseTensor
from tests.compiler.random_programs.compare import Prepared, compile_cases, run_compiled
from tests.compiler.random_programs.data import Case
from tests.sampling import chosen

FORMATS = ("dense", "csr", "csc", "coo", "dcsr", "dcsc", "bcsr(3,3)")
ROWS, INNER, COLUMNS = 6, 9, 12


def random(rows, columns, seed, density=0.4):
    draw = torch.Generator().manual_seed(seed)
    kept = torch.rand(rows, columns, generator=draw) < density
    return torch.randn(rows, columns, generator=draw, dtype=torch.float64) * kept


def case_of(formats, left, right):
    """Case of the product of two matrices into a format, with `einsum`'s program."""
    A, B = sparsify.tensor(left, formats[0]), sparsify.tensor(right, formats[1])
    assign = read_subscripts("ij,jk->ik", (tuple(A.shape), tuple(B.shape)), ("A", "B"), "Y")
    operands = {
        n: Operand(t.format, "float64", 0.0, index_dtypes(t.pattern)) if isinstance(t, SparseTensor) else t
        for n, t in (("A", A), ("B", B))
    }
    program = declare((assign,), operands, ("Y",), formats={"Y": Format(formats[2], rank=2)})
    case = Case(0, program, 32, 2)
    case.tensors = {"A": A, "B": B}
    return case


def planned(case, wanted):
    """Lowered case with its expected result."""
    plan = [
        (step, compile_stages(step, None, case.vector_bytes, Options())) if isinstance(step, Step) else step
        for step in steps(case.program)
    ]
    return Prepared(case, plan, {"Y": (wanted.numpy(), (wanted != 0).numpy())})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seventh", [chosen(part, part < 2) for part in range(7)])
def test_all_permutations_of_formats(seventh, tmp_path):
    """Each seventh has every two formats at every two places."""
    left, right = random(ROWS, INNER, 1), random(INNER, COLUMNS, 2)
    done = [
        planned(case_of([FORMATS[number] for number in numbers], left, right), left @ right)
        for numbers in product(range(len(FORMATS)), repeat=3)
        if sum(numbers) % len(FORMATS) == seventh
    ]
    assert len(done) == 49
    compile_cases(done, tmp_path, ("-O0",))
    for prepared in done:
        run_compiled(prepared)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "formats",
    [
        ("bcsr(4,2)", "bcsr(2,5)", "bcsr(4,5)"),
        ("bcsr(4,2)", "bcsr(3,5)", "bcsr(2,2)"),
        ("bcsr(5,4)", "csc", "bcsc(4,5)"),
        ("dcsc", "bcsc(2,4)", "i/2: compressed, j/3: compressed, i%2: dense, j%3: dense"),
        ("i/2: dense, j/3: dense, i%2: dense, j%3: dense", "bcsr(2,2)", "i/4: dense, j: dense, i%4: dense"),
        ("csr", "csr", "compressed, dense"),
        ("coo", "bcsr(2,2)", "j: compressed, i: dense"),
    ],
    ids=" ".join,
)
def test_blocks_that_do_not_divide(formats):
    left, right = random(7, 11, 3), random(11, 13, 4)
    A, B = (
        sparsify.tensor(values, form).requires_grad_()
        for values, form in zip((left, right), formats, strict=False)
    )
    Y = sparsify.einsum("ij,jk->ik", A, B, format=formats[2])
    assert Y.format == Format(formats[2])
    torch.testing.assert_close(Y.to_dense(), left @ right)
    weight = random(7, 13, 5, density=1.0)
    found = torch.autograd.grad((Y.to_dense() * weight).sum(), (A, B))
    wanted = (weight @ right.T, left.T @ weight)
    for operand, gradient, dense in zip((A, B), found, wanted, strict=True):
        assert gradient.pattern.equals(operand.pattern)
        at = tuple(operand.coordinates())
        if (inside := operand.pattern.inside()) is not None:
            at = tuple(row[inside] for row in at)
            gradient = gradient.values()[inside]
            torch.testing.assert_close(gradient, dense[at])
        else:
            torch.testing.assert_close(gradient.values(), dense[at])
