"""Graphs with repeated edges as one operand, and results with further modes on a pattern, against torch."""

import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.plan.plan import joined_rows
from sparsify.compiler.reference import evaluate_program
from sparsify.compiler.schedule.sizes import sizes_of
from sparsify.storage.format import Format
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor, wrap

RELATION = Format("dense, compressed, singleton")
# Softmax over the edges of a node, whose scores are told by both nodes and by the edge itself.
SOFTMAX = """
S[K] = where(stored(E[i,e,j]), a[i,h] + b[j,h] + w[e,h], -inf)
m[i,h] = max(e, j, S[K])
P[K] = exp(S[K] - where(m[i,h] == -inf, 0, m[i,h]))
d[i,h] = sum(e, j, P[K])
Y[i,h,f] = sum(e, j, P[K] * z[j,h,f]) / where(d[i,h] == 0, 1, d[i,h])
"""
LAYOUTS = ("i,e,j,h", "h,i,e,j")
QUICK = {"serial_threshold": 0}
# Nodes, edges, heads and features: rows without edges, longer than a vector, no edges, one node, one head.
SIZES = [(12, 40, 4, 8), (3, 90, 3, 5), (4, 0, 2, 3), (1, 5, 1, 1), (6, 9, 1, 17)]


def relation(nodes: int, edges: int, dtype: torch.dtype, seed: int = 0) -> SparseTensor:
    """Edges by their first node, some of them repeated; the last node has no edges."""
    made = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, max(1, nodes - 1), (edges,), generator=made).sort().values
    columns = torch.randint(0, nodes, (edges,), generator=made)
    if edges > 1:
        rows[1], columns[1] = rows[0], columns[0]
    starts = torch.zeros(nodes + 1, dtype=torch.int64)
    starts[1:] = torch.bincount(rows, minlength=nodes).cumsum(0)
    arrays = (None, starts, None), (None, torch.arange(edges), columns)
    return wrap(Pattern(RELATION, (nodes, edges, nodes), *arrays), torch.ones(edges, dtype=dtype))


def operands(size: tuple[int, int, int, int], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    nodes, edges, heads, features = size
    made = torch.Generator().manual_seed(sum(size))
    shapes = {"a": (nodes, heads), "b": (nodes, heads), "w": (edges, heads), "z": (nodes, heads, features)}
    return {name: torch.randn(*shape, dtype=dtype, generator=made) for name, shape in shapes.items()}


def softmax(E: SparseTensor, a, b, w, z) -> torch.Tensor:
    """The same by torch."""
    rows, edges, columns = E.pattern.coordinates()
    scores = torch.exp(a[rows] + b[columns] + w[edges])
    total = torch.zeros_like(a).index_add(0, rows, scores)
    found = torch.zeros_like(z).index_add(0, rows, scores[..., None] * z[columns])
    return found / torch.where(total == 0, 1, total)[..., None]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_softmax_over_edges_with_data_of_their_own_is_one_kernel(layout, size) -> None:
    E, given = relation(*size[:2], torch.float64), operands(size, torch.float64)
    with options.override(**QUICK):
        kernel = evaluate_kernel(SOFTMAX.replace("K", layout), E=E, **given)
        assert len(kernel.steps) == 1
        found = sparsify.evaluate(SOFTMAX.replace("K", layout), E=E, **given)
    torch.testing.assert_close(found, softmax(E, **given))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("vector_bytes", [0, 16, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vectors_of_all_widths(vector_bytes, dtype) -> None:
    size = (5, 60, 4, 8)
    E, given = relation(*size[:2], dtype), operands(size, dtype)
    with options.override(vector_bytes=vector_bytes, **QUICK):
        for layout in LAYOUTS:
            found = sparsify.evaluate(SOFTMAX.replace("K", layout), E=E, **given)
            torch.testing.assert_close(found, softmax(E, **given))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("size", [(6, 20, 2, 3), (2, 3, 1, 1), (3, 0, 2, 2)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients(layout, size) -> None:
    E, given = relation(*size[:2], torch.float64), operands(size, torch.float64)
    leaves = [x.requires_grad_() for x in given.values()]

    def call(*values):
        return sparsify.evaluate(SOFTMAX.replace("K", layout), E=E, **dict(zip(given, values, strict=True)))

    with options.override(**QUICK):
        assert torch.autograd.gradcheck(call, leaves)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_reference_agrees(layout, size) -> None:
    E, given = relation(*size[:2], torch.float64), operands(size, torch.float64)
    program = evaluate_kernel(SOFTMAX.replace("K", layout), E=E, **given).program
    (found,) = evaluate_program(program, {"E": E, **given})
    torch.testing.assert_close(found, softmax(E, **given))


SCORES = "S[K] = where(stored(A[i,j]), a[i,h] * b[j,h], 0)"


def matrix(form: str, rows: int, columns: int) -> SparseTensor:
    made = torch.Generator().manual_seed(rows + columns)
    kept = torch.rand(rows, columns, dtype=torch.float64, generator=made)
    return sparsify.tensor(torch.where(kept < 0.4, kept, 0), form)


@pytest.mark.parametrize(
    ("form", "layout"), [("csr", "i,j,h"), ("csc", "i,j,h"), ("dcsr", "i,h,j"), ("coo", "h,i,j")]
)
@pytest.mark.parametrize("shape", [(7, 9, 3), (1, 1, 1), (4, 0, 2), (5, 6, 0)], ids=str)
def test_results_share_the_arrays_of_their_operand(form, layout, shape) -> None:
    rows, columns, heads = shape
    A = matrix(form, rows, columns)
    a, b = (torch.randn(n, heads, dtype=torch.float64) for n in (rows, columns))
    text = SCORES.replace("K", layout)
    kernel = evaluate_kernel(text, A=A, a=a, b=b)
    assert kernel.program.declaration("S").pattern_of == "A"
    with options.override(**QUICK):
        found = sparsify.evaluate(text, A=A, a=a, b=b)
    wanted = torch.einsum(f"ij,ih,jh->{layout.replace(',', '')}", (A.to_dense() != 0).double(), a, b)
    torch.testing.assert_close(found.to_dense(), wanted)
    assert found.pattern.nnz == A.pattern.nnz * heads
    own, shared = A.pattern.arrays_in_place(), found.pattern.arrays_in_place()
    assert [array.data_ptr() for array in own] == [array.data_ptr() for array in shared]
    (other,) = evaluate_program(kernel.program, {"A": A, "a": a, "b": b})
    torch.testing.assert_close(other.to_dense(), wanted)
    assert other.pattern is found.pattern


@pytest.mark.parametrize("layout", ["i,j,h"])
def test_gradients_of_results_with_further_modes(layout) -> None:
    A = matrix("csr", 4, 5)
    a, b = (torch.randn(n, 2, dtype=torch.float64, requires_grad=True) for n in (4, 5))
    text = f"S[{layout}] = A[i,j] * a[i,h] * b[j,h]"
    values = A.values().detach().clone().requires_grad_()

    def call(values, a, b):
        tensor = SparseTensor(A.pattern, values)
        return sparsify.evaluate(text, A=tensor, a=a, b=b).to_dense()

    with options.override(**QUICK):
        assert torch.autograd.gradcheck(call, (values, a, b))


def test_several_results_of_one_kernel() -> None:
    A = matrix("csr", 6, 5)
    a = torch.randn(6, 3, dtype=torch.float64)
    text = "S[i,j,h] = A[i,j] * a[i,h]\nT[i,j,h] = 2 * S[i,j,h]"
    with options.override(**QUICK):
        first, second = sparsify.evaluate(text, ("S", "T"), A=A, a=a)
    torch.testing.assert_close(first.to_dense(), torch.einsum("ij,ih->ijh", A.to_dense(), a))
    torch.testing.assert_close(second.to_dense(), 2 * first.to_dense())
    assert first.pattern is second.pattern


def test_results_with_further_modes_in_traced_graphs() -> None:
    A = matrix("csr", 6, 5)
    a, x = torch.randn(6, 3, dtype=torch.float64), torch.randn(5, dtype=torch.float64)

    def call(a, x):
        scores = sparsify.evaluate("S[i,j,h] = A[i,j] * a[i,h]", A=A, a=a)
        return sparsify.evaluate("y[i,h] = S[i,j,h] * x[j]", S=scores, x=x)

    found = torch.export.export(_Module(call), (a, x)).module()(a, x)
    torch.testing.assert_close(found, torch.einsum("ij,ih,j->ih", A.to_dense(), a, x))


class _Module(torch.nn.Module):
    def __init__(self, call) -> None:
        super().__init__()
        self.call = call

    def forward(self, a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.call(a, x)


LANES = "precompute lanes = y over pi in register; vector pi in lanes; vector pi in y"
FUSED = f"fuse e j f; pos f p E; split p po pi 8; {LANES}"


def test_positions_of_entries_with_several_coordinates() -> None:
    E = relation(9, 50, torch.float32)
    b, w = torch.randn(9), torch.randn(50)
    text = "y[i] = max(e, j, where(stored(E[i,e,j]), b[j] + w[e], -inf))"
    rows, edges, columns = E.pattern.coordinates()
    wanted = torch.full((9,), -torch.inf).scatter_reduce(0, rows, b[columns] + w[edges], "amax")
    for schedule in (None, "fuse e j f; pos f p E", FUSED):
        with options.override(**QUICK):
            found = sparsify.evaluate(text, E=E, b=b, w=w, schedule=schedule)
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("text", "schedule"),
    [("S[i,j] = A[i,j] * b[j,0]", "order j, i"), ("S[i,j,h] = A[i,j] * b[j,h]", "order j, i, h")],
)
def test_loops_that_do_not_reach_the_pattern_of_a_result_are_refused(text, schedule) -> None:
    A, b = matrix("csr", 6, 5), torch.randn(5, 3, dtype=torch.float64)
    with pytest.raises(sparsify.errors.DiscordantError, match="opposite loop orders"):
        sparsify.evaluate(text, A=A, b=b, schedule=schedule)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_a_kernel_over_rows_and_one_over_columns(layout) -> None:
    size = (1000, 8000, 4, 16)
    E, given = relation(*size[:2], torch.float64), operands(size, torch.float64)
    leaves = {name: x.requires_grad_() for name, x in given.items()}
    kernel = evaluate_kernel(SOFTMAX.replace("K", layout), E=E, **leaves)
    adjoint = kernel.adjoint(("a", "b", "z"))
    joined = [step for step in adjoint.generated if len(step.program.statements) > 1]
    assert [[*step.twins] for step in joined] == [[], ["E_210"]]
    found = sparsify.evaluate(SOFTMAX.replace("K", layout), E=E, **leaves)
    cotangent = torch.randn(found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wanted = torch.autograd.grad(softmax(E, **leaves), [*leaves.values()], cotangent)
    torch.testing.assert_close(torch.autograd.grad(found, [*leaves.values()], cotangent), wanted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_heads_beside_each_other_and_rows_in_parts(layout) -> None:
    """All heads of an entry in a vector for constant extents; heavy rows by every storage method."""
    text = SOFTMAX.replace("K", layout)
    size = (30, 200, 8, 8)
    E, given = relation(*size[:2], torch.float32), operands(size, torch.float32)
    constants = {"h": 8, "f": 8}
    with options.override(vector_bytes=32, **QUICK):
        kernel = evaluate_kernel(text, E=E, sizes=constants, **given)
        assert "order S: i, p, h" in str(kernel.generated[0].stages.schedule)
        torch.testing.assert_close(
            sparsify.evaluate(text, E=E, sizes=constants, **given), softmax(E, **given)
        )
        size = (3, 700, 2, 16)
        E, given = relation(*size[:2], torch.float64), operands(size, torch.float64)
        program = evaluate_kernel(text, E=E, **given).program
        found = joined_rows(program, sizes_of(program, [{"E": E, **given}[name] for name in program.inputs]))
        assert found is not None and {way.name for way, _ in found.ways} >= {"strip", "recomputed"}
        for way, _ in found.ways:
            result = sparsify.evaluate(text, E=E, schedule=str(way.schedule), **given)
            torch.testing.assert_close(result, softmax(E, **given))
