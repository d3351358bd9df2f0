"""The algorithms of Scorch compared with ours: loop orders, workspaces, tiles and formats of its examples.

The reference functions are the algorithms of the paper, which ignore sizes; its cost function, described only by
an example, is interpreted as lost filters, dimensions of the workspace, transposes, and a large penalty for loops that
no operand connects. If our choice differs, it has to cost less.

Source: Yan et al., Scorch: A Library for Sparse Deep Learning, 2024, Algorithms 1, 3 and 4, Figures 3 and 4.
"""

from itertools import permutations

import pytest
import torch

import sparsify
from sparsify.compiler.pipeline import compile_stages
from sparsify.compiler.plan.plan import Step, steps
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.cost.iterations import Nest
from sparsify.compiler.schedule.cost.loop_order import best_order, described, may_follow
from tests.compiler.schedule.nests import nest, program_of, random

KERNELS = {
    "SpMM": ("ij,jk->ik", "csr", "dense"),
    "SDDMM": ("ij,ik,jk->ij", "csr", "dense", "dense"),
    "SpGEMM": ("ij,jk->ik", "csr", "csr"),
    "SpGEMM, columns": ("ij,jk->ik", "csc", "csc"),
    "SpGEMM, lists": ("ij,jk->ik", "coo", "coo"),
    "masked": ("ij,ik,kj->ij", "csr", "csr", "csr"),
    "triangles": ("ij,jk,ik->", "csr", "csr", "csr"),
    "dense times sparse": ("ij,jk->ik", "dense", "csr"),
}


def operands(*formats: str, density: float = 0.02) -> list[torch.Tensor]:
    dense = torch.ones(300, 300, dtype=torch.float64)
    return [dense if f == "dense" else random((300, 300), density, f, n) for n, f in enumerate(formats)]


def made(name: str) -> Nest:
    subscripts, *formats = KERNELS[name]
    return nest(subscripts, *operands(*formats), format=None if "columns" not in name else "csc")


def filters(kernel: Nest, name: str) -> int:
    """Number of operand pairs that share a variable, one of them at a sparse level: the sort key of Algorithm 1."""
    bit = kernel.bit(name)
    inputs = [factor for factor in kernel.factors if factor.mask & bit]
    sparse = [factor for factor in inputs if not factor.is_dense[factor.order.index(bit)]]
    dense = [mask for mask, _ in kernel.reads if mask & bit and mask != kernel.target]
    return len(sparse) * (len(inputs) + len(dense) - 1)


def net_cost(kernel: Nest, order: tuple[str, ...]) -> float:
    """Lost filters, dimensions of the workspace, transposes, and loops unconnected to the loops around them."""
    bits = [kernel.bit(name) for name in order]
    cost, outer = 0.0, 0
    for place, bit in enumerate(bits):
        connected = not outer or any(f.mask & bit and f.mask & outer for f in kernel.factors)
        is_dense = not any(f.mask & bit for f in kernel.factors)
        cost += 0 if connected or is_dense else 100
        cost += 0.5 * place * bool(filters(kernel, order[place]))
        outer |= bit
    sums = [n for n, bit in enumerate(bits) if not bit & kernel.target]
    scattered = [n for n, bit in enumerate(bits) if bit & kernel.target and sums and n > sums[0]]
    cost += len(scattered) if kernel.levels else 0
    places = {bit: n for n, bit in enumerate(bits)}
    turned = sum([places[b] for b in f.order] != sorted(places[b] for b in f.order) for f in kernel.factors)
    levels = [places[bit] for bit in kernel.levels]
    return cost + turned + (levels != sorted(levels))


def initial_order(kernel: Nest) -> tuple[str, ...]:
    """Lines 3 to 5: variables with more filters first, ties as few operands as possible are turned for."""
    ranked = sorted(
        permutations(kernel.variables),
        key=lambda names: ([-filters(kernel, name) for name in names], net_cost(kernel, names)),
    )
    return ranked[0]


def algorithm_1(kernel: Nest) -> tuple[str, ...]:
    """Lines 6 to 10: filters are pushed down the nest while that lowers the cost."""
    order = initial_order(kernel)
    for name in initial_order(kernel):
        for place in range(order.index(name) + 1, len(order)):
            rest = [n for n in order if n != name]
            moved = (*rest[:place], name, *rest[place:])
            if net_cost(kernel, moved) < net_cost(kernel, order):
                order = moved
    return order


def algorithm_3(kernel: Nest, order: tuple[str, ...]) -> set[str]:
    """Loops to tile: some access lacks the variable, all operands are dense in it, and no sparse loop is inside."""
    masks = [f.mask for f in kernel.factors] + [mask for mask, _ in kernel.reads]
    reused = {n for n in order if any(mask & kernel.bit(n) and mask != kernel.full for mask in masks)}
    sparse = {
        name
        for name in order
        for f in kernel.factors
        if f.mask & kernel.bit(name) and not f.is_dense[f.order.index(kernel.bit(name))]
    }
    last = max((order.index(name) for name in sparse), default=-1)
    return {name for name in reused - sparse if order.index(name) > last}


def test_figure_3_gustavson() -> None:
    kernel = made("SpGEMM")
    assert initial_order(kernel) == ("j", "i", "k")
    assert algorithm_1(kernel) == ("i", "j", "k")
    ours = best_order(kernel)
    assert ours is not None and ours.names == ("i", "j", "k") and ours.workspace and not ours.turned


@pytest.mark.parametrize("name", KERNELS)
def test_orders_are_those_of_algorithm_1_or_cheaper(name: str) -> None:
    kernel = made(name)
    ours, theirs = best_order(kernel), algorithm_1(kernel)
    assert ours is not None
    if ours.names == theirs:
        return
    bits = tuple(kernel.bit(n) for n in theirs)
    costs = [described(kernel, bits, w).cost for w in (True, False) if is_legal(kernel, bits, w)]
    assert not costs or ours.cost <= min(costs)


@pytest.mark.parametrize("name", ["SpMM", "SDDMM", "SpGEMM", "triangles"])
def test_orders_of_the_papers_kernels_are_the_same(name: str) -> None:
    ours = best_order(made(name))
    assert ours is not None and ours.names == algorithm_1(made(name)) == ("i", "j", "k")


def is_legal(kernel: Nest, order: tuple[int, ...], workspace: bool) -> bool:
    outer = 0
    for bit in order:
        if not may_follow(kernel, outer, bit, workspace):
            return False
        outer |= bit
    return True


def schedule(subscripts: str, *given: torch.Tensor) -> d.Schedule:
    program, sizes = program_of(subscripts, *given)
    (step,) = steps(program, sizes)
    assert isinstance(step, Step)
    return compile_stages(step, None, 32, sizes=sizes).schedule


@pytest.mark.parametrize("name, tiled", [("SpMM", {"k"}), ("SDDMM", {"k"}), ("SpGEMM", set())])
def test_figure_4_tiles(name: str, tiled: set[str]) -> None:
    subscripts, *formats = KERNELS[name]
    assert algorithm_3(made(name), ("i", "j", "k")) == tiled
    splits = [x for x in schedule(subscripts, *operands(*formats)).directives if isinstance(x, d.Split)]
    assert {split.index for split in splits} & {"i", "j", "k"} == tiled


@pytest.mark.parametrize(
    "name, workspace",
    [("SpGEMM", "row_Y = Y at i in thread"), ("SpMM", "in register"), ("SDDMM", "in register")],
)
def test_workspaces_are_rows_where_sums_scatter_and_registers_else(name: str, workspace: str) -> None:
    subscripts, *formats = KERNELS[name]
    assert workspace in str(schedule(subscripts, *operands(*formats)))


@pytest.mark.parametrize(
    "text, formats, expected",
    [
        # appendix D.3, A and B by row, C by compressed row
        ("D[i,j] = sum(k, A[i,k] * B[k,j]) + C[i,j]", {"A": "csr", "B": "csr", "C": "dcsr"}, "dense, compressed"),
        ("D[i,k] = sum(j, A[i,j] * B[j,k])", {"A": "csr", "B": "csr"}, "dense, compressed"),
        ("D[i,k] = sum(j, A[i,j] * B[j,k])", {"A": "dcsr", "B": "csr"}, "compressed, compressed"),
        ("D[i,k] = sum(j, A[i,j] * B[j,k])", {"A": "csr", "B": "dense, dense"}, None),
        ("D[i,j] = A[i,j] * sum(k, B[i,k] * C[k,j])",
         {"A": "csr", "B": "dense, dense", "C": "dense, dense"}, "dense, compressed"),
        ("D[i,j] = A[i,j] + B[i,j]", {"A": "csr", "B": "dense, dense"}, None),
        ("D[i,j] = A[i,j] + B[i,j]", {"A": "dcsr", "B": "csr"}, "dense, compressed"),
        ("D[i,j] = A[i,j] + B[i,j]", {"A": "dcsr", "B": "dcsr"}, "compressed, compressed"),
        ("D[i,j] = A[i,j] * B[i,j]", {"A": "dcsr", "B": "csr"}, "compressed, compressed"),
        ("D[i] = A[i] * B[i]", {"A": "compressed", "B": "compressed"}, "compressed"),
        ("D[i] = A[i] + B[i]", {"A": "compressed", "B": "dense"}, None),
    ],
)  # fmt: skip
def test_formats_are_those_of_algorithm_4(text: str, formats: dict[str, str], expected: str | None) -> None:
    given = {}
    for number, (name, form) in enumerate(formats.items()):
        shape = (30,) * (2 if "," in form or "cs" in form else 1)
        is_dense = "compressed" not in form and "cs" not in form
        given[name] = torch.ones(shape) if is_dense else random(shape, 0.1, form, number).to(torch.float32)
    found = sparsify.evaluate(text, **given)
    if expected is None:
        assert not isinstance(found, sparsify.SparseTensor)
    else:
        assert found.format == sparsify.Format(expected)
