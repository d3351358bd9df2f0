"""Mixtures of experts as one kernel: results against dense float64, at gates of all kinds."""

import pytest
import torch
from torch.nn.functional import silu

import sparsify
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.ir.node import walk
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.pipeline import Stages, compile_stages
from sparsify.compiler.plan.plan import joined_experts
from sparsify.compiler.schedule.directives import Schedule
from sparsify.options import override
from tests.compiler.schedule.prototypes import check_memory, hottest, sums

# Built quickly: asked for right results only.
QUICK = {"serial_threshold": 0}
CLOSE = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},  # sums of products in float32
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
    # Sums in float32 that are rounded once, by half of the last place at most.
    torch.bfloat16: {"rtol": 2**-8, "atol": 1e-3},
    torch.float16: {"rtol": 2**-11, "atol": 1e-3},
}
PLAIN = """
H[t,e,h] = G[t,e] * relu(sum(d, X[t,d] * U[e,d,h]))
Y[t,o] += H[t,e,h] * V[e,h,o]
"""
# The rows of matrices lie along the sums, as those of linear layers do; the gate comes last.
GATED = """
H[t,e,h] = stored(G[t,e]) * silu(sum(d, X[t,d] * U[e,0,h,d])) * (sum(d, X[t,d] * U[e,1,h,d]) + b[e,h])
Y[t,o] += G[t,e] * H[t,e,h] * V[e,o,h]
"""
SINGLE = "Y[t,o] += G[t,e] * X[t,d] * V[e,d,o]"


def gate(tokens: int, experts: int, chosen: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The largest weights of each token, 0 for all others; the last expert gets no tokens, the first one many."""
    numbers = torch.Generator().manual_seed(tokens + experts)
    scores = torch.randn(tokens, experts, generator=numbers, dtype=dtype)
    scores[:, -1] -= 100
    scores[: tokens // 2, 0] += 100
    weights, places = scores.topk(chosen)
    return torch.zeros_like(scores).scatter_(1, places, weights.softmax(-1))


def operands(
    text: str, tokens: int, experts: int, width: int, hidden: int, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Operands of the statements, with a dense gate."""
    numbers = torch.Generator().manual_seed(tokens)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=numbers, dtype=dtype)

    found = {"G": gate(tokens, experts, 2, dtype), "X": normal(tokens, width)}
    if text is PLAIN:
        return {**found, "U": normal(experts, width, hidden), "V": normal(experts, hidden, width)}
    if text is SINGLE:
        return {**found, "V": normal(experts, width, hidden)}
    up, down = normal(experts, 2, hidden, width), normal(experts, width, hidden)
    return {**found, "U": up, "V": down, "b": normal(experts, hidden)}


def dense(text: str, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """All experts of all tokens, in float64."""
    wide = {name: value.double() for name, value in given.items()}
    if text is SINGLE:
        return torch.einsum("te,td,edo->to", wide["G"], wide["X"], wide["V"])
    if text is PLAIN:
        rows = torch.einsum("td,edh->teh", wide["X"], wide["U"]).relu()
        return torch.einsum("te,teh,eho->to", wide["G"], rows, wide["V"])
    gates, rows = torch.einsum("td,eahd->ateh", wide["X"], wide["U"])
    return torch.einsum("te,teh,eoh->to", wide["G"], silu(gates) * (rows + wide["b"]), wide["V"])


def check(text: str, given: dict[str, torch.Tensor], form: str) -> None:
    """Compares the kernel built for the operands with dense tensors."""
    found = sparsify.evaluate(text, **{**given, "G": sparsify.tensor(given["G"], form)})
    torch.testing.assert_close(found.double(), dense(text, given), **CLOSE[found.dtype])


# Tokens, experts, channels, channels inside: tiles and parts of them, one token, a token an expert, none.
SHAPES = [(40, 4, 24, 160), (1, 3, 5, 7), (23, 12, 33, 65), (0, 3, 4, 5), (7, 3, 1, 64), (5, 3, 8, 0)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape):
    with override(**QUICK):
        check(PLAIN, operands(PLAIN, *shape), "csc")


@pytest.mark.parametrize("text", [GATED, SINGLE], ids=["gated", "single"])
def test_statements(text):
    with override(**QUICK, vector_bytes=32):
        check(text, operands(text, 23, 12, 33, 65), "csc")


@pytest.mark.parametrize("form", ["csr", "coo", "dcsr"])
def test_gates_stored_by_tokens(form):
    with override(**QUICK):
        check(PLAIN, operands(PLAIN, 23, 5, 17, 33), form)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("vector_bytes", "dtype"),
    [
        *((0, torch.float32), (16, torch.float64), (32, torch.float32), (64, torch.float64)),
        *((32, torch.bfloat16), (64, torch.float16)),
    ],
)
def test_widths(vector_bytes, dtype):
    with override(**QUICK, vector_bytes=vector_bytes):
        check(GATED, operands(GATED, 23, 5, 17, 33, dtype), "csc")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_one_kernel(dtype):
    given = operands(PLAIN, 23, 5, 17, 33, dtype)
    with override(**QUICK):
        made = evaluate_kernel(PLAIN, **{**given, "G": sparsify.tensor(given["G"], "csr")})
        assert joined_experts(made.program) is not None
        check(PLAIN, given, "csr")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("text", "dtype"), [(GATED, torch.bfloat16), (PLAIN, torch.float16), (SINGLE, torch.bfloat16)]
)
def test_gradients_of_halves_are_one_kernel(text, dtype):
    given = operands(text, 23, 5, 17, 33, dtype)
    mine = {name: value.clone().requires_grad_() for name, value in given.items() if name != "G"}
    mine["G"] = sparsify.tensor(given["G"], "csc").requires_grad_()
    wide = {name: value.double().requires_grad_() for name, value in given.items()}
    expected = dense(text, wide)
    seed = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected.backward(seed.double())
    with override(**QUICK):
        kernel = evaluate_kernel(text, **mine)
        assert len(kernel.adjoint(kernel.program.inputs).steps) == 1
        sparsify.evaluate(text, **mine).backward(seed)
    for name, value in mine.items():
        found, exact = value.grad, wide[name].grad
        if name == "G":
            found, exact = found.to_dense(), exact * (given["G"] != 0)
        assert found.dtype == dtype
        # Rounded once: by half of the last place, of the largest entry here.
        assert (found.double() - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max(), name


def test_threads_give_the_same_bits():
    given = operands(GATED, 40, 4, 70, 130)
    held = {**given, "G": sparsify.tensor(given["G"], "csc")}
    found = []
    for threads in (1, 2):
        with override(**QUICK, threads=threads):
            found.append(sparsify.evaluate(GATED, **held))
    assert torch.equal(*found)


def test_unchosen_experts_are_not_read():
    given = operands(PLAIN, 23, 5, 17, 33)
    assert not given["G"][:, -1].any()
    expected = dense(PLAIN, given)
    given["U"][-1] = given["V"][-1] = torch.nan
    with override(**QUICK):
        found = sparsify.evaluate(PLAIN, **{**given, "G": sparsify.tensor(given["G"], "csc")})
    torch.testing.assert_close(found.double(), expected, **CLOSE[torch.float32])


def stages(text: str, given: dict[str, torch.Tensor], form: str) -> Stages:
    """Stages of the single kernel of a mixture."""
    kernel = evaluate_kernel(text, **{**given, "G": sparsify.tensor(given["G"], form)})
    (step,) = kernel.steps
    return compile_stages(step.step, None, 32)


def test_is_one_kernel_without_dense_rows():
    made = stages(GATED, operands(GATED, 40, 4, 24, 160), "csr")
    text = str(made.schedule)
    assert Schedule.parse(text) == made.schedule
    assert "pos t p G_10; split p po pi" in text
    assert "for w; transpose d hi" in text
    assert "pattern of G_10[t,e]" in str(made.notation.body)
    loop = hottest(made.loops)
    assert len(sums(loop)) == 12
    assert not [node for node in walk(loop.body) if isinstance(node, loops.Store)]


@pytest.mark.parametrize("shape", [(23, 3, 5, 33), (1, 2, 3, 16), (0, 3, 4, 5)], ids=str)
def test_no_access_outside(shape):
    given = operands(PLAIN, *shape)
    schedule = str(stages(PLAIN, given, "csc").schedule)
    with override(vector_bytes=32):
        check_memory(PLAIN, schedule, {**given, "G": sparsify.tensor(given["G"], "csc")}, dense(PLAIN, given))


@pytest.mark.parametrize(
    "text",
    [
        # The sum over experts is of what was summed over tokens.
        "H[e,h] = sum(t, G[t,e] * X[t,d] * U[e,d,h]); Y[h] += H[e,h]",
        # Two gates.
        "H[t,e,h] = G[t,e] * relu(sum(d, X[t,d] * U[e,d,h])); Y[t,o] += F[t,e] * H[t,e,h] * V[e,h,o]",
        # No matrix for each expert.
        "H[t,e,h] = G[t,e] * relu(sum(d, X[t,d] * W[d,h])); Y[t,o] += H[t,e,h] * V[e,h,o]",
        # Maxima instead of sums.
        "H[t,e,h] = G[t,e] * relu(sum(d, X[t,d] * U[e,d,h])); Y[t,o] max= H[t,e,h] * V[e,h,o]",
    ],
)
def test_other_programs_are_right_too(text):
    given = operands(PLAIN, 9, 3, 5, 8)
    given = {**given, "F": given["G"] * 2, "W": given["U"][0].clone()}
    used = {name: value for name, value in given.items() if f"{name}[" in text}
    sparse = {n: sparsify.tensor(v, "csc") if n in "GF" else v for n, v in used.items()}
    text = text.replace("; ", "\n")
    with override(**QUICK):
        kernel = evaluate_kernel(text, **sparse)
        found = sparsify.evaluate(text, **sparse)
        whole = {n: v.double() for n, v in used.items()}
        torch.testing.assert_close(found.double(), sparsify.evaluate(text, **whole), **CLOSE[torch.float32])
    assert joined_experts(kernel.program) is None


GRADIENTS = [
    (GATED, "csc", (23, 12, 33, 65), 64),
    (PLAIN, "csr", (7, 3, 1, 64), 64),
    (SINGLE, "coo", (23, 5, 17, 33), 32),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("text", "form", "shape", "vector_bytes"), GRADIENTS)
def test_gradients_are_one_kernel(text, form, shape, vector_bytes):
    given = operands(text, *shape)
    wide = {name: value.double().requires_grad_() for name, value in given.items()}
    result = dense(text, wide)
    gradient = torch.randn_like(result)
    result.backward(gradient)
    gate = sparsify.tensor(given["G"], form)
    mine = {name: value.clone().requires_grad_() for name, value in given.items()}
    mine["G"] = gate.requires_grad_()
    with override(**QUICK, vector_bytes=vector_bytes):
        kernel = evaluate_kernel(text, **mine)
        backward = kernel.adjoint(kernel.program.inputs)
        assert len(backward.generated) == 1
        sparsify.evaluate(text, **mine).backward(gradient.float())
    for name, leaf in wide.items():
        found, expected = mine[name].grad, leaf.grad
        if name == "G":  # of stored entries alone
            found, expected = found.to_dense(), expected * (given["G"] != 0)
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-3)  # sums of products of sums


@pytest.mark.sampled(2)
def test_gradients_read_chosen_experts_alone():
    given = operands(PLAIN, 23, 5, 17, 33)
    given["U"][-1] = given["V"][-1] = torch.nan
    mine = {name: value.clone().requires_grad_() for name, value in given.items() if name != "G"}
    with override(**QUICK):
        sparsify.evaluate(PLAIN, **mine, G=sparsify.tensor(given["G"], "csc")).sum().backward()
    assert mine["X"].grad.isfinite().all()
    assert not mine["U"].grad[-1].any()
    assert not mine["V"].grad[-1].any()


@pytest.mark.sampled(2)
def test_second_derivatives():
    given = operands(SINGLE, 5, 3, 4, 6, torch.float64)
    gate = sparsify.tensor(given["G"], "csc")
    x, v = (given[name].requires_grad_() for name in "XV")
    with override(**QUICK):
        assert torch.autograd.gradgradcheck(lambda x, v: sparsify.evaluate(SINGLE, G=gate, X=x, V=v), (x, v))


def test_explained():
    given = operands(PLAIN, 23, 5, 17, 33)
    text = str(sparsify.explain(PLAIN, **{**given, "G": sparsify.tensor(given["G"], "csr")}))
    assert "H, Y: one kernel over the entries of the gate, expert by expert" in text
    assert "experts list their tokens" in text
