"""Widening of byte vectors: every byte, with and without the special instruction."""

from shutil import which

import numpy as np
import pytest

from sparsify import options
from sparsify.compiler.cpp.codegen import emit
from sparsify.compiler.loops.nodes import Convert, Store, Type
from tests.compiler.cpp.running import compare
from tests.compiler.loops.build import kernel, lit, load, loop, var

LANES = 16


@pytest.mark.parametrize("compiler", [name for name in ("g++", "clang++") if which(name)])
@pytest.mark.parametrize("flags", [("-O1",), ("-O1", "-mno-avx512f")], ids=str)
def test_every_byte(flags, compiler):
    loaded = load("X", var("p"), Type("int8", LANES))
    stores = [Store(f"Y_{dtype}", var("p"), Convert(loaded, Type(dtype, LANES))) for dtype in WIDER]
    buffers = " ".join(["X:int8", *(f">Y_{dtype}:{dtype}" for dtype in WIDER)])
    function = kernel("n", buffers, loop("p", lit(0), var("n"), *stores, step=LANES))
    assert "wide_int32x16" in emit(function)
    arrays = {"X": np.arange(-128, 128).astype(np.int8)}
    arrays |= {f"Y_{dtype}": np.zeros(256, dtype) for dtype in WIDER}
    with options.override(compiler=compiler):
        left = compare(function, {"n": 256}, arrays, flags=flags)
    for dtype in WIDER:
        np.testing.assert_array_equal(left[f"Y_{dtype}"], np.arange(-128, 128))


WIDER = ("int32", "float32")
