"""Dot products of packed numbers in C++: portable text that runs anywhere, and one instruction where it exists."""

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
SUMS = {"dot_bfloat16": "float32", "dot_uint8_int8": "int32"}
PRODUCT = "Y[t,n] = sum(k, {dot}(X[t,k], W[n,k]))"


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
@pytest.mark.parametrize("dot", SUMS)
def test_results_as_by_the_interpreter(dot, lanes, compiler):
    dtype = SUMS[dot]
    kind, packed = Type(dtype, lanes), Type("int32", lanes)
    x, y = (load(name, var("p"), packed) for name in "XY")
    one = load("Y", lit(3), I32)
    one = one if lanes == 1 else Broadcast(one, packed)
    stores = [
        Store("D", var("p"), Op(dot, (x, y), kind)),
        Store("S", var("p"), Op(f"add_{dot}", (x, one, load("Z", var("p"), kind)), kind)),
    ]
    buffers = f"X:int32 Y:int32 Z:{dtype} >D:{dtype} >S:{dtype}"
    function = kernel("n", buffers, loop("p", lit(0), var("n"), *stores, step=lanes))
    arrays = {"X": bits(0, COUNT), "Y": bits(1, COUNT), "Z": np.arange(COUNT, dtype=dtype)}
    arrays |= {name: np.zeros(COUNT, dtype) for name in "DS"}
    with options.override(compiler=compiler):
        compare(function, {"n": COUNT}, arrays, flags=("-O1", "-ffp-contract=off"))


def source(dot: str, vector_bytes: int) -> str:
    """The kernel of a product with a weight of packed numbers, compressed by row."""
    formats = {"X": "dense, dense", "W": "dense, compressed"}
    operands = {name: replace(operand(form), dtype="int32") for name, form in formats.items()}
    sizes = Sizes({"t": 128, "n": 256, "k": 256}, {"W": 20_000})
    return compile_stages(
        Step(declare(parse(PRODUCT.format(dot=dot)), operands)), None, vector_bytes, sizes=sizes
    ).cpp


@pytest.mark.skipif(platform.machine() != "x86_64", reason="an instruction of x86-64")
@pytest.mark.skipif(which("objdump") is None, reason="needs objdump")
@pytest.mark.parametrize("compiler", [name for name in ("g++", "clang++") if which(name)])
@pytest.mark.parametrize(
    ("dot", "march", "vector_bytes", "instruction"),
    [
        ("dot_bfloat16", "sapphirerapids", 64, "vdpbf16ps .*%zmm"),
        ("dot_bfloat16", "sapphirerapids", 32, "vdpbf16ps .*%ymm"),
        ("dot_uint8_int8", "sapphirerapids", 64, "vpdpbusd .*%zmm"),
        ("dot_uint8_int8", "icelake-server", 32, "vpdpbusd .*%ymm"),
        ("dot_uint8_int8", "alderlake", 32, r"\{vex\} vpdpbusd .*%ymm"),
    ],
)
def test_the_inner_loop_is_the_instruction(dot, march, vector_bytes, instruction, compiler):
    with options.override(compiler=compiler, compiler_flags=(f"-march={march}",)):
        path = cache.library(source(dot, vector_bytes)).path
    command = ["objdump", "-d", "--no-show-raw-insn", str(path)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    inner = [
        body for body in inner_loops(listed.splitlines()) if any("vdpb" in n or "vpdpb" in n for n in body)
    ]
    assert inner
    for body in inner:
        dots = [line for line in body if "vdpb" in line or "vpdpb" in line]
        assert all(re.search(instruction, line) for line in dots)
        assert not any(re.search(r"\b(vf(n?m)(add|sub)|vpmulld)", line) for line in body)


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
