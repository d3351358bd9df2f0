"""Three storage methods of a row: a strip, chunks with rescaled sums, chunks computed again."""

import re
from functools import cache

import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.explain import explain_program
from sparsify.compiler.kernel.kernel import planned
from sparsify.compiler.notation import printer
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.pipeline import chosen, compile_stages, plain_notation
from sparsify.compiler.plan.fuse.row_chain import fusion
from sparsify.compiler.plan.plan import joined, steps
from sparsify.compiler.schedule.directives import Schedule, apply
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes, sizes_of
from sparsify.compiler.schedule.templates.row_chain.chain import row_chain
from sparsify.compiler.schedule.templates.row_chain.strategies import row_ways
from sparsify.errors import ScheduleError
from sparsify.storage.format import Format
from tests.compiler.schedule.templates.row_chain.test_chain import CLOSE, QUICK, attention, normal, pattern

PADDED = "sum(k, Q[b,h,i,k] * K[b,h,j,k]) + p[b,j]"
FORMS = {"csr": 1, "bcsr(16,16)": 16, "bcsr(64,64)": 64}


def program(form: str, scores: str = "sum(k, Q[h,i,k] * K[h,j,k])", leading: str = "h,"):
    """Attention over a mask in a format."""
    index = tuple(("int32", "int32") if "compressed" in str(s) else ("", "") for s in Format(form).levels)
    text = attention(scores, leading)
    names = [name for name in ("Q", "K", "V", "p", "a") if f"{name}[" in text]
    modes = {"p": "dense, dense", "a": "dense, dense"}
    rank = ", ".join(["dense"] * (2 + leading.count(",")))
    given = {name: Operand(Format(modes.get(name, rank)), "float32") for name in names}
    mask = Operand(Format(form), "float32", index_dtypes=index)
    return declare(parse(text), {"M": mask, **given}, ("Y",))


def ways(form: str, lanes: int, sizes: Sizes = UNKNOWN, **given):
    """The ways to hold the rows of attention, by name."""
    (step,) = steps(program(form, **given), scheduled=True)
    chain = row_chain(plain_notation(step))
    assert chain is not None
    return {way.name: way for way in row_ways(chain, lanes, 4, sizes)}


def weighted(scores: torch.Tensor, allowed: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
    """Dense attention in float64; fully masked rows give 0."""
    weights = torch.softmax(scores.double().masked_fill(allowed == 0, -torch.inf), -1)
    return (torch.nan_to_num(weights) @ V.double()).float()


def attended(schedule: str, vector_bytes: int, threads: int, **operands):
    """Attention of batches and heads with padding, by a schedule; compiled in a hurry."""
    with options.override(**QUICK, vector_bytes=vector_bytes, threads=threads):
        return sparsify.evaluate(attention(PADDED, "b,h,"), "Y", **operands, schedule=schedule)


@cache
def padded_ways(form: str, lanes: int):
    """The ways to hold the rows of attention of batches and heads with padding."""
    return ways(form, lanes, scores=PADDED, leading="b,h,")


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("way", "form", "vector_bytes", "threads"),
    [
        ("strip", "bcsr(64,64)", 32, 2),
        ("online", "bcsr(64,64)", 64, 2),
        ("recomputed", "bcsr(64,64)", 32, 2),
        *[
            (way, *case)
            for way in ("online", "recomputed")
            for case in (("csr", 64, 2), ("csr", 16, 1), ("bcsr(16,16)", 16, 1))
        ],
    ],
)
def test_each_way_is_forced_by_its_schedule(way, form, vector_bytes, threads):
    """Empty rows, rows and chunks of only -inf, maxima that grow by hundreds, padded blocks, several lengths."""
    wanted = padded_ways(form, vector_bytes // 4)[way].schedule
    schedule = str(wanted)
    assert Schedule.parse(schedule) == wanted
    for size in (300, 70):
        Q, K, V = normal(2, 2, size, 7), normal(2, 3, size, 7)[:, :2], normal(2, 2, size, 35)
        K = K * torch.linspace(1, 60, size)[:, None]
        allowed = pattern(FORMS[form], size=size)
        if form == "csr":
            allowed[3:6] = 1  # of some chunks
        padding = torch.zeros(2, size)
        padding[0, : size // 2] = padding[1] = -torch.inf  # whole chunks of the first, of the second all
        M = sparsify.tensor(allowed, form)
        Y = attended(schedule, vector_bytes, threads, M=M, Q=Q, K=K, V=V, p=padding)
        scores = Q.double() @ K.double().mT + padding[:, None, None]
        torch.testing.assert_close(Y, weighted(scores, allowed, V), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", ["online", "recomputed"])
def test_rows_with_numbers_that_are_none(way):
    size = 64
    Q, K, V = normal(1, 1, size, 7), normal(1, 2, size, 7)[:, :1], normal(1, 1, size, 35)
    Q[0, 0, 3, 2] = torch.nan
    allowed = pattern(16, size=size)
    allowed[:16] = 1
    M = sparsify.tensor(allowed, "bcsr(16,16)")
    schedule = str(padded_ways("bcsr(16,16)", 4)[way].schedule)
    Y = attended(schedule, 16, 1, M=M, Q=Q, K=K, V=V, p=torch.zeros(1, size))
    assert Y[0, 0, 3].isnan().all()
    rest = [row for row in range(size) if row != 3]
    torch.testing.assert_close(Y[..., rest, :], weighted(Q @ K.mT, allowed, V)[..., rest, :], **CLOSE)


@cache
def stages_of(form: str, way: str):
    """Stages of attention with a given storage method of rows."""
    (step,) = steps(program(form), scheduled=True)
    return compile_stages(step, ways(form, 4)[way].schedule, 16)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", ["csr", "bcsr(16,16)"])
@pytest.mark.parametrize("way", ["online", "recomputed"])
def test_no_memory_depends_on_the_length_of_a_row(form, way):
    strip, chunks = (stages_of(form, name).cpp for name in ("strip", way))
    assert "longest" in strip and "longest" not in chunks


def test_chunks_that_are_not_stored_are_skipped():
    """Loops over chunks iterate over stored blocks, in one or two passes; two loops per pass for general extents."""
    for way, loops in (("online", 2), ("recomputed", 4)):
        assert str(stages_of("bcsr(16,16)", way).loops).count("for pM2") == loops


def test_notation_of_both_ways(golden):
    plain = concretize(program("bcsr(16,16)"))
    order = "order S: h, io, jo, ii, ji; order m: h, io, jo, ii, ji; order P: h, io, jo, ii, ji; "
    order += "order d: h, io, jo, ii, ji; order w1: h, io, jo, ii, l, ji; "
    texts = [
        printer.indented(apply(plain, Schedule.parse(order + directive)).body)
        for directive in ("rescale m at jo", "recompute S after m")
    ]
    golden("schedule/row_ways.txt", "\n\n".join(texts) + "\n")


LONG = Sizes({"h": 8, "i": 16384, "j": 16384, "k": 64, "l": 64}, {"M": 1 << 27})
SHORT = Sizes({"h": 8, "i": 1024, "j": 1024, "k": 64, "l": 64}, {"M": 600_000})


@pytest.mark.parametrize(
    ("form", "sizes", "first"),
    [
        ("bcsr(64,64)", LONG, "online"),  # a strip of 16 rows leaves the near caches
        ("bcsr(64,64)", SHORT, "strip"),
        ("bcsr(16,16)", SHORT, "strip"),
        ("csr", SHORT, "strip"),
        ("bcsr(64,64)", Sizes(), "strip"),  # nothing is known
    ],
)
def test_the_cheapest_way_is_tried_first(form, sizes, first):
    assert next(iter(ways(form, 16, sizes))) == first
    (step,) = steps(program(form), scheduled=True)
    assert chosen(step, 64, sizes) == ways(form, 16, sizes)[first].schedule


def test_cheap_scores_are_computed_again():
    sizes = Sizes({"h": 8, "i": 16384, "j": 16384, "l": 256}, {"M": 1 << 27})
    assert next(iter(ways("bcsr(64,64)", 16, sizes, scores="a[h,i] + p[h,j]"))) == "recomputed"


def test_explain_names_the_ways_and_why():
    given = program("bcsr(64,64)")
    lines = fusion(given, LONG).held()
    assert [line.split(":")[0] for line in lines] == [
        "rows by chunks, sums rescaled",
        "rows as a strip in scratch",
        "rows by chunks, computed again",
    ]
    assert "a strip is 1,048,576 bytes" in lines[1] and "scores are computed again" in lines[2]
    text = "\n".join(map(str, explain_program(given, sizes=LONG)))
    assert all(line in text for line in lines) and "runners-up" in text
    assert "rescale m at" in text and "refused" not in text  # the first of them lowers


def test_strips_are_the_only_way_of_what_is_no_multiple_of_exponentials():
    """Rows cannot be rescaled if `P` is no multiple of the exponentials, or if it is read outside of the sums."""
    for old, new in (
        ("exp(S[h,i,j] - where(m[h,i] == -inf, 0, m[h,i]))", "exp(S[h,i,j] - m[h,i])"),
        ("m[h,i] max= S[h,i,j]", "m[h,i] min= S[h,i,j]"),
        ("d[h,i] += P[h,i,j]", "d[h,i] += square(P[h,i,j])"),
        ("d[h,i] += P[h,i,j]", "d[h,i] += P[h,i,j] * m[h,i]"),
    ):
        text = attention("sum(k, Q[h,i,k] * K[h,j,k])").replace(old, new)
        assert new in text
        given = program("bcsr(16,16)")
        operands = {
            d.name: Operand(d.format, d.dtype, index_dtypes=d.index_dtypes)
            for d in given.declarations
            if d.name in given.inputs
        }
        chain = row_chain(concretize(declare(parse(text), operands, ("Y",))))
        assert [way.name for way in row_ways(chain, 8, 4, Sizes())] == ["strip", "recomputed"]


ORDERED = "order m: h, io, jo, ii, ji; order P: h, io, jo, ii, ji; order d: h, io, jo, ii, ji; "


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("rescale d at jo", "no maximum|are rescaled|no loop"),
        ("rescale m at l", "there is no loop l around m"),
        ("rescale m at io", "each iteration of io has a whole row"),
        (ORDERED + "rescale m at jo", "is wanted relative to the maximum of its row"),  # w1 is outside
        ("rescale Q at jo", "there is no temporary Q"),
        ("recompute Q after m", "there is no temporary Q"),
        ("recompute m after S", "by one statement each"),
        ("recompute S after P", "nothing after P reads S"),
        ("recompute P after d; recompute P after w1", "nothing after w1 reads P"),
    ],
)
def test_directives_that_do_not_fit(schedule, message):
    (step,) = steps(program("bcsr(16,16)"), scheduled=True)
    with pytest.raises(ScheduleError, match=message):
        apply(plain_notation(step), Schedule.parse(schedule))


def test_chains_of_entries_alone_have_no_second_pass():
    A, Q, K = sparsify.tensor(torch.eye(6), "csr"), normal(6, 4), normal(6, 4)
    text = "S[i,j] = A[i,j] * sum(k, Q[i,k] * K[j,k])\nP[i,j] = A[i,j] * relu(S[i,j])"
    found = sparsify.evaluate(text, A=A, Q=Q, K=K)
    torch.testing.assert_close(found.values(), (Q * K).sum(1).relu(), **CLOSE)


# What is along a sum of scores is along a product, too: the gradient of keys, over the columns of a pattern.
KEYS = """
S[h,i,j] = where(stored(A[i,j]), sum(k, Q[h,i,k] * K[h,j,k]), 0)
P[h,i,j] = exp(S[h,i,j] - m[h,i]) * stored(A[i,j])
Y[h,i,k] += P[h,i,j] * K[h,j,k]"""


@pytest.mark.parametrize(
    ("vector_bytes", "width", "split"),
    [(16, 36, "8 tail 4"), (32, 36, "16 tail 8"), (64, 36, "32 tail 16"), (64, 84, "64 tail 32 16")],
)
def test_products_along_what_scores_sum(vector_bytes, width, split):
    drawn = torch.Generator().manual_seed(0)
    allowed = torch.rand(40, 50, generator=drawn) < torch.linspace(0, 1, 40)[:, None]  # rows of all lengths
    Q, K = (torch.randn(2, n, width, generator=drawn) / 6 for n in (40, 50))
    given = {
        "A": sparsify.tensor(allowed.float(), "csr"),
        "Q": Q,
        "K": K,
        "m": torch.rand(2, 40, generator=drawn),
    }
    with options.override(**QUICK, vector_bytes=vector_bytes):
        program = evaluate_kernel(KEYS, "Y", **given).program
        kernel = planned(program, joined(program))
        found = kernel(*[given[name] for name in program.inputs])
        (step,) = kernel.generated
        stages = step.stages
    assert re.search("unroll p[it] in S", str(stages.schedule)) and not stages.refused
    assert f"split k ko ki {split};" in str(stages.schedule)
    weights = torch.exp(Q @ K.mT - given["m"][..., None]) * allowed
    torch.testing.assert_close(found, weights @ K, **CLOSE)


def test_ways_that_loops_cannot_become_are_none(monkeypatch):
    given = {"A": sparsify.tensor(torch.eye(9), "csr"), "Q": torch.ones(2, 9, 4), "K": torch.ones(2, 9, 4)}
    given["m"] = torch.zeros(2, 9)
    program = evaluate_kernel(KEYS, "Y", **given).program
    (step,) = joined(program)
    sizes = sizes_of(program, [given[name] for name in program.inputs])
    found = fusion(step.program, sizes)
    assert found is not None and found.ways

    def refuse(*_):
        raise ScheduleError("no loops are", "others")

    monkeypatch.setattr("sparsify.compiler.plan.fuse.row_chain.apply", refuse)
    assert fusion(step.program, sizes) is None


@pytest.mark.parametrize(
    "splits",
    [
        "split p po pi 20",
        "split p po pi 64",
        "split p pc pr 20; split pr po pi 16",
        "split p po pi 16",
    ],
)
def test_vectors_that_are_cut_within_a_strip_leave_what_follows(splits):
    """Partial vectors must not overwrite sums continued in the next tile, or memory behind the last tile."""
    text = """
        P[i,j] max= where(stored(A[i,j]), Q[i,l] * K[j,l], -inf)
        Y[i,k] += stored(A[i,j]) * P[i,j] * X[j,k]"""
    outer = [name for name in ("pc", "po") if f" {name} " in splits]
    around = ", ".join(outer)
    schedule = (
        f"pos j p A; {splits}; order P: i, l, {around}, pi; order Y: i, {around}, pi, k; "
        "precompute P at i in thread; vector pi in P; vector k in Y"
    )
    draw = torch.Generator().manual_seed(0)
    lengths = torch.arange(60)[torch.randperm(60, generator=draw)]
    allowed = torch.arange(60) < lengths[:, None]
    given = {
        "A": sparsify.tensor(allowed.float(), "csr"),
        "Q": torch.rand(60, 8, generator=draw),
        "K": torch.rand(60, 8, generator=draw),
        "X": torch.rand(60, 16, generator=draw),
    }
    with options.override(**QUICK, vector_bytes=64):
        found = sparsify.evaluate(text, "Y", schedule=schedule, **given)
    largest = (given["Q"][:, None] * given["K"]).amax(-1)
    torch.testing.assert_close(found, torch.where(allowed, largest, 0) @ given["X"], **CLOSE)


@pytest.mark.parametrize("vector_bytes", [16, 64])
def test_strips_are_stored_in_whole_vectors(vector_bytes):
    """Whole-vector stores, because masked stores prevent store-to-load forwarding."""
    text = """
        m[i] max= where(stored(A[i,j]), A[i,j], -inf)
        P[i,j] = exp(A[i,j] - m[i]) * stored(A[i,j])
        d[i] += P[i,j]
        Y[i,k] += P[i,j] * X[j,k] / d[i]"""
    lengths = torch.arange(40)
    allowed = (
        torch.arange(40) < lengths[torch.randperm(40, generator=torch.Generator().manual_seed(0))][:, None]
    )
    scores = torch.where(allowed, torch.rand(40, 40) + 0.1, 0)
    given = {"A": sparsify.tensor(scores, "csr"), "X": torch.rand(40, 16)}
    with options.override(**QUICK, vector_bytes=vector_bytes):
        program = evaluate_kernel(text, "Y", **given).program
        kernel = planned(program, joined(program))
        found = kernel(*[given[name] for name in program.inputs])
        (step,) = kernel.generated
        loops = str(step.stages.loops)
    assert f"P: float32[A2_longest + {vector_bytes // 4 - 1}]" in loops, loops
    assert "store_part" not in step.stages.cpp
    wanted = torch.softmax(scores.masked_fill(~allowed, -torch.inf), 1).nan_to_num()
    rows = allowed.any(1)
    torch.testing.assert_close(found[rows], (wanted @ given["X"])[rows], **CLOSE)
