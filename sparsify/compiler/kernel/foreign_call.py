"""The foreign call: a kernel's address and Python's tensors become one call of C.

In: a `Library`, `sizes=(rows, columns)`, `buffers=(A2_pos, A2_crd, A_vals, x, y)`, the number of threads.
Out: nothing; the kernel has written into its buffers and into what the allocator made, or an exception.

A small C function, compiled like a kernel, reads the tuples and asks each tensor for its address: about 120 ns
and 80 ns a tensor, a quarter of what ctypes takes. It always releases the interpreter's lock, which costs
35 ns. Calls share nothing, so threads may call the same kernel at once. The tuple of buffers keeps its
tensors alive until the kernel returns.
"""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Final

import torch

from sparsify.compiler.cpp.call import digest_source, fast_call, operands, results, trampoline
from sparsify.compiler.cpp.toolchain.cache import Library, library
from sparsify.errors import CompilerError, KernelError
from sparsify.options import Options, current

# `allocate(slot, bytes)` is the tensor of an output whose size only the kernel knows.
Allocator = Callable[[int, int], torch.Tensor]
Sizes = tuple[int, ...]
Buffers = tuple[torch.Tensor | None, ...]
Call = Callable[[Sizes, Buffers, int, Allocator | None], None]

STATUSES: Final = {
    1: "the kernel ran out of memory",
    2: "a position does not fit int32; use int64 for pos and crd",
    3: "a coordinate lies outside its mode; the tensor's crd and shape do not fit each other",
    4: "the kernel found itself in a state that cannot be; this is a mistake of sparsify",
}


def call(
    kernel: Library, sizes: Sizes, buffers: Buffers, threads: int, allocator: Allocator | None = None
) -> None:
    """Runs a kernel; `bind` once and call the result where nanoseconds count.

    Args:
        kernel: the loaded kernel.
        sizes: in the order of its parameters.
        buffers: tensors of plain memory in the order of its parameters; `None` is a null pointer.
        threads: how many it may use, 1 or more.
        allocator: makes tensors of outputs by slot; it must keep them alive.

    Raises:
        KernelError: the kernel ended with a status.
    """
    bind(kernel)(sizes, buffers, threads, allocator)


def bind(kernel: Library) -> Call:
    """The function `(sizes, buffers, threads, allocator)` that runs a kernel; takes no keywords."""
    return _bind(kernel.address)


def trampolines() -> Library | None:
    """The compiled trampoline from Python to kernels; `None` where it cannot be compiled or loaded."""
    # The user's flags are for kernels.
    return _trampolines(replace(current(), compiler_flags=()))


@cache
def _trampolines(options: Options) -> Library | None:
    """The trampolines of a compiler."""
    parts = (trampoline, operands, results, fast_call, digest_source)
    source = "".join(part.SOURCE for part in parts)
    try:
        return library(source, {}, options, symbol=trampoline.SYMBOL)
    except CompilerError:
        return None  # some builds of Python do not export what the text needs


@cache
def _bind(address: int) -> Call:
    made = trampolines()
    if made is None:
        return _bind_ctypes(address)
    bound: Call = _TRAMPOLINE(made.address)(address, fail)
    return bound


def fail(status: int) -> None:
    """Raises the exception for a status that is not 0."""
    raise KernelError(status, STATUSES.get(status, "the kernel ended with an unknown status"))


class _Context(ctypes.Structure):
    _fields_ = (("threads", ctypes.c_int64), ("state", ctypes.c_void_p), ("allocate", ctypes.c_void_p))


_TRAMPOLINE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object)
_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def address_of(buffer: torch.Tensor) -> int:
    """The address of the first entry of a buffer.

    Raises:
        ValueError: there are entries, and no memory.
    """
    address = buffer.data_ptr()
    if not address and buffer.numel():
        raise ValueError("a kernel reads memory, and a buffer with entries has none of its own")
    return address


def _bind_ctypes(address: int) -> Call:
    """The same function without the trampoline."""
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
