"""Block-sparse attention in one kernel: strips of scores by position, register tiles, transposed keys."""

import re

import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.pipeline import compile_stages
from sparsify.compiler.plan.plan import steps
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.errors import ScheduleError, ShapeError, SparsifyError
from sparsify.storage.format import Format

TEXT = """
S[h,i,j] = where(stored(M[i,j]), 0.25 * sum(k, Q[h,i,k] * K[h,j,k]), -inf)
m[h,i] max= S[h,i,j]
P[h,i,j] = exp(S[h,i,j] - where(m[h,i] == -inf, 0, m[h,i]))
d[h,i] += P[h,i,j]
Y[h,i,l] += P[h,i,j] * V[h,j,l] / where(d[h,i] == 0, 1, d[h,i])
"""
ONE_HEAD = TEXT.replace("h,", "")
# Strips of 8 query rows; a register tile of 8 rows by 8 keys, then of 8 rows by 8 columns of the result.
STRIPS = """
split ii ir is 8; split ji jt js 8; split l lo li 8
order S: h, io, ir, jo, jt, is, js; precompute w at jt in register; order w: k, is, js
order m: h, io, ir, is, jo, jt, js; precompute most = m over js in register
order P: h, io, ir, is, jo, jt, js
order d: h, io, ir, is, jo, jt, js; precompute sums = d over js in register
order w1: h, io, ir, lo, jo, jt, js, is, li
order Y: h, io, ir, lo, is, li
precompute w1 at lo in register
precompute S at ir in thread; precompute P at ir in thread
precompute m at ir in thread; precompute d at ir in thread
pack Kt = K[jo, jt, k, js] at h in thread; transpose k js in Kt
unroll is in w; unroll is in S; unroll is in w1; unroll is in Y
vector js in w; vector js in S; vector js in most; vector js in m; vector js in P
vector js in sums; vector js in d; vector li
parallel h dynamic
"""
ONE_HEAD_STRIPS = (
    STRIPS.replace("h, ", "")
    .replace(" at h in thread", " at root in memory")
    .replace("parallel h", "parallel io")
)
# Entry by entry, a row at a time.
ROWS = """
precompute S at i in thread; precompute P at i in thread; precompute m at i in register
precompute d at i in register; precompute w1 at i in thread; parallel i static
"""
# Weighted means of normal numbers in float32.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def mask(size: int, block: int, kept: float) -> torch.Tensor:
    """Random blocks of ones; the second row of blocks, if any, is empty."""
    count = size // block
    blocks = (torch.rand(count, count, generator=torch.Generator().manual_seed(size)) < kept).float()
    if count > 1:
        blocks[1] = 0
    return blocks.repeat_interleave(block, 0).repeat_interleave(block, 1)


def operands(shape: tuple[int, ...], width: int, out: int):
    """Queries, keys and values."""
    generator = torch.Generator().manual_seed(width)
    return {
        name: torch.randn(*shape, last, generator=generator)
        for name, last in (("Q", width), ("K", width), ("V", out))
    }


def expected(allowed: torch.Tensor, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
    """Dense attention in float64; rows without keys give 0."""
    scores = 0.25 * Q.double() @ K.double().mT
    weights = torch.softmax(scores.masked_fill(allowed == 0, -torch.inf), -1)
    return (torch.nan_to_num(weights) @ V.double()).float()


def program(text: str, form: str):
    """The program over a mask in a format."""
    levels = Format(form)
    index = tuple(("int32", "int32") if "compressed" in str(level) else ("", "") for level in levels.levels)
    dense = Operand(Format("dense, dense, dense" if "h," in text else "dense, dense"), "float32")
    return declare(
        parse(text),
        {"M": Operand(levels, "float32", index_dtypes=index), "Q": dense, "K": dense, "V": dense},
        ("Y",),
    )


def stages(schedule: str, text: str = TEXT, form: str = "bcsr(16,16)", vector_bytes: int = 32):
    (step,) = steps(program(text, form), scheduled=True)
    return compile_stages(step, Schedule.parse(schedule), vector_bytes)


# Compiled quickly: these kernels are long, and asked for right results only.
QUICK = {"serial_threshold": 0}


def check(
    text: str, schedule: str | None, allowed: torch.Tensor, form: str, width: int, out: int, **settings
) -> None:
    """Attention through the compiler against the dense one; `settings` are options."""
    size = len(allowed)
    inputs = operands((2, size) if text is TEXT else (size,), width, out)
    M = sparsify.tensor(allowed, form)
    with options.override(**QUICK, **settings):
        Y = sparsify.evaluate(text, "Y", M=M, **inputs, schedule=schedule)
    rows, columns = M.coordinates()
    inside = (rows < size) & (columns < size)
    stored = torch.zeros(size, size)
    stored[rows[inside], columns[inside]] = 1
    torch.testing.assert_close(Y, expected(stored, **inputs), **CLOSE)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("size", "block", "kept", "width", "out"),
    [
        (64, 16, 0.5, 24, 24),
        (48, 16, 0.3, 7, 13),
        (16, 16, 1.0, 8, 1),
        (64, 16, 0.0, 9, 8),
        (36, 12, 0.5, 16, 5),
    ],
)
def test_strips(size, block, kept, width, out, threads):
    check(TEXT, STRIPS, mask(size, block, kept), f"bcsr({block},{block})", width, out, threads=threads)


@pytest.mark.parametrize("size", [40, 5, 17])
def test_strips_of_padded_blocks(size):
    allowed = mask(size, 1, 0.1)
    check(TEXT, STRIPS, allowed, "bcsr(16,16)", 9, 8, threads=1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("vector_bytes", [0, 16])
def test_strips_at_other_widths(vector_bytes):
    small = re.sub(r" 8(?=[;\n])", " 4", STRIPS)
    for size in (24, 16, 21):
        check(TEXT, small, mask(size, 1, 0.1), "bcsr(8,8)", 6, 7, vector_bytes=vector_bytes)


def test_strips_of_one_head():
    for size in (64, 40):
        check(ONE_HEAD, ONE_HEAD_STRIPS, mask(size, 1, 0.05), "bcsr(16,16)", 8, 11, threads=2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [32, 13])
@pytest.mark.parametrize("form", ["csr", "bcsr(8,8)", "bcsr(4,8)"])
@pytest.mark.parametrize("text", [TEXT, ONE_HEAD], ids=["heads", "one head"])
def test_without_directives_the_program_is_one_kernel(text, form, size):
    check(text, "", mask(size, 1, 0.2), form, 8, 11)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("text", "form"), [(TEXT, "csr"), (ONE_HEAD, "csr"), (ONE_HEAD, "bcsr(8,8)"), (TEXT, "bcsr(8,8)")]
)
def test_without_a_schedule(text, form):
    for size in (32, 13):
        check(text, None, mask(size, 1, 0.2), form, 8, 11)


def test_rows_of_entries():
    for size in (1, 13, 40):
        for threads in (1, 2):
            check(ONE_HEAD, ROWS, mask(size, 1, 0.3), "csr", 5, 9, threads=threads)


def test_several_results_of_one_kernel():
    allowed = mask(32, 8, 0.4)
    inputs = operands((32,), 8, 8)
    M = sparsify.tensor(allowed, "bcsr(8,8)")
    apart = sparsify.evaluate(ONE_HEAD, ("m", "P", "Y"), M=M, **inputs)
    m, P, Y = sparsify.evaluate(ONE_HEAD, ("m", "P", "Y"), M=M, **inputs, schedule="")
    assert P.pattern is M.pattern
    torch.testing.assert_close(P.values(), apart[1].values(), **CLOSE)
    torch.testing.assert_close(m, apart[0], **CLOSE)
    torch.testing.assert_close(Y, apart[2], **CLOSE)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", ["bcsr(16,16)", "bcsr(64,64)", "csr"])
@pytest.mark.parametrize("text", [TEXT, ONE_HEAD], ids=["heads", "one head"])
def test_the_program_makes_one_kernel(text, form):
    (step,) = steps(program(text, form))
    assert not compile_stages(step, None, 32).refused


def test_blocks_narrower_than_a_vector_are_cut():
    assert len(steps(program(ONE_HEAD, "bcsr(4,4)"))) == 5


def test_chosen_strips(golden):
    (step,) = steps(program(TEXT, "bcsr(16,16)"))
    golden("schedule/strips.txt", str(compile_stages(step, None, 32).schedule).replace("; ", "\n") + "\n")


@pytest.mark.sampled(3)
def test_products_of_whole_tiles_are_square():
    """Register tiles: four rows by four vectors of V in place (32 registers), else rows by one vector of a copy."""
    (step,) = steps(program(TEXT, "bcsr(16,16)"))
    for width, has_squares in ((64, True), (128, True), (65, False), (16, False)):
        sizes = Sizes({"l": width}, {})
        text = str(compile_stages(step, None, 64, sizes=sizes).schedule)
        assert ("split is iq ip 4" in text) == has_squares
        assert ("precompute w1 at iq in register" in text) == has_squares
        assert ("panels_V" in text) == (width not in (16, 64))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("form", "size"), [("bcsr(16,16)", 48), ("bcsr(32,32)", 64), ("bcsr(16,16)", 40)])
def test_square_tiles(form, size):
    check(TEXT, None, mask(size, 1, 0.02), form, 20, 64, vector_bytes=64)


def test_loops(golden):
    golden("loops/attention.txt", str(stages(STRIPS).loops))


def test_extents_that_differ():
    inputs = operands((2, 40), 8, 8)
    with pytest.raises(ShapeError, match="extent"):
        sparsify.evaluate(
            TEXT, "Y", M=sparsify.tensor(torch.ones(48, 48), "bcsr(16,16)"), **inputs, schedule=STRIPS
        )


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("precompute S at jo in thread", "loops|written in some iterations|no loop"),
        ("precompute m at jo in thread", "written in some iterations|loops|read at"),
        ("order P: h, jo, io, ii, ji; precompute S at io in thread", "same outer loops"),
        ("precompute d at ji in register", "no loop|loops|written in some iterations"),
        ("parallel jo", "all write|same entr"),
        ("order S: h, jo, io, ii, ji", "order"),
        ("precompute S at h in register", "unroll|constant|registers"),
        ("pack Qt = K[k] at io in thread", "read|K"),
    ],
)
def test_schedules_that_do_not_fit(schedule, message):
    with pytest.raises((ScheduleError, SparsifyError), match=message):
        stages(schedule)
