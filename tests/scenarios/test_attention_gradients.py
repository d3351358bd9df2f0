"""Gradients of sparse attention by generated kernels, compared with dense attention in float64."""

import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.einsum.counter_random import uniform
from sparsify.compiler.evaluate import evaluate_kernel

PROGRAM = """
S[b,h,i,j] = where(stored(M[i,j]), 0.25 * sum(k, Q[b,h,i,k] * K[b,h,j,k]) + B[b,j], -inf)
m[b,h,i] max= S[b,h,i,j]
P[b,h,i,j] = exp(S[b,h,i,j] - where(m[b,h,i] == -inf, 0, m[b,h,i]))
d[b,h,i] += P[b,h,i,j]
Y[b,h,i,l] += P[b,h,i,j] * V[b,h,j,l] / where(d[b,h,i] == 0, 1, d[b,h,i])
"""
TEXTS = {
    "batch and heads": PROGRAM,
    "heads": PROGRAM.replace("b,h,", "h,").replace(" + B[b,j]", ""),
    "one head": PROGRAM.replace("b,h,", "").replace("B[b,j]", "B[j]"),
}
# A quarter of the weights is dropped, the others become larger.
DROPPED = PROGRAM.replace(
    "Y[b,h,i,l] += P[b,h,i,j]",
    "D[b,h,i,j] = P[b,h,i,j] * where(uniform(seed[b,h], i, j) < 0.25, 0, 1.3333333333333333)\nY[b,h,i,l] += D[b,h,i,j]",
)
TEXTS["dropped"] = DROPPED
TEXTS["dropped, heads"] = DROPPED.replace("b,h", "h").replace(" + B[b,j]", "")
# Built quickly: asked for right results only.
QUICK = {"serial_threshold": 0}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # sums of products in float32


def operands(text: str, size: int, form: str, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Operands with ties, an empty row, empty rows of blocks, and a row with only -inf scores."""
    generator = torch.Generator().manual_seed(size)
    shape = (2, 3, size) if "b,h," in text else (3, size) if "h," in text else (size,)
    allowed = torch.rand(size, size, generator=generator) < 0.3
    allowed[5:21] = False
    allowed[size - 1], allowed[size - 1, 2] = False, True
    found = {
        name: torch.randint(-3, 4, (*shape, width), generator=generator).to(dtype) / 2
        for name, width in (("Q", 5), ("K", 5), ("V", 9))
    }
    if "B[" in text:
        found["B"] = torch.zeros((2, size) if "b,h," in text else (size,), dtype=dtype)
        found["B"][..., 2] = -torch.inf
    if "seed[" in text:
        found["seed"] = torch.randint(-(2**62), 2**62, shape[:-1], generator=generator)
    return {**found, "M": sparsify.tensor(allowed.to(dtype), form)}


def dense(given: dict[str, torch.Tensor]) -> torch.Tensor:
    """Dense attention; rows without scores give 0."""
    stored = given["M"].to_dense() * 0
    rows, columns = given["M"].coordinates()
    inside = (rows < len(stored)) & (columns < len(stored))
    stored[rows[inside], columns[inside]] = 1
    scores = 0.25 * given["Q"] @ given["K"].mT
    if "B" in given:
        bias = given["B"]
        scores = scores + (bias[:, None, None] if bias.dim() == 2 else bias)
    scores = scores.masked_fill(stored == 0, -torch.inf)
    most = scores.detach().amax(-1, keepdim=True)
    weights = torch.exp(scores - torch.where(most == -torch.inf, 0, most))
    total = weights.sum(-1, keepdim=True)
    if "seed" in given:
        places = torch.arange(len(stored))
        numbers = uniform(given["seed"][..., None, None], places[:, None], places)
        weights = weights * torch.from_numpy(numbers >= 0.25) / 0.75
    return weights @ given["V"] / torch.where(total == 0, 1, total)


def check(text: str, size: int, form: str, tolerance: dict = CLOSE, **settings: object) -> None:
    given = operands(text, size, form)
    wrt = [name for name, value in given.items() if name != "M" and value.is_floating_point()]
    ours = {name: value.requires_grad_() if name in wrt else value for name, value in given.items()}
    theirs = {n: v.detach().double().requires_grad_() if n in wrt else v for n, v in given.items()}
    with options.override(**QUICK, **settings):
        found = sparsify.evaluate(text, "Y", **ours)
        expected = dense(theirs)
        torch.testing.assert_close(found.double(), expected, **tolerance)
        seed = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
        gradients = torch.autograd.grad(found, [ours[name] for name in wrt], seed)
    wanted = torch.autograd.grad(expected, [theirs[name] for name in wrt], seed.double())
    for name, gradient, other in zip(wrt, gradients, wanted, strict=True):
        assert gradient.isfinite().all(), name
        torch.testing.assert_close(gradient.double(), other, **tolerance, msg=lambda m, n=name: f"d_{n}: {m}")


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("batch and heads", "bcsr(8,8)"),
        ("heads", "csr"),
        ("one head", "bcsr(8,8)"),
        ("one head", "csr"),
        ("dropped", "bcsr(8,8)"),
        ("dropped, heads", "csr"),
    ],
)
def test_gradients(name, form):
    for size in (40, 27):
        check(TEXTS[name], size, form)


@pytest.mark.sampled(2)
def test_tiles_of_several_vectors():
    check(TEXTS["heads"], 40, "bcsr(16,16)")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_rows_that_add_to_columns_in_large_blocks(vector_bytes):
    """Strips of 32 rows of a block of 64; with AVX-512 all tiles are squares of 4 rows by 4 vectors."""
    size, generator = 150, torch.Generator().manual_seed(0)
    given = {name: torch.randn(2, size, 64, generator=generator) / 4 for name in "QKV"}
    allowed = torch.ones(size, size)
    allowed[64:128, :64] = allowed[:64, 128:] = 0
    leaves = {name: value.requires_grad_() for name, value in given.items()}
    wide = {name: value.detach().double().requires_grad_() for name, value in given.items()}
    M = sparsify.tensor(allowed, "bcsr(64,64)")
    with options.override(**QUICK, vector_bytes=vector_bytes):
        found = sparsify.evaluate(TEXTS["heads"], "Y", M=M, **leaves)
        gradients = torch.autograd.grad(found.square().sum(), list(leaves.values()))
        kernel = evaluate_kernel(TEXTS["heads"], "Y", M=M, **leaves).adjoint(("Q", "K", "V"))
    expected = dense({**wide, "M": sparsify.tensor(allowed.double(), "csr")})
    wanted = torch.autograd.grad(expected.square().sum(), list(wide.values()))
    for gradient, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient.double(), other, **CLOSE)
    schedule = str(kernel.generated[0].stages.schedule)
    assert "split ii ir ix 32; " in schedule
    rows, columns = {16: (4, 8), 32: (4, 16), 64: (4, 64)}[vector_bytes]
    tiles = (
        f"split ix it is {rows}; split ji jt js {columns}; split l lo li {columns}; split k ko ki {columns}; "
    )
    assert tiles + f"split js jq jr {rows}; " in schedule


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("text", "batch", "vector_bytes"),
    [(PROGRAM, 3, 32), (PROGRAM, 1, 64), (DROPPED, 3, 64)],
    ids=["sum over a batch", "one sequence", "dropped"],
)
@pytest.mark.parametrize("size", [40, 27])
def test_trained_biases_of_each_pair(text, batch, vector_bytes, size):
    """Rows of one kernel add to the gradient of `B[h,i,j]`, one sequence after the other."""
    text, generator = text.replace("B[b,j]", "B[h,i,j]"), torch.Generator().manual_seed(size)
    shapes = {
        "Q": (batch, 3, size, 5),
        "K": (batch, 3, size, 5),
        "V": (batch, 3, size, 9),
        "B": (3, size, size),
    }
    leaves = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    wide = {name: value.double().requires_grad_() for name, value in leaves.items()}
    ours = {name: value.requires_grad_() for name, value in leaves.items()}
    block = vector_bytes // 4  # the narrowest that lanes are cut from
    blocks = torch.rand(5, 5, generator=generator) < 0.5
    blocks[1], blocks[0, 0] = False, True
    allowed = blocks.repeat_interleave(block, 0).repeat_interleave(block, 1)[:size, :size]
    M = sparsify.tensor(allowed.float(), f"bcsr({block},{block})")
    fixed = {"M": M}
    if "seed[" in text:
        fixed["seed"] = torch.randint(-(2**62), 2**62, (batch, 3), generator=generator)
    with options.override(**QUICK, vector_bytes=vector_bytes):
        found = sparsify.evaluate(text, "Y", **ours, **fixed)
        gradients = torch.autograd.grad(found.square().sum(), list(ours.values()))
        (kernel,) = evaluate_kernel(text, "Y", **ours, **fixed).adjoint(tuple(ours)).generated
    wanted = torch.autograd.grad(dense({**wide, **fixed}).square().sum(), list(wide.values()))
    for name, gradient, other in zip(ours, gradients, wanted, strict=True):
        torch.testing.assert_close(gradient.double(), other, **CLOSE, msg=lambda m, n=name: f"d_{n}: {m}")
    assert wanted[-1].count_nonzero() > 0
    schedule = str(kernel.stages.schedule)
    assert "precompute d_S at io in thread" in schedule
    assert "parallel h dynamic" in schedule


def test_rows_are_kept_and_entries_computed_again():
    given = operands(TEXTS["heads"], 40, "bcsr(8,8)")
    kernel = evaluate_kernel(TEXTS["heads"], "Y", **given)
    assert kernel.keeping.kept == ("m", "d")
    assert kernel.keeping.again == ("S", "P")
    statements = [str(statement) for statement in kernel.adjoint(("Q", "K", "V")).program.statements]
    assert statements == [
        "P[h,i,j] = exp(where(stored(M[i,j]), 0.25 * sum(k, Q[h,i,k] * K[h,j,k]), -inf) "
        "- where(m[h,i] == -inf, 0, m[h,i]))",
        "d_w1[h,i,l] = g_Y[h,i,l] / where(d[h,i] == 0, 1, d[h,i])",
        "d_d[h,i] = sum(l, where(d[h,i] == 0, 0, -(g_Y[h,i,l] * Y[h,i,l] / d[h,i])))",
        "d_w[h,i,j] = where(stored(M[i,j]), (sum(l, d_w1[h,i,l] * V[h,j,l]) + d_d[h,i]) * P[h,i,j] * 0.25, 0)",
        "d_Q[h,i,k] = sum(j, d_w[h,i,j] * K[h,j,k])",
        "d_K[h,j,k] = sum(i, d_w[h,i,j] * Q[h,i,k])",
        "d_V[h,j,l] = sum(i, d_w1[h,i,l] * P[h,i,j])",
    ]
    assert len(kernel.adjoint(("Q", "K", "V")).steps) == 1


def test_first_calls_compile_both_passes(tmp_path):
    """The variant without saved values for backward is compiled at the first call under `no_grad`."""
    given = operands(TEXTS["heads"], 20, "bcsr(16,16)")
    leaves = [given[name].requires_grad_() for name in ("Q", "K", "V")]
    counts = []
    with options.override(**QUICK, cache_dir=tmp_path):
        result = sparsify.evaluate(TEXTS["heads"], **given)
        counts.append(len(list(tmp_path.rglob("*.so"))))
        torch.autograd.grad(result.sum(), leaves)
        counts.append(len(list(tmp_path.rglob("*.so"))))
        with torch.no_grad():
            torch.testing.assert_close(sparsify.evaluate(TEXTS["heads"], **given), result)
        counts.append(len(list(tmp_path.rglob("*.so"))))
        assert evaluate_kernel(TEXTS["heads"], **given).sizes.extents["i"] == 20
    assert [count - counts[0] for count in counts] == [0, 0, 1]


def test_what_is_dropped_is_drawn_again_and_not_kept():
    text = TEXTS["dropped, heads"]
    given = operands(text, 40, "bcsr(8,8)")
    kernel = evaluate_kernel(text, "Y", **given)
    assert kernel.keeping.kept == ("m", "d")
    assert kernel.keeping.again == ("S", "P", "D")
    backward = kernel.adjoint(("Q", "K", "V"))
    assert set(backward.program.inputs) == {"M", "Q", "K", "V", "seed", "m", "d", "Y", "g_Y"}
    assert len(backward.steps) == 1
    # An entry of D is drawn once, in lanes, and not once more for each part of a row of values.
    statements = [str(statement) for statement in backward.program.statements]
    assert statements[1].startswith("D[h,i,j] = P[h,i,j] * where(uniform(seed[h], i, j) < 0.25")
    assert statements[-1] == "d_V[h,j,l] = sum(i, d_w1[h,i,l] * D[h,i,j])"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", ["bcsr(4,4)", "csr"])
def test_second_derivatives_have_the_same_numbers(form):
    """In float64, of a fixed seed; the numbers of a seed do not depend on the dtype."""
    text = DROPPED.replace("b,h,", "").replace("[b,h]", "").replace(" + B[b,j]", "")
    generator = torch.Generator().manual_seed(0)
    allowed = torch.rand(6, 6, generator=generator) < 0.6
    M, seed = sparsify.tensor(allowed.double(), form), torch.tensor(5)
    Q, K, V = (torch.randn(6, 3, dtype=torch.float64, generator=generator).requires_grad_() for _ in "QKV")

    def attend(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return sparsify.evaluate(text, "Y", Q=Q, K=K, V=V, M=M, seed=seed)

    with options.override(**QUICK):
        assert torch.autograd.gradcheck(attend, (Q, K, V))
        assert torch.autograd.gradgradcheck(attend, (Q, K, V))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", ["bcsr(8,8)", "csr"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_rounded_once(dtype, form):
    """Scores, sums and values saved for backward are float32: a 16-bit maximum of 50 loses a tenth of each weight."""
    text, size = TEXTS["heads"], 40
    generator = torch.Generator().manual_seed(0)
    allowed = (torch.rand(size, size, generator=generator) < 0.3).float()
    scales = {"Q": 8, "K": 8, "V": 1}
    ours = {
        name: (scale * torch.randn(3, size, 16, generator=generator)).to(dtype).requires_grad_()
        for name, scale in scales.items()
    }
    theirs = {name: value.detach().double().requires_grad_() for name, value in ours.items()}
    with options.override(**QUICK):
        found = sparsify.evaluate(text, "Y", M=sparsify.tensor(allowed, form), **ours)
        expected = dense({**theirs, "M": sparsify.tensor(allowed.double(), form)})
        seed = torch.randn(found.shape, generator=generator).to(dtype)
        gradients = torch.autograd.grad(found, list(ours.values()), seed)
    wanted = torch.autograd.grad(expected, list(theirs.values()), seed.double())
    assert found.dtype == dtype
    # Of the largest value: results are rounded, and the gradients read one of them, which keys of 8 enlarge.
    for one, other in zip((found, *gradients), (expected, *wanted), strict=True):
        assert one.dtype == dtype
        assert (one.double() - other).abs().max() <= 8 * torch.finfo(dtype).eps * other.abs().max()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("one head", "bcsr(8,8)"),
        ("heads", "bcsr(8,8)"),
        ("heads", "csr"),
        pytest.param("batch and heads", "bcsr(8,8)", marks=pytest.mark.slow),
        pytest.param("dropped, heads", "bcsr(8,8)", marks=pytest.mark.slow),
    ],
)
def test_second_derivatives(name, form):
    """Programs over a blocked pattern and rows of entries, which have no common loops, are split."""
    given = operands(TEXTS[name], 27, form)
    wrt = [name for name, value in given.items() if name != "M" and value.is_floating_point()]
    ours = {name: value.requires_grad_() if name in wrt else value for name, value in given.items()}
    theirs = {n: v.detach().double().requires_grad_() if n in wrt else v for n, v in given.items()}
    with options.override(**QUICK):
        found = second(sparsify.evaluate(TEXTS[name], "Y", **ours), [ours[n] for n in wrt])
    wanted = second(dense(theirs), [theirs[n] for n in wrt])
    for gradient, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient.double(), other, rtol=1e-4, atol=1e-5 * other.abs().max())


def second(result: torch.Tensor, wrt: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The gradients of the squared length of gradients."""
    first = torch.autograd.grad(result.square().sum(), wrt, create_graph=True)
    return torch.autograd.grad(sum(gradient.square().sum() for gradient in first), wrt)
