"""Training over sampled neighbourhoods: equal samples give equal losses, and later batches capture nothing."""

from dataclasses import replace

import pytest
import torch

from experiments.mini_batches import MODELS, STUDIES, losses
from sparsify.models.data.synthetic import synthetic


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_losses_of_twenty_epochs_are_those_of_the_dense_model(name: str) -> None:
    graph = synthetic(nodes=400, edges=2_000, features=32)
    study = replace(STUDIES["cora"], batch_size=-(-len(graph.train) // 4))
    found = losses(name, graph, study, 20, torch.float64)
    assert len(found.pairs) == 80
    assert found.regions >= 2
    assert found.late_captures == 0
    assert found.pairs[-1][0] < found.pairs[0][0]
    assert found.difference < 1e-6
