"""Entries located by coordinates: vectors that may exceed the end of their mode."""

import pytest

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.infer.format import dense_format
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.pipeline import compile_stages
from sparsify.compiler.plan.plan import Step
from sparsify.compiler.schedule.directives import Schedule


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


@pytest.mark.parametrize(
    ("extent", "is_inside", "is_whole"),
    [(66, False, False), (67, True, False), (73, True, False), (74, True, True), (None, False, False)],
)
def test_constant_extents_leave_no_condition(extent, is_inside, is_whole):
    """`F[9*y+x+k]`, 5 and 6 coordinates of y and x, 26 of k: at most 66; with the 7 lanes after the last one, 73."""
    operands = {"F": Operand(dense_format(1), "float32"), "W": Operand(dense_format(1), "float32")}
    sizes = {"y": 5, "x": 6, "k": 26} | ({} if extent is None else {"F_0": extent})
    program = declare(parse("Y[y,x] = sum(k, W[k] * F[k+9*y+x])"), operands, ("Y",), sizes=sizes)
    stages = compile_stages(Step(program), Schedule.parse("order y, k, x; vector x"), 32)
    assert (" if " not in str(stages.loops).replace("..8 if", "..8")) == is_inside
    assert ("load_float32x8(&F_vals" in stages.cpp) == is_whole
    assert ("load_part_float32x8(&F_vals" in stages.cpp) == (not is_whole)


def test_vectors_that_may_begin_past_the_end_are_not_read_whole():
    """Threads share parts of tiles: vectors of a part begin past the end of the last tile."""
    operands = {"F": Operand(dense_format(1), "float32"), "W": Operand(dense_format(1), "float32")}
    program = declare(
        parse("Y[x] = sum(k, W[k] * F[k+x])"), operands, ("Y",), sizes={"x": 200, "k": 3, "F_0": 209}
    )
    schedule = Schedule.parse("split x xo xi 64; order xo, k, xi; vector xi; parallel xo")
    assert "load_part_float32x8(&F_vals" in compile_stages(Step(program), schedule, 32).cpp
