"""Random numbers of kernels equal the interpreter's bit by bit, for scalars and vectors of any length."""

from shutil import which

import numpy as np
import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.einsum.counter_random import uniform
from sparsify.compiler.loops.nodes import INT, Broadcast, Convert, Lanes, Op, Store, Type
from tests.compiler.cpp.running import compare
from tests.compiler.loops.build import kernel, lit, load, loop, var

P, N = var("p"), var("n")


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_all_forms_of_operands(lanes):
    wide, result = Type("int64", lanes), Type("float32", lanes)
    seed = load("S", lit(0), INT)
    places = Lanes(P, wide) if lanes > 1 else P
    narrow = Convert(load("C", P, Type("int32", lanes)), wide)
    one = Broadcast(seed, wide) if lanes > 1 else seed
    row = Broadcast(N, wide) if lanes > 1 else N
    far = Op("add", (Op("mul", (places, load("A", P, wide)), wide), narrow), wide)
    forms = {"uniform": (one, row, places), "read": (load("A", P, wide), narrow, far)}
    body = [Store(f"Y_{name}", P, Op("uniform", args, result)) for name, args in forms.items()]
    function = kernel(
        "n",
        "S:int64 A:int64 C:int32 >Y_uniform:float32 >Y_read:float32",
        loop("p", lit(0), N, *body, step=lanes),
    )
    random = np.random.default_rng(0)
    arrays = {
        "S": np.array([-(2**61) + 5]),
        "A": random.integers(-(2**63), 2**63 - 1, 32),
        "C": random.integers(-(2**31), 2**31 - 1, 32, dtype=np.int32),
        **{f"Y_{name}": np.zeros(32, np.float32) for name in forms},
    }
    left = compare(function, {"n": 32}, arrays)
    np.testing.assert_array_equal(left["Y_uniform"], uniform(arrays["S"], 32, np.arange(32)))


@pytest.mark.parametrize(
    ("form", "compiler"), [("csr", "g++"), ("bcsr(4,4)", "g++"), ("bcsr(4,4)", "clang++")]
)
def test_numbers_do_not_depend_on_the_kernel(form, compiler):
    if which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    A, seed = np.ones((13, 29), np.float32), 2**62 + 12345
    wanted = uniform(seed, np.arange(13)[:, None], np.arange(29))
    for width in (0, 16, 32, 64):
        quick = {"compiler": compiler, "compiler_flags": ("-O1",), "serial_threshold": 0}
        with options.override(vector_bytes=width, threads=2, **quick):
            found = sparsify.evaluate(
                "Y[i,j] = A[i,j] * uniform(s, i, j)", A=sparsify.tensor(A, form), s=torch.tensor(seed)
            )
        np.testing.assert_array_equal(found.to_dense().numpy(), wanted)
