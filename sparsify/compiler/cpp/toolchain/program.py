"""Programs of the system, run with limits on their time and their output.

In: a command line and seconds. Out: `Outcome(0, "g++ (Debian 12.2.0-14) 12.2.0\n...")`; nothing is left running.

A program has ended when its process has: children with the output still open are stopped, and not waited for.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final

from sparsify.compiler.cpp.toolchain.side_by_side import is_stopped

# Interval of checks whether the caller still waits.
LOOK_SECONDS: Final = 0.2
KEPT_BYTES: Final = 1 << 16
MOST_OUTPUT_BYTES: Final = 1 << 26
CHUNK_BYTES: Final = 1 << 16
# A process not ended at once by the system, as one waiting for a network disk, is left to the system.
REAP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a program.

    Attributes:
        status: exit status, `None` if stopped.
        output: beginning of the output.
        stopped: reason of the stop.
    """

    status: int | None
    output: str
    stopped: str = ""


class _Output:
    """The beginning of the output of a pipe; the rest is counted and dropped."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self.descriptor = pipe.fileno()
        self.kept = bytearray()
        self.total, self.is_open = 0, True
        self.ready = select.poll()
        self.ready.register(self.descriptor, select.POLLIN)
        os.set_blocking(self.descriptor, False)

    def read(self, seconds: float) -> None:
        """Waits for output, or for the end of the program after the end of output; reads one chunk."""
        if not self.is_open:
            time.sleep(min(seconds, 0.002))
            return
        if not self.ready.poll(1000 * seconds):
            return
        with suppress(BlockingIOError):
            chunk = os.read(self.descriptor, CHUNK_BYTES)
            self.is_open = bool(chunk)
            self.total += len(chunk)
            self.kept += chunk[: KEPT_BYTES - len(self.kept)]

    def rest(self) -> None:
        """Reads the output available now."""
        before = -1
        while self.is_open and self.total != before and self.total <= MOST_OUTPUT_BYTES:
            before = self.total
            self.read(0.0)


def run(
    line: Sequence[str], seconds: float, environment: Mapping[str, str], *, errors: int = subprocess.STDOUT
) -> Outcome:
    """Runs a program until its end, the end of its time, or an interrupt of the waiting caller.

    Args:
        line: the program and its arguments.
        seconds: time limit.
        environment: environment variables of the program.
        errors: target of standard error, as in `subprocess`.

    Raises:
        OSError: the program cannot be started.
        KeyboardInterrupt: the caller was interrupted.
    """
    process = subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=environment,
        start_new_session=True,
        umask=0o077,
    )
    assert process.stdout is not None, "output is a pipe"
    stopped, deadline = "", time.monotonic() + seconds
    try:
        output = _Output(process.stdout)
        while not _has_ended(process) and not stopped:
            if is_stopped():
                raise KeyboardInterrupt
            left = deadline - time.monotonic()
            output.read(min(LOOK_SECONDS, max(0.0, left)))
            if output.total > MOST_OUTPUT_BYTES:
                stopped = f"wrote more than {MOST_OUTPUT_BYTES >> 20} MiB of messages"
            elif left <= 0:
                stopped = f"took longer than {seconds:g} s"
        output.rest()
    finally:
        # Compilers run their stages as children: the whole group is killed.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(REAP_SECONDS)
    text = output.kept.decode(errors="replace")
    return Outcome(None if stopped else process.returncode, text, stopped)


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Whether a process has ended; the process number stays reserved until `wait`."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # the host program lets the system reap its children
        return True
