"""Results with more entries than int32 can count: positions become int64."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import sparsify
from sparsify.compiler.cpp.call.foreign_call import fail
from sparsify.compiler.evaluate import einsum_kernel
from sparsify.compiler.ir.status import POSITION_OVERFLOW
from sparsify.compiler.kernel.pattern_cache import KNOWN
from sparsify.compiler.kernel.statement_kernel import GeneratedStep
from sparsify.compiler.loops.lower import assembly
from sparsify.compiler.operands.arguments import SparseInput
from sparsify.compiler.schedule.size_class import PatternClasses
from sparsify.errors import FormatError, KernelError
from sparsify.options import override


def operands():
    generator = torch.Generator().manual_seed(0)
    A = (torch.rand(6, 7, generator=generator) < 0.5).double()
    B = (torch.rand(7, 5, generator=generator) < 0.5).double()
    return A, B, sparsify.tensor(A, "csr"), sparsify.tensor(B, "csr")


def overflowing(step, operands):
    """Step with a kernel that reports a position overflow."""
    step.compute(operands)
    KNOWN.clear()
    for shapes, frame in step._frames.items():
        library = frame.choice.variant.library
        overflows = SimpleNamespace(call=lambda *_: fail(POSITION_OVERFLOW), library=library)
        step._frames[shapes] = replace(frame, choice=replace(frame.choice, variant=overflows))


def test_positions_become_int64():
    A, B, *stored = operands()
    kernel, _ = einsum_kernel("ia,ab->ib", tuple(stored), None, None)
    (step,) = kernel.steps
    assert isinstance(step, GeneratedStep)
    overflowing(step, stored)
    found = kernel(*stored)
    torch.testing.assert_close(found.to_dense(), A @ B)
    assert {array.dtype for array in found.pattern.arrays()} == {torch.int64}
    assert found.pattern.pos[1].dtype == torch.int64
    assert stored[0].pattern.pos[1].dtype == torch.int32
    step._frames.clear()


def test_what_is_wide_already_raises():
    _, _, *stored = operands()
    kernel, _ = einsum_kernel("ia,ac->ic", tuple(stored), None, None)
    (step,) = kernel.steps
    overflowing(step.wide, stored)
    overflowing(step, stored)
    assert step.wide.wide is None
    with pytest.raises(KernelError, match="int32"):
        kernel(*stored)
    step._frames.clear()
    step.wide._frames.clear()


@pytest.mark.parametrize("format", ["csr", "dcsr", "coo"])
def test_the_limit_is_exact(monkeypatch, tmp_path, format):
    """With a limit equal to the number of entries, positions stay int32; with one less, they become int64."""
    A, B, *stored = operands()
    count = int(((A @ B) != 0).sum())
    for letter, limit, dtype in (("y", count, torch.int32), ("z", count - 1, torch.int64)):
        monkeypatch.setitem(assembly.LARGEST, "int32", limit)
        # Another directory and odd letters: kernels with such limits are of no use to others.
        with override(cache_dir=tmp_path / str(limit)):
            found = sparsify.einsum(f"i{letter},{letter}k->ik", *stored, format=format)
        torch.testing.assert_close(found.to_dense(), A @ B)
        assert found.pattern.pos[0 if format != "csr" else 1].dtype == dtype


def test_wide_arrays_are_not_wrapped():
    _, _, stored, _ = operands()
    kernel, _ = einsum_kernel("ij,jk->ik", (stored, torch.ones(7, 2, dtype=torch.float64)), None, None)
    read = SparseInput(kernel.program.declaration("A"), PatternClasses(), ())
    assert read._as(torch.tensor([1, 2]), torch.int32).dtype == torch.int32
    with pytest.raises(FormatError, match="int64 positions"):
        read._as(torch.tensor([1, 2**31]), torch.int32)
