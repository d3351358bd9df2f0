"""Code of tails, edge blocks, parallel loops and assembly, and refusals."""

import pytest

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.kernel.kernel import result_index_dtypes
from sparsify.compiler.loops.lower import lower
from sparsify.compiler.loops.lower.lowering import MOST_RECENT
from sparsify.compiler.loops.simplify import simplify
from sparsify.compiler.loops.verify import verify
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.schedule.directives import Schedule, apply
from sparsify.errors import DiscordantError, ScheduleError, UnsupportedProgramError
from sparsify.storage.format import Format


def code(
    text: str, schedule: str = "", result: str | None = None, vector_bytes: int = 32, **formats: str
) -> str:
    """The simplified loops of a text."""
    operands = {
        n: Operand(f := Format(s), "float32", 0.0, result_index_dtypes(f)) for n, s in formats.items()
    }
    wanted = {"Y": Format(result)} if result is not None else None
    program = declare(parse(text), operands, ("Y",), formats=wanted)
    return str(simplify(lower(apply(concretize(program), Schedule.parse(schedule)), vector_bytes)))


SPMM = {"text": "Y[i,k] = A[i,j] * T[j,k]", "A": "csr", "T": "dense, dense"}


def test_tails_run_in_falling_pieces_and_end_masked():
    schedule = "split k ko ki 16 tail 8; order i, ko, j, ki; precompute w = Y at ko in register; vector ki"
    text = code(**SPMM, schedule=schedule)
    assert "k_done" in text
    assert "..8 if <" in text


def test_lanes_past_the_end_are_not_added_up():
    schedule = "split j jo ji 8; order i, jo, ji; precompute w = Y at i in register; "
    schedule += "precompute l = w over ji in register; vector ji"
    assert "where(0..8 <" in code("Y[i] = sum(j, A[i,j] + b[i])", schedule, A="dense, dense", b="dense")
    assert "where(0..8 <" not in code("Y[i] = A[i,j] * x[j]", schedule, A="dense, dense", x="dense")


def test_a_temporary_may_have_an_index_twice():
    schedule = "split l lo li 8; order lo, j, li; precompute w = Y at lo in register; vector li; "
    schedule += "precompute s = w over li in register; unroll li"
    program = declare(
        parse("Y[l] = sum(j, A[j,l])"), {"A": Operand(Format("dense, dense"), "float32")}, ("Y",)
    )
    made = lower(apply(concretize(program), Schedule.parse(schedule)), 0)
    verify(made)  # all that is read is defined
    assert "s_0_0" in str(made)


def test_a_dense_result_that_is_read_from_a_list_starts_filled():
    schedule = "order i, j, k; precompute w at i in memory listed; order k"
    text = code(
        "Y[i,k] = b[k] * sum(j, A[i,j] * B[j,k])", schedule, "dense, dense", A="csr", B="csr", b="dense"
    )
    assert "w_list" in text
    assert "fill Y_vals[0 ..(i_extent * k_extent)] = 0.0" in text


def test_blocks_are_cut_at_the_edge():
    text = code("Y[i] = A[i,j] * x[j]", vector_bytes=0, A="bcsr(2, 3)", x="dense")
    assert "min(3, j_extent - " in text


def test_groups(golden):
    text = code("Y[i,k] = A[i,j] * T[j,k]", "order i, jo, ji, k; vector k", A="nm(2, 4)", T="dense, dense")
    golden("loops/grouped.txt", text)


def test_widths_are_sizes_of_the_kernel(golden):
    text = code("Y[i] = A[i,j] * B[i,j] * x[j]", "order i, j", A="ell", B="csr", x="dense")
    golden("loops/ell.txt", text)


def test_diagonals_have_no_loops():
    with pytest.raises(UnsupportedProgramError, match=r"A\[i,j\] is stored along its diagonals .*csr"):
        code("Y[i] = A[i,j] * x[j]", A="dia", x="dense")


def test_positions_of_groups_that_may_be_padded_are_refused():
    text, schedule = "Y[i] = A[i,j] * x[j]", "pos ji p A; order i, jo, p"
    with pytest.raises(ScheduleError, match="some of which are padding"):
        code(text, schedule, A="nm(2, 4)", x="dense")


def test_lanes_that_reach_different_blocks_are_refused():
    schedule = "pos jo p A; order io, p, ii, ji, k; vector p"
    with pytest.raises(ScheduleError, match=r"different blocks of j.*vector ji"):
        code(**(SPMM | {"A": "bcsr(2, 4)"}), schedule=schedule)


def test_coordinate_levels_run_over_segments():
    text = code("Y[i,j,k] = exp(A[i,j,k])", A="coo(3)")
    assert "A2_crd[" in text
    assert text.count("while") >= 4


def test_parallel_rows_are_balanced_by_an_operand_that_has_them():
    assert "A2_pos" in code(**SPMM, schedule="order i, j, k; parallel i dynamic A").split("parallel for")[1]
    with pytest.raises(ScheduleError, match="not its outermost level"):
        code(**SPMM, schedule="order k, i, j; parallel k dynamic A")


def test_assembly_counts_then_fills():
    text = code("Y[i,j] = A[i,j] + B[i,j]", "order i, j", "csr", A="csr", B="dcsr")
    assert text.index("count the entries") < text.index("allocate, then fill")


def test_assembly_fills_rows_that_their_operands_bound_at_once():
    text = code("Y[i,j] = A[i,j] + B[i,j]", "order i, j", A="csr", B="csr")
    assert "count the entries" not in text
    assert text.count("while j_left") == 1


@pytest.mark.parametrize(
    ("schedule", "error", "said"),
    [
        ("order j, i", DiscordantError, "opposite loop orders"),
        ("order i, j; vector j", ScheduleError, "appended"),
        ("split i io ii 2; order io, ii, j", ScheduleError, "a loop for each level"),
    ],
)
def test_assembly_refuses_other_loops(schedule, error, said):
    with pytest.raises(error, match=said):
        code("Y[i,j] = A[i,j] + B[i,j]", schedule, "csr", A="dense, dense", B="dense, dense")


def test_too_many_cases_are_refused():
    names = "ABCDE"
    text = "Y[i,j] = " + " + ".join(f"{name}[i,j]" for name in names)
    with pytest.raises(UnsupportedProgramError, match="more than 400 cases"):
        code(text, "order i, j", **dict.fromkeys(names, "dcsr"))


def test_dense_results_in_blocks_are_refused():
    with pytest.raises(UnsupportedProgramError, match="converted afterwards"):
        code("Y[i] = x[i]", result="i/2: dense, i%2: dense", x="dense")


def scaled(number: float) -> Notation:
    """A matrix times a number."""
    operands = {"A": Operand(Format("csr"), "float32", 0.0, result_index_dtypes(Format("csr")))}
    return concretize(declare(parse(f"Y[i] = sum(j, A[i,j] * {number})"), operands, ("Y",)))


def test_a_program_that_was_lowered_is_lowered_once():
    first = lower(scaled(2.5), 32)
    assert lower(scaled(2.5), 32) is first
    assert lower(scaled(2.5), 0) is not first
    assert lower(scaled(3.5), 32) != first


def test_numbers_that_are_equal_and_differ_are_told_apart():
    assert "-0.0" in str(lower(scaled(-0.0), 0))
    assert "-0.0" not in str(lower(scaled(0.0), 0))


def test_few_lowered_programs_are_kept():
    first = lower(scaled(2.5), 32)
    for number in range(MOST_RECENT):
        lower(scaled(10.5 + number), 32)
    assert lower(scaled(2.5), 32) is not first
