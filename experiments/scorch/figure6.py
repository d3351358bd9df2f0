"""Figure 6: autoencoders on MNIST, CIFAR-10, CIFAR-100 and faces; times include the conversion of the batch to CSR.

In: a `Setting`. Out: the figure: sparsify, torch's CSR product and torch's dense layers, each with its reconstruction
loss. Settings as in appendix E.3 (table 2). Olivetti faces replace CelebA, whose terms forbid redistribution.
"""

import copy
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

import sparsify
from sparsify.bench.harness import Case, Contender
from sparsify.models.autoencoder import Autoencoder

from ..reproduce.figure import OURS, Figure, Outcome, Row, Setting, timed
from .pictures import rows_of

HIDDEN, LR, BATCH, EPOCHS = 256, 0.01, 64, 10  # table 2
TEST_ROWS: Final = 1000
QUICK_ROWS: Final = 1024
TORCH, DENSE = "torch CSR", "torch dense"
RECIPE: Final = {
    "schema": 1,
    "name": "autoencoder-csr",
    "sparsify": [
        {
            "id": "batch",
            "targets": ["input:*.values"],
            "role": "activation",
            "source": "given",
            "format": "csr",
        }
    ],
}
FILES: Final = {
    "mnist": ("MNIST/raw/*.gz",),
    "cifar10": ("cifar-10-batches-py/*_batch*",),
    "cifar100": ("cifar-100-python/t*",),
    "faces": ("olivetti_faces/*/*/*.png",),
}
DATA: Final = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10, grey",
    "cifar100": "CIFAR-100, grey",
    "faces": "Olivetti faces in the place of CelebA",
}


def train(model: Autoencoder, rows: Tensor, epochs: int, seed: int) -> None:
    """Trains with Adam on the mean squared error; the model ends in evaluation mode."""
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    for _ in range(epochs):
        for batch in rows[torch.randperm(len(rows), generator=draw)].split(BATCH):
            optimizer.zero_grad()
            loss = F.mse_loss(model(batch), batch)
            loss.backward()
            optimizer.step()
    model.eval()


def measure(name: str, setting: Setting) -> Outcome:
    """Times and losses on one data set."""
    train_rows, test = rows_of(name, setting.root)
    test = test[:TEST_ROWS].contiguous()
    epochs = 1 if setting.quick else EPOCHS
    model = Autoencoder(test.shape[1], HIDDEN)
    train(model, train_rows[:QUICK_ROWS] if setting.quick else train_rows, epochs, setting.seed)
    model.requires_grad_(False)
    with torch.no_grad():
        sparse = sparsify.apply(model, RECIPE, (by_value(test),))
        parts: list[Any] = list(model)
        first, last = parts[0], parts[2]
        forward: dict[str, Callable[[], Tensor]] = {
            OURS: lambda: sparse(by_value(test)),
            TORCH: lambda: torch.sigmoid(last(F.relu(_by_torch(test, first.weight.T, first.bias)))),
            DENSE: lambda: model(test),
        }
        wide: Any = copy.deepcopy(model).double()
        expected = wide(test.double())
        calls = {who: partial(_with_loss, call, test) for who, call in forward.items()}
        case = Case(name, f"{len(test)} rows", name, [], [], lambda: expected, tolerance=1e-3)
        case.contenders += [Contender(who, call, who != OURS) for who, call in calls.items()]
        times = timed(case, setting)
        losses = {who: float(F.mse_loss(call(), test)) for who, call in forward.items()}
    density = float((test != 0).float().mean())
    facts = {"density": density, "loss": losses[OURS], "loss of torch": losses[DENSE]}
    note = (
        "quick: one epoch of 1024 images" if setting.quick else f"{len(train_rows)} images, {epochs} epochs"
    )
    return Outcome(times, {}, facts, note)


def by_value(rows: Tensor) -> sparsify.SparseTensor:
    """Rows in CSR without their zeros, by a kernel of two passes."""
    found: sparsify.SparseTensor = sparsify.evaluate("Y[i,j] = X[i,j]", X=rows, format="csr by value")
    return found


def _by_torch(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """First layer by torch's CSR product, with the conversion."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR layout a beta
        return torch.addmm(bias, rows.to_sparse_csr(), weight)


def _with_loss(call: Callable[[], Tensor], rows: Tensor) -> Tensor:
    """Reconstruction; the loss is computed too, because the paper's time includes it."""
    found = call()
    F.mse_loss(found, rows)
    return found


def rows(setting: Setting) -> Sequence[Row]:
    """Rows of the four data sets."""
    seconds = {"mnist": 90.0, "cifar10": 25.0, "cifar100": 25.0, "faces": 40.0}
    quick = dict.fromkeys(seconds, 15.0)
    expected = quick if setting.quick else seconds
    return [Row(name, DATA[name], partial(measure, name), FILES[name], expected[name]) for name in FILES]


FIGURE = Figure(
    "figure6",
    "autoencoder inference, conversion to CSR included",
    rows,
    TORCH,
    "1.42x to 5.78x of PyTorch's sparse layer, more on CIFAR-100 and CelebA.",
    facts=("density", "loss", "loss of torch"),
    why={
        DENSE: "so many pixels are not 0 that a dense product does less work than conversion and sparse product"
    },
)
