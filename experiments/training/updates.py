"""Overhead of RigL mask updates relative to the training time.

In: `row(90, place, asked=3.0, ...)`. Out: a row of the table: percent of the time of the steps between two updates.
"""

from typing import Any, Final

import torch
from torch import nn, optim

import sparsify
from experiments.training.steps import RATE, ROWS
from sparsify.bench.harness import Case, Clock, Contender, measure
from sparsify.bench.linear import COLUMNS, OUTPUTS
from sparsify.bench.place import Place
from sparsify.bench.products import scaled

EVERY: Final = 100
"""Steps from one update to the next."""


def row(zeros: int, place: Place, asked: float, *, quick: bool = False, clock: Clock) -> dict[str, Any]:
    """Row of two linear layers with an activation.

    The step after an update counts, too, because it builds the formats of the new masks.
    """
    loop = Loop(zeros, place)
    name = f"rigl-update-{zeros}"
    work = f"{loop.rows} rows, {loop.sizes[0]} -> {loop.sizes[1]} -> {loop.sizes[0]}"
    contenders = [
        Contender("step", loop.step, baseline=False, is_checked=False),
        Contender(
            "update and the step after", loop.update, baseline=False, before=loop.approach, is_checked=False
        ),
    ]
    case = Case(name, work, "generated", contenders, [])
    measured = (
        measure(case, seconds=1.0, least=3, most=3, clock=clock) if quick else measure(case, clock=clock)
    )
    times = measured.times
    plain, both = (times[one.name].median_us for one in contenders)
    reached = 100 * (both - 2 * plain) / (EVERY * plain)
    return {
        "name": name,
        "kind": "limits",
        "work": work,
        "data": case.data,
        "unit": "%",
        "contenders": [found.to_dict() for found in times.values()],
        "targets": [
            {
                "label": f"an update every {EVERY} steps",
                "asked": asked,
                "reached": reached,
                "met": reached < asked,
            }
        ],
    }


class Loop:
    """A training with RigL.

    Attributes:
        rows: batch size.
        sizes: input features of the first and of the second layer.
        pruner: pruner; its step counter is set to force or to prevent an update in the next step.
    """

    def __init__(self, zeros: int, place: Place) -> None:
        self.sizes = scaled(COLUMNS, place), scaled(OUTPUTS, place)
        self.rows = scaled(ROWS, place)
        narrow, wide = self.sizes
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(narrow, wide), nn.ReLU(), nn.Linear(wide, narrow)).train()
        rule = {
            "targets": "param:*.weight",
            "prune": {"method": "rigl", "sparsity": zeros / 100},
            "schedule": {"kind": "cosine", "end": 100 * EVERY, "every": EVERY},
            "format": "csr",
        }
        self.x, self.y = torch.randn(self.rows, narrow), torch.randn(self.rows, narrow)
        self.model = sparsify.apply(net, {"name": "rigl", "sparsify": [rule]}, self.x, verify=False)
        self.optimizer = optim.AdamW(self.model.parameters(), RATE)
        self.pruner = sparsify.Pruner(self.model, self.optimizer)

    def step(self) -> None:
        """A step without an update."""
        self.pruner.at = 0
        self._step()

    def approach(self) -> None:
        """The step before an update."""
        self.pruner.at = EVERY - 2
        self._step()

    def update(self) -> None:
        """The step of an update, and the step after it."""
        self._step()
        self._step()

    def _step(self) -> None:
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.model(self.x), self.y).backward()
        self.optimizer.step()
        self.pruner.step()
