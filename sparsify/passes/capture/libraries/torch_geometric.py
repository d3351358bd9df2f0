"""Numbers that torch-geometric reads from indices, which export would take for the same in all calls.

In: `global_mean_pool(x, batch)`, with as many graphs as a batch names, `int(batch.max()) + 1`; `RGCNConv(12, 8, 3)`,
which counts the edges of each relation to choose between two ways to multiply, `int(count.max())`.
Out: the same under export, with a number that the data chooses; without the choice.

The choice is whether pyg-lib multiplies, which torch-geometric leaves out of every graph that is captured; so a capture
that does not ask has the same operators, and no number that depends on the edges.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

import torch

from sparsify.runtime.confined import Here

# Packages whose modules read numbers from indices.
PACKAGES: Final = ("torch_geometric.nn.", "torch_geometric.utils.")


_here: Final = Here()


class Kind(type):
    """The metaclass of `Number`, whose instances are those of `int`."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, int)


class Number(metaclass=Kind):
    """`int` for modules under export, in the thread that exports."""

    def __new__(cls, *args: Any) -> Any:
        """The entry of a tensor and a number that follows from it, which may be symbols; other values as integers."""
        if _here.inside and args:
            value = args[0].item() if isinstance(args[0], torch.Tensor) else args[0]
            if isinstance(value, torch.SymInt | torch.SymFloat):
                return torch.sym_int(value)
        return int(*args)


@contextmanager
def chosen_by_data() -> Iterator[None]:
    """Within this context the numbers that torch-geometric reads from indices may be symbols."""
    with ExitStack() as changes:
        changes.enter_context(_here.entered())
        for name in [name for name in sys.modules if name.startswith(PACKAGES)]:
            changes.enter_context(patch.object(sys.modules[name], "int", Number, create=True))
        yield


BACKEND: Final = "torch_geometric.backend"


@contextmanager
def without_choice() -> Iterator[None]:
    """Within this context torch-geometric chooses nothing by the edges; a choice of the user's stays."""
    backend: Any = sys.modules.get(BACKEND)
    if getattr(backend, "use_segment_matmul", False) is not None:
        yield
        return
    backend.use_segment_matmul = False
    try:
        yield
    finally:
        backend.use_segment_matmul = None


LAYERS: Final = "torch_geometric.nn.conv.message_passing"
# The attribute by which explainers say that a layer computes with masks of edges.
EXPLAINED: Final = "explain"


def is_layer(module: Any) -> bool:
    """Whether a module is a layer of message passing."""
    return LAYERS in sys.modules and isinstance(module, sys.modules[LAYERS].MessagePassing)
