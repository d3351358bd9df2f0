"""A linear layer with an unstructured sparse weight in tiles of tokens, from a schedule written by hand."""

import pytest
import torch

import sparsify
from sparsify.compiler.ir.node import walk
from sparsify.compiler.loops import nodes as loops
from sparsify.errors import ScheduleError
from sparsify.options import override
from tests.compiler.schedule.prototypes import check, check_memory, hottest, lowered, normal, sparse, sums

TEXT = "Y[t,n] = relu(X[t,k] * W[n,k] + b[n])"
SHAPES = [(0, 5, 4), (5, 0, 3), (3, 5, 0), (1, 1, 1), (1, 24, 9), (7, 13, 8), (33, 40, 17), (70, 24, 30)]


def schedule(tokens: int, tail: str = "masked") -> str:
    """Tiles of `tokens` tokens: X transposed, sums with tokens in the lanes, and a final transposition."""
    return (
        f"split t to ti {tokens} {tail}; order to, ko, n, ki, ti; order Y: to, ti, n; "
        "precompute w at to in thread; precompute a = w at n in register; "
        "pack Xt = X[ko, ki, ti] at to in thread; transpose ki ti in Xt; transpose ti n in Y; "
        "vector ti in a; vector ti in w; parallel to dynamic chunks 4"
    )


def operands(
    tokens: int,
    inner: int,
    outputs: int,
    dtype: torch.dtype,
    *,
    block: int = 16,
    density: float = 0.3,
    crd: str = "",
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """X, W in blocks of columns, b and the result in float64."""
    X, b = normal(tokens, inner, dtype=dtype), normal(outputs, dtype=dtype, seed=2)
    W = sparse(outputs, inner, density=density, dtype=dtype)
    stored = sparsify.tensor(W, f"j/{block}: dense, i: dense, j%{block}: compressed{crd}")
    return {"X": X, "W": stored, "b": b}, torch.relu(X.double() @ W.double().T + b.double())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tail", ["masked", "tail 16 8", ""])
def test_linear(tail, shape, threads):
    given, expected = operands(*shape, torch.float32)
    check(TEXT, schedule(32, tail), given, expected, threads=threads)


@pytest.mark.parametrize(
    ("vector_bytes", "dtype"),
    [(0, torch.float32), (16, torch.float32), (16, torch.float64), (32, torch.float64)],
)
def test_widths(vector_bytes, dtype):
    for shape in SHAPES:
        given, expected = operands(*shape, dtype)
        check(TEXT, schedule(16), given, expected, threads=2, vector_bytes=vector_bytes)


@pytest.mark.parametrize("density", [0.0, 1.0])
def test_empty_and_full_weights(density):
    given, expected = operands(37, 50, 21, torch.float32, density=density)
    check(TEXT, schedule(32), given, expected, threads=2)


def test_short_coordinates():
    given, expected = operands(37, 50, 21, torch.float32, crd="(crd=int16)")
    assert given["W"].pattern.crd[2].dtype == torch.int16
    check(TEXT, schedule(32), given, expected, threads=2)


@pytest.mark.parametrize("tail", ["masked", "tail 16 8", "tail 4", ""])
@pytest.mark.parametrize("shape", [(5, 0, 3), (7, 13, 8), (37, 40, 17)], ids=str)
def test_no_access_outside(shape, tail):
    with override(vector_bytes=32):
        check_memory(TEXT, schedule(32, tail), *operands(*shape, torch.float32))


def test_accumulators_hold_a_tile_of_tokens():
    with override(vector_bytes=32):
        given, _ = operands(70, 24, 30, torch.float32)
        function = lowered(TEXT, schedule(64), given)
    loop = hottest(function)
    assert len(sums(loop)) == 8
    loads = {node for node in walk(loop.body) if isinstance(node, loops.Load)}
    assert sorted(load.buffer for load in loads) == ["W3_crd", "W_vals"] + ["Xt"] * 8
    assert all(load.count is None for load in loads)
    # One for the rows of X and one for those of Y: edges are written entry by entry.
    assert len([node for node in walk(function.body) if isinstance(node, loops.Transpose)]) == 2


def test_loops(golden):
    with override(vector_bytes=32):
        given, _ = operands(70, 24, 30, torch.float32)
        golden("schedule/sparse_linear.txt", str(lowered(TEXT, schedule(64), given)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (schedule(32).replace("transpose ti n in Y", "transpose n ti in Y"), "transpose n"),
        (schedule(32).replace("order to, ko, n, ki, ti; ", "order to, ki, n, ko, ti; "), "k"),
        (schedule(32).replace("vector ti in a", "vector n in a"), "written out|constant extent|lanes"),
    ],
)
def test_refused(text, message):
    given, _ = operands(7, 13, 8, torch.float32)
    with (
        override(vector_bytes=32),
        pytest.raises((ScheduleError, sparsify.errors.DiscordantError), match=message),
    ):
        lowered(TEXT, text, given)
