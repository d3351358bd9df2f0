"""Vector widths and flags."""

import pytest

from sparsify.compiler.cpp import target
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
    assert [target.optimisation(text) for text in ("for (;;) {}", long, long + "vector_size(32)")] == [
        3,
        1,
        3,
    ]
    assert target.flags(Options(), target.optimisation(long))[0] == "-O1"
