"""Chains over single entries with a further mode: all heads of an entry at a time, compared with float64."""

import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.einsum.infer.format import infer_format
from sparsify.compiler.evaluate import _program, evaluate_kernel
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.pipeline import compile_stages
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.row_chain.chain import row_chain
from sparsify.compiler.schedule.templates.row_chain.entry_heads import EntryModes
from sparsify.compiler.schedule.templates.row_chain.strategies import row_ways

ROWS = """
m[h,i] max= S[h,i,j]
P[h,i,j] = exp(S[h,i,j] - where(m[h,i] == -inf, 0, m[h,i]))
d[h,i] += P[h,i,j]
Y[i,h,f] += P[h,i,j] * X[j,h,f] / where(d[h,i] == 0, 1, d[h,i])
"""
SUMS = "S[h,i,j] = where(stored(A[i,j]), a[j,h] + b[i,h] + A[i,j], -inf)" + ROWS
PRODUCTS = "S[h,i,j] = where(stored(A[i,j]), 0.5 * sum(k, Q[i,h,k] * K[j,h,k]), -inf)" + ROWS
NODES = 30
QUICK = {"serial_threshold": 0}


def operands(text: str, heads: int, width: int) -> dict[str, torch.Tensor]:
    """Operands with an empty row and a full row."""
    generator = torch.Generator().manual_seed(heads)
    stored = torch.rand(NODES, NODES, generator=generator) < 0.2
    stored[3], stored[4] = False, True
    found = {"A": sparsify.tensor(stored.float(), "csr")}
    shapes = {"a": (NODES, heads), "b": (NODES, heads)}
    shapes |= dict.fromkeys("QKX", (NODES, heads, width))
    return found | {n: torch.randn(s, generator=generator) for n, s in shapes.items() if f"{n}[" in text}


def expected(text: str, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """Dense attention in float64; rows without entries give 0."""
    A, rest = given["A"].to_dense().double(), {n: x.double() for n, x in given.items() if n != "A"}
    if text is SUMS:
        scores = rest["a"].T[:, None] + rest["b"].T[:, :, None] + A
    else:
        scores = 0.5 * torch.einsum("ihk,jhk->hij", rest["Q"], rest["K"])
    weights = torch.nan_to_num(torch.softmax(scores.masked_fill(A == 0, -torch.inf), -1))
    return torch.einsum("hij,jhf->ihf", weights, rest["X"])


def kernel(text: str, given: dict[str, torch.Tensor], heads: int, width: int):
    fixed = {"h": heads, "f": width} | ({"k": width} if text is PRODUCTS else {})
    return evaluate_kernel(text, "Y", sizes=fixed, **given)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("vector_bytes", [16, 64])
@pytest.mark.parametrize("text", [SUMS, PRODUCTS], ids=["sums", "products"])
@pytest.mark.parametrize(("heads", "width"), [(4, 3), (3, 5)])
def test_results(text, heads, width, vector_bytes):
    given = operands(text, heads, width)
    with options.override(vector_bytes=vector_bytes, **QUICK):
        found = kernel(text, given, heads, width)
        (step,) = found.generated
        assert "order P: i, j, h" in str(step.current.stages.schedule)
        assert not step.current.stages.refused
        result = found(*[given[name] for name in found.program.inputs])
    # Weighted means of normal numbers in float32.
    torch.testing.assert_close(result, expected(text, given).float(), rtol=1e-5, atol=1e-5)


def chain(text: str, **fixed: int):
    program = _program(text, "Y", None, fixed, operands(text, fixed.get("h", 8), fixed.get("f", 8)))
    return row_chain(concretize(infer_format(program)))


def test_the_schedule():
    far = Sizes({"i": 10**6, "j": 10**6, "h": 8, "f": 8}, {"A": 10**7})
    first = next(iter(row_ways(chain(SUMS, h=8, f=8), 16, 4, far))).schedule
    assert str(first) == (
        "split f fo fi 16; order S: i, j, h; order m: i, j, h; precompute sum_m = m at i in register; "
        "order P: i, j, h; order d: i, j, h; precompute sum_d = d at i in register; order w: i, fo, j, h, fi; "
        "order Y: i, fo, h, fi; precompute w at fo in register; precompute S at i in thread; "
        "precompute m at i in thread; precompute P at i in thread; precompute d at i in thread; vector h in S; "
        "vector h in sum_m; vector h in m; vector h in P; vector h in sum_d; vector h in d; unroll h in w; "
        "vector fi in w; unroll h in Y; vector fi in Y; parallel i dynamic A; prefetch X 32"
    )


def test_whole_rows_are_asked_for_ahead():
    text = str(first_loops(10**6))
    assert text.count("prefetch X_vals") == 4  # eight heads of eight numbers: 256 bytes
    assert "prefetch" not in str(first_loops(100))
    # Both tables, each where its rows are read first: the loop over a sum, of known length, lies within.
    text = str(first_loops(10**6, PRODUCTS))
    assert (text.count("prefetch K_vals"), text.count("prefetch X_vals")) == (4, 4)


def first_loops(nodes: int, text: str = SUMS):
    """The loops for a graph with so many nodes."""
    given = operands(text, 8, 8)
    (step,) = kernel(text, given, 8, 8).generated
    extents = {"i": nodes, "j": nodes, "h": 8, "f": 8}
    return compile_stages(step.step, None, 64, sizes=Sizes(extents, {"A": 10 * nodes})).loops


def test_one_head_takes_the_entries_of_a_row_in_vectors():
    found = EntryModes(chain(SUMS, h=1, f=8), 16, 4, Sizes())
    assert found.fits and found.cycles() > found.cycles_apart()
    many = EntryModes(chain(SUMS, h=8, f=8), 16, 4, Sizes())
    assert many.cycles() < many.cycles_apart()


def test_more_sums_than_registers_and_unknown_extents_are_left_to_others():
    assert not list(EntryModes(chain(SUMS, h=8, f=64), 16, 4, Sizes()).schedules())
    assert not EntryModes(chain(SUMS), 16, 4, Sizes()).fits
