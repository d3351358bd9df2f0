"""Runs kernels of loop IR as compiled C++ and compares them with the interpreter."""

import copy
import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsify import options
from sparsify.compiler.cpp.codegen import emit
from sparsify.compiler.cpp.toolchain import cache
from sparsify.compiler.loops import nodes
from sparsify.compiler.loops.interpret import Result, interpret
from sparsify.compiler.loops.verify import verify

# Compiled quickly: these tests ask for right results, not for speed.
QUICK = ("-O1",)

Arrays = Mapping[str, NDArray[Any]]

ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
KERNEL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class Context(ctypes.Structure):
    _fields_ = (("threads", ctypes.c_int64), ("state", ctypes.c_void_p), ("allocate", ALLOCATE))


def run_compiled(
    function: nodes.Function,
    sizes: Mapping[str, int],
    buffers: Arrays,
    threads: int = 2,
    flags: tuple[str, ...] = QUICK,
    memory: bool = True,
) -> Result:
    """Runs the C++ of a kernel; without `memory` the allocator has none."""
    with options.override(compiler_flags=flags):
        library = cache.library(emit(function))
    grown: dict[str, NDArray[Any]] = {}

    def allocate(_state: int, slot: int, size: int) -> int | None:
        buffer = function.buffers[slot]
        if not memory or not size:
            return None
        grown[buffer.name] = np.zeros(size // np.dtype(buffer.dtype).itemsize, buffer.dtype)
        return grown[buffer.name].ctypes.data

    context = Context(threads, None, ALLOCATE(allocate))
    numbers = (ctypes.c_int64 * max(1, len(function.sizes)))(*(sizes[name] for name in function.sizes))
    pointers = (ctypes.c_void_p * max(1, len(function.buffers)))(
        *(None if b.grown else buffers[b.name].ctypes.data for b in function.buffers)
    )
    return Result(KERNEL(library.address)(numbers, pointers, ctypes.byref(context)), grown)


def compare(
    function: nodes.Function,
    sizes: Mapping[str, int],
    buffers: Arrays,
    threads: int = 2,
    flags: tuple[str, ...] = QUICK,
    ulps: float = 0,
) -> dict[str, NDArray[Any]]:
    """Runs a kernel by compiled C++ and by the interpreter on copies and compares; returns the arrays of the former.

    Args:
        ulps: maximum difference of floating point results, in units of the last place; 0 for equal bits.
    """
    verify(function)
    sizes = {"serial_threshold": 0, **sizes}
    compiled, interpreted = copy.deepcopy(dict(buffers)), copy.deepcopy(dict(buffers))
    actual = run_compiled(function, sizes, compiled, threads, flags)
    expected = interpret(function, sizes, interpreted, threads)
    assert actual.status == expected.status
    left = {**compiled, **actual.grown}
    for name, wanted in interpreted.items():
        assert_near(name, left[name], wanted, ulps)
    for name, wanted in expected.grown.items():
        # The interpreter marks what a kernel leaves undefined.
        defined = ~np.isnan(wanted) if wanted.dtype.kind == "f" else wanted != np.iinfo(wanted.dtype).min
        if wanted.size:
            assert_near(name, left[name][defined], wanted[defined], ulps)
    return left


def assert_near(name: str, actual: NDArray[Any], wanted: NDArray[Any], ulps: float) -> None:
    """Equal bits, or for floating point values at most so many units in the last place apart."""
    assert actual.dtype == wanted.dtype
    assert actual.shape == wanted.shape
    if wanted.dtype.kind != "f" or not ulps:
        np.testing.assert_array_equal(actual, wanted, err_msg=name)
        return
    same = (actual == wanted) | (np.isnan(actual) & np.isnan(wanted))
    with np.errstate(all="ignore"):
        error = np.where(same, 0, np.abs(actual - wanted) / np.spacing(np.abs(wanted)))
    assert not np.any(error > ulps) and not np.any(np.isnan(error)), (
        f"{name}[{int(np.nanargmax(error))}] is {np.nanmax(error):.1f} ulp off"
    )
