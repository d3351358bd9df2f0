"""Einsums of two or three operands by the letters of their modes."""

import pytest
import torch
from torch import fx

from sparsify.passes.graph.einsum_nodes import einsum_of

SHAPES = {"x": (2, 3, 4), "y": (2, 4, 5), "w": (4, 5), "v": (4,)}


def einsum(text: str, *names: str) -> fx.Node:
    graph = fx.Graph()
    nodes = [graph.placeholder(name) for name in names]
    for node, name in zip(nodes, names, strict=True):
        node.meta["val"] = torch.zeros(SHAPES[name])
    return graph.call_function(torch.ops.aten.einsum.default, (text, nodes))


@pytest.mark.parametrize(
    ("text", "names", "letters", "output"),
    [
        ("bij, bjk -> bik", "xy", ["bij", "bjk"], "bik"),
        ("bij,bjk", "xy", ["bij", "bjk"], "ik"),
        ("...j,jk->...k", "xw", ["ABj", "jk"], "ABk"),
        ("...ij,...jk", "xy", ["Aij", "Ajk"], "Aik"),
        ("Aij,...k->...Aijk", "xv", ["Aij", "k"], "Aijk"),
        ("bij,jk,j->bk", "xwv", ["bij", "jk", "j"], "bk"),
    ],
)
def test_letters_are_those_of_modes(text, names, letters, output):
    node = einsum(text, *names)
    found = einsum_of(node)
    assert found is not None
    assert [at for _, at in found.operands] == letters and found.output == output
    given = [torch.rand(SHAPES[name]) for name in names]
    torch.testing.assert_close(
        torch.einsum(f"{','.join(letters)}->{output}", *given), torch.einsum(text, *given)
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("iij,jk->ik", "xw"),
        ("...j,...j->...", "xv"),
        ("i->i", "v"),
        ("i,j,k,l->ijkl", "vvvv"),
        ("ij,jk->ii", "ww"),
    ],
)
def test_others_are_no_products(text, names):
    assert einsum_of(einsum(text, *names)) is None
