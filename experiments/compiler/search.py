"""The schedule search against the default and against templates: `python -m experiments.compiler.search [NAME ...]`.

In: names of cases, or beginnings of names; none for all. Out: two tables with ratios of processor time of one thread.
The first has statements without a template, the default schedule over the searched one; the second has statements with
a template, the template over the best schedule without it. A ratio above 1 means that the search is faster. Every
result is checked against numpy in float64 first.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch

import sparsify
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.kernel.kernel import Kernel
from sparsify.compiler.kernel.statement_kernel import GeneratedStep
from sparsify.compiler.notation.lane_width import lane_bytes, lanes
from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.search.searched import Searched, searched
from sparsify.compiler.schedule.sizes import Sizes, sizes_of
from sparsify.compiler.schedule.templates.candidates import TEMPLATES, Request, candidates
from sparsify.errors import SparsifyError
from sparsify.options import override

ROUNDS: Final = 21
# Processor time of a sample, in milliseconds: short calls are repeated.
SAMPLE_MS: Final = 2.0
# The share of the template's time that a search may take longer and still replace the template.
CLOSE: Final = 0.03
Shapes = Mapping[str, tuple[str, tuple[int, ...], float]]


@dataclass(frozen=True, slots=True)
class Case:
    """A program with operands.

    Attributes:
        name: name in the table.
        text: program.
        operands: format, shape and density of each operand.
        expected: results in float64 from dense operands in float64; a function of numpy.
        outputs: names of the results.
        format: format of the result, inferred without.
    """

    name: str
    text: str
    operands: Shapes
    expected: Callable[..., Any]
    outputs: tuple[str, ...] = ()
    format: str | None = None

    def draw(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The operands, and the same as dense arrays of float64."""
        generator = np.random.default_rng(0)
        given, dense = {}, {}
        for name, (format, shape, density) in self.operands.items():
            values = generator.standard_normal(shape, dtype=np.float32)
            values *= generator.random(shape, dtype=np.float32) < density
            found = torch.from_numpy(values)
            given[name] = found if format == "dense" else sparsify.tensor(found, format)
            dense[name] = values.astype(np.float64)
        return given, dense


def product(subscripts: str) -> Callable[..., Any]:
    """`numpy.einsum` of the operands in order."""
    return lambda **dense: np.einsum(subscripts, *dense.values(), optimize=True)


ROWS: Final = 2000
CSR: Final = ("csr", (ROWS, ROWS), 0.02)
CSF: Final = ("csf", (150, 120, 200), 0.02)
HYPER: Final = ("dcsr", (20_000, 1000), 0.0005)
X: Final = ("dense", (ROWS, 64), 1.0)


def vector(count: int) -> tuple[str, tuple[int, ...], float]:
    """A dense vector."""
    return "dense", (count,), 1.0


def dense(*shape: int) -> tuple[str, tuple[int, ...], float]:
    """A dense tensor."""
    return "dense", shape, 1.0


WITHOUT_TEMPLATE: Final = (
    Case("mttkrp of order 3", "Y[i,r] = A[i,j,k] * B[j,r] * C[k,r]",
         {"A": CSF, "B": dense(120, 32), "C": dense(200, 32)}, product("ijk,jr,kr->ir")),
    Case("mttkrp of order 4", "Y[i,r] = A[i,j,k,l] * B[j,r] * C[k,r] * D[l,r]",
         {"A": ("csf", (40, 40, 50, 60), 0.02), "B": dense(40, 32), "C": dense(50, 32), "D": dense(60, 32)},
         product("ijkl,jr,kr,lr->ir")),
    Case("ttv", "Y[i,j] = A[i,j,k] * x[k]", {"A": CSF, "x": vector(200)}, product("ijk,k->ij"), format="dense"),
    Case("ttm", "Y[i,j,r] = A[i,j,k] * B[k,r]", {"A": CSF, "B": dense(200, 32)}, product("ijk,kr->ijr"),
         format="dense"),
    Case("ttm of columns", "Y[i,j,r] = A[i,j,k] * B[r,k]", {"A": CSF, "B": dense(32, 200)},
         product("ijk,rk->ijr"), format="dense"),
    Case("order 3 by order 3", "Y[i,l] = A[i,j,k] * B[k,j,l]", {"A": CSF, "B": dense(200, 120, 32)},
         product("ijk,kjl->il")),
    Case("tucker", "Y[a,b] = A[i,j,k] * U[i,a] * V[j,b] * w[k]",
         {"A": CSF, "U": dense(150, 16), "V": dense(120, 16), "w": vector(200)}, product("ijk,ia,jb,k->ab")),
    Case("inner product of order 3", "y = A[i,j,k] * B[i,j,k]", {"A": CSF, "B": CSF}, product("ijk,ijk->")),
    Case("order 3, two vectors", "y[i] = A[i,j,k] * u[j] * v[k]",
         {"A": CSF, "u": vector(120), "v": vector(200)}, product("ijk,j,k->i")),
    Case("sum of order 3", "y = A[i,j,k] * A[i,j,k]", {"A": CSF}, lambda A: np.sum(A * A)),
    Case("quadratic form", "y = x[i] * A[i,j] * z[j]", {"x": vector(ROWS), "A": CSR, "z": vector(ROWS)},
         product("i,ij,j->")),
    Case("squared norm", "y = A[i,j] * A[i,j]", {"A": CSR}, lambda A: np.sum(A * A)),
    Case("largest entry", "y = max(i, j, A[i,j] * x[j])", {"A": CSR, "x": vector(ROWS)},
         lambda A, x: np.max(A * x)),
    Case("sum of three", "Y[i,j] = A[i,j] + B[i,j] + C[i,j]", {"A": CSR, "B": CSR, "C": CSR},
         lambda A, B, C: A + B + C),
    Case("two masks", "Y[i,j] = M[i,j] * N[i,j] * sum(k, P[i,k] * Q[j,k])",
         {"M": ("csr", (1000, 1000), 0.2), "N": ("csr", (1000, 1000), 0.2), "P": dense(1000, 64),
          "Q": dense(1000, 64)}, lambda M, N, P, Q: M * N * (P @ Q.T)),
    Case("two masks, long", "Y[i,j] = M[i,j] * N[i,j] * sum(k, P[i,k] * Q[j,k])",
         {"M": ("csr", (500, 500), 0.2), "N": ("csr", (500, 500), 0.2), "P": dense(500, 512),
          "Q": dense(500, 512)}, lambda M, N, P, Q: M * N * (P @ Q.T)),
    Case("two factors", "Y[i,k] = A[i,j] * B[i,j] * X[j,k]", {"A": CSR, "B": CSR, "X": X},
         product("ij,ij,jk->ik")),
    Case("two factors, vector", "y[i] = A[i,j] * B[i,j] * x[j]", {"A": CSR, "B": CSR, "x": vector(ROWS)},
         product("ij,ij,j->i")),
    Case("A B x", "y[i] = A[i,j] * B[j,k] * x[k]", {"A": CSR, "B": CSR, "x": vector(ROWS)},
         product("ij,jk,k->i")),
    Case("columns", "y[k] = A[i,j] * X[j,k] * z[i]", {"A": CSR, "X": X, "z": vector(ROWS)},
         product("ij,jk,i->k")),
    Case("gated rows", "Y[i,k] = Z[i,k] * sum(j, A[i,j] * X[j,k])", {"Z": X, "A": CSR, "X": X},
         lambda Z, A, X: Z * (A @ X)),
    Case("batched", "Y[b,i,k] = A[i,j] * X[b,j,k]", {"A": CSR, "X": dense(4, ROWS, 32)},
         product("ij,bjk->bik")),
    Case("normalised rows", "Y[i,j] = A[i,j] / sqrt(1 + sum(k, A[i,k] * A[i,k]))", {"A": CSR},
         lambda A: A / np.sqrt(1 + np.sum(A * A, 1, keepdims=True))),
    Case("hypersparse product", "Y[i,j] = A[i,j] * B[i,j]", {"A": HYPER, "B": HYPER}, lambda A, B: A * B),
    Case("hypersparse sum", "Y[i,j] = A[i,j] + B[i,j]", {"A": HYPER, "B": HYPER}, lambda A, B: A + B),
    Case("hypersparse rows", "Y[i,k] = A[i,j] * X[j,k]", {"A": HYPER, "X": dense(1000, 32)},
         product("ij,jk->ik"), format="dense"),
    Case("dense and sparse", "Y[i,j] = A[i,j] + D[i,j] + B[i,j]", {"A": CSR, "D": dense(ROWS, ROWS), "B": CSR},
         lambda A, D, B: A + D + B),
)  # fmt: skip

ATTENTION: Final = """
S[i,j] = where(stored(M[i,j]), 0.125 * sum(k, Q[i,k] * K[j,k]), -inf)
m[i] max= S[i,j]
P[i,j] = exp(S[i,j] - where(m[i] == -inf, 0, m[i]))
d[i] += P[i,j]
Y[i,l] += P[i,j] * V[j,l] / where(d[i] == 0, 1, d[i])
"""
REDUCTIONS: Final = """
c[i] += A[i,j]
s[i,f] += A[i,j] * X[j,f]
m[i,f] max= where(stored(A[i,j]), X[j,f], -inf)
Y[i,f] = s[i,f] / max(abs(c[i]), 1)
Z[i,f] = m[i,f]
"""
NORM: Final = """
S[i,k] += A[i,j] * X[j,k]
w[i] += S[i,k]
Y[i,k] = S[i,k] - w[i] / 64
"""
WIDE_NORM: Final = """
S[i,k] += A[i,j] * X[j,k]
w[i] += S[i,k] * S[i,k]
Y[i,k] = S[i,k] / sqrt(1 + w[i])
"""
GATES: Final = """
u[i] += A[i,j] * x[j]
v[i] += B[i,j] * x[j]
y[i] = u[i] * v[i] + u[i]
"""


def attention(M: np.ndarray, Q: np.ndarray, K: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Attention at the entries of a mask."""
    scores = np.where(M != 0, 0.125 * (Q @ K.T), -np.inf)
    weights = np.exp(scores - np.max(scores, 1, keepdims=True))
    return np.asarray((weights / weights.sum(1, keepdims=True)) @ V)


def reductions(A: np.ndarray, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A scaled sum, and a maximum over the entries of each row."""
    largest = np.stack([X[row != 0].max(0) for row in A])
    return (A @ X) / np.maximum(np.abs(A.sum(1)), 1)[:, None], largest


WITH_TEMPLATE: Final = (
    Case("sddmm", "S[i,j] = M[i,j] * sum(k, P[i,k] * Q[j,k])",
         {"M": CSR, "P": dense(ROWS, 64), "Q": dense(ROWS, 64)}, lambda M, P, Q: M * (P @ Q.T)),
    Case("sddmm, wide", "S[i,j] = M[i,j] * sum(k, P[i,k] * Q[j,k])",
         {"M": CSR, "P": dense(ROWS, 256), "Q": dense(ROWS, 256)}, lambda M, P, Q: M * (P @ Q.T)),
    Case("sddmm, columns", "S[i,j] = M[i,j] * sum(k, P[i,k] * Q[k,j])",
         {"M": CSR, "P": dense(ROWS, 64), "Q": dense(64, ROWS)}, lambda M, P, Q: M * (P @ Q)),
    Case("spgemm", "C[i,k] = A[i,j] * B[j,k]",
         {"A": ("csr", (ROWS, ROWS), 0.005), "B": ("csr", (ROWS, ROWS), 0.005)}, lambda A, B: A @ B),
    Case("sparse linear", "Y[t,n] = X[t,k] * W[n,k] + b[n]",
         {"X": dense(256, 768), "W": ("csr", (768, 768), 0.2), "b": vector(768)}, lambda X, W, b: X @ W.T + b),
    Case("blocked product", "C[i,k] = A[i,j] * B[j,k]",
         {"A": ("bcsr(16, 16)", (1024, 1024), 0.2), "B": dense(1024, 64)}, lambda A, B: A @ B),
    Case("attention", ATTENTION, {"M": ("csr", (ROWS, ROWS), 0.02), "Q": X, "K": X, "V": X}, attention, ("Y",)),
    Case("joint reductions", REDUCTIONS, {"A": CSR, "X": dense(ROWS, 32)}, reductions, ("Y", "Z")),
    Case("row nests", NORM, {"A": CSR, "X": X},
         lambda A, X: (A @ X) - (A @ X).sum(1, keepdims=True) / 64, ("Y",)),
    Case("row sums", GATES, {"A": CSR, "B": CSR, "x": vector(ROWS)},
         lambda A, B, x: (A @ x) * (B @ x) + A @ x, ("y",)),
    Case("dropped rows, sigmoid", "Y[i,j] = X[i,j] * sigmoid(X[i,j]) * max(X[i,j] - 2, 0)", {"X": dense(ROWS, 512)},
         lambda X: X / (1 + np.exp(-X)) * np.maximum(X - 2, 0), format="csr"),
    Case("row nests, wide", WIDE_NORM, {"A": CSR, "X": dense(ROWS, 200)},
         lambda A, X: (A @ X) / np.sqrt(1 + ((A @ X) ** 2).sum(1, keepdims=True)), ("Y",)),
    Case("spgemm, long rows", "C[i,k] = A[i,j] * B[j,k]", {"A": CSR, "B": CSR}, lambda A, B: A @ B),
    Case("dropped rows", "Y[i,j] = relu(X[i,j] - 1)", {"X": dense(ROWS, 512)}, lambda X: np.maximum(X - 1, 0),
         format="csr"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A measured statement.

    Attributes:
        name: case and statement.
        usual_us: processor time of the default or template schedule.
        chosen_us: the same with the schedule that the search puts first.
        best_us: the same with the fastest of the searched schedules.
        note: the searched schedule, or why there is none.
    """

    name: str
    usual_us: float
    chosen_us: float
    best_us: float
    note: str

    def __str__(self) -> str:
        chosen, best = (self.usual_us / us if us else 0.0 for us in (self.chosen_us, self.best_us))
        return f"{self.name:32} {chosen:7.2f} {best:7.2f}   {self.note}"


def microseconds(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Median processor time of each call, in turns."""
    counts: list[int] = []
    samples: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
        began = time.thread_time()
        call()
        counts.append(max(1, int(SAMPLE_MS * 1e-3 / max(time.thread_time() - began, 1e-7))))
    for turn in range(ROUNDS):
        for n in range(len(calls))[:: 1 if turn % 2 else -1]:
            began = time.thread_time()
            for _ in range(counts[n]):
                calls[n]()
            samples[n].append((time.thread_time() - began) / counts[n] * 1e6)
    return [statistics.median(taken) for taken in samples]


def kernel_of(case: Case) -> tuple[Kernel, dict[str, Any]]:
    """The kernel of a case, whose results are checked, and its operands."""
    given, dense_operands = case.draw()
    expected = case.expected(**dense_operands)
    wanted = [np.asarray(one) for one in (expected if isinstance(expected, tuple) else (expected,))]
    kernel = evaluate_kernel(case.text, case.outputs or None, format=case.format, **given)
    found = kernel(*[given[name] for name in kernel.program.inputs])
    check(case.name, found if isinstance(found, tuple) else (found,), wanted)
    return kernel, given


def check(name: str, found: Sequence[Any], wanted: Sequence[np.ndarray]) -> None:
    """Raises if a result is not close to the expected one."""
    for one, other in zip(found, wanted, strict=True):
        plain = one.to_dense() if hasattr(one, "pattern") else one
        difference = np.abs(np.asarray(plain, dtype=np.float64) - other).max(initial=0.0)
        scale = np.abs(other).max(initial=1.0)
        if not difference <= 1e-4 * scale:
            raise AssertionError(f"{name}: {difference:.2g} away from float64, values up to {scale:.2g}")


def rows(case: Case, templates: bool) -> Iterator[Row]:
    """The measured statements of a case: those with a template, or those without."""
    kernel, given = kernel_of(case)
    operands = tuple(given[name] for name in kernel.program.inputs)
    sizes = sizes_of(kernel.program, operands).shared(kernel.program)
    tensors = kernel.run(operands)
    for step in kernel.generated:
        values = tuple(tensors[name] for name in step.operands)
        plain = step.stages.plain
        width = lanes(plain, step.variants.vector_bytes), lane_bytes(plain)
        own = sizes.also({twin.name: twin.source for twin in step.step.twins})
        used = template_of(Request(plain, *width, own, step.step.order))
        if bool(used) != templates:
            continue
        name = f"{case.name}: {', '.join(step.results)}" if len(kernel.generated) > 1 else case.name
        yield measured(name, step, values, plain, width, own, used)


def template_of(request: Request) -> str:
    """The name of the template with the first schedule, "" without one."""
    return next((name for name, make in TEMPLATES.items() if next(make(request), None) is not None), "")


def measured(
    name: str,
    step: GeneratedStep,
    values: tuple[Any, ...],
    plain: Notation,
    width: tuple[int, int],
    sizes: Sizes,
    used: str,
) -> Row:
    """The times of a statement with its usual and with searched schedules."""
    off = (*TEMPLATES, "search")
    usual = first_legal(step, candidates(plain, *width, sizes, step.step.order, without=("search",)), sizes)
    plain_first = first_legal(step, candidates(plain, *width, sizes, step.step.order, without=off), sizes)
    assert usual is not None, "the last candidates always lower"
    order = step.step.order
    defaults = candidates(plain, *width, sizes, order, off)
    found = searched(plain, *width, sizes, order, defaults, least_us=0.0)
    named = f"{name} ({used})" if used else name
    near = alternatives(step, found, plain_first, sizes, bool(used))
    if not near:
        return Row(named, 0.0, 0.0, 0.0, "loops that the search does not count")
    expected = flat(usual[1].compute(values))
    for _, other in near:
        compare(named, flat(other.compute(values)), expected)
    times = microseconds([partial(one.compute, values) for _, one in (usual, *near)])
    said = "" if found is None else found.said(near[0][0])
    return Row(named, times[0], times[1], min(times[1:]), f"{near[0][0]}  [{said or 'default'}]")


def alternatives(
    step: GeneratedStep,
    found: Searched | None,
    default: tuple[Schedule, GeneratedStep] | None,
    sizes: Sizes,
    has_template: bool,
) -> list[tuple[Schedule, GeneratedStep]]:
    """The schedules without a template, the one that would be chosen first."""
    if found is None:
        return [] if default is None or not has_template else [default]
    legal = [
        one for one in (first_legal(step, iter((s,)), sizes) for s in found.schedules) if one is not None
    ]
    better = [one for one in legal if one[0] in found.better]
    rest = [one for one in legal if one not in better]
    return [*better, *([default] if default is not None else []), *rest]


def first_legal(
    step: GeneratedStep, schedules: Iterator[Schedule], sizes: Sizes
) -> tuple[Schedule, GeneratedStep] | None:
    """The first schedule that lowers, and the statement compiled with it."""
    for schedule in schedules:
        made = step.with_schedule(schedule)
        try:
            made.prepare(sizes)
        except SparsifyError:
            continue
        if made.failure is None and made.current.signature == step.current.signature:
            return schedule, made
    return None


def flat(result: Any) -> list[np.ndarray]:
    """The values of results as arrays of float64."""
    several = result if isinstance(result, tuple | list) else (result,)
    return [np.asarray(r.values() if hasattr(r, "pattern") else r, dtype=np.float64) for r in several]


def compare(name: str, found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Raises if the results of two schedules differ beyond rounding."""
    for one, other in zip(found, expected, strict=True):
        if not np.allclose(
            one, other, rtol=1e-3, atol=1e-3 * np.abs(other[np.isfinite(other)]).max(initial=1.0)
        ):
            raise AssertionError(f"{name}: the results of two schedules differ")


def main(argv: Sequence[str]) -> int:
    """Prints both tables."""
    torch.set_num_threads(1)
    for title, cases, templates in (
        ("without a template: default / search", WITHOUT_TEMPLATE, False),
        ("with a template: template / search", WITH_TEMPLATE, True),
    ):
        chosen = [case for case in cases if not argv or any(case.name.startswith(name) for name in argv)]
        print(f"\n{title:32}   first    best of few\n")
        for case in chosen:
            with override(threads=1):
                for row in rows(case, templates):
                    print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
