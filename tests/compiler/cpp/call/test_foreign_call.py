"""Foreign function call: arguments and return values, by the trampoline and by ctypes."""

import threading
import time
import timeit
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from sparsify.compiler.cpp.call import foreign_call
from sparsify.compiler.cpp.toolchain import cache
from sparsify.compiler.cpp.toolchain.cache import Library, library
from sparsify.errors import BuildError, KernelError
from sparsify.options import Options, override
from sparsify.runtime.buffers import Slots
from tests.compiler.cpp.tiny_kernels import kernel

Bind = Callable[[Library], foreign_call.Call]


@pytest.fixture(params=["trampoline", "ctypes"])
def bind(request: pytest.FixtureRequest) -> Bind:
    """Both ways to call a kernel."""
    if request.param == "trampoline":
        return foreign_call.bind
    return lambda made: foreign_call._bind_ctypes(made.address)


def test_sizes_buffers_and_threads_arrive(bind: Bind) -> None:
    body = """\
int64_t *out = (int64_t *)buffers[2];
  out[0] = sizes[0];
  out[1] = sizes[1];
  out[2] = context->threads;
  out[3] = buffers[0] == nullptr;
  out[4] = ((const int64_t *)buffers[1])[2];"""
    out = torch.zeros(5, dtype=torch.int64)
    bind(library(kernel(body)))((-3, 2**62), (None, torch.tensor([1, 2, 30]), out), 7, None)
    assert out.tolist() == [-3, 2**62, 7, 1, 30]


def test_call() -> None:
    out = torch.zeros(1, dtype=torch.int64)
    foreign_call.call(library(kernel("*(int64_t *)buffers[0] = sizes[0];")), (9,), (out,), 1)
    assert out.item() == 9


@pytest.mark.parametrize(
    "status, text",
    [
        (1, "ran out of memory"),
        (2, "does not fit int32; use int64"),
        (3, "lies outside its mode"),
        (4, "mistake of sparsify"),
        (77, r"unknown status \(status 77\)"),
    ],
)
def test_statuses_are_errors(status: int, text: str, bind: Bind) -> None:
    with pytest.raises(KernelError, match=text) as caught:
        bind(library(kernel("return sizes[0];")))((status,), (), 1, None)
    assert caught.value.status == status


# Allocates an output of as many int64 as the size says and counts up in it.
COUNT_UP = kernel("""\
int64_t *out = (int64_t *)context->allocate(context->state, 5, sizes[0] * 8);
  if (!out && sizes[0] > 0) return 1;
  for (int64_t i = 0; i < sizes[0]; i++) out[i] = i;""")


@pytest.mark.parametrize("count", [0, 1, 10, 100_000])
def test_outputs_are_allocated_by_slot(count: int, bind: Bind) -> None:
    slots = Slots({5: torch.int64})
    bind(library(COUNT_UP))((count,), (), 1, slots)
    assert torch.equal(slots.tensors[5], torch.arange(count))


def refuse(slot: int, size: int) -> torch.Tensor:
    raise MemoryError(f"{size} bytes for slot {slot}")


def test_error_of_the_allocator_comes_through(bind: Bind) -> None:
    with pytest.raises(MemoryError, match="80 bytes for slot 5"):
        bind(library(COUNT_UP))((10,), (), 1, refuse)


def test_allocator_is_not_asked_again_after_an_error(bind: Bind) -> None:
    asked = []

    def note(slot: int, size: int) -> torch.Tensor:
        asked.append(slot)
        return refuse(slot, size)

    body = "for (int64_t i = 0; i < 3; i++) context->allocate(context->state, i, 8);"
    with pytest.raises(MemoryError):
        bind(library(kernel(body)))((), (), 1, note)
    assert asked == [0]


def test_missing_allocator(bind: Bind) -> None:
    with pytest.raises(TypeError, match="this kernel needs an allocator"):
        bind(library(COUNT_UP))((10,), (), 1, None)


@pytest.mark.parametrize(
    "sizes, buffers, threads, error",
    [
        (("a",), (), 1, TypeError),
        ((2**70,), (), 1, (OverflowError, TypeError)),
        ((), ("a",), 1, AttributeError),
        ((), (), 0, ValueError),
        ((), (), -1, ValueError),
    ],
)
def test_arguments_that_are_wrong(
    sizes: object, buffers: object, threads: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        foreign_call.bind(library(kernel("")))(sizes, buffers, threads, None)  # type: ignore[arg-type]


def test_lists_are_refused() -> None:
    with pytest.raises(TypeError, match="are tuples"):
        foreign_call.bind(library(kernel("")))([], [], 1, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes sizes, buffers, threads and an allocator"):
        foreign_call.bind(library(kernel("")))((), ())  # type: ignore[call-arg]


def test_other_threads_run_meanwhile(bind: Bind) -> None:
    # The kernel waits for a flag that only another thread of Python sets, for ten thousand million rounds at most.
    body = """\
volatile int64_t *flags = (int64_t *)buffers[0];
  flags[0] = 1;
  for (int64_t i = 0; i < 10000000000 && !flags[1]; i++) {}
  flags[2] = flags[1];"""
    flags = torch.zeros(3, dtype=torch.int64)
    run = bind(library(kernel(body)))
    runner = threading.Thread(target=run, args=((), (flags,), 1, None))
    runner.start()
    while not flags[0]:
        time.sleep(0.001)
    flags[1] = 1
    runner.join()
    assert flags[2] == 1


def test_threads_call_the_same_kernel_at_once(bind: Bind) -> None:
    run = bind(library(COUNT_UP))

    def work(number: int) -> bool:
        for count in range(number, number + 200):
            slots = Slots({5: torch.int64})
            run((count,), (), 1, slots)
            if not torch.equal(slots.tensors[5], torch.arange(count)):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


@pytest.fixture
def no_trampolines() -> Iterator[None]:
    """As if none had been asked for yet."""
    foreign_call._trampolines.cache_clear()
    yield
    foreign_call._trampolines.cache_clear()


@pytest.mark.usefixtures("no_trampolines")
def test_ctypes_where_the_trampoline_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = library(kernel("*(int64_t *)buffers[0] = 3;"))

    def refuse_trampoline(*arguments: object, **named: object) -> Library:
        raise BuildError("undefined symbol: PyCFunction_NewEx")

    monkeypatch.setattr(foreign_call, "library", refuse_trampoline)
    out = torch.zeros(1, dtype=torch.int64)
    run = foreign_call.bind_address.__wrapped__(made.address)
    assert run.__qualname__.startswith("_bind_ctypes")
    run((), (out,), 1, None)
    assert out.item() == 3


@pytest.mark.usefixtures("no_trampolines")
def test_flags_of_the_user_do_not_reach_the_trampoline(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    asked = cache.library

    def note(source: str, parts: dict[str, str], options: Options, *, symbol: str) -> Library:
        seen.append(options.compiler_flags)
        return asked(source, parts, options, symbol=symbol)

    monkeypatch.setattr(foreign_call, "library", note)
    made = library(kernel("return 0;"))
    with override(compiler_flags=("-DINTEGER=1",)):
        foreign_call.bind_address.__wrapped__(made.address)
    assert seen == [()]


@pytest.mark.bench
def test_a_call_takes_less_than_a_microsecond() -> None:
    run = foreign_call.bind(library(kernel("")))
    buffers = tuple(torch.zeros(4) for _ in range(4))
    seconds = timeit.repeat(lambda: run((1, 2, 3), buffers, 1, None), number=10_000, repeat=7)
    assert min(seconds) / 10_000 < 1e-6
