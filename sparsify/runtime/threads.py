"""The number of threads a kernel may use: as many as torch, from the same pool.

In: the options. Out: `count(options) == torch.get_num_threads()`.

A different number would make the OpenMP runtime end and start threads at every change between torch and us.
"""

import ctypes
import os
from typing import Final

import torch

from sparsify.options import Options

# At a fixed address, for C code.
forked: Final = ctypes.c_int64(0)


def count(options: Options) -> int:
    """Threads of a kernel that starts now: the count of the options, else the count of torch.

    A process forked after parallel loops ran gets 1: the threads of the runtime were not copied by the fork, and
    waiting for them would never end.
    """
    if forked.value:
        return 1
    return options.threads or torch.get_num_threads()


def _note_fork() -> None:
    forked.value = 1


os.register_at_fork(after_in_child=_note_fork)
