import itertools

import numpy as np
import pytest
import torch

import sparsify
from sparsify.compiler.einsum.declare import declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.plan.plan import steps
from sparsify.compiler.plan.prepare.transpose_operands import reordered
from sparsify.storage.format import Format
from tests.compiler.random_programs.compare import compile_cases, prepare, run_compiled
from tests.compiler.random_programs.data import Case, fill_operands
from tests.compiler.random_programs.operands import operand

TRIANGLES = "y = A[i,j] * B[j,k] * C[k,i]"
MATRICES = ("csr", "csc", "coo", "dcsr")


def program(text, **formats):
    """Program of `text` with operands in given formats."""
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
        ("Y[j,k] = A[i,j] * X[i,k]", {"A": "csr", "X": "dense, dense"}, {"A_10": str(Format("csc"))}),
        ("y[j] = A[i,j] * x[i]", {"A": "csr", "x": "dense"}, {}),  # scatters: values are turned at each call
        ("y[i] = A[i,j] * x[j]", {"A": "csr", "x": "dense"}, {}),
    ],
)
def test_as_few_operands_as_possible_are_turned(text, formats, expected):
    assert turned(text, **formats) == expected


@pytest.mark.parametrize(
    "form, ordering, expected",
    [
        ("dense, compressed, dense", (0, 2, 1), "i: dense, k: compressed, j: compressed"),
        ("dense, compressed, dense", (1, 0, 2), "j: dense, i: compressed, k: dense"),
        ("compressed, dense", (1, 0), "j: compressed, i: compressed"),
        ("dense, compressed", (1, 0), "csc"),
        ("dense, dense, compressed", (2, 1, 0), "k: dense, j: dense, i: compressed"),
        ("coo", (1, 0), "j: coordinate, i: coordinate"),
    ],
)
def test_turned_operands_store_the_same_entries(form, ordering, expected):
    found = reordered(Format(form), ordering)
    assert found == Format(expected)
    mask = np.random.default_rng(0).random((3, 4, 2)[: found.rank]) < 0.2
    pattern = sparsify.tensor(torch.from_numpy(mask * 1.0), form).pattern
    here, there = (
        set(map(tuple, p.coordinates().T.tolist())) for p in (pattern, pattern.converted(found)[0])
    )
    assert here == there


@pytest.mark.sampled(3)
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


def test_narrow_coordinates_of_a_turned_operand_are_widened():
    torch.manual_seed(0)
    A, X = torch.rand(192, 128) * (torch.rand(192, 128) < 0.2), torch.rand(4, 192)
    narrow = sparsify.tensor(A, "dense, compressed(crd=int8)")
    torch.testing.assert_close(sparsify.einsum("bi,ij->bj", X, narrow), X @ A)
