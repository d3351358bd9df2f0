"""Peak memory of a computation: maximum bytes of simultaneously live tensors.

In: `with Peak() as peak: model(x)`. Out: `peak.bytes`, results and intermediates in memory of torch and of the pool,
without tensors made before.
"""

import sys
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sparsify.runtime.buffers import POOL, Pool

STATUS: Final = Path("/proc/self/status")


class Peak(TorchDispatchMode):
    """Maximum bytes of simultaneously live tensors made in this context, without scratch memory of operators.

    Attributes:
        bytes: peak so far.
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
        result = func(*args, **(kwargs or {}))
        earlier_storages = {storage._cdata for storage in storages((args, kwargs))}
        for storage in storages(result):
            if storage._cdata not in earlier_storages and not self.pool.has(storage):
                self._outside += storage.nbytes()
                weakref.finalize(storage, self._release, storage.nbytes()).atexit = False
                earlier_storages.add(storage._cdata)
        self._look()
        return result

    def _look(self) -> None:
        self.bytes = max(self.bytes, self._outside + self.pool.used_bytes() - self._before)

    def _release(self, size: int) -> None:
        self._outside -= size


def resident_bytes() -> int:
    """Peak resident memory of this process.

    `VmHWM` on Linux, because `ru_maxrss` is at least the value of the parent process; elsewhere `ru_maxrss`.
    """
    if STATUS.is_file():
        for line in STATUS.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def storages(values: Any) -> Iterable[torch.UntypedStorage]:
    """The memory of the plain tensors in arguments or results."""
    for leaf in pytree.tree_leaves(values):
        if type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.layout is torch.strided:
            yield leaf.untyped_storage()
