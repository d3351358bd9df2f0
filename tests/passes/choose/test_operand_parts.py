"""Kernels of long calls are timed on ranges of rows, whose times stand for those of the whole."""

from dataclasses import replace

import pytest
import torch

import sparsify
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.kernel.statement_kernel import GeneratedStep
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.passes.choose import autotune, schedules
from sparsify.passes.choose.operand_parts import LEAST_ROWS, PART_US, RANGES, divisible, parts_of

NODES, EDGES, WIDTH = 40_000, 80_000, 4
SUM = "Y[i,k] = sum(j, A[i,j] * T[j,k])"
Given = dict[str, torch.Tensor]


def given(form: str = "csr") -> Given:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(NODES, (2, EDGES), generator=generator)
    weights = torch.rand(EDGES, generator=generator)
    adjacency = torch.sparse_coo_tensor(edges, weights, (NODES, NODES), check_invariants=True).coalesce()
    return {"A": sparsify.tensor(adjacency, form), "T": torch.rand(NODES, WIDTH, generator=generator)}


def stepped(text: str, operands: Given) -> tuple[GeneratedStep, tuple[torch.Tensor, ...]]:
    (step,) = evaluate_kernel(text, **operands).generated
    return step, tuple(operands[name] for name in step.operands)


@pytest.mark.parametrize("us", [5 * PART_US, 16 * PART_US])
def test_ranges_give_the_rows_of_the_whole(us):
    step, operands = stepped(SUM, given())
    parts = parts_of(step, operands, us)
    rows = round(parts.share * NODES) // RANGES
    assert len(parts.operands) == RANGES and parts.share == pytest.approx(PART_US / us, rel=1e-2)
    whole = step.compute(operands)
    for number, found in enumerate(schedules.computed(step, parts.operands)):
        begin = number * NODES // RANGES
        torch.testing.assert_close(found, whole[begin : begin + rows])
    reads = [dict(zip(step.operands, part, strict=True))["T"] for part in parts.operands]
    assert all(read is operands[step.operands.index("T")] for read in reads)


def test_a_part_of_a_sum_is_timed_where_its_index_is_outermost():
    step, operands = stepped(SUM, given("csc"))
    assert divisible(step, operands) == "j"
    parts = parts_of(step, operands, 10 * PART_US)
    assert [
        [o.shape[0] for o in part if not isinstance(o, sparsify.SparseTensor)] for part in parts.operands
    ] == [[NODES // 10 // RANGES]] * RANGES


@pytest.mark.parametrize(
    ("text", "us"),
    [
        (SUM, PART_US),  # short
        ("Y[i,k] = sum(j, A[i,j] * A[j,k])", 10 * PART_US),  # each index is inside an operand
    ],
)
def test_whole_calls_are_timed_otherwise(text, us):
    operands = given() if "T" in text else {"A": given()["A"]}
    step, values = stepped(text, operands)
    parts = parts_of(step, values, us)
    assert parts.share == 1.0 and parts.operands == (values,)


def test_ranges_have_rows_enough_for_all_threads():
    parts = parts_of(*stepped(SUM, given()), 1e9)
    assert parts.share == pytest.approx(RANGES * LEAST_ROWS / NODES)


def test_few_rows_are_not_divided():
    a = sparsify.tensor((torch.rand(1000, 50) < 0.1).float(), "csr")
    step, operands = stepped(SUM, {"A": a, "T": torch.rand(50, WIDTH)})
    assert parts_of(step, operands, 100 * PART_US).share == 1.0


def test_times_are_those_of_the_whole(monkeypatch):
    monkeypatch.setattr(autotune, "once_us", lambda call: 3.0)
    step, operands = stepped(SUM, given())
    by_name = dict(zip(step.operands, operands, strict=True))
    sizes = Sizes({"i": NODES, "j": NODES, "k": WIDTH}, {"A": by_name["A"].nnz})
    whole = schedules.candidates(step, lambda: by_name, sizes, 0.0)
    parted = schedules.candidates(step, lambda: by_name, sizes, 8 * PART_US)
    assert [one.name for one in parted] == [one.name for one in whole]
    assert {one.share for one in whole} == {1.0}
    assert all(one.share == pytest.approx(1 / 8) for one in parted)
    winner = autotune.compare("schedule", [replace(one, call=lambda: None) for one in parted], seconds=0.0)
    timed = autotune.compare("schedule", [replace(one, call=lambda: None, share=1.0) for one in parted], 0.0)
    assert winner.us == 8 * timed.us
