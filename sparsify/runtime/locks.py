"""Locks that a thread may take again, and that nobody holds in a forked process.

In: `with CAPTURES: ...`. Out: one thread at a time in the block; a child process forked meanwhile can enter it, too.
"""

import os
import threading
import weakref
from typing import Any, Final


class Lock:
    """A reentrant lock; a process forked while another thread holds it starts with a free one."""

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
        lock.release()  # the one that was acquired: the thread itself may have forked since

    def free(self) -> None:
        """Makes the lock free; threads that hold it release the old one."""
        self._lock = threading.RLock()


_locks: "weakref.WeakSet[Lock]" = weakref.WeakSet()
# Captures of models, one at a time in the process: `torch.export` keeps state in modules of torch.
CAPTURES: Final = Lock()
# Changes of the parameters that models hold, and reads of several that must fit each other. Whoever has this lock never
# waits for `CAPTURES`.
WEIGHTS: Final = Lock()


def _free_all() -> None:
    for lock in list(_locks):
        lock.free()


os.register_at_fork(after_in_child=_free_all)
