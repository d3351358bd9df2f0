"""Conversion of edges to a matrix, compiled and by torch, compared with manual sorting."""

import pytest
import torch

import sparsify
from sparsify.compiler.arrays import sort_edges as module
from sparsify.compiler.arrays.sort_edges import SortedEdges, sort_edges, turn
from sparsify.options import override

# Edges, rows and columns: none, few, many of the same, rows of all lengths, one long row, more rows than edges.
KINDS = [(0, 3, 4), (1, 1, 1), (60, 5, 4), (900, 40, 60), (5000, 3, 9000), (40, 9000, 7), (70_000, 300, 5000)]


def drawn(edges: int, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    seeded = torch.Generator().manual_seed(edges)
    return tuple(torch.randint(0, extent, (edges,), generator=seeded) for extent in (height, width))


@pytest.fixture(params=["compiled", "by torch", "on many threads"])
def way(request, monkeypatch):
    """Implementation of the sort."""
    if request.param == "by torch":
        monkeypatch.setattr(module, "_function", lambda symbol: None)
    elif module._function("sparsify_sort_edges") is None:
        pytest.skip("nothing can be compiled here")
    if request.param == "on many threads":
        monkeypatch.setattr(module, "LEAST_PARALLEL", 0)
    with override(threads=3):
        yield request.param


def check(found: SortedEdges, rows: torch.Tensor, columns: torch.Tensor, shape: tuple[int, int]) -> None:
    """Checks that slots ascend, and that each edge is in the slot of its coordinates."""
    assert found.pos.dtype == found.crd.dtype == torch.int32
    lengths = found.pos.diff()
    assert (
        found.pos[0] == 0
        and found.pos[-1] == len(found.crd)
        and found.longest == max(lengths.tolist(), default=0)
    )
    own = torch.arange(shape[0]).repeat_interleave(lengths)
    keys = own * shape[1] + found.crd
    assert bool((keys[1:] > keys[:-1]).all())
    given = rows * shape[1] + columns
    if found.others is not None:
        assert len(keys) < len(given) == len(found.edges) + len(found.others) == len(keys) + len(found.shared)
        assert torch.equal(given[found.edges], keys) and torch.equal(given[found.others], keys[found.shared])
        # The first edge of a slot is the one with the least number.
        assert bool((found.others > found.edges[found.shared]).all())
    else:
        edges = torch.arange(len(given)) if found.edges is None else found.edges
        assert torch.equal(given[edges], keys)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("order", ["any", "ascending", "once", "by column"])
def test_edges_are_sorted(way: str, kind: tuple[int, int, int], order: str) -> None:
    edges, *shape = kind
    rows, columns = drawn(edges, *shape)
    key = rows * shape[1] + columns
    if order == "ascending":
        key = key.unique()
    elif order == "once":
        key = key.unique().flip(0)
    elif order == "by column":
        key = key[torch.argsort(columns, stable=True)]
    rows, columns = key // shape[1], key % shape[1]
    found = sort_edges(rows, columns, shape)
    check(found, rows, columns, shape)
    if order == "ascending":
        assert found.edges is None and found.others is None


@pytest.mark.parametrize("kind", [*KINDS, (9000, 320, 5000), (9000, 600, 5000), (9000, 1100, 20)], ids=str)
@pytest.mark.parametrize("order", ["any", "once"])
def test_edges_without_values_have_the_same_slots(way: str, kind: tuple[int, int, int], order: str) -> None:
    edges, *shape = kind
    rows, columns = drawn(edges, *shape)
    if order == "once":
        key = (rows * shape[1] + columns).unique().flip(0)
        rows, columns = key // shape[1], key % shape[1]
    told = sort_edges(rows, columns, shape)
    check(told, rows, columns, shape)
    found = sort_edges(rows, columns, shape, are_told=False)
    assert torch.equal(found.pos, told.pos) and torch.equal(found.crd, told.crd)
    assert found.longest == told.longest and (found.joined is None) == (told.others is None)
    if found.joined is not None:
        assert torch.equal(found.joined, 1 + torch.bincount(told.shared, minlength=len(found.crd)).int())


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("is_sorted", [False, True])
def test_numbered_edges_keep_their_order(way: str, kind: tuple[int, int, int], is_sorted: bool) -> None:
    edges, *shape = kind
    rows, columns = drawn(edges, *shape)
    rows = rows.sort().values if is_sorted else rows
    found = sort_edges(rows, columns, shape, is_numbered=True)
    order = torch.argsort(rows, stable=True)
    assert torch.equal(torch.arange(edges) if found.edges is None else found.edges, order)
    assert (found.edges is None) or not is_sorted
    assert torch.equal(found.crd, columns[order].int())
    assert torch.equal(found.pos.diff(), torch.bincount(rows, minlength=shape[0]).int())


@pytest.mark.parametrize(("row", "column"), [(40, 0), (-1, 3), (2, 60), (5, -(2**40)), (2**50, 0)])
def test_an_edge_outside_is_named(way: str, row: int, column: int) -> None:
    rows, columns = drawn(900, 40, 60)
    rows[617], columns[617] = row, column
    rows[800] = 99
    assert sort_edges(rows, columns, (40, 60)).outside == 617


def test_edges_that_do_not_lie_side_by_side(way: str) -> None:
    pairs = torch.stack(drawn(900, 40, 60), 1)
    check(sort_edges(pairs[:, 0], pairs[:, 1], (40, 60)), pairs[:, 0], pairs[:, 1], (40, 60))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind[0]], ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_matrices_are_turned(
    monkeypatch: pytest.MonkeyPatch, kind: tuple[int, int, int], threads: int
) -> None:
    monkeypatch.setattr(module, "LEAST_PARALLEL", 0)
    edges, *shape = kind
    found = sort_edges(*drawn(edges, *shape), shape)
    with override(threads=threads):
        made = turn(found.pos, found.crd, shape[1])
    if made is None:
        pytest.skip("nothing can be compiled here")
    rows = torch.arange(shape[0]).repeat_interleave(found.pos.diff())
    order = torch.argsort(found.crd, stable=True)
    assert torch.equal(made[2], order)
    assert torch.equal(made[1], rows[order].int())
    assert torch.equal(made[0].diff(), torch.bincount(found.crd, minlength=shape[1]).int())


@pytest.mark.parametrize(("here", "there"), [("csr", "csc"), ("csc", "csr")])
def test_conversions_turn_and_turn_back(here: str, there: str) -> None:
    dense = torch.rand(30, 50) * (torch.rand(30, 50) < 0.3)
    given = sparsify.tensor(dense, here)
    turned = given.to(format=there)
    assert torch.equal(turned.to_dense(), dense)
    assert turned.pattern.validated().converted(given.format)[0] is given.pattern
    assert torch.equal(turned.to(format=here).values(), given.values())


def test_the_default_device_is_not_that_of_the_arrays(way: str) -> None:
    rows, columns = drawn(900, 40, 60)
    with torch.device("meta"):
        found = sort_edges(rows, columns, (40, 60))
    check(found, rows, columns, (40, 60))


def test_rows_and_columns_are_of_the_same_edges(way: str) -> None:
    with pytest.raises(AssertionError, match="a row and a column"):
        sort_edges(torch.arange(4), torch.arange(8)[:3], (4, 1000))


def test_threads_count_no_more_rows_than_there_are_edges() -> None:
    with override(threads=8):
        assert module._threads(1 << 16, 100) == 8
        assert module._threads(1 << 16, 1 << 17) == 2
        assert module._threads(1 << 16, 1 << 30) == 1
