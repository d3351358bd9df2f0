"""Numbers read from indices by torch-geometric, which export would fix for all calls.

In: `global_mean_pool(x, batch)`, with the number of graphs from a batch, `int(batch.max()) + 1`; `RGCNConv(12, 8, 3)`,
which counts the edges of each relation to choose between two ways to multiply, `int(count.max())`.
Out: the same layers under export, with a data-dependent number; without the choice.

The choice concerns pyg-lib's multiplication, which torch-geometric leaves out of every captured graph: a capture
without the choice has the same operators, and no number that depends on the edges.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

import torch

from sparsify.runtime.confined import Here

# Packages with modules that read numbers from indices.
PACKAGES: Final = ("torch_geometric.nn.", "torch_geometric.utils.")


_here: Final = Here()


class Kind(type):
    """The metaclass of `Number`, which makes every `int` an instance."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, int)


class Number(metaclass=Kind):
    """`int` for modules under export, in the exporting thread."""

    def __new__(cls, *args: Any) -> Any:
        """The entry of a tensor, or a number derived from one, possibly symbolic; other values as integers."""
        if _here.inside and args:
            value = args[0].item() if isinstance(args[0], torch.Tensor) else args[0]
            if isinstance(value, torch.SymInt | torch.SymFloat):
                return torch.sym_int(value)
        return int(*args)


@contextmanager
def chosen_by_data() -> Iterator[None]:
    """A context in which torch-geometric's numbers read from indices may be symbols."""
    with ExitStack() as changes:
        changes.enter_context(_here.entered())
        for name in [name for name in sys.modules if name.startswith(PACKAGES)]:
            changes.enter_context(patch.object(sys.modules[name], "int", Number, create=True))
        yield


BACKEND: Final = "torch_geometric.backend"


@contextmanager
def without_choice() -> Iterator[None]:
    """A context in which torch-geometric makes no choice by the edges; a choice of the user is kept."""
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
# Attribute set by explainers on layers that compute with edge masks.
EXPLAINED: Final = "explain"


def is_layer(module: Any) -> bool:
    """Whether a module is a layer of message passing."""
    return LAYERS in sys.modules and isinstance(module, sys.modules[LAYERS].MessagePassing)
