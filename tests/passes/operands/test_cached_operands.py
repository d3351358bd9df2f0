"""Edges to patterns: order, duplicates, formats, and errors."""

import pytest
import torch

from sparsify.errors import InvalidTensorError
from sparsify.passes.operands.alignment import align_edges
from sparsify.storage.format import Format
from sparsify.storage.tensor import SparseTensor


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("edges", [0, 1, 40])
def test_values_land_at_their_coordinates(form, edges):
    generator = torch.Generator().manual_seed(edges)
    rows = torch.randint(0, 9, (edges,), generator=generator)
    columns = torch.randint(0, 6, (edges,), generator=generator)
    values = torch.rand(edges, generator=generator, dtype=torch.float64)
    aligned = align_edges(rows, columns, (9, 6), Format(form))
    expected = torch.zeros(9, 6, dtype=torch.float64).index_put((rows, columns), values, accumulate=True)
    matrix = SparseTensor(aligned.pattern, aligned.values(values))
    assert matrix.format == Format(form)
    assert torch.allclose(matrix.to_dense(), expected)
    assert aligned.pattern.nnz == len({(int(r), int(c)) for r, c in zip(rows, columns, strict=True)})


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("edges", [0, 1, 40, 400])
def test_edges_without_values_count(form, edges):
    generator = torch.Generator().manual_seed(edges)
    rows = torch.randint(0, 9, (edges,), generator=generator)
    columns = torch.randint(0, 6, (edges,), generator=generator)
    aligned = align_edges(rows, columns, (9, 6), Format(form), has_values=False)
    ones = torch.ones(edges, dtype=torch.float64)
    expected = torch.zeros(9, 6, dtype=torch.float64).index_put((rows, columns), ones, accumulate=True)
    matrix = SparseTensor(aligned.pattern, aligned.ones(edges, torch.float64, torch.device("cpu")))
    assert torch.equal(matrix.to_dense(), expected)


def test_values_pass_gradients_on_to_every_duplicate():
    rows, columns = torch.tensor([1, 0, 1]), torch.tensor([0, 1, 0])
    aligned = align_edges(rows, columns, (2, 2), Format("csr"))
    values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    stored = aligned.values(values)
    assert stored.tolist() == [2.0, 4.0]
    stored.square().sum().backward()
    assert values.grad.tolist() == [8.0, 4.0, 8.0]


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [([0, 5], [0, 0], "edge 1 has row 5, the matrix has 3"), ([0], [-1], "edge 0 has column -1")],
)
def test_edges_outside_of_the_matrix(rows, columns, words):
    with pytest.raises(InvalidTensorError, match=words):
        align_edges(torch.tensor(rows), torch.tensor(columns), (3, 4), Format("csr"))
