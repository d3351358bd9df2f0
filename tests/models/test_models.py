"""The dense models: shapes, and that two ways to write a graph convolution agree."""

from dataclasses import replace

import pytest
import torch

from sparsify.models import by_hand, inputs, registry, train
from sparsify.models.data.synthetic import synthetic
from sparsify.models.registry import MODELS

GRAPHS = [name for name, entry in MODELS.items() if entry.is_graph]


@pytest.fixture(scope="module")
def graph():
    return synthetic(nodes=300, edges=1200, features=40)


@pytest.mark.parametrize("name", GRAPHS)
def test_gives_logits_for_every_node(graph, name):
    entry = registry.find(name)
    model = entry.build(40, 3, {"hidden": 8}).eval()
    assert model(*inputs.example_inputs(entry, graph)).shape == (300, 3)


@pytest.mark.parametrize("name", GRAPHS)
def test_matrix_for_training_gives_the_same_sums(graph, name, monkeypatch):
    entry = registry.find(name)
    model = entry.build(40, 3, {"hidden": 8})
    expected = train.logits(model, inputs.example_inputs(entry, graph))
    monkeypatch.setattr(inputs, "BIG_EDGES", 1000)
    found = train.logits(model, inputs.training_inputs(entry, graph))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)  # float32, sums in another order


def test_matmul_form_equals_message_passing(graph):
    plain, by_matmul = registry.find("gcn"), registry.find("gcn-matmul")
    model, other = plain.build(40, 3, {"hidden": 8}), by_matmul.build(40, 3, {"hidden": 8})
    with torch.no_grad():
        for source, target in ((model.conv1, other.conv1), (model.conv2, other.conv2)):
            target.weight.copy_(source.lin.weight.T)
            target.bias.copy_(source.bias.normal_())
    expected = train.logits(model, inputs.example_inputs(plain, graph))
    found = train.logits(other, inputs.example_inputs(by_matmul, graph))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)  # float32, sums in another order


def test_matmul_form_takes_a_dense_adjacency(graph):
    entry = registry.find("gcn-matmul")
    model = entry.build(40, 3, {"hidden": 8})
    x, adj = inputs.example_inputs(entry, graph)
    torch.testing.assert_close(train.logits(model, (x, adj.to_dense())), train.logits(model, (x, adj)))


def test_normalised_adjacency_is_kipfs(graph):
    dense = torch.eye(300)
    dense[graph.edge_index[0], graph.edge_index[1]] = 1
    scale = dense.sum(dim=1).rsqrt()
    expected = scale[:, None] * dense * scale[None, :]
    torch.testing.assert_close(inputs.normalised_adjacency(graph).to_dense(), expected)


def test_seed_decides_the_weights_and_leaves_torch_alone():
    entry = registry.find("gcn")
    state = torch.get_rng_state()
    first, again, other = (entry.build(5, 2, {}, seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.conv1.lin.weight, again.conv1.lin.weight)
    assert not torch.equal(first.conv1.lin.weight, other.conv1.lin.weight)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("density", [0.0, 1.0], ids=["dense features", "CSR features"])
def test_torch_by_hand_gives_the_logits_of_the_model(graph, name, density, monkeypatch):
    monkeypatch.setattr(by_hand, "SPARSE_FEATURES", density)
    entry = registry.find(name)
    own = replace(graph, x=graph.x.double())
    model = entry.build(40, 3, {"hidden": 8}).double().eval()
    monkeypatch.setattr(by_hand, "csr", lambda r, c, v, n: inputs.csr(r, c, v.double(), n))
    monkeypatch.setattr(by_hand, "normalised_adjacency", lambda g: inputs.normalised_adjacency(g).double())
    expected = model(*(t.double() if t.is_floating_point() else t for t in inputs.example_inputs(entry, own)))
    written = entry.written_by_hand(model, own)
    assert written is not None
    with torch.no_grad():
        torch.testing.assert_close(written(), expected, rtol=1e-5, atol=1e-6)
