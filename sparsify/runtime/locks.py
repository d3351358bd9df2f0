"""Reentrant locks, free again in a forked process.

In: `with CAPTURES: ...`. Out: one thread at a time in the block; a child process forked meanwhile can enter it, too.
"""

import os
import threading
import weakref
from typing import Any, Final


class Lock:
    """A reentrant lock; free in a process forked while another thread held the lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entered = threading.local()
        _locks.add(self)

    def __enter__(self) -> None:
        lock = self._lock
        lock.acquire()
        self._entered.locks = [*getattr(self._entered, "locks", ()), lock]

    def __exit__(self, *_: Any) -> None:
        *self._entered.locks, lock = self._entered.locks
        lock.release()  # the acquired lock: the thread itself may have forked since

    def free(self) -> None:
        """Replaces the lock by a free one; threads in the block release the old one."""
        self._lock = threading.RLock()


_locks: "weakref.WeakSet[Lock]" = weakref.WeakSet()
# Captures of models, one at a time in the process: `torch.export` keeps state in modules of torch.
CAPTURES: Final = Lock()
# Guards changes of the parameters of models, and consistent reads of several. A holder never waits for
# `CAPTURES`.
WEIGHTS: Final = Lock()


def _free_all() -> None:
    for lock in list(_locks):
        lock.free()


os.register_at_fork(after_in_child=_free_all)
