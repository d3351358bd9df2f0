"""Dot products of pairs of bfloat16 in C++: portable text that runs anywhere, and one instruction where it exists."""

import platform
import re
import subprocess
from dataclasses import replace
from shutil import which

import numpy as np
import pytest
import torch

from sparsify import options
from sparsify.compiler.cpp.toolchain import cache
from sparsify.compiler.einsum.declare import declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.loops.nodes import Broadcast, Op, Store, Type
from sparsify.compiler.pipeline import compile_stages
from sparsify.compiler.plan.step import Step
from sparsify.compiler.schedule.sizes import Sizes
from tests.compiler.cpp.running import compare
from tests.compiler.loops.build import I32, kernel, lit, load, loop, var
from tests.compiler.random_programs.operands import operand

COUNT = 64
BFLOAT16_FLAGS = ("-march=sapphirerapids",)
PRODUCT = "Y[t,n] = sum(k, dot_bfloat16(X[t,k], W[n,k]))"


def bits(seed: int, count: int) -> np.ndarray:
    """Pairs of numbers of many sizes, some of them 0, infinite or NaN."""
    drawn = torch.randn(2 * count, generator=torch.Generator().manual_seed(seed)) * 2.0 ** torch.arange(
        2 * count
    )
    drawn = (drawn / 2.0**count).bfloat16()
    for place, value in enumerate((0.0, -0.0, float("inf"), float("nan"), 1.0)):
        drawn[7 * seed + 3 * place] = value
    return drawn.view(torch.int32).numpy()


@pytest.mark.parametrize("compiler", [name for name in ("g++", "clang++") if which(name)])
@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
def test_results_as_by_the_interpreter(lanes, compiler):
    kind, pairs = Type("float32", lanes), Type("int32", lanes)
    x, y = (load(name, var("p"), pairs) for name in "XY")
    one = load("Y", lit(3), I32)
    one = one if lanes == 1 else Broadcast(one, pairs)
    stores = [
        Store("D", var("p"), Op("dot_bfloat16", (x, y), kind)),
        Store("S", var("p"), Op("add_dot_bfloat16", (x, one, load("Z", var("p"), kind)), kind)),
    ]
    buffers = "X:int32 Y:int32 Z:float32 >D:float32 >S:float32"
    function = kernel("n", buffers, loop("p", lit(0), var("n"), *stores, step=lanes))
    arrays = {"X": bits(0, COUNT), "Y": bits(1, COUNT), "Z": np.arange(COUNT, dtype=np.float32)}
    arrays |= {name: np.zeros(COUNT, np.float32) for name in "DS"}
    with options.override(compiler=compiler):
        compare(function, {"n": COUNT}, arrays, flags=("-O1", "-ffp-contract=off"))


def source(vector_bytes: int) -> str:
    """The kernel of a product with a weight of pairs, compressed by row."""
    formats = {"X": "dense, dense", "W": "dense, compressed"}
    operands = {name: replace(operand(form), dtype="int32") for name, form in formats.items()}
    sizes = Sizes({"t": 128, "n": 256, "k": 256}, {"W": 20_000})
    return compile_stages(Step(declare(parse(PRODUCT), operands)), None, vector_bytes, sizes=sizes).cpp


@pytest.mark.skipif(platform.machine() != "x86_64", reason="an instruction of x86-64")
@pytest.mark.skipif(which("objdump") is None, reason="needs objdump")
@pytest.mark.parametrize(("vector_bytes", "register"), [(64, "zmm"), (32, "ymm")])
@pytest.mark.parametrize("compiler", [name for name in ("g++", "clang++") if which(name)])
def test_the_inner_loop_is_the_instruction(compiler, vector_bytes, register):
    with options.override(compiler=compiler, compiler_flags=BFLOAT16_FLAGS):
        path = cache.library(source(vector_bytes)).path
    lines = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    loops = inner_loops(lines)
    inner = [body for body in loops if any("vdpbf16ps" in line for line in body)]
    assert inner
    for body in inner:
        assert all(f"%{register}" in line for line in body if "vdpbf16ps" in line)
        assert not any(re.search(r"\bvf(n?m)(add|sub)", line) for line in body)


def inner_loops(lines: list[str]) -> list[list[str]]:
    """The instructions of loops without other jumps back: from the target of a jump back to the jump."""
    places = {match[1]: n for n, line in enumerate(lines) if (match := re.match(r"\s*([0-9a-f]+):", line))}
    found = []
    for n, line in enumerate(lines):
        jump = re.search(r"\bj\w+\s+([0-9a-f]+)\b", line)
        start = places.get(jump[1]) if jump else None
        if start is not None and start < n:
            found.append(lines[start : n + 1])
    return [body for body in found if not any(set(other) < set(body) for other in found)]
