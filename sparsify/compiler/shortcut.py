"""Shortcuts: operands like those of an earlier call go to the kernel in C, without a step of Python between.

In: `shortcut(otherwise)`, a function of a tuple of operands and of what can learn. Out: a function of the tuple of
operands that gives the same results, in a microsecond where `otherwise` has taught it the frame of such a call.

A frame holds for operands of the same classes, dtypes, shapes, fills and, in powers of two, numbers of entries and
longest rows, in contiguous memory of the CPU, and for patterns that the kernel has read before, or that are stored as
it reads them, and that were not written to since.
Everything else, and everything that traces, goes the long way each time: no check is left out, they are only made
in C.
"""

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch.autograd import forward_ad

from sparsify.compiler import native
from sparsify.compiler.arguments import DenseInput, SparseInput
from sparsify.compiler.differentiate import apply_plainly
from sparsify.options import Options, current
from sparsify.runtime.buffers import POOL, SMALLEST_BYTES, row_major
from sparsify.runtime.torch_functions import dtype_number, torch_functions
from sparsify.storage.tensor import SparseTensor, wrap

OPERANDS, MODES, SIZES, BUFFERS, ARRAYS = 12, 8, 48, 48, 20
Operands = tuple[torch.Tensor, ...]
# What `otherwise` gets beside the operands: takes the address of a frame; `None` where no frame can hold them.
Learn = Callable[[int], None] | None


class Known(ctypes.Structure):
    """How an operand was; `key` is what its pattern keeps the kernel's arrays under, null for a dense one.

    Patterns that have another kernel keep theirs under other keys. `keep` has another pattern that has the same kernel
    keep them, null where the operand was not stored as the kernel reads it. `length` counts its values, of which powers
    of two matter.
    """

    _fields_ = (
        ("dtype", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("shape", ctypes.c_int64 * MODES),
        ("length", ctypes.c_int64),
        ("key", ctypes.py_object),
        ("fill", ctypes.py_object),
        ("keep", ctypes.py_object),
    )


class Input(ctypes.Structure):
    """Which operand a kernel's input is, and where its number of stored entries lies among the sizes."""

    _fields_ = (("operand", ctypes.c_int64), ("nnz_place", ctypes.c_int64))


class Frame(ctypes.Structure):
    """What a call was like, and what follows from that.

    `root` is the operand on whose pattern the result lies. `empty` makes the memory of a result of `most_bytes` or
    more; without it torch does. `differentiable` is the kernel for operands that require gradients. Of a result whose
    arrays the kernel asks for, there are `array_count`; the number of entries that are known lies at `entries_place`
    among the sizes.
    """

    _fields_ = (
        *[(name, ctypes.c_int64) for name in ("kernel", "threads", "operand_count", "input_count")],
        ("size_count", ctypes.c_int64),
        ("root", ctypes.c_int64),
        ("operands", Known * OPERANDS),
        ("inputs", Input * OPERANDS),
        ("sizes", ctypes.c_int64 * SIZES),
        ("dtype", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("shape", ctypes.c_int64 * MODES),
        ("strides", ctypes.c_int64 * MODES),
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
    """How the result of a call is made.

    Attributes:
        shape: of a dense result.
        dtype: of its entries.
        root: the operand on whose pattern a sparse result lies, whose values are made then.
        fill: of a sparse result.
        empty: makes the memory of large results, of sparse ones for a pattern.
        assembly: of a result whose pattern the kernel finds.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    root: int | None
    fill: object
    empty: Callable[..., torch.Tensor]
    assembly: Assembly | None = None


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Which kernel a call runs: its address, sizes, threads or 0 for torch's, and what autograd differentiates."""

    address: int
    sizes: tuple[int, ...]
    threads: int
    differentiable: object | None


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
    ranks = [operand.dim() for operand in operands] + [len(result.shape)]
    if max(len(operands), len(inputs)) > OPERANDS or max(ranks) > MODES or len(call.sizes) > SIZES:
        return None
    made = Frame(kernel=call.address, threads=call.threads, root=-1 if result.root is None else result.root)
    for place, (known, operand) in enumerate(zip(made.operands, operands, strict=False)):
        read = by_place.get(place)
        if read is None or isinstance(operand, SparseTensor) != isinstance(read, SparseInput):
            return None
        known.dtype, known.dim = dtype_number(read.dtype), operand.dim()
        known.shape[: operand.dim()] = tuple(operand.shape)
        known.length = operand.numel()
        if isinstance(operand, SparseTensor):
            assert isinstance(read, SparseInput), "sparse operands are read so"
            alike = read.alike(operand._pattern)
            known.key, known.fill, known.length = alike, operand._fill, operand._vals.numel()
            if read.is_exact(operand._pattern):
                known.keep = alike.keep
    for slot, (place, read) in zip(made.inputs, inputs, strict=False):
        slot.operand, slot.nnz_place = place, read.place if isinstance(read, SparseInput) else -1
    made.operand_count, made.input_count, made.size_count = len(operands), len(inputs), len(call.sizes)
    made.sizes[: len(call.sizes)] = call.sizes
    rank = len(result.shape)
    made.dtype, made.item_bytes, made.dim = dtype_number(result.dtype), result.dtype.itemsize, rank
    made.shape[:rank], made.strides[:rank] = result.shape, row_major(result.shape)
    made.most_bytes, made.fill = SMALLEST_BYTES, result.fill
    is_large = POOL.is_recycled(math.prod(result.shape, start=result.dtype.itemsize))
    if call.differentiable is not None:
        made.differentiable = call.differentiable
    if result.assembly is not None:
        return made if _assemble(made, result.assembly) else None
    if result.root is not None or is_large:
        made.empty = result.empty
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
    made, functions = native.trampolines(), torch_functions()
    if made is None or functions is None:
        return None
    addresses = (ctypes.c_int64 * len(functions))(*functions)
    classes = (torch.Tensor, torch.nn.Parameter, SparseTensor)
    is_transformed = torch._C._are_functorch_transforms_active
    objects = (*classes, apply_plainly, is_transformed, wrap, native.fail, forward_ad.__dict__)
    _SET_UP(("sparsify_set_up", made.handle))(addresses, objects)
    return made.handle
