"""Shortcuts: operands like those of an earlier call go to the kernel in C, without a step of Python between.

In: `shortcut(otherwise)`, a function of a tuple of operands and of what can learn. Out: a function of the tuple of
operands that gives the same results, in a microsecond where `otherwise` has taught it the frame of such a call.

A frame holds for operands of the same Python classes, dtypes and fills, whose extents, numbers of entries and longest
rows are of the same classes of sizes, in contiguous memory of the CPU, and for patterns that the kernel has read
before, or that are stored as it reads them, and that were not written to since.
Everything else, and everything that traces, goes the long way each time: no check is left out, they are only made
in C.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch.autograd import forward_ad

from sparsify.compiler.kernel import foreign_call
from sparsify.compiler.kernel.arguments import DenseInput, SparseInput
from sparsify.compiler.kernel.autograd import apply_plainly
from sparsify.options import Options, current
from sparsify.runtime.buffers import LIMIT_BYTES, SMALLEST_BYTES
from sparsify.runtime.torch_functions import dtype_number, torch_functions
from sparsify.storage.tensor import SparseTensor, wrap

OPERANDS, MODES, EXTENTS, SIZES, BUFFERS, ARRAYS = 12, 8, 32, 48, 48, 20
Operands = tuple[torch.Tensor, ...]
# What `otherwise` gets beside the operands: takes the address of a frame; `None` where no frame can hold them.
Learn = Callable[[int], None] | None


class Range(ctypes.Structure):
    """The lowest and the largest extent of an index variable that share a frame; just one where the kernel knows it."""

    _fields_ = (("low", ctypes.c_int64), ("high", ctypes.c_int64))


class Known(ctypes.Structure):
    """How an operand was, per mode the place of its range.

    `key` is what its pattern keeps the kernel's arrays under, null for a dense one. Patterns that have another kernel
    keep theirs under other keys. `keep` has another pattern that has the same kernel keep them, null where the operand
    was not stored as the kernel reads it.
    """

    _fields_ = (
        ("dtype", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("extents", ctypes.c_int64 * MODES),
        ("key", ctypes.py_object),
        ("fill", ctypes.py_object),
        ("keep", ctypes.py_object),
    )


class Input(ctypes.Structure):
    """Operand of a kernel's input, and the place of its number of stored entries among the sizes."""

    _fields_ = (("operand", ctypes.c_int64), ("nnz_place", ctypes.c_int64))


class Frame(ctypes.Structure):
    """The signature of a call, and the plan that follows from it.

    Of each size `size_extents` is the place of the range whose extent it is, -1 for a number. `root` is the operand on
    whose pattern the result lies. `empty` makes the memory of a result of `least_bytes` to `most_bytes`, for its shape
    or for the pattern; torch makes that of others. `differentiable` is the kernel for operands that require gradients.
    Of a result whose arrays the kernel asks for, there are `array_count`; the number of entries that are known lies at
    `entries_place` among the sizes.
    """

    _fields_ = (
        *[(name, ctypes.c_int64) for name in ("kernel", "threads", "operand_count", "input_count")],
        ("size_count", ctypes.c_int64),
        ("range_count", ctypes.c_int64),
        ("root", ctypes.c_int64),
        ("operands", Known * OPERANDS),
        ("inputs", Input * OPERANDS),
        ("ranges", Range * EXTENTS),
        ("sizes", ctypes.c_int64 * SIZES),
        ("size_extents", ctypes.c_int64 * SIZES),
        ("dtype", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("extents", ctypes.c_int64 * MODES),
        ("least_bytes", ctypes.c_int64),
        ("most_bytes", ctypes.c_int64),
        ("item_bytes", ctypes.c_int64),
        ("array_count", ctypes.c_int64),
        ("entries_place", ctypes.c_int64),
        ("array_dtypes", ctypes.c_int64 * ARRAYS),
        ("array_bytes", ctypes.c_int64 * ARRAYS),
        *[(name, ctypes.py_object) for name in ("empty", "fill", "differentiable", "known", "finish")],
    )


_SHORTCUT: Final = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)
_SET_UP: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.py_object)


def shortcut(otherwise: Callable[[Operands, Learn], Any]) -> Callable[[Operands], Any]:
    """A function of the operands: the result as `otherwise` gives it, by the frame of such a call where one is known.

    Args:
        otherwise: computes the result for any operands, and may teach the frame of the call.
    """
    handle = _load(current())
    if handle is None:
        return lambda operands: otherwise(operands, None)
    made: Callable[[Operands], Any] = _SHORTCUT(("sparsify_shortcut", handle))(otherwise)
    return made


@dataclass(frozen=True, slots=True)
class Assembly:
    """How a result comes about whose arrays the kernel asks for.

    Attributes:
        dtypes: of the arrays, the values last.
        entries_place: among the kernel's sizes, of the number of entries; -1 there makes the kernel find the pattern.
        known: the pattern that operands of these patterns gave before, its arrays and the number of its entries, or
            `None`.
        finish: the result of the operands' patterns, the arrays, of which some may be missing, and what was known.
        array: makes a large array for a slot and a number of bytes.
    """

    dtypes: tuple[torch.dtype, ...]
    entries_place: int
    known: Callable[[tuple[Any, ...]], Any]
    finish: Callable[[tuple[Any, ...], tuple[Any, ...], Any], SparseTensor]
    array: Callable[[int, int], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Result:
    """Construction of the result of a call.

    Attributes:
        extents: names of the extents of a dense result.
        dtype: of its entries.
        root: the operand on whose pattern a sparse result lies, whose values are made then.
        fill: of a sparse result.
        empty: makes the memory of large results: of dense ones for a shape, of sparse ones for a pattern.
        assembly: of a result whose pattern the kernel finds.
    """

    extents: tuple[str, ...]
    dtype: torch.dtype
    root: int | None
    fill: object
    empty: Callable[..., torch.Tensor]
    assembly: Assembly | None = None


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Kernel of a call.

    Attributes:
        address: of its function.
        sizes: that it gets: names of extents, and numbers.
        threads: how many it may use, 0 for as many as torch.
        differentiable: what autograd differentiates.
        ranges: of the extents by name: the lowest and the largest for which all of this holds.
    """

    address: int
    sizes: tuple[int | str, ...]
    threads: int
    differentiable: object | None
    ranges: Mapping[str, tuple[int, int]]


def frame(
    operands: Operands,
    inputs: Sequence[tuple[int, DenseInput | SparseInput]],
    result: Result,
    call: KernelCall,
) -> Frame | None:
    """The frame of a call; `None` where none can hold it.

    Args:
        operands: of the call.
        inputs: of the kernel, with the place of the operand that each reads.
        result: how it is made.
        call: what runs.
    """
    by_place = dict(inputs)
    ranks = [operand.dim() for operand in operands] + [len(result.extents)]
    counts = (max(len(operands), len(inputs)), max(ranks), len(call.sizes), len(call.ranges))
    if any(count > most for count, most in zip(counts, (OPERANDS, MODES, SIZES, EXTENTS), strict=True)):
        return None
    made = Frame(kernel=call.address, threads=call.threads, root=-1 if result.root is None else result.root)
    places = {name: place for place, name in enumerate(call.ranges)}
    for place, (known, operand) in enumerate(zip(made.operands, operands, strict=False)):
        read = by_place.get(place)
        if read is None or isinstance(operand, SparseTensor) != isinstance(read, SparseInput):
            return None
        known.dtype, known.dim = dtype_number(read.dtype), operand.dim()
        known.extents[: operand.dim()] = [places[name] for name in read.declared.extents]
        if isinstance(operand, SparseTensor):
            assert isinstance(read, SparseInput), "sparse operands are read so"
            alike = read.alike(operand._pattern)
            known.key, known.fill = alike, operand._fill
            if read.is_exact(operand._pattern):
                known.keep = alike.keep
    for slot, (place, read) in zip(made.inputs, inputs, strict=False):
        slot.operand, slot.nnz_place = place, read.place if isinstance(read, SparseInput) else -1
    for slot, (low, high) in zip(made.ranges, call.ranges.values(), strict=False):
        slot.low, slot.high = low, high
    made.operand_count, made.input_count, made.size_count = len(operands), len(inputs), len(call.sizes)
    made.range_count = len(call.ranges)
    made.sizes[: len(call.sizes)] = [0 if isinstance(size, str) else size for size in call.sizes]
    made.size_extents[: len(call.sizes)] = [
        places[size] if isinstance(size, str) else -1 for size in call.sizes
    ]
    made.dtype, made.item_bytes = dtype_number(result.dtype), result.dtype.itemsize
    made.dim = len(result.extents)
    made.extents[: made.dim] = [places[name] for name in result.extents]
    made.least_bytes, made.most_bytes = SMALLEST_BYTES, LIMIT_BYTES
    made.empty, made.fill = result.empty, result.fill
    if call.differentiable is not None:
        made.differentiable = call.differentiable
    if result.assembly is not None:
        return made if _assemble(made, result.assembly) else None
    return made


def _assemble(made: Frame, assembly: Assembly) -> bool:
    """Says in a frame how its result is assembled; whether a frame can hold that."""
    count = len(assembly.dtypes)
    if count > ARRAYS:
        return False
    made.array_count, made.entries_place = count, assembly.entries_place
    made.array_dtypes[:count] = [dtype_number(dtype) for dtype in assembly.dtypes]
    made.array_bytes[:count] = [dtype.itemsize for dtype in assembly.dtypes]
    made.empty, made.known, made.finish = assembly.array, assembly.known, assembly.finish
    return True


@cache
def _load(options: Options) -> ctypes.CDLL | None:
    """The shared object of shortcuts, told what it needs; `None` without a compiler or with another torch."""
    made, functions = foreign_call.trampolines(), torch_functions()
    if made is None or functions is None:
        return None
    addresses = (ctypes.c_int64 * len(functions))(*functions)
    classes = (torch.Tensor, torch.nn.Parameter, SparseTensor)
    is_transformed = torch._C._are_functorch_transforms_active
    objects = (*classes, apply_plainly, is_transformed, wrap, foreign_call.fail, forward_ad.__dict__)
    _SET_UP(("sparsify_set_up", made.handle))(addresses, objects)
    return made.handle
