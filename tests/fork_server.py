"""Processes forked from one that has imported torch: imports of torch, Dynamo and sympy take five seconds.

In: `run_script(path, environment)` or `run_ranks(function, arguments, 2)`. Out: exit status and error output of the
script; `None` once all ranks have ended without an error.
"""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch.multiprocessing

IMPORTED = ["torch", "torch._dynamo", "torch.export", "torch.distributed", "sparsify"]
LIMIT_SECONDS = 600.0


class Ended(NamedTuple):
    """Exit status of a script, and the text of its error output."""

    status: int | None
    errors: str


def run_script(script: Path, environment: Mapping[str, str]) -> Ended:
    """Runs a script as `python script` does, in the folder of the script."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    errors = script.with_suffix(".errors")
    process = context.Process(target=run_as_main, args=(script, dict(environment), errors))
    process.start()
    process.join(LIMIT_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
    status = process.exitcode
    process.close()
    return Ended(status, errors.read_text(encoding="utf-8") if errors.exists() else "")


def run_as_main(script: Path, environment: Mapping[str, str], errors: Path) -> None:
    """Runs a script as the main module; its output goes nowhere, its error output into a file."""
    enter(environment)
    os.chdir(script.parent)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.argv[:] = [str(script)]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


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
    enter(environment)
    function(rank, *arguments)


def enter(environment: Mapping[str, str]) -> None:
    """Replaces all environment variables."""
    os.environ.clear()
    os.environ.update(environment)
