"""Callbacks that follow a pruner's schedule in the training loops of other libraries.

In: `Trainer(..., callbacks=[trainer_callback(pruner)])` or `L.Trainer(callbacks=[lightning_callback(pruner)])`.
Out: `pruner.step()` after each step of the optimizer; accumulated gradients do not count as steps.
"""

from importlib import import_module
from typing import Any, Protocol

from sparsify.errors import public


class Steps(Protocol):
    """An object following the steps of an optimizer, such as `sparsify.Pruner`."""

    def step(self) -> Any:
        """Advances by one step."""


@public
def trainer_callback(pruner: Steps) -> Any:
    """The callback of a pruner for the `Trainer` of transformers."""
    from transformers import TrainerCallback

    class PrunerCallback(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            pruner.step()

    return PrunerCallback()


@public
def lightning_callback(pruner: Steps) -> Any:
    """The callback of a pruner for Lightning's `Trainer`; the state is part of Lightning's checkpoints."""
    base: Any = import_module("lightning.pytorch").Callback

    class PrunerCallback(base):  # type: ignore[misc]
        steps = 0

        def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            if trainer.global_step > self.steps:
                self.steps = trainer.global_step
                pruner.step()

        def state_dict(self) -> dict[str, Any]:
            return {"steps": self.steps}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.steps = state["steps"]

    return PrunerCallback()
