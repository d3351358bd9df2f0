"""Entries located by coordinates: vectors that may exceed the end of their mode."""

import pytest

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.infer.format import dense_format
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.pipeline import compile_stages
from sparsify.compiler.plan.plan import Step


@pytest.mark.parametrize(
    ("index", "is_never_below"),
    [
        ("j - i + extent(i) - 1", True),
        ("j + 2", True),
        ("j + extent(j)", True),
        ("j - i + extent(i) - 2", False),
        ("j - i + extent(j) - 1", False),
        ("j - i + 2", False),
        ("j - 2*i + extent(i) - 1", False),
        ("extent(i) - j - 1", False),  # backwards
    ],
)
def test_lanes_are_looked_for_one_by_one_where_the_first_ones_may_be_outside(index, is_never_below):
    operands = {"X": Operand(dense_format(2), "float32"), "R": Operand(dense_format(1), "float32")}
    program = declare(parse(f"Y[i,j] = X[i,j] * R[{index}]"), operands)
    source = compile_stages(Step(program), None, 32).cpp
    assert "load_part_float32x8(&R_vals" in source or not is_never_below
    assert ("gather_" in source) != is_never_below
