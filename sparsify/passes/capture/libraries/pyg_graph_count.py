"""Numbers that torch-geometric reads from indices: as many graphs as a batch names, `int(batch.max()) + 1`.

In: `global_mean_pool(x, batch)`. Out: the same under export, with a number that the data chooses; `int` would ask for
one that is the same in all calls.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

import torch

from sparsify.runtime.confined import Here

MODULES: Final = (
    "torch_geometric.utils._scatter",
    "torch_geometric.utils.num_nodes",
    "torch_geometric.nn.aggr.base",
)


_here: Final = Here()


class Kind(type):
    """That of `int`."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, int)


class Number(metaclass=Kind):
    """`int` for modules under export, in the thread that exports."""

    def __new__(cls, *args: Any) -> Any:
        """The entry of a tensor, which may be a symbol; other values as whole numbers."""
        if _here.inside and args and isinstance(args[0], torch.Tensor):
            return args[0].item()
        return int(*args)


@contextmanager
def chosen_by_data() -> Iterator[None]:
    """Within this context the numbers that these modules read from indices may be symbols."""
    with ExitStack() as changes:
        changes.enter_context(_here.entered())
        for name in MODULES:
            if name in sys.modules:
                changes.enter_context(patch.object(sys.modules[name], "int", Number, create=True))
        yield
