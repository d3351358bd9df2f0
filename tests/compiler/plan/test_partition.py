"""Fusion groups: statements that share a kernel, their results, gradients and reasons."""

import re
import time

import pytest
import torch

import sparsify
from sparsify import options
from sparsify.bench.predicted import uniform
from sparsify.compiler.evaluate import _program, evaluate_kernel
from sparsify.compiler.explain import explain_program, printed
from sparsify.compiler.kernel.kernel import planned
from sparsify.compiler.plan.fuse.rowwise import Rowwise
from sparsify.compiler.plan.partition import Prepared, partition
from sparsify.compiler.plan.plan import apart, steps
from sparsify.compiler.plan.step import Step
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes, sizes_of

NORM = (
    "m[i] = sum(k, S[i,k]) / extent\n"
    "v[i] = sum(k, square(S[i,k] - m[i])) / extent\n"
    "Y[i,k] = (S[i,k] - m[i]) / sqrt(v[i] + 0.5) * w[k] + b[k]"
)
SOFTMAX = (
    "S[i,j] = where(stored(A[i,j]), sum(k, X[i,k] * Z[j,k]), -inf)\n"
    "m[i] max= S[i,j]\n"
    "P[i,j] = exp(S[i,j] - where(m[i] == -inf, 0, m[i]))\n"
    "d[i] += P[i,j]\n"
    "Y[i,f] += P[i,j] * Z[j,f] / where(d[i] == 0, 1, d[i])"
)
DEGREE = "d[i] = sum(j, A[i,j])\ns[i] = where(d[i] == 0, 0, 1 / sqrt(abs(d[i])))\n"
# Programs, their results, and of how many kernels they are.
PROGRAMS = {
    "norm": ("S[i,k] = sum(j, A[i,j] * X[j,k])\n" + NORM, ["Y"], 1),
    "norm, residual": ("S[i,k] = sum(j, A[i,j] * X[j,k]) + Z[i,k]\n" + NORM, ["Y"], 1),
    "norm, two results": ("S[i,k] = sum(j, A[i,j] * X[j,k])\n" + NORM, ["S", "v", "Y"], 1),
    "other names": ("S[r,c] = sum(j, A[r,j] * X[j,c])\n" + NORM, ["Y"], 1),
    "epilogue": ("H[i,k] = sum(j, A[i,j] * X[j,k])\nY[i,k] = relu(H[i,k] + b[k])", ["Y"], 1),
    "degree": (DEGREE + "Y[i,k] = s[i] * sum(j, A[i,j] * s[j] * X[j,k])", ["Y"], 2),
    "rows by degree": (
        "d[i] = sum(j, A[i,j])\nY[i,k] = sum(j, A[i,j] * X[j,k]) / where(d[i] == 0, 1, d[i])",
        ["Y"],
        1,
    ),
    "loss": (
        "R[i,k] = sum(j, A[i,j] * X[j,k]) - Z[i,k]\nl = sum(i, k, square(R[i,k])) / extent",
        ["l"],
        1,
    ),
    "largest": ("R[i,k] = sum(j, A[i,j] * X[j,k])\nl = max(i, k, abs(R[i,k]))", ["R", "l"], 1),
    "two hops": (
        "H[i,k] = sum(j, A[i,j] * X[j,k])\nY[i,k] = sum(j, A[i,j] * H[j,k])",
        ["Y"],
        2,
    ),
    "same operand": (
        "Y[i,k] = sum(j, A[i,j] * X[j,k])\nd[i] = sum(j, A[i,j])\nQ[i,k] = sum(j, A[i,j] * b[k])",
        ["Y", "d", "Q"],
        1,
    ),
    "two parts": (
        "S[i,k] = sum(j, A[i,j] * X[j,k])\n"
        + NORM.replace("Y[", "H[")
        + "\nT[i,k] = sum(f, H[i,f] * W[f,k])\nU[i,k] = sum(j, A[i,j] * T[j,k])\nQ[i,k] = relu(U[i,k] + b[k])",
        ["Q"],
        2,  # and a product of torch
    ),
    "two softmaxes": (
        SOFTMAX.replace("Y[", "H[") + "\n" + re.sub(r"\b([SmPd])\[", r"\1_[", SOFTMAX.replace("X[", "H[")),
        ["Y"],
        None,
    ),
}


def operands_of(text, rows=37, width=20, dtype=torch.float64, density=0.2, seed=0):
    """The operands of a program: A has an empty row and an empty column."""
    generator = torch.Generator().manual_seed(seed)
    full = torch.randn(rows, rows, generator=generator, dtype=dtype)
    full *= torch.rand(rows, rows, generator=generator) < density
    if rows > 3:
        full[3], full[:, 1] = 0, 0
    made = {"A": sparsify.tensor(full, "csr")}
    for name, shape in {
        "X": (rows, width),
        "Z": (rows, width),
        "W": (width, width),
        "w": (width,),
        "b": (width,),
    }.items():
        if f"{name}[" in text:
            made[name] = torch.randn(shape, generator=generator, dtype=dtype) / 2
    return made


def written(name, width=20):
    """Text of a program and its results."""
    text, results, count = PROGRAMS[name]
    return text.replace("extent", str(float(width))), results, count


def plan_of(text, results, operands):
    program = _program(text, tuple(results), None, {}, operands)
    sizes = sizes_of(program, [operands[name] for name in program.inputs])
    return program, sizes


def dense_results(name, operands, width=20):
    """The results by torch, in float64."""
    known = {n: o.to_dense() if isinstance(o, sparsify.SparseTensor) else o for n, o in operands.items()}
    A, X, Z, W, w, b = (None if n not in known else known[n].double() for n in "AXZWwb")

    def norm(s):
        mean, var = s.sum(1) / width, ((s - s.sum(1, keepdim=True) / width) ** 2).sum(1) / width
        return mean, var, (s - mean[:, None]) / (var + 0.5).sqrt()[:, None] * w + b

    def soft(x):
        s = torch.where(A != 0, x @ Z.T, -torch.inf)
        most = s.amax(1, keepdim=True)
        e = (s - torch.where(most == -torch.inf, 0, most)).exp()
        total = e.sum(1, keepdim=True)
        return e @ Z / torch.where(total == 0, 1, total)

    if name.startswith(("norm", "other")):
        s = A @ X + (Z if "residual" in name else 0)
        _, var, y = norm(s)
        return {"S": s, "v": var, "Y": y}
    degree = A.sum(1)
    scale = torch.where(degree == 0, 0, 1 / degree.abs().sqrt())
    match name:
        case "epilogue":
            return {"Y": torch.relu(A @ X + b)}
        case "degree":
            return {"Y": scale[:, None] * (A @ (scale[:, None] * X))}
        case "rows by degree":
            return {"Y": A @ X / torch.where(degree == 0, 1, degree)[:, None]}
        case "loss":
            return {"l": ((A @ X - Z) ** 2).sum() / width}
        case "largest":
            return {"R": A @ X, "l": (A @ X).abs().max()}
        case "two hops":
            return {"Y": A @ (A @ X)}
        case "same operand":
            return {"Y": A @ X, "d": degree, "Q": degree[:, None] * b}
        case "two parts":
            return {"Q": torch.relu(A @ (norm(A @ X)[2] @ W) + b)}
        case "two softmaxes":
            return {"Y": soft(soft(X))}
    raise AssertionError(name)


@pytest.fixture(autouse=True)
def quick_builds():
    with options.override(compiler_flags=("-O0",)):
        yield


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("dtype", "vector_bytes"), [(torch.float32, 64), (torch.float64, 32)])
def test_results_and_gradients(name, dtype, vector_bytes):
    text, results, count = written(name)
    operands = operands_of(text, dtype=dtype)
    leaves = {n: o.requires_grad_() for n, o in operands.items() if n != "A"}
    reference = {n: o.detach().double().requires_grad_() if n != "A" else o for n, o in operands.items()}
    expected = dense_results(name, reference)
    with options.override(vector_bytes=vector_bytes):
        found = sparsify.evaluate(text, results, **operands)
        kernel = evaluate_kernel(text, results, **operands)
    found = found if len(results) > 1 else (found,)
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {}
    for one, result in zip(found, results, strict=True):
        torch.testing.assert_close(one.double(), expected[result], **close)
    total = sum(one.double().square().sum() for one in found)
    wanted = sum(expected[result].square().sum() for result in results)
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {}
    for one, other in zip(
        torch.autograd.grad(total, list(leaves.values())),
        torch.autograd.grad(wanted, [reference[n] for n in leaves]),
        strict=True,
    ):
        torch.testing.assert_close(one.double(), other, **close)
    if count is not None:
        assert len(kernel.generated) == count


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (5, 1), (4, 3), (0, 4)])
def test_small_and_empty_extents(name, rows, width):
    text, results, _ = written(name, width)
    if name in ("largest", "two softmaxes") and rows == 0:
        pytest.skip("no largest number of none")
    operands = operands_of(text, rows, width, density=0.9)
    found = sparsify.evaluate(text, results, **operands)
    expected = dense_results(name, operands, width)
    for one, result in zip(found if len(results) > 1 else (found,), results, strict=True):
        torch.testing.assert_close(one, expected[result])


def test_one_kernel_computes_what_several_do_with_nan_and_inf():
    text, results, _ = written("norm")
    operands = operands_of(text)
    operands["X"][4, 2], operands["X"][7, 5] = torch.nan, torch.inf
    program, sizes = plan_of(text, results, operands)
    given = tuple(operands[name] for name in program.inputs)
    one, several = (planned(program, form(program, sizes)).run(given)["Y"] for form in (steps, apart))
    torch.testing.assert_close(one, several, equal_nan=True)
    assert one.isnan().any() and not one.isnan().all()


@pytest.mark.parametrize("name", ["norm, residual", "two parts", "loss"])
def test_halves_are_summed_in_float32(name):
    text, results, _ = written(name)
    operands = {n: o.to(torch.bfloat16) for n, o in operands_of(text, dtype=torch.float32).items()}
    found = sparsify.evaluate(text, results, **operands)
    torch.testing.assert_close(
        found.double(), dense_results(name, operands)[results[0]], rtol=3e-2, atol=3e-2
    )


def test_two_parts_of_a_program_are_found():
    text, results, _ = written("two parts")
    program, sizes = plan_of(text, results, operands_of(text))
    cut = partition(Prepared(program, sizes))
    assert sorted(group.part.names for group in cut.groups) == [("S", "m", "v", "H"), ("U", "Q")]
    assert all(isinstance(group.found, Rowwise) and group.gain > 0 for group in cut.groups)
    made = steps(program, sizes)
    assert [step.result for step in made] == ["H", "T", "Q"]
    text = printed(explain_program(program, sizes=sizes))
    assert all(str(group) in text for group in cut.groups)


def test_runners_up_are_shown_with_their_times():
    program, _ = plan_of(SOFTMAX, ["Y"], operands_of(SOFTMAX))
    sizes = Sizes({"i": 20_000, "j": 20_000, "k": 64, "f": 64}, {"A": 200_000})
    with options.override(vector_bytes=64, threads=1):
        text = printed(explain_program(program, sizes=sizes))
        cut = partition(Prepared(program, sizes))
    assert [group.part.names for group in cut.groups] == [("m", "P", "d", "Y")]
    assert (
        cut.said()[1].startswith("S, m, P, d, Y: one kernel ") and "since one kernel loses" in cut.said()[1]
    )
    assert all(line in text and " us, a kernel each " in line for line in cut.said())


def test_what_is_not_known_stays_apart():
    text, results, _ = written("two parts")
    program, sizes = plan_of(text, results, operands_of(text))
    assert partition(Prepared(program, UNKNOWN)).groups == ()
    assert len(steps(program, UNKNOWN)) == len(apart(program, sizes)) == 7


def test_groups_are_convex():
    # t and Y are over the same rows, and u between them is over all.
    text = "t[i] = sum(j, A[i,j] * x[j])\nu[i] = sum(j, A[i,j] * t[j])\nY[i,k] = t[i] * u[i] * X[i,k]"
    operands = {**operands_of(text), "x": torch.randn(37, dtype=torch.float64)}
    program, sizes = plan_of(text, ["Y"], operands)
    made = steps(program, sizes)
    done = set(program.inputs)
    for step in made:
        assert isinstance(step, Step) and set(step.program.inputs) <= done
        done |= set(step.program.outputs)
    full, x, X = operands["A"].to_dense(), operands["x"], operands["X"]
    wanted = (full @ x * (full @ (full @ x)))[:, None] * X
    torch.testing.assert_close(sparsify.evaluate(text, **operands), wanted)


@pytest.mark.sampled(4)
def test_long_rows_stay_apart():
    """One thread would take the longest row for all statements."""
    full = uniform(20_000, 20_000, 2).to_dense()
    full[7] = 1
    operands = {"A": sparsify.tensor(full, "csr"), "X": torch.zeros(20_000, 16), "b": torch.zeros(16)}
    text, results, _ = written("rows by degree")
    with options.override(threads=8):
        program, sizes = plan_of(text, results, {n: operands[n] for n in "AX"})
        (group,) = partition(Prepared(program, sizes)).refused
    assert not group.is_faster and "cut, since one kernel loses" in str(group)


def test_planning_thirty_statements_is_quick():
    layer = "T{n}[i,k] = sum(f, {h}[i,f] * W[f,k])\nS{n}[i,k] = sum(j, A[i,j] * T{n}[j,k])\n"
    norm = NORM.replace("S[", "S{n}[").replace("m[", "m{n}[").replace("v[", "v{n}[").replace("Y[", "H{n}[")
    text, before = "", "X"
    for n in range(6):
        text += (layer + norm.replace("extent", "20.0") + "\n").format(n=n, h=before)
        before = f"H{n}"
    program, sizes = plan_of(text, [before], operands_of(text, rows=300))
    taken = []
    for _ in range(3):
        start = time.thread_time()
        made = steps(program, sizes)
        taken.append(time.thread_time() - start)
    assert len(program.statements) == 30 and len(made) == 12
    assert min(taken) < 0.3  # 0.07 s on an idle core
