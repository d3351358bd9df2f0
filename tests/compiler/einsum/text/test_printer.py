"""Text of programs parses back to the same program, also in several threads at once."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sparsify.compiler.einsum.nodes import Call, Const, Index
from sparsify.compiler.einsum.text import serialize
from sparsify.errors import SparsifyError

PROGRAM = Call("add", tuple(Call("mul", (Index(f"i{k}"), Const(0.5 * k))) for k in range(40)))


class Finalized:
    """A reference cycle whose finalizer runs Python code: garbage collections then switch threads."""

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        sum(range(50))


@pytest.fixture
def busy() -> Iterator[None]:
    """Fixture with collections at nearly every allocation and maximal switching between threads."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(10, 2, 1_000_000)
    sys.setswitchinterval(1e-6)
    yield
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


def test_texts_read_back() -> None:
    assert serialize.read(repr(PROGRAM)) == PROGRAM


def test_other_classes_are_refused() -> None:
    with pytest.raises(SparsifyError, match="no program of this version"):
        serialize.read("Path('/')")


@pytest.mark.usefixtures("busy")
def test_several_threads_read_at_once() -> None:
    text = repr(PROGRAM)

    def deep(depth: int) -> object:
        Finalized()
        return deep(depth - 1) if depth else serialize.read(text)

    with ThreadPoolExecutor(4) as pool:
        assert all(found == PROGRAM for found in pool.map(deep, [turn % 7 for turn in range(400)]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_children_forked_while_another_thread_reads() -> None:
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        with serialize.PARSING:
            begun.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    pid = os.fork()
    if not pid:
        signal.alarm(10)
        os._exit(serialize.read("Index('i')") != Index("i"))
    _, status = os.waitpid(pid, 0)
    over.set()
    thread.join()
    assert status == 0
