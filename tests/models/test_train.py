"""Training: seeded, stopped early, good enough."""

from dataclasses import replace

import pytest
import torch

from sparsify.models import data, inputs, registry, train
from sparsify.models.data.synthetic import synthetic
from sparsify.models.train import Settings


@pytest.fixture(scope="module")
def graph():
    return synthetic(nodes=300, edges=1500, features=60)


def trained(graph, settings, name="gcn", **arguments):
    entry = registry.find(name)
    model = entry.build(graph.x.shape[1], graph.classes, arguments, settings.seed)
    example = inputs.example_inputs(entry, graph)
    training = train.train(model, example, graph, settings)
    return model, example, training


def test_learns_the_classes(graph):
    model, example, training = trained(graph, Settings(epochs=60))
    assert not model.training
    assert train.accuracy(train.logits(model, example), graph.y, graph.test) > 0.6  # chance is a third
    assert training.val_accuracy > 0.6


def test_equal_seeds_give_equal_weights(graph):
    first, _, _ = trained(graph, Settings(epochs=5, seed=7))
    again, _, _ = trained(graph, Settings(epochs=5, seed=7))
    for one, other in zip(first.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_leaves_the_generator_of_torch_alone(graph):
    state = torch.get_rng_state()
    trained(graph, Settings(epochs=2))
    assert torch.equal(torch.get_rng_state(), state)


def test_stops_when_validation_no_longer_improves(graph):
    _, _, training = trained(graph, Settings(epochs=200, lr=0.0, patience=4))
    assert training.epochs == 5


def test_keeps_the_weights_of_the_best_validation(graph):
    """With a rate that ruins the model the kept weights are earlier ones."""
    model, example, training = trained(graph, Settings(epochs=30, lr=0.5, patience=30))
    assert train.accuracy(train.logits(model, example), graph.y, graph.val) == pytest.approx(
        training.val_accuracy
    )


def test_progress_goes_to_standard_error(graph, capsys):
    entry = registry.find("gcn")
    model = entry.build(60, 3, {})
    train.train(model, inputs.example_inputs(entry, graph), graph, Settings(epochs=2))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "training on synthetic, 2 epochs at most" in printed.err


@pytest.mark.parametrize(
    ("edges", "epochs"), [(train.MEDIUM_EDGES - 1, 200), (train.MEDIUM_EDGES, 100), (train.BIG_EDGES, 30)]
)
def test_larger_graphs_get_fewer_epochs_and_a_note(graph, edges, epochs):
    sized = replace(graph, edge_index=torch.zeros(2, edges, dtype=torch.int64))
    settings, note = train.settings_for(sized)
    assert settings.epochs == epochs
    assert (f"{epochs} epochs at most instead of 200" in note) == (epochs < 200)


@pytest.mark.sampled(2)
@pytest.mark.model
def test_gcn_learns_the_synthetic_graph():
    graph = data.load("synthetic")
    settings, _ = train.settings_for(graph)
    quick = replace(settings, epochs=20, lr=0.05)
    model, example, _ = trained(graph, quick, hidden=16, dropout=0.0)
    assert 0.75 <= train.accuracy(train.logits(model, example), graph.y, graph.test) <= 0.95
