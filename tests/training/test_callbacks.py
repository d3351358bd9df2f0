"""Callbacks step once for each step of the optimizer, not for each batch."""

import sys
from types import ModuleType

import pytest

from sparsify.training import lightning_callback, trainer_callback


class Counter:
    """A pruner that counts its steps."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        self.steps += 1


def test_transformers_trainer() -> None:
    library = pytest.importorskip("transformers")
    counter = Counter()
    handler = library.trainer_callback.CallbackHandler([trainer_callback(counter)], None, None, None, None)
    state, control = library.TrainerState(), library.TrainerControl()
    for batch in range(6):  # two batches are accumulated
        if batch % 2:
            handler.on_step_end(None, state, control)
        else:
            handler.on_substep_end(None, state, control)
    assert counter.steps == 3


def test_lightning(monkeypatch) -> None:
    stand_in = ModuleType("lightning.pytorch")
    stand_in.Callback = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", stand_in)
    counter = Counter()
    callback = lightning_callback(counter)

    class Trainer:
        global_step = 0

    trainer = Trainer()
    for batch in range(6):
        trainer.global_step = (batch + 1) // 2  # two batches are accumulated
        callback.on_train_batch_end(trainer, None, None, None, batch)
    assert counter.steps == 3
    again = lightning_callback(counter)
    again.load_state_dict(callback.state_dict())
    again.on_train_batch_end(trainer, None, None, None, 6)
    assert counter.steps == 3
