"""Stages of a call: the steps of a kernel as the fast path runs them, from operands of an earlier call.

In: a kernel of `H[i,k] = sum(j, A[i,j] * X[j,k])` and `Y[i,m] = sum(k, H[i,k] * W[k,m])`, and `A`, `X`, `W`. Out: a
`fast_call.Plan` of two stages, the second of which reads what the first one writes.

Generated kernels become stages in C where they read all operands in place. Products of torch, conversions, and kernels
whose operands are permuted in each call become Python functions.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.kernel.fast_call import KernelCall, Plan, Read, Result, Stage
from sparsify.compiler.kernel.statement_kernel import GeneratedStep
from sparsify.compiler.operands.arguments import DenseInput, SparseInput
from sparsify.compiler.plan.prepare.pair_numbers import PairView
from sparsify.compiler.plan.products.dense_product import DenseProduct
from sparsify.compiler.plan.products.small_product import DTYPES, address, is_small
from sparsify.compiler.plan.step import Convert
from sparsify.compiler.schedule.size_class import PatternClasses, held
from sparsify.runtime.buffers import POOL
from sparsify.storage.tensor import SparseTensor

# A tensor in the shape and pattern of another one; `None` where these are unknown.
Example = torch.Tensor | None


def plan_of(kernel: Any, operands: Sequence[torch.Tensor], slots: Sequence[int], called: Any) -> Plan | None:
    """The stages of a kernel for calls with such operands; `None` if some kernel of the call is unknown.

    Args:
        kernel: kernel that has computed such a call.
        operands: operands in the order of the program's inputs.
        slots: place of each operand among those of the call.
        called: kernel that autograd differentiates, `None` if gradients are computed elsewhere.
    """
    program: Program = kernel.program
    places = dict(zip(program.inputs, slots, strict=True))
    examples: dict[str, Example] = dict(zip(program.inputs, operands, strict=True))
    extents: dict[str, int] = {}
    stages: list[Stage] = []
    for step in kernel.steps:
        read = [(places[name], examples[name]) for name in step.operands]
        found = _stage(program, step, read)
        if found is None or not _bind(found[0], [example for _, example in read], extents):
            return None
        stages.append(found[0])
        names = step.results if isinstance(step, GeneratedStep) else (step.result,)
        for name, example in zip(names, found[1], strict=True):
            places[name], examples[name] = len(places), example
    outputs = program.outputs if called is None else called.program.outputs
    results = tuple([places[name] for name in outputs])
    is_extended = called is not None and called is not kernel
    return Plan(tuple(stages), results, called, tuple(slots), is_extended)


def _stage(
    program: Program, step: Any, read: Sequence[tuple[int, Example]]
) -> tuple[Stage, list[Example]] | None:
    """A step as a stage, and examples of its results; `None` if its kernel is unknown."""
    count = len(step.results) if isinstance(step, GeneratedStep) else 1
    if isinstance(step, Convert):
        return Stage(
            tuple([Read(slot, None) for slot, _ in read]), partial(_unguarded, step.compute), count, {}
        ), [None]
    if isinstance(step, PairView):
        return _pairs(program, step, read)
    if isinstance(step, DenseProduct):
        return _product(program, step, read)
    operands = [example for _, example in read if example is not None]
    if len(operands) < len(read):
        return _python_stage(step.compute, count, step.inputs, read), [None] * count
    stage = step.stage(operands, [slot for slot, _ in read])
    return None if stage is None else (stage, step.examples(operands))


def _pairs(
    program: Program, step: PairView, read: Sequence[tuple[int, Example]]
) -> tuple[Stage, list[Example]]:
    """Pairs of an operand as a stage in Python, for operands in the size classes of the examples."""
    declared = [program.declaration(name) for name in step.operands]
    inputs = [DenseInput(d) if d.format.is_dense else SparseInput(d, PatternClasses(), ()) for d in declared]
    stage = _python_stage(partial(_unguarded, step.pairs), 1, inputs, read)
    operands = [example for _, example in read if example is not None]
    return stage, [_unguarded(step.pairs, tuple(operands)) if len(operands) == len(read) else None]


def _python_stage(
    compute: Callable[[tuple[torch.Tensor, ...]], Any],
    count: int,
    inputs: Sequence[DenseInput | SparseInput | None],
    read: Sequence[tuple[int, Example]],
) -> Stage:
    """A stage that takes tensors of all sizes, in the size classes of the examples."""
    reads, ranges = [], {}
    for found, (slot, example) in zip(inputs, read, strict=True):
        pattern = example._pattern if isinstance(example, SparseTensor) else None
        if found is None or example is None or isinstance(found, SparseInput) != (pattern is not None):
            reads.append(Read(slot, None))
            continue
        reads.append(Read(slot, found, pattern))
        names = zip(found.declared.extents, example.shape, strict=True)
        ranges.update({name: held(size) for name, size in names})
    return Stage(tuple(reads), compute, count, ranges)


def _product(
    program: Program, step: DenseProduct, read: Sequence[tuple[int, Example]]
) -> tuple[Stage, list[Example]]:
    """A product of dense matrices as a stage, in C if it is small for all extents of the stage."""
    declared = {d.name: d for d in program.declarations if d.format.is_dense}
    inputs = [DenseInput(declared[name]) if name in declared else None for name in step.operands]
    stage = _python_stage(step.compute, 1, inputs, read)
    left, right = read[0][1], read[1][1]
    if left is None or right is None:
        return stage, [None]
    shape = left.shape[1 if step.left_transposed else 0], right.shape[0 if step.right_transposed else 1]
    example = torch.empty(shape, dtype=left.dtype, device="meta")
    call = _small_product(step, stage, left.dtype)
    return stage if call is None else replace(stage, run=call), [example]


def _small_product(step: DenseProduct, stage: Stage, dtype: torch.dtype) -> KernelCall | None:
    """The call in C of a product that is small for all extents of a stage; `None` for other products."""
    declared = [found.read.declared for found in stage.inputs if found.read is not None]
    if len(declared) < len(stage.inputs) or dtype not in DTYPES or (function := address()) is None:
        return None
    rows, inner = declared[0].extents[:: -1 if step.left_transposed else 1]
    summed, columns = declared[1].extents[:: -1 if step.right_transposed else 1]
    least, most = zip(*[stage.ranges[name] for name in (rows, inner, columns)], strict=True)
    if summed != inner or len({d.dtype for d in declared}) > 1 or not (is_small(*least) and is_small(*most)):
        return None
    flags = (int(step.left_transposed), int(step.right_transposed), int(bool(step.bias)), dtype.itemsize)
    result = Result((rows, columns), dtype, None, 0, partial(POOL.empty, dtype=dtype))
    return KernelCall(function, (rows, inner, columns, *flags), 1, (result,))


def _unguarded(
    compute: Callable[[tuple[torch.Tensor, ...]], torch.Tensor], operands: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    """The result of a step; reads of sparse operands' attributes bypass `__torch_function__`."""
    with torch._C.DisableTorchFunctionSubclass():
        return compute(operands)


def _bind(stage: Stage, examples: Sequence[Example], extents: dict[str, int]) -> bool:
    """Adds the extents of the tensors that a stage reads; false if index variables of several stages are confused."""
    for read, example in zip(stage.inputs, examples, strict=True):
        if read.read is None or example is None:
            continue
        for name, size in zip(read.read.declared.extents, example.shape, strict=True):
            low, high = stage.ranges[name]
            if extents.setdefault(name, size) != size or not low <= size <= high:
                return False
    if not isinstance(stage.run, KernelCall):
        return True
    fixed = {name for name, (low, high) in stage.ranges.items() if low == high}
    return all(fixed.union(extents).issuperset(result.extents) for result in stage.run.results)
