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

MODULES: Final = (
    "torch_geometric.utils._scatter",
    "torch_geometric.utils.num_nodes",
    "torch_geometric.nn.aggr.base",
)


class Kind(type):
    """That of `int`."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, int)


class Number(metaclass=Kind):
    """`int` for modules under export."""

    def __new__(cls, value: Any = 0) -> Any:
        """The entry of a tensor, which may be a symbol; other values as whole numbers."""
        return value.item() if isinstance(value, torch.Tensor) else int(value)


@contextmanager
def chosen_by_data() -> Iterator[None]:
    """Within this context the numbers that these modules read from indices may be symbols."""
    with ExitStack() as changes:
        for name in MODULES:
            if name in sys.modules:
                changes.enter_context(patch.object(sys.modules[name], "int", Number, create=True))
        yield
