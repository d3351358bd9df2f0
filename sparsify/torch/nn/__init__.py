"""`torch.nn` with the functions of `sparsify.torch.nn.functional`.

In: `from sparsify.torch.nn import functional as F`. Out: functions on dense and sparse tensors.
"""

from typing import Any

import torch.nn as _nn

from sparsify.torch.nn import functional as functional

__all__ = [name for name in dir(_nn) if not name.startswith("_")]


def __getattr__(name: str) -> Any:
    """torch's object called `name`."""
    return getattr(_nn, name)


def __dir__() -> list[str]:
    """The names of `torch.nn`."""
    return dir(_nn)
