"""Peak memory of a computation: the most bytes of its tensors that live at a time.

In: `with Peak() as peak: model(x)`. Out: `peak.bytes`, results and intermediates in memory of torch and of the pool,
without what was there before.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sparsify.runtime.buffers import POOL, Pool


class Peak(TorchDispatchMode):
    """The most bytes of tensors made in this context that lived at a time; what one operator needs within is left out.

    Attributes:
        bytes: as far as the context has come.
    """

    only_looks = True  # keeps no tensor

    def __init__(self, pool: Pool = POOL) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pool, self.bytes = pool, 0
        self._before, self._outside = 0, 0

    def __enter__(self) -> "Peak":
        self._before = self.pool.used_bytes()
        self.pool.lookers.append(self._look)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.pool.lookers.remove(self._look)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in storages((args, kwargs))}
        for storage in storages(made):
            if storage._cdata not in given and not self.pool.has(storage):
                self._outside += storage.nbytes()
                weakref.finalize(storage, self._release, storage.nbytes()).atexit = False
                given.add(storage._cdata)
        self._look()
        return made

    def _look(self) -> None:
        self.bytes = max(self.bytes, self._outside + self.pool.used_bytes() - self._before)

    def _release(self, size: int) -> None:
        self._outside -= size


def storages(values: Any) -> Iterable[torch.UntypedStorage]:
    """The memory of the plain tensors in arguments or results."""
    for leaf in pytree.tree_leaves(values):
        if type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.layout is torch.strided:
            yield leaf.untyped_storage()
