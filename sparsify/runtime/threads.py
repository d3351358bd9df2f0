"""The number of threads a kernel may use: as many as torch, from the same pool.

In: the options. Out: `count(options) == torch.get_num_threads()`.

A different number would make the OpenMP runtime end and start threads at every change between torch and us.
"""

import ctypes
import os
from typing import Final

import torch

from sparsify.options import Options

# Where C code finds it too.
forked: Final = ctypes.c_int64(0)


def count(options: Options) -> int:
    """Threads of a kernel that starts now: those of the options, else those of torch.

    A process forked from one that has run parallel loops gets 1: the runtime's threads did not come along,
    and waiting for them never ends.
    """
    if forked.value:
        return 1
    return options.threads or torch.get_num_threads()


def _note_fork() -> None:
    forked.value = 1


os.register_at_fork(after_in_child=_note_fork)
