import itertools

import numpy as np
import pytest

from sparsify.compiler.einsum.declare import declare
from sparsify.compiler.einsum.parse import parse
from sparsify.compiler.plan import steps
from sparsify.storage.format import Format

from .compare import compile_cases, prepare, run_compiled
from .data import Case, fill_operands
from .operands import operand

TRIANGLES = "y = A[i,j] * B[j,k] * C[k,i]"
MATRICES = ("csr", "csc", "coo", "dcsr")


def program(text, **formats):
    """The program of `text` with operands in these formats."""
    return declare(parse(text), {name: operand(form) for name, form in formats.items()})


def turned(text, **formats):
    """The twins of the only step."""
    (step,) = steps(program(text, **formats))
    return {twin.name: str(twin.format) for twin in step.twins}


@pytest.mark.parametrize(
    "text, formats, expected",
    [
        (TRIANGLES, {"A": "csr", "B": "csr", "C": "csr"}, {"C_10": str(Format("csc"))}),
        ("y = A[i,j] * A[j,k] * A[k,i]", {"A": "csr"}, {"A_10": str(Format("csc"))}),
        (TRIANGLES, {"A": "csr", "B": "csr", "C": "csc"}, {}),
        (TRIANGLES, {"A": "csc", "B": "csr", "C": "csc"}, {}),
        ("y[j] = A[i,j] * x[i]", {"A": "csr", "x": "dense"}, {"A_10": str(Format("csc"))}),
        ("y[i] = A[i,j] * x[j]", {"A": "csr", "x": "dense"}, {}),
    ],
)
def test_as_few_operands_as_possible_are_turned(text, formats, expected):
    assert turned(text, **formats) == expected


def test_triangles_in_all_formats(tmp_path):
    """Reductions over everything: no loop is one of the result."""
    done = []
    for seed, formats in enumerate(itertools.product(MATRICES, repeat=3)):
        case = Case(seed, program(TRIANGLES, **dict(zip("ABC", formats, strict=True))), 32, 2)
        fill_operands(case, np.random.default_rng(seed))
        done.append(prepare(case))
    compile_cases(done[::5], tmp_path, ("-O0",))
    for found in done[::5]:
        run_compiled(found)
