"""Autoencoders with sparse batches and sparse weights, and embeddings of bags, against torch's own.

In: `autoencoder(784, place)`. Out: a `Case` whose results are checked against float64.
"""

import copy
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

import sparsify
from sparsify.bench.harness import Case, Contender, Target
from sparsify.bench.place import Place
from sparsify.bench.products import row, scaled
from sparsify.models.autoencoder import Autoencoder
from sparsify.passes.rules.prune import prune
from sparsify.runner.peers.installed import Call

# Batch size of Scorch; density of the batch, as in images of digits; sparsity of weights.
BATCH: Final = 64
DENSITY: Final = 0.19
SPARSITY: Final = 0.9
HIDDEN: Final = 1024
EXAMPLES: Final = 2048
LOOKUPS: Final = 20
ROWS: Final = 100000
COLUMNS: Final = 64
BAGS: Final[Mapping[str, Any]] = {
    "schema": 1,
    "name": "bags",
    "sparsify": [{"targets": ["op:embedding_bag"], "source": "given"}],
}


def autoencoder(features: int, place: Place) -> Case:
    """Autoencoder on a mostly zero batch: with pruned weights, and with the batch as a sparse matrix.

    Source: Scorch, section 5.2; its images have 784 (MNIST), 3072 (CIFAR) and 4096 features (CelebA).
    """
    columns, hidden = scaled(features, place), scaled(HIDDEN, place)
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(BATCH, columns, generator=draws) * (torch.rand(BATCH, columns, generator=draws) < DENSITY)
    torch.manual_seed(0)
    recipe = sparsify.Recipe.model_validate(
        {
            "schema": 1,
            "name": "autoencoder",
            "sparsify": [
                {"targets": ["input:*.values"], "format": "csr", "optional": True},
                {"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": SPARSITY}},
            ],
        }
    )
    model = prune(Autoencoder(columns, hidden), recipe).eval()
    encoder, decoder = (layer for layer in model.modules() if isinstance(layer, nn.Linear))
    case = row(
        f"autoencoder-{features}",
        f"{BATCH} rows of {columns} features, {DENSITY:.0%} not 0, {hidden} units, {SPARSITY:.0%} zeros in weights",
        lambda: _without_gradients(copy.deepcopy(model).double(), x.double())(),
    )
    batch, csr = sparsify.tensor(x, format="csr"), _csr(x)
    weights = [_csr(layer.weight.detach()) for layer in (encoder, decoder)]
    apply = partial(sparsify.apply, model, recipe, trainable=False, verify=False)
    by_weights = case.prepare("apply", lambda: apply(x))
    by_batch = case.prepare("apply to batches", lambda: apply(batch))

    def torch_sparse(first: Tensor) -> Tensor:
        """Both layers by torch's product of CSR with dense matrices; the batch is CSR."""
        h = torch.relu(torch.addmm(encoder.bias, first, encoder.weight.T))
        return torch.sigmoid(torch.addmm(decoder.bias[:, None], weights[1], h.T).T)

    def torch_weights() -> Tensor:
        """Both layers by torch's CSR weights."""
        h = torch.relu(torch.addmm(encoder.bias[:, None], weights[0], x.T))
        return torch.sigmoid(torch.addmm(decoder.bias[:, None], weights[1], h).T)

    case.contenders += [
        Contender("sparsify", _without_gradients(by_weights, x), baseline=False),
        Contender("sparsify, sparse batch", _without_gradients(by_batch, batch), baseline=False),
        Contender("torch dense", _without_gradients(model, x)),
        Contender("torch CSR weights", _without_gradients(torch_weights)),
        Contender("torch CSR batch", _without_gradients(torch_sparse, csr)),
    ]
    theirs = ("torch CSR weights", "torch CSR batch")
    case.targets = [
        Target("sparsify", ("torch dense",), None, "torch dense"),
        Target("sparsify", theirs, None, "torch's CSR"),
        Target("sparsify, sparse batch", ("torch CSR batch",), None, "torch's CSR batch"),
    ]
    return case


def bags(mode: str, place: Place, *, is_step: bool = False) -> Case:
    """Embedding bags over a large table with new indices in every call; with `is_step` the gradient of the table."""
    rows, examples = scaled(ROWS, place), scaled(EXAMPLES, place)
    draws = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    table = nn.EmbeddingBag(rows, COLUMNS, mode=mode).train(is_step)
    indices = torch.randint(0, rows, (examples, LOOKUPS), generator=draws)
    case = row(
        f"bags-{mode}{'-step' if is_step else ''}",
        f"{examples} bags of {LOOKUPS} rows of {COLUMNS} columns, {rows} rows in the table",
        lambda: (_step if is_step else _without_gradients)(copy.deepcopy(table).double(), indices)(),
    )
    sparse = case.prepare("apply", lambda: sparsify.apply(table, dict(BAGS), indices, verify=False))
    calls = [_step(m, indices) if is_step else _without_gradients(m, indices) for m in (sparse, table)]

    def renew() -> None:
        """Invalidates caches keyed by the index array, by writing to it in place."""
        indices.copy_(indices)

    case.contenders += [
        Contender("sparsify", calls[0], baseline=False, before=renew),
        Contender("torch", calls[1]),
    ]
    case.targets = [Target("sparsify", ("torch",), None, "torch")]
    return case


def _step(model: nn.Module, indices: Tensor) -> Call:
    """Call for the gradients of a model's parameters."""

    def call() -> Tensor:
        found = model(indices)
        gradient: Tensor = torch.autograd.grad(found, list(model.parameters()), found.detach())[0]
        return gradient

    return call


def _without_gradients(model: Callable[..., Tensor], *inputs: Any) -> Call:
    """Call of a model or function under `no_grad`."""

    def call() -> Tensor:
        with torch.no_grad():
            return model(*inputs)

    return call


def _csr(matrix: Tensor) -> Tensor:
    """Matrix in torch's CSR layout."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR layout a beta
        return matrix.to_sparse_csr()
