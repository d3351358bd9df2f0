"""Fast path: operands like those of an earlier call go to the kernel in C, without Python code in between.

In: `shortcut(otherwise)`, a function of a tuple of operands and of a callback that stores frames. Out: a function of
the tuple of operands with the same results, within a microsecond after `otherwise` has stored the frame of such a call.

A frame holds for operands of equal Python classes, dtypes and fills, in contiguous CPU memory, whose extents, numbers
of entries and longest rows fall into the same size classes, and for unmodified patterns that the kernel has read
before, or that are stored exactly as the kernel reads them.

All other calls, and all traced ones, take the slow path each time: no check is left out, the fast path performs the
checks in C.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import gt
from typing import Any, Final

import torch
from torch.autograd import forward_ad

from sparsify.compiler.cpp.call import foreign_call
from sparsify.compiler.kernel.transforms.autograd import apply_plainly
from sparsify.compiler.operands.arguments import DenseInput, SparseInput
from sparsify.options import Options, current
from sparsify.runtime.buffers import LIMIT_BYTES, SMALLEST_BYTES
from sparsify.runtime.torch_functions import dtype_number, torch_functions
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor, wrap

OPERANDS, MODES, EXTENTS, SIZES, BUFFERS, ARRAYS, OUTPUTS, MADE = 12, 8, 32, 48, 48, 20, 6, 24
Operands = tuple[torch.Tensor, ...]
# Second argument of `otherwise`: stores the frame at an address; `None` if no frame can hold the call.
Learn = Callable[[int], None] | None


class Range(ctypes.Structure):
    """The smallest and the largest extent of an index variable in a frame; equal for a fixed extent."""

    _fields_ = (("low", ctypes.c_int64), ("high", ctypes.c_int64))


class Known(ctypes.Structure):
    """A known operand."""

    _fields_ = (
        ("dtype", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("is_sparse", ctypes.c_int64),
        ("fill", ctypes.py_object),
    )


class Input(ctypes.Structure):
    """A tensor that a stage reads: for each mode the index of its range; a dimension of -1 leaves out all checks.

    `is_inside` marks a tensor inside rows of zeros, with `strides`; others are contiguous. `nnz_place` is the index of
    the number of stored entries among the sizes, and `pattern_slot` the operand whose pattern the tensor has. `key` is
    the cache key of the kernel's arrays in the tensor's pattern, null for a dense tensor; patterns with another kernel
    use other keys. `keep` stores the arrays of another pattern with the same kernel under the key; null if the tensor
    was not stored as the kernel reads it.
    """

    _fields_ = (
        *[(name, ctypes.c_int64) for name in ("slot", "nnz_place", "pattern_slot", "dtype", "dim")],
        ("extents", ctypes.c_int64 * MODES),
        ("is_inside", ctypes.c_int64),
        ("strides", ctypes.c_int64 * MODES),
        ("key", ctypes.py_object),
        ("keep", ctypes.py_object),
    )


class Output(ctypes.Structure):
    """A tensor that a kernel writes.

    `root` is the slot of the tensor that lends the result its pattern, -1 for a dense result. `empty` allocates a
    result of `least_bytes` to `most_bytes`, from a shape or a pattern, and any result inside rows of zeros; torch
    allocates other results.
    """

    _fields_ = (
        *[(name, ctypes.c_int64) for name in ("dtype", "item_bytes", "dim")],
        ("extents", ctypes.c_int64 * MODES),
        ("is_inside", ctypes.c_int64),
        ("root", ctypes.c_int64),
        ("empty", ctypes.py_object),
        ("fill", ctypes.py_object),
    )


class StageFrame(ctypes.Structure):
    """A step of a call: a kernel, or the Python function `compute`.

    `size_extents` maps each size to the range of its extent, -1 for a constant. A result with arrays allocated by the
    kernel has `array_count` arrays; `entries_place` is the index of the known number of entries among the sizes.
    """

    _fields_ = (
        *[
            (name, ctypes.c_int64)
            for name in ("kernel", "threads", "input_count", "output_count", "size_count")
        ],
        ("inputs", Input * OPERANDS),
        ("outputs", Output * OUTPUTS),
        ("sizes", ctypes.c_int64 * SIZES),
        ("size_extents", ctypes.c_int64 * SIZES),
        ("array_count", ctypes.c_int64),
        ("entries_place", ctypes.c_int64),
        ("array_dtypes", ctypes.c_int64 * ARRAYS),
        ("array_bytes", ctypes.c_int64 * ARRAYS),
        *[(name, ctypes.py_object) for name in ("array", "known", "finish", "compute")],
    )


@cache
def _frame_class(stage_count: int) -> Any:
    """The signature of a call, and the execution plan of such calls, with so many stages.

    `arguments` are the places of the operands of `differentiable`, the kernel for operands that require gradients.
    `last` is the last stage that reads each tensor made by a stage, the number of stages for a result.
    """

    class Frame(ctypes.Structure):
        _fields_ = (
            *[(name, ctypes.c_int64) for name in ("references", "operand_count", "argument_count")],
            *[(name, ctypes.c_int64) for name in ("range_count", "stage_count", "result_count")],
            ("only_differentiable", ctypes.c_int64),
            ("arguments", ctypes.c_int64 * OPERANDS),
            ("results", ctypes.c_int64 * OUTPUTS),
            ("last", ctypes.c_int64 * MADE),
            ("least_bytes", ctypes.c_int64),
            ("most_bytes", ctypes.c_int64),
            ("operands", Known * OPERANDS),
            ("ranges", Range * EXTENTS),
            ("differentiable", ctypes.py_object),
            ("stages", StageFrame * stage_count),
        )

    return Frame


_SHORTCUT: Final = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_int)
_SET_UP: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.py_object)


def shortcut(
    otherwise: Callable[[Operands, Learn], Any], *, may_have_strides: bool = False
) -> Callable[[Operands], Any]:
    """A function of the operands with the results of `otherwise`, computed by the frame of such a call if known.

    Args:
        otherwise: slow path, computes the result for any operands and may store the frame of the call.
        may_have_strides: whether a kernel reads a tensor inside rows of zeros; frames of other kernels are for
            contiguous operands alone.
    """
    handle = fast_path_library(current())
    if handle is None:
        return lambda operands: otherwise(operands, None)
    made: Callable[[Operands], Any] = _SHORTCUT(("sparsify_shortcut", handle))(otherwise, may_have_strides)
    return made


@dataclass(frozen=True, slots=True)
class Assembly:
    """The assembly of a result whose arrays the kernel allocates.

    Attributes:
        dtypes: dtypes of the arrays, the values last.
        entries_place: index of the number of entries among the kernel's sizes; -1 makes the kernel compute the pattern.
        known: function from operand patterns to the result of an earlier call: pattern, arrays and number of entries,
            or `None`.
        finish: function from operand patterns, arrays (some may be missing) and the known pattern to the result.
        array: allocator of a large array for a slot and a number of bytes.
    """

    dtypes: tuple[torch.dtype, ...]
    entries_place: int
    known: Callable[[tuple[Any, ...]], Any]
    finish: Callable[[tuple[Any, ...], tuple[Any, ...], Any], SparseTensor]
    array: Callable[[int, int], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Result:
    """Construction of the result of a kernel.

    Attributes:
        extents: names of the extents of a dense result.
        dtype: dtype of the entries.
        root: slot of the tensor whose pattern a sparse result shares; only values are allocated then.
        fill: fill of a sparse result.
        empty: allocator of large results: dense ones from a shape, sparse ones from a pattern.
        assembly: assembly of a result whose pattern the kernel computes.
        is_inside: whether a dense result is inside rows of zeros.
    """

    extents: tuple[str, ...]
    dtype: torch.dtype
    root: int | None
    fill: object
    empty: Callable[..., torch.Tensor]
    assembly: Assembly | None = None
    is_inside: bool = False


@dataclass(frozen=True, slots=True)
class KernelCall:
    """The kernel of a stage.

    Attributes:
        address: address of the kernel's function.
        sizes: size arguments: names of extents, and numbers.
        threads: most threads, 0 for torch's number.
        results: construction of the results.
    """

    address: int
    sizes: tuple[int | str, ...]
    threads: int
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """A tensor that a stage reads.

    Attributes:
        slot: operands of the call have the first slots, and the results of all stages the following ones, in order.
        read: input of the kernel; `None` for a tensor that a Python function checks.
        pattern: pattern of a sparse tensor.
    """

    slot: int
    read: DenseInput | SparseInput | None
    pattern: Pattern | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A step of a call.

    Attributes:
        inputs: tensors that the stage reads, in order.
        run: kernel, or a function from a tuple of tensors to the result, a tuple of several results.
        result_count: number of results.
        ranges: smallest and largest extent by name, for which the stage is valid.
    """

    inputs: tuple[Read, ...]
    run: KernelCall | Callable[[tuple[torch.Tensor, ...]], Any]
    result_count: int
    ranges: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Plan:
    """All stages of a call.

    Attributes:
        stages: stages in order.
        results: slots of the results.
        differentiable: kernel that autograd differentiates, if operands require gradients.
        arguments: places among the operands of the arguments of `differentiable`.
        only_differentiable: whether the stages are those of the kernel that also saves tensors for gradients.
    """

    stages: tuple[Stage, ...]
    results: tuple[int, ...]
    differentiable: object | None = None
    arguments: tuple[int, ...] = ()
    only_differentiable: bool = False


def frame(operands: Operands, plan: Plan) -> Any:
    """The frame of a call with these operands; `None` if a frame cannot hold the call."""
    if any(slot < len(operands) for slot in plan.results):
        return None  # a result that is an operand
    ranges = common_ranges(plan.stages)
    reads = [read for stage in plan.stages for read in stage.inputs]
    made_count = sum(stage.result_count for stage in plan.stages)
    counts = (len(operands), len(ranges or ()), len(plan.results), made_count)
    if ranges is None or any(map(gt, counts, (OPERANDS, EXTENTS, OUTPUTS, MADE))):
        return None
    # The fast path compares patterns by the keys of kernels, and the shapes of the operands that kernels read.
    compared = {read.slot for read in reads if read.read is not None}
    others = {read.slot for read in reads} - compared
    others.update(place for place, operand in enumerate(operands) if isinstance(operand, SparseTensor))
    is_compared = all(slot in compared or slot >= len(operands) for slot in others)
    if not is_compared or any(operand.dim() > MODES for operand in operands):
        return None
    given = [(operands[read.slot], read.read) for read in reads if read.slot < len(operands)]
    if any(read is not None and operand.dtype is not read.dtype for operand, read in given):
        return None
    made = _frame_class(len(plan.stages))(
        operand_count=len(operands), range_count=len(ranges), stage_count=len(plan.stages)
    )
    for slot, (low, high) in zip(made.ranges, ranges.values(), strict=False):
        slot.low, slot.high = low, high
    made.least_bytes, made.most_bytes = SMALLEST_BYTES, LIMIT_BYTES
    made.result_count, made.results[: len(plan.results)] = len(plan.results), plan.results
    made.argument_count, made.arguments[: len(plan.arguments)] = len(plan.arguments), plan.arguments
    made.only_differentiable = plan.only_differentiable
    if plan.differentiable is not None:
        made.differentiable = plan.differentiable
    made.last[:made_count] = last_reads(plan, len(operands))
    for known, operand in zip(made.operands, operands, strict=False):
        known.dim, known.is_sparse = operand.dim(), isinstance(operand, SparseTensor)
        known.fill = operand._fill if isinstance(operand, SparseTensor) else None
        known.dtype = dtype_number(operand.dtype)
    places = {name: place for place, name in enumerate(ranges)}
    roots = pattern_roots(plan, operands)
    for filled, stage in zip(made.stages, plan.stages, strict=True):
        if not _fill_stage(filled, stage, places, roots):
            return None
    return made


def common_ranges(stages: Sequence[Stage]) -> dict[str, tuple[int, int]] | None:
    """The extents for which all stages are valid; `None` without any."""
    found: dict[str, tuple[int, int]] = {}
    for stage in stages:
        for name, (low, high) in stage.ranges.items():
            before = found.get(name, (low, high))
            found[name] = max(low, before[0]), min(high, before[1])
    return None if any(low > high for low, high in found.values()) else found


def pattern_roots(plan: Plan, operands: Operands) -> dict[int, int]:
    """The operand whose pattern each sparse tensor has, by slot."""
    found = {slot: slot for slot, operand in enumerate(operands) if isinstance(operand, SparseTensor)}
    slot = len(operands)
    for stage in plan.stages:
        for result in stage.run.results if isinstance(stage.run, KernelCall) else ():
            if result.root in found:
                found[slot] = found[result.root]
            slot += 1
        slot += 0 if isinstance(stage.run, KernelCall) else stage.result_count
    return found


def last_reads(plan: Plan, operand_count: int) -> list[int]:
    """The number of the last stage that reads each tensor made by a stage; the number of stages for results."""
    found: list[int] = []
    for number, stage in enumerate(plan.stages):
        for read in stage.inputs:
            if read.slot >= operand_count:
                found[read.slot - operand_count] = number
        found += [number] * stage.result_count
    for slot in plan.results:
        if slot >= operand_count:
            found[slot - operand_count] = len(plan.stages)
    made = operand_count + len(found)
    for stage in reversed(plan.stages):  # a tensor lives as long as those on its pattern
        made -= stage.result_count
        for number, result in enumerate(stage.run.results if isinstance(stage.run, KernelCall) else ()):
            if result.root is not None and result.root >= operand_count:
                root, derived = result.root - operand_count, made + number - operand_count
                found[root] = max(found[root], found[derived])
    return found


def _fill_stage(
    filled: StageFrame, stage: Stage, places: Mapping[str, int], roots: Mapping[int, int]
) -> bool:
    """Writes a stage into a frame; false if the frame cannot hold the stage."""
    if len(stage.inputs) > OPERANDS or stage.result_count > OUTPUTS:
        return False
    filled.input_count, filled.output_count = len(stage.inputs), stage.result_count
    for slot, given in zip(filled.inputs, stage.inputs, strict=False):
        slot.slot, slot.nnz_place, slot.dim = given.slot, -1, -1
        if given.read is None:
            continue
        names = given.read.declared.extents
        if len(names) > MODES:
            return False
        slot.dtype, slot.dim = dtype_number(given.read.dtype), len(names)
        slot.extents[: len(names)] = [places[name] for name in names]
        if (interior := given.read.declared.interior) is not None:
            slot.is_inside, slot.strides[: len(names)] = True, interior.all_strides
        if isinstance(given.read, SparseInput) != (given.pattern is not None):
            return False
        if isinstance(given.read, SparseInput) and given.pattern is not None:
            slot.pattern_slot = roots.get(given.slot, -1)
            slot.nnz_place, slot.key = given.read.place, (alike := given.read.alike(given.pattern))
            if given.read.is_exact(given.pattern):
                slot.keep = alike.keep
    if not isinstance(stage.run, KernelCall):
        filled.compute = stage.run
        return True
    return _fill_call(filled, stage.run, places)


def _fill_call(filled: StageFrame, call: KernelCall, places: Mapping[str, int]) -> bool:
    """Writes the kernel of a stage into a frame; false if the frame cannot hold the call."""
    if len(call.sizes) > SIZES or any(len(result.extents) > MODES for result in call.results):
        return False
    filled.kernel, filled.threads, filled.size_count = call.address, call.threads, len(call.sizes)
    filled.sizes[: len(call.sizes)] = [0 if isinstance(size, str) else size for size in call.sizes]
    filled.size_extents[: len(call.sizes)] = [
        places[size] if isinstance(size, str) else -1 for size in call.sizes
    ]
    for slot, result in zip(filled.outputs, call.results, strict=False):
        slot.dtype, slot.item_bytes = dtype_number(result.dtype), result.dtype.itemsize
        slot.dim = len(result.extents)
        slot.extents[: slot.dim] = [places[name] for name in result.extents]
        slot.root = -1 if result.root is None else result.root
        slot.is_inside = result.is_inside
        slot.empty, slot.fill = result.empty, result.fill
    assembly = call.results[0].assembly
    return assembly is None or _assemble(filled, assembly)


def _assemble(filled: StageFrame, assembly: Assembly) -> bool:
    """Writes the assembly of the result into a frame; false if the frame cannot hold the assembly."""
    count = len(assembly.dtypes)
    if count > ARRAYS:
        return False
    filled.array_count, filled.entries_place = count, assembly.entries_place
    filled.array_dtypes[:count] = [dtype_number(dtype) for dtype in assembly.dtypes]
    filled.array_bytes[:count] = [dtype.itemsize for dtype in assembly.dtypes]
    filled.array, filled.known, filled.finish = assembly.array, assembly.known, assembly.finish
    return True


@cache
def fast_path_library(options: Options) -> ctypes.CDLL | None:
    """The initialized shared object of the fast path; `None` without a compiler or with an unsupported torch."""
    made, functions = foreign_call.trampolines(), torch_functions()
    if made is None or functions is None:
        return None
    addresses = (ctypes.c_int64 * len(functions))(*functions)
    classes = (torch.Tensor, torch.nn.Parameter, SparseTensor)
    is_transformed = torch._C._are_functorch_transforms_active
    functions_called = (apply_plainly, is_transformed, wrap, foreign_call.fail)
    objects = (*classes, *functions_called, forward_ad.__dict__, parts_of)
    _SET_UP(("sparsify_set_up", made.handle))(addresses, objects)
    return made.handle


def parts_of(operand: SparseTensor) -> tuple[Any, ...]:
    """The pattern of a sparse tensor, its values, and the arrays of the pattern."""
    pattern = operand._pattern
    return (pattern, operand._vals, *pattern.arrays_in_place())
