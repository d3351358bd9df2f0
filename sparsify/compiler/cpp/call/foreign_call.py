"""The foreign call: a kernel's address and Python's tensors become one call of C.

In: a `Library`, `sizes=(rows, columns)`, `buffers=(A2_pos, A2_crd, A_vals, x, y)`, the number of threads.
Out: nothing; the kernel has written into the buffers and into the arrays of the allocator, or an exception.

A small C function, compiled like a kernel, reads the tuples and asks each tensor for its address: about 120 ns
and 80 ns a tensor, a quarter of the time of ctypes. The interpreter's lock is always released, for
35 ns. Calls share nothing, so threads may call the same kernel at once. The tuple of buffers keeps the
tensors alive until the kernel returns.
"""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch

from sparsify.compiler.cpp.call import (
    digest_source,
    fast_call,
    operands,
    product_source,
    recall_source,
    results,
    stages,
    trampoline,
)
from sparsify.compiler.cpp.toolchain.cache import Library, library
from sparsify.compiler.ir.status import STATUSES
from sparsify.errors import CompilerError, KernelError
from sparsify.options import Options, current

# `allocate(slot, bytes)` makes the tensor of an output with a size known to the kernel only.
Allocator = Callable[[int, int], torch.Tensor]
Sizes = tuple[int, ...]
Buffers = tuple[torch.Tensor | None, ...]
Call = Callable[[Sizes, Buffers, int, Allocator | None], None]


def call(
    kernel: Library, sizes: Sizes, buffers: Buffers, threads: int, allocator: Allocator | None = None
) -> None:
    """Runs a kernel; `bind` once and call the result where nanoseconds count.

    Args:
        kernel: the loaded kernel.
        sizes: sizes in the order of the kernel's parameters.
        buffers: tensors of plain memory in the order of the parameters; `None` is a null pointer.
        threads: maximum number of threads, 1 or more.
        allocator: makes tensors of outputs by slot and must keep them alive.

    Raises:
        KernelError: the kernel ended with a status.
    """
    bind(kernel)(sizes, buffers, threads, allocator)


def bind(kernel: Library) -> Call:
    """The function `(sizes, buffers, threads, allocator)` running a kernel; takes no keywords."""
    return bind_address(kernel.address)


def trampolines() -> Library | None:
    """The compiled trampoline from Python to kernels; `None` if compilation or loading fails."""
    # The user's flags are for kernels.
    return _trampolines(replace(current(), compiler_flags=()))


@cache
def _trampolines(options: Options) -> Library | None:
    """The trampolines built by a compiler."""
    parts = (
        trampoline,
        operands,
        results,
        stages,
        fast_call,
        digest_source,
        recall_source,
        product_source,
    )
    source = "".join(part.SOURCE for part in parts)
    try:
        return library(source, {}, options, symbol=trampoline.SYMBOL)
    except CompilerError:
        return None  # some builds of Python do not export the required symbols


@cache
def bind_address(address: int) -> Call:
    """The function of `bind` for a kernel at an address."""
    made = trampolines()
    if made is None:
        return _bind_ctypes(address)
    bound: Call = _TRAMPOLINE(made.address)(address, fail)
    return bound


def fail(status: int) -> None:
    """Raises the exception for a nonzero status."""
    raise KernelError(status, STATUSES.get(status, "the kernel ended with an unknown status"))


class _Context(ctypes.Structure):
    _fields_ = (("threads", ctypes.c_int64), ("state", ctypes.c_void_p), ("allocate", ctypes.c_void_p))


_TRAMPOLINE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object)
_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def address_of(buffer: torch.Tensor) -> int:
    """The address of the first entry of a buffer.

    Raises:
        ValueError: the buffer has entries, but no memory.
    """
    address = buffer.data_ptr()
    if not address and buffer.numel():
        raise ValueError("a kernel reads memory, and a buffer with entries has none of its own")
    return address


def _bind_ctypes(address: int) -> Call:
    """The function of `bind` by ctypes, without the trampoline."""
    function = _KERNEL(address)

    def run(sizes: Sizes, buffers: Buffers, threads: int, allocator: Allocator | None) -> None:
        if threads < 1:
            raise ValueError("a kernel runs on 1 thread or more")
        errors: list[BaseException] = []

        def allocate(state: int | None, slot: int, size: int) -> int | None:
            if errors:
                return None
            try:
                if allocator is None:
                    raise TypeError("this kernel needs an allocator")
                return allocator(slot, size).data_ptr()
            except BaseException as error:
                errors.append(error)
                return None

        callback = _ALLOCATE(allocate)
        pointers = [None if buffer is None else address_of(buffer) for buffer in buffers]
        context = _Context(threads, None, ctypes.cast(callback, ctypes.c_void_p))
        status = function(
            (ctypes.c_int64 * len(sizes))(*sizes),
            (ctypes.c_void_p * len(pointers))(*pointers),
            ctypes.byref(context),
        )
        if errors:
            raise errors[0]
        if status:
            fail(status)

    return run
