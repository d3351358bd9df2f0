"""Layers of torch-geometric that look at the edges to choose between two ways to multiply, as RGCN does.

In: `RGCNConv(12, 8, 3)`, which counts the edges of each relation, `int(count.max())`.
Out: the same under export, without the choice.

The choice is whether pyg-lib multiplies, which torch-geometric leaves out of every graph that is captured; so a capture
that does not ask has the same operators, and no number that depends on the edges.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

MODULE: Final = "torch_geometric.backend"


@contextmanager
def unasked() -> Iterator[None]:
    """Within this context torch-geometric chooses nothing by the edges; a choice of the user's stays."""
    backend: Any = sys.modules.get(MODULE)
    if getattr(backend, "use_segment_matmul", False) is not None:
        yield
        return
    backend.use_segment_matmul = False
    try:
        yield
    finally:
        backend.use_segment_matmul = None
