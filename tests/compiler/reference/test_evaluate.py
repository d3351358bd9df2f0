"""Programs by torch's operators against the interpreter of programs and against generated kernels."""

import warnings

import pytest
import torch

from sparsify.compiler.kernel.kernel import Kernel
from sparsify.compiler.kernel.statement_kernel import GeneratedStep
from sparsify.compiler.kernel.variants import Variants
from sparsify.compiler.reference import evaluate, evaluate_program, join, space, totals
from sparsify.errors import CompilerNotFoundError
from sparsify.options import Options
from sparsify.storage.tensor import SparseTensor
from tests.compiler.random_programs.compare import (
    compare_result,
    compile_cases,
    kernel_of,
    operand_of,
    reference,
)
from tests.compiler.random_programs.data import Case
from tests.compiler.random_programs.kinds import KINDS


def drawn(kind: str, seed: int) -> Case | None:
    """Case of a seed, `None` if refused or left out."""
    try:
        case = KINDS[kind].draw(seed)
    except KINDS[kind].refusals:
        return None
    return None if KINDS[kind].is_left_out(case) else case


def compare(kind: str, seed: int) -> bool:
    """Compares the results of a case with the interpreter's; returns whether the case exists."""
    case = drawn(kind, seed)
    if case is None:
        return False
    try:
        wanted = reference(case)
    except KINDS[kind].refusals:
        return False
    found = evaluate_program(case.program, {name: operand_of(case, name) for name in case.program.inputs})
    for name, value in zip(case.program.outputs, found, strict=True):
        declared = case.program.declaration(name)
        try:
            compare_result("torch's operators", case, name, value, wanted)
            assert value.dtype is getattr(torch, declared.dtype)
            assert isinstance(value, SparseTensor) or declared.format.is_dense
            assert not isinstance(value, SparseTensor) or value.format == declared.format
        except Exception as error:
            error.add_note(str(case))
            raise
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_interpreter_agrees(kind):
    assert sum(compare(kind, seed) for seed in range(600, 604)) >= 1


@pytest.mark.parametrize("kind", ["plain", "typed", "assembled", "reduced", "special", "windowed", "adjoint"])
def test_joins_and_small_parts_agree(kind, monkeypatch):
    """Evaluation of every statement over its covering entries, in chunks of a few points."""
    for module in (evaluate, space):
        monkeypatch.setattr(module, "MOST_POINTS", 7)
    monkeypatch.setattr(evaluate, "FEW_POINTS", 0)
    monkeypatch.setattr(evaluate, "JOIN_COST", 0)
    monkeypatch.setattr(join, "MOST_JOINED", 5)
    monkeypatch.setattr(totals, "MOST_WAITING", 3)
    monkeypatch.setattr(space.boxes, "__defaults__", (7,))
    assert sum(compare(kind, seed) for seed in range(700, 703)) >= 1


def test_kernels_agree(tmp_path):
    """The same steps by kernels: values, dtypes, formats, fills, layouts and the dtypes of positions."""
    kinds = ("plain", "typed", "assembled")
    done = [KINDS[kind].prepare(seed, interpreted=False) for kind in kinds for seed in range(800, 803)]
    prepared = [found for found in done if found is not None]
    assert len(prepared) > 6
    compile_cases(prepared, tmp_path, ("-O0",))
    for found in prepared:
        case = found.case
        operands = [operand_of(case, name) for name in case.program.inputs]
        plan = []
        for step in found.plan:
            if isinstance(step, tuple):
                step = GeneratedStep(step[0], Variants(step[0], None, 0, Options()), Options())
                step.failure = CompilerNotFoundError("none")
            plan.append(step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            results = Kernel(case.program, tuple(plan))(*operands)
        wanted = kernel_of(found, 1)(*operands)
        several = len(case.program.outputs) > 1
        pairs = zip(results if several else (results,), wanted if several else (wanted,), strict=True)
        for name, (own, other) in zip(case.program.outputs, pairs, strict=True):
            compare_result("torch's operators", case, name, own, found.results)
            assert (type(own), own.dtype, own.shape) == (type(other), other.dtype, other.shape), str(case)
            if isinstance(own, SparseTensor):
                assert (own.format, own.fill) == (other.format, other.fill), str(case)
                arrays = zip(own.pattern.arrays(), other.pattern.arrays(), strict=True)
                assert all(one.dtype is two.dtype for one, two in arrays), str(case)
            elif own.numel() and 1 not in own.shape:
                assert own.stride() == other.stride(), str(case)
