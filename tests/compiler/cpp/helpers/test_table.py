"""Vectorized table lookups equal the interpreter's, at any place, for tables of any length."""

from shutil import which

import numpy as np
import pytest

from sparsify import options
from sparsify.compiler.loops.nodes import Convert, Op, Store, Type
from tests.compiler.cpp.running import compare
from tests.compiler.loops.build import kernel, lit, load, loop, var

P, N = var("p"), var("n")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("compiler", [name for name in ("g++", "clang++") if which(name)])
@pytest.mark.parametrize("flags", [("-O1",), ("-O1", "-mno-avx512f"), ("-O1", "-mno-avx2")], ids=str)
def test_elements_at_any_place(flags, compiler):
    functions = []
    for dtype, lanes, vectors in (
        *(("float32", 16, count) for count in (1, 2, 3, 4)),
        *(("float32", 8, count) for count in (1, 2, 8)),
        *(("float64", 8, 2), ("float64", 4, 3), ("int32", 16, 2), ("int64", 8, 1), ("float32", 4, 5)),
    ):
        kind = Type(dtype, lanes)
        table = [load("T", lit(number * lanes), kind) for number in range(vectors)]
        places = Convert(load("J", P, Type("int8", lanes)), Type("int64", lanes))
        found = Store("Y", P, Op("lookup", (places, *table), kind))
        body = loop("p", lit(0), N, found, step=lanes)
        functions.append((kernel("n", f"T:{dtype} J:int8 >Y:{dtype}", body), dtype, lanes * vectors))
    random = np.random.default_rng(0)
    with options.override(compiler=compiler):
        for function, dtype, length in functions:
            table = random.permutation(length).astype(dtype)
            places = random.integers(0, length, 64).astype(np.int8)
            left = compare(
                function, {"n": 64}, {"T": table, "J": places, "Y": np.zeros(64, dtype)}, flags=flags
            )
            np.testing.assert_array_equal(left["Y"], table[places])
