"""Intersections: correct for any number of operands, with few coordinate reads if one list is much longer."""

from itertools import product

import pytest
import torch

import sparsify
from sparsify.compiler.einsum.declare import declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.loops import nodes
from sparsify.compiler.loops.interpret import Machine
from sparsify.compiler.loops.nodes import Load
from sparsify.compiler.operands.operand_types import describe
from sparsify.compiler.pipeline import compile_stages
from sparsify.compiler.plan.plan import Step, steps
from sparsify.compiler.schedule.sizes import sizes_of
from tests.sampling import sampled


def vector(*coordinates: int, extent: int = 5000) -> sparsify.SparseTensor:
    at = torch.tensor(coordinates, dtype=torch.int64)
    return sparsify.tensor((at[None], torch.arange(1.0, len(at) + 1), (extent,)), "compressed")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("count, format", sampled(product((2, 3, 4, 5, 6), ("csr", "dcsr", "coo", "csc")), 3))
def test_any_number_of_operands(count: int, format: str) -> None:
    seeded = torch.Generator().manual_seed(count)
    dense = [torch.randn(30, 40, generator=seeded, dtype=torch.float64) for _ in range(count)]
    densities = (0.9, 0.2, 0.7, 0.5, 0.95, 0.3)
    for part, density in zip(dense, densities, strict=False):
        part *= torch.rand(30, 40, generator=seeded) < density
    text = ",".join(["ij"] * count)
    for target in ("i", "ij", ""):
        found = sparsify.einsum(f"{text}->{target}", *(sparsify.tensor(part, format) for part in dense))
        wanted = torch.einsum(f"{text}->{target}", *dense)
        is_sparse = isinstance(found, sparsify.SparseTensor)
        torch.testing.assert_close(found.to_dense() if is_sparse else found, wanted)


@pytest.mark.parametrize(
    "first, second",
    [((), (3, 4)), ((0,), (0,)), ((4999,), (0, 4999)), ((1, 2, 3), (4, 5, 6)), ((7,), tuple(range(5000)))],
)
def test_ends_of_lists(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = vector(*first), vector(*second)
    for x, y in ((a, b), (b, a)):
        torch.testing.assert_close(sparsify.einsum("i,i->", x, y), x.to_dense() @ y.to_dense())


def looks(
    text: str, expected: torch.Tensor, monkeypatch: pytest.MonkeyPatch, **vectors: sparsify.SparseTensor
) -> int:
    """Number of coordinate reads of a statement that computes Y from sparse vectors."""
    program = declare(parse(text), {name: describe(operand) for name, operand in vectors.items()})
    sizes = sizes_of(program, [vectors[name] for name in program.inputs])
    (step,) = steps(program, sizes)
    assert isinstance(step, Step)
    function = compile_stages(step, None, 0, sizes=sizes).loops
    count = 0
    read = Machine._read

    def counted(machine: Machine, expr: nodes.Expr, *rest: object) -> object:
        nonlocal count
        count += isinstance(expr, Load) and expr.buffer.endswith("_crd")
        return read(machine, expr, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Machine, "_read", counted)
    arrays = {"Y_vals": torch.zeros(expected.shape).numpy()}
    for name, operand in vectors.items():
        arrays[f"{name}1_pos"], arrays[f"{name}1_crd"] = (
            array[0].numpy()
            for array in (operand.pattern.pos, operand.pattern.crd)  # type: ignore[union-attr]
        )
        arrays[f"{name}_vals"] = operand.values().numpy()
    known = {"i_extent": 5000, "serial_threshold": 0}
    known |= {f"{name}_nnz": operand.nnz for name, operand in vectors.items()}
    Machine(function, arrays, 1).run(
        function.body, {n: torch.tensor([known[n]]).numpy() for n in function.sizes}
    )
    torch.testing.assert_close(torch.from_numpy(arrays["Y_vals"]), expected)
    return count


def test_long_lists_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    long, short = vector(*range(0, 5000, 2)), vector(*range(100, 5000, 700))
    expected = (long.to_dense() @ short.to_dense())[None]
    assert looks("Y = A[i] * B[i]", expected, monkeypatch, A=long, B=short) < 7 * 40 < long.nnz / 8


@pytest.mark.parametrize(
    ("text", "names", "most"),
    [
        ("Y[i] = where(stored(A[i]), B[i], 0)", "B", 50),
        ("Y[i] = where(stored(A[i]), B[i] * C[i], 0)", "BC", 80),
    ],
)
def test_long_lists_that_are_nothing_alone_are_searched(
    text: str, names: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All entries of a known pattern are written; the long lists are searched instead of walked."""
    short = vector(*range(100, 5000, 700))
    long = {name: vector(*range(n, 5000, 2 + n)) for n, name in enumerate(names)}
    dense = {name: operand.to_dense()[short.coordinates()[0]] for name, operand in long.items()}
    expected = torch.stack(list(dense.values())).prod(0)
    assert looks(text, expected, monkeypatch, A=short, **long) < 7 * most < long["B"].nnz / 4
