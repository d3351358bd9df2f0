"""Hand-written schedules for programs with known best loops, and their runs in kernels and interpreters."""

from collections.abc import Mapping

import numpy as np
import torch

import sparsify
from sparsify.compiler.cpp.toolchain import target
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.einsum.text.parse import read
from sparsify.compiler.ir.node import walk
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.interpret import interpret
from sparsify.compiler.operands.arguments import index_dtypes
from sparsify.compiler.pipeline import compile_stages
from sparsify.compiler.plan.plan import Step, steps
from sparsify.compiler.schedule.directives import Schedule
from sparsify.options import current, override
from sparsify.storage.format import Format
from sparsify.storage.tensor import SparseTensor

# Sums of at most a few hundred products of normal numbers.
CLOSE = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.float64: {"rtol": 1e-12, "atol": 1e-12}}


def normal(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    """Random numbers; a seed for each shape."""
    generator = torch.Generator().manual_seed(
        seed + sum((n + 1) * p for n, p in zip(shape, (3, 5, 7), strict=False))
    )
    return torch.randn(*shape, generator=generator, dtype=dtype)


def sparse(*shape: int, density: float, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    """Random numbers among zeros."""
    generator = torch.Generator().manual_seed(seed)
    return torch.where(torch.rand(*shape, generator=generator) < density, normal(*shape, dtype=dtype), 0)


def lowered(text: str, schedule: str, operands: Mapping[str, torch.Tensor]) -> loops.Function:
    """The loops of a statement under a schedule."""
    step = steps(declared(text, operands), scheduled=True)[0]
    assert isinstance(step, Step)
    return compile_stages(step, Schedule.parse(schedule), target.vector_bytes(current())).loops


def declared(text: str, operands: Mapping[str, torch.Tensor]) -> Program:
    """The program of a statement on operands."""
    return declare(read(text).statements, {name: described(value) for name, value in operands.items()})


def described(value: torch.Tensor) -> Operand:
    """Format and dtype of an operand."""
    dtype = str(value.dtype).removeprefix("torch.")
    if isinstance(value, SparseTensor):
        return Operand(value.format, dtype, float(value.fill), index_dtypes(value.pattern))
    return Operand(Format(", ".join(["dense"] * value.dim())), dtype)


def check(
    text: str,
    schedule: str,
    operands: Mapping[str, torch.Tensor],
    expected: torch.Tensor,
    *,
    threads: int = 1,
    vector_bytes: int | None = None,
) -> None:
    """The generated kernel gives `expected`."""
    with override(threads=threads, serial_threshold=0, vector_bytes=vector_bytes):
        found = sparsify.evaluate(text, schedule=schedule, **operands)
    dense = found.to_dense() if isinstance(found, SparseTensor) else found
    torch.testing.assert_close(dense, expected.to(dense.dtype), **CLOSE[dense.dtype])


def check_memory(
    text: str, schedule: str, operands: Mapping[str, torch.Tensor], expected: torch.Tensor, threads: int = 2
) -> None:
    """Runs the loops by the interpreter with bounds checks and compares the result with `expected`."""
    function, program = lowered(text, schedule, operands), declared(text, operands)
    sizes = {"serial_threshold": 0}
    buffers: dict[str, np.ndarray] = {}
    for name in program.inputs:
        value = operands[name]
        sizes.update(
            (f"{index}_extent", extent)
            for index, extent in zip(program.declaration(name).extents, value.shape, strict=True)
        )
        if isinstance(value, SparseTensor):
            sizes[f"{name}_nnz"] = value.pattern.nnz
            for number, (pos, crd) in enumerate(zip(value.pattern.pos, value.pattern.crd, strict=True), 1):
                buffers |= {
                    f"{name}{number}_{kind}": a.numpy()
                    for kind, a in (("pos", pos), ("crd", crd))
                    if a is not None
                }
            value = value.values()
        buffers[f"{name}_vals"] = value.contiguous().numpy().reshape(-1)
    result = np.full(expected.numel(), np.nan, buffers[f"{program.inputs[0]}_vals"].dtype)
    buffers[f"{program.outputs[0]}_vals"] = result
    assert interpret(function, sizes, buffers, threads).status == 0
    np.testing.assert_allclose(result.reshape(expected.shape), expected.numpy(), rtol=1e-4, atol=1e-4)


def hottest(function: loops.Function) -> loops.For:
    """The innermost loop with the most sums in registers."""
    inner = [
        node
        for node in walk(function.body)
        if isinstance(node, loops.For) and not any(isinstance(n, loops.For) for n in walk(node.body))
    ]
    return max(inner, key=lambda loop: len(sums(loop)))


def sums(loop: loops.For) -> list[loops.Set]:
    """The sums in registers of a loop."""
    return [node for node in walk(loop.body) if isinstance(node, loops.Set)]
