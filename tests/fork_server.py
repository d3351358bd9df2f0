"""Processes forked from one that has imported torch: imports of torch, Dynamo and sympy take five seconds.

In: `run_ranks(function, arguments, 2)`. Out: `None` once all processes have ended without an error.
"""

import multiprocessing
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch.multiprocessing

IMPORTED = ["torch", "torch._dynamo", "torch.export", "torch.distributed", "sparsify"]


def run_ranks(function: Callable[..., None], arguments: tuple[Any, ...], count: int) -> None:
    """Runs `function(rank, *arguments)` in `count` processes, as `torch.multiprocessing.spawn` does.

    Raises:
        ProcessRaisedException: a process failed, with its traceback.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(IMPORTED)
    torch.multiprocessing.start_processes(
        run_rank, (dict(os.environ), function, arguments), count, start_method="forkserver"
    )


def run_rank(
    rank: int, environment: Mapping[str, str], function: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    """Runs one of several processes in the environment of the test, not of the fork server."""
    os.environ.clear()
    os.environ.update(environment)
    function(rank, *arguments)
