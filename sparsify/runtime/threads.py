"""How many threads a kernel may use: as many as torch, from the same pool.

In: the options. Out: `count(options) == torch.get_num_threads()`.

A different number would make the OpenMP runtime end and start threads at every change between torch and us.
"""

import os

import torch

from sparsify.options import Options

_is_forked = False


def count(options: Options) -> int:
    """Threads of a kernel that starts now: those of the options, else those of torch.

    A process forked from one that has run parallel loops gets 1: the runtime's threads did not come along,
    and waiting for them never ends.
    """
    if _is_forked:
        return 1
    return options.threads or torch.get_num_threads()


def _note_fork() -> None:
    global _is_forked
    _is_forked = True


os.register_at_fork(after_in_child=_note_fork)
