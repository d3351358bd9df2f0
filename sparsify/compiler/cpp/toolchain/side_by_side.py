"""Kernels built concurrently: while one compiler runs, the next translation unit is generated.

In: one build function for each kernel. Out: the result or exception of each.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import ContextVar, copy_context
from typing import Final, TypeVar

from sparsify import progress
from sparsify.options import current

T = TypeVar("T")
# Longer builds show a progress bar.
QUIET_SECONDS: Final = 2.0
_stopped: ContextVar[threading.Event | None] = ContextVar("stopped", default=None)


def side_by_side(tasks: Sequence[Callable[[], T]], *, in_turn: bool = False) -> list[T | Exception]:
    """The result of each task, or its exception, in order; as many run at once as the process has cores.

    Long builds show a progress bar on standard error, if standard error is a terminal and the options do not
    say quiet. An interrupt of the caller, Ctrl-C, stops the running tasks and starts no others.

    Args:
        in_turn: one after the other instead.
    """
    if len(tasks) < 2 or in_turn:
        return [_outcome(task) for task in tasks]
    workers = min(len(tasks), len(os.sched_getaffinity(0)))
    pool = ThreadPoolExecutor(workers, thread_name_prefix="sparsify-build")
    stopped = threading.Event()
    token = _stopped.set(stopped)
    try:
        # The caller's options apply in every thread.
        futures = [pool.submit(copy_context().run, _outcome, task) for task in tasks]
        if not current().quiet and wait(futures, timeout=QUIET_SECONDS).not_done:
            _show(futures)
        return [future.result() for future in futures]
    except BaseException:
        stopped.set()
        raise
    finally:
        _stopped.reset(token)
        pool.shutdown(wait=stopped.is_set(), cancel_futures=True)


def is_stopped() -> bool:
    """Whether the caller of the current task was interrupted: nobody waits for the result."""
    event = _stopped.get()
    return event is not None and event.is_set()


def _outcome(task: Callable[[], T]) -> T | Exception:
    try:
        return task()
    except Exception as error:
        return error


def _show(futures: Sequence["Future[T | Exception]"]) -> None:
    """Waits for all tasks, with a progress bar on a terminal."""
    progress.clear()
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = TextColumn("building kernels"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=len(futures))
        left = set(futures)
        while left:
            bar.update(task, completed=len(futures) - len(left))
            left = wait(left, timeout=0.1).not_done
