"""Row-wise chains: attention of all forms becomes one kernel by itself, equal to dense attention in float64."""

import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.gradient.adjoint import adjoint
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.explain import explain_program
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.pipeline import compile_stages
from sparsify.compiler.plan.fuse import row_chain as fused_row_chain
from sparsify.compiler.plan.fuse.row_chain import fusion
from sparsify.compiler.plan.plan import steps
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.row_chain.chain import row_chain
from sparsify.compiler.schedule.templates.row_chain.strategies import row_ways
from sparsify.storage.format import Format

ROWS = """
m[H,i] max= S[H,i,j]
P[H,i,j] = exp(S[H,i,j] - where(m[H,i] == -inf, 0, m[H,i]))
d[H,i] += P[H,i,j]
Y[H,i,l] += P[H,i,j] * V[H,j,l] / where(d[H,i] == 0, 1, d[H,i])
"""
SIZE = 40
# Weighted means of normal numbers in float32.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
QUICK = {"serial_threshold": 0}
BLOCKS_OF_HEADS = "i: dense, j/16: dense, k/16: compressed, j%16: dense, k%16: dense"


def attention(scores: str, leading: str = "h,", mask: str = "M[i,j]") -> str:
    """Attention program with given scores and batch index variables."""
    return (f"S[H,i,j] = where(stored({mask}), {scores}, -inf)" + ROWS).replace("H,", leading)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def pattern(block: int, *leading: int, size: int = SIZE) -> torch.Tensor:
    """Some blocks of ones; the second row of blocks is empty."""
    count = -(-size // block)
    drawn = torch.rand(*leading, count, count, generator=torch.Generator().manual_seed(block)) < 0.3
    drawn[..., 1, :] = False
    drawn[..., 0, -1] = True
    return drawn.float().repeat_interleave(block, -2).repeat_interleave(block, -1)[..., :size, :size]


def check(text: str, form: str, allowed: torch.Tensor, scores: torch.Tensor, mask=None, **inputs) -> None:
    """One kernel by itself, against softmax in float64."""
    M = sparsify.tensor(allowed if mask is None else mask, form)
    index = tuple(("int32", "int32") if s.level.arrays else ("", "") for s in M.format.levels)
    given = {name: Operand(Format(", ".join(["dense"] * x.dim())), "float32") for name, x in inputs.items()}
    operands = {"M": Operand(M.format, "float32", index_dtypes=index), **given}
    (step,) = steps(declare(parse(text), operands, ("Y",)))
    assert not compile_stages(step, None, 32).refused
    with options.override(**QUICK):
        Y = sparsify.evaluate(text, "Y", M=M, **inputs)
    weights = torch.softmax(scores.double().masked_fill(allowed == 0, -torch.inf), -1)
    torch.testing.assert_close(Y, (torch.nan_to_num(weights) @ inputs["V"].double()).float(), **CLOSE)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("form", "block"), [("bcsr(16,16)", 16), ("csr", 1)])
def test_bias_of_pairs_and_of_stored_entries(form, block):
    Q, K, V, B = normal(2, SIZE, 7), normal(3, SIZE, 7)[:2], normal(2, SIZE, 11), normal(2, SIZE, SIZE)
    allowed = pattern(block) if block == 1 else pattern(block, size=48)[:SIZE, :SIZE]
    bias = torch.where(allowed != 0, normal(SIZE, SIZE), 0)
    text = attention("0.25 * sum(k, Q[h,i,k] * K[h,j,k]) + B[h,i,j] + M[i,j]")
    check(text, form, allowed, 0.25 * Q @ K.mT + B + bias, bias, Q=Q, K=K, V=V, B=B)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("form", "block"), [("bcsr(16,16)", 16), ("csr", 1)])
def test_batches_with_padded_keys(form, block):
    Q, K, V = normal(2, 2, SIZE, 8), normal(2, 3, SIZE, 8)[:, :2], normal(2, 2, SIZE, 8)
    padding = torch.zeros(2, SIZE)
    padding[0, 5:] = padding[1] = -torch.inf  # of the second nothing is left
    text = attention("0.25 * sum(k, Q[b,h,i,k] * K[b,h,j,k]) + p[b,j]", "b,h,")
    scores = 0.25 * Q @ K.mT + padding[:, None, None]
    check(text, form, pattern(block), scores, Q=Q, K=K, V=V, p=padding)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("form", "block"), [(BLOCKS_OF_HEADS, 16), ("dense, dense, compressed", 1)])
def test_patterns_of_heads(form, block):
    Q, K, V = normal(2, SIZE, 7), normal(3, SIZE, 7)[:2], normal(2, SIZE, 9)
    text = attention("0.25 * sum(k, Q[h,i,k] * K[h,j,k])", mask="M[h,i,j]")
    check(text, form, pattern(block, 2), 0.25 * Q @ K.mT, Q=Q, K=K, V=V)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("vector_bytes", [16, 64])
@pytest.mark.parametrize(("form", "block"), [("bcsr(16,16)", 16), ("csr", 1), (BLOCKS_OF_HEADS, 16)])
def test_threads_share_the_rows_of_few_heads(form, block, vector_bytes):
    """Also if the first and last rows are full; patterns per head have no row lengths."""
    size, heads = 100, 2
    Q, K, V = normal(heads, size, 7), normal(3, size, 7)[:heads], normal(heads, size, 130)
    of_heads = form == BLOCKS_OF_HEADS
    allowed = pattern(block, *[heads] * of_heads, size=size)
    allowed[..., :16, :] = allowed[..., -4:, :] = 1
    text = attention("sum(k, Q[h,i,k] * K[h,j,k])", mask="M[h,i,j]" if of_heads else "M[i,j]")
    M = sparsify.tensor(allowed, form)
    with options.override(**QUICK, threads=2, vector_bytes=vector_bytes):
        kernel = evaluate_kernel(text, "Y", M=M, Q=Q, K=K, V=V)
        Y = sparsify.evaluate(text, "Y", M=M, Q=Q, K=K, V=V)
    schedule = str(kernel.generated[0].stages.schedule)
    shared = {16: "parallel io dynamic M chunks 4", 1: "parallel i dynamic M"}[block]
    assert schedule.endswith(shared.replace(" M chunks 4", "") if of_heads else shared)
    assert schedule.count("at h in thread; ") == (
        2 if block > 1 else 0
    )  # small copies: of turned_K and panels_V
    if block > 1:
        assert "parallel jo in" not in schedule
        others = schedule.replace("at h in thread; ", "at h in memory; ")
        for copy in ("turned_K", "panels_V"):
            others += f"; parallel jo in {copy} static"
        with options.override(**QUICK, threads=2, vector_bytes=vector_bytes):
            again = sparsify.evaluate(text, "Y", M=M, Q=Q, K=K, V=V, schedule=others)
        assert torch.equal(Y, again)  # whoever makes the copies, all sums have the same order
    weights = torch.softmax((Q @ K.mT).double().masked_fill(allowed == 0, -torch.inf), -1)
    torch.testing.assert_close(Y, (torch.nan_to_num(weights) @ V.double()).float(), **CLOSE)


def test_large_blocks_and_numbers_that_are_none():
    size = 130
    Q, K, V = normal(1, size, 7), normal(2, size, 7)[:1], normal(1, size, 9)
    allowed = pattern(64, size=size)
    Q[0, 3, 2] = torch.nan
    M = sparsify.tensor(allowed, "bcsr(64,64)")
    with options.override(**QUICK):
        Y = sparsify.evaluate(attention("sum(k, Q[h,i,k] * K[h,j,k])"), "Y", M=M, Q=Q, K=K, V=V)
    assert Y[0, 3].isnan().all()
    rest = [row for row in range(size) if row != 3]
    weights = torch.softmax((Q @ K.mT).double().masked_fill(allowed == 0, -torch.inf), -1)
    expected = (torch.nan_to_num(weights) @ V.double()).float()
    torch.testing.assert_close(Y[0, rest], expected[0, rest], **CLOSE)


def declared(form: str):
    index = tuple(("int32", "int32") if "compressed" in str(s) else ("", "") for s in Format(form).levels)
    dense = Operand(Format("dense, dense, dense"), "float32")
    mask = Operand(Format(form), "float32", index_dtypes=index)
    text = attention("sum(k, Q[h,i,k] * K[h,j,k])")
    return declare(parse(text), {"M": mask, "Q": dense, "K": dense, "V": dense}, ("Y",))


@pytest.mark.parametrize(("tokens", "scope"), [(2048, "thread"), (4096, "memory")])
def test_threads_make_small_copies_each_for_itself(tokens, scope):
    """Copies of up to half a megabyte are made per thread; larger copies are made in parts by all threads."""
    chain = row_chain(concretize(declared("bcsr(64,64)")))
    extents = {"h": 1, "i": tokens, "j": tokens, "k": 64, "l": 64}
    schedule = str(row_ways(chain, 16, 4, Sizes(extents))[0].schedule)
    assert f"pack turned_K = K[jo, jt, k, js] at h in {scope}" in schedule
    assert ("parallel jo in turned_K" in schedule) == (scope == "memory")


def test_the_cost_of_one_kernel_and_of_several(monkeypatch):
    known = Sizes({"h": 12, "i": 1024, "j": 1024, "k": 64, "l": 64}, {"M": 150_000})
    found = fusion(declared("bcsr(16,16)"), known)
    assert found is not None and found.is_faster and found.fused_us < found.apart_us
    assert str(found).startswith("S, m, P, d, Y: one kernel ")
    assert "since sizes are not known" in str(fusion(declared("bcsr(16,16)"), Sizes()))
    # Where one kernel loses, each statement of one head has its own.
    monkeypatch.setattr(fused_row_chain, "chain_us", lambda *given: 1e9)
    lost = fusion(declared("bcsr(16,16)"), known)
    assert not lost.is_faster and "cut, since one kernel loses" in str(lost)


def test_the_gradients_of_attention_are_a_chain():
    reverse = adjoint(declared("bcsr(16,16)"), ("Q", "K", "V"), {"Y": "g_Y"}, ("S", "P"))
    chain = row_chain(concretize(reverse))
    assert [(nest.kind, nest.result, nest.lane) for nest in chain.nests] == [
        ("scores", "P", ""),
        ("rows", "d_w1", "l"),
        ("total", "d_d", "l"),
        ("scores", "d_w", ""),
        ("product", "d_Q", "k"),
        ("columns", "d_K", "k"),
        ("columns", "d_V", "l"),
    ]
    # Rows add to columns: threads share heads, be there few of them.
    assert chain.apart == ("h",) and not chain.shares_rows(Sizes({"h": 2}))
    (way,) = row_ways(chain, 8, 4, Sizes())
    text = str(way.schedule)
    assert "order d_K: h, io, jo, jt, ko, jq, it, is, jr, ki; " in text
    assert "pack turned_K = K[jo, jt, k, js] at h in thread for w; transpose k js in turned_K; " in text
    assert text.endswith("parallel h dynamic")


def test_what_rows_add_needs_places_of_its_own():
    text = attention("sum(k, Q[h,i,k] * K[h,j,k]) + B[j]")
    dense = Operand(Format("dense, dense, dense"), "float32")
    given = {"M": declared("bcsr(16,16)").declaration("M"), "B": Operand(Format("dense"), "float32")}
    mask = Operand(given["M"].format, "float32", index_dtypes=given["M"].index_dtypes)
    forward = declare(parse(text), {**given, "M": mask, "Q": dense, "K": dense, "V": dense}, ("Y",))
    reverse = adjoint(forward, ("B",), {"Y": "g_Y"}, ("S", "P"))
    assert row_chain(concretize(reverse)) is None


@pytest.mark.parametrize(
    "text",
    [
        "S[i,j] = M[i,j] * 2\nY[i] += S[i,j]",  # nothing is multiplied with rows
        "S[i,j] = M[i,j] * x[j]\nt[j] += S[i,j]\nY[i,l] += S[i,j] * V[j,l] * t[j]",  # sums of columns
    ],
)
def test_other_programs_are_no_chains(text):
    index = (("", ""), ("int32", "int32"))
    given = {
        "M": Operand(Format("csr"), "float32", index_dtypes=index),
        "V": Operand(Format("dense, dense"), "float32"),
        "x": Operand(Format("dense"), "float32"),
    }
    names = {name: operand for name, operand in given.items() if name in text.replace("max", "")}
    assert fusion(declare(parse(text), names, ("Y",)), Sizes()) is None


def test_explain_says_why():
    known = Sizes({"h": 12, "i": 1024, "j": 1024, "k": 64, "l": 64}, {"M": 150_000})
    text = "\n".join(map(str, explain_program(declared("bcsr(16,16)"), sizes=known)))
    assert "S, m, P, d, Y: one kernel " in text and "bytes of temporaries stay with their rows" in text
