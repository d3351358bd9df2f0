"""Vector widths and flags."""

import pytest

from sparsify.compiler.cpp.toolchain import target
from sparsify.options import Options


@pytest.mark.parametrize(
    "instructions, width",
    [
        ("sse2 avx2 avx512f", 64),
        ("sse2 avx avx2", 32),
        ("sse2 avx", 16),
        ("asimd", 16),
        ("", 0),
    ],
)
def test_vectors_are_as_wide_as_the_cpu_has(
    instructions: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "instructions", lambda: frozenset(instructions.split()))
    assert target.vector_bytes(Options()) == width


@pytest.mark.parametrize("width", [0, 16, 32, 64])
def test_forced_width(width: int) -> None:
    assert target.vector_bytes(Options(vector_bytes=width)) == width


def test_flags_keep_infinities_and_end_with_those_of_the_user() -> None:
    flags = target.flags(Options(compiler_flags=("-O1", "-g")))
    assert "-ffast-math" not in flags
    assert flags[-2:] == ("-O1", "-g")


def test_long_kernels_without_vectors_are_optimised_less():
    long = "for (;;) {}\n" * target.LONG
    texts = ("for (;;) {}", long, long + "vector_size(32)")
    assert [target.optimisation(text)[0] for text in texts] == ["-O3", "-O1", "-O3"]
    assert target.flags(Options(), target.optimisation(long))[0] == "-O1"


@pytest.mark.parametrize("sum_", ["float32x8 sums_{} = float32x8{{}};", "float apart_{} = 0.0f;"])
def test_no_vectors_are_looked_for_where_sums_are_written_out(sum_):
    lines = [f"    {sum_.format(number)}\n" for number in range(target.WRITTEN_OUT)]
    assert "-fno-tree-vectorize" in target.optimisation("".join(lines))
    assert target.optimisation("".join(lines[1:])) == ("-O3",)
    rooted = "".join(lines) + "for (int lane = 0; lane < 8; ++lane) result[lane] = __builtin_sqrtf(x[lane]);"
    assert target.optimisation(rooted) == ("-O3",)
