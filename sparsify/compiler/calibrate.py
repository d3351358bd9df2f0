"""Calibration of the machine model: measured once with generated kernels, stored in the kernel cache.

In: the options. Out: `cached_machine(options)`, a `Machine` as measured earlier or as assumed, and
`measured(options)`, which measures a machine without earlier figures.

Probes take turns until two turns of each agree on its least time: other load on the machine makes runs longer, never
shorter. If too few probes agree, later processes measure again, up to a bound, and the better of each figure counts.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

import sparsify
from sparsify.compiler.cpp.toolchain import cache_directory, records, target
from sparsify.compiler.cpp.toolchain.side_by_side import side_by_side
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.kernel.least_time import Least
from sparsify.compiler.schedule.cost.machine import Curve, Machine, believable, from_dict, joined, scaled
from sparsify.compiler.schedule.templates.gemm import VECTORS, tile_rows
from sparsify.errors import SparsifyError
from sparsify.options import Options, current, override
from sparsify.runtime.threads import count
from sparsify.storage.interop.tensors import tensor

# Version of the probes and of the stored figures.
EDITION: Final = 4
# Bytes that a probe reads repeatedly: in the first-level, second-level and last-level cache, and beyond.
SIZES: Final = (1 << 14, 1 << 18, 1 << 22, 1 << 26)
READ_BYTES: Final = 1 << 22
LINE: Final = 64
GATHERED: Final = 128
STORED: Final = 1 << 13
A_ROW: Final = 32
PRODUCT: Final = 192
# Rows of a product for each thread: enough to amortize the copy of the other matrix by one thread.
PRODUCT_ROWS: Final = 4 * PRODUCT
DENSE: Final = (1, 16, 256)
# Upper bound on the time to start threads with a free core for each.
MOST_FORK_US: Final = 50.0
ROUNDS: Final = 8
SAMPLE_NS: Final = 1_000_000
# After the first round no probe starts later than this.
SECONDS: Final = 0.8
# Largest relative difference between agreeing turns of a probe.
APART: Final = 0.1
# Least fraction of agreeing probes, and most processes that measure.
AGREED: Final = 0.9
TRIES: Final = 4
READ: Final = (
    "split l lo li 64; order t, r, lo, p, li; precompute w = y at lo in register; vector li; parallel t"
)
GATHER: Final = (
    "split k ko ki 128; order i, ko, j, ki; precompute w = Y at ko in register; vector ki; parallel i"
)
MULTIPLY: Final = (
    "split i io ii {rows} tail 1; split k ko ki {columns}; order io, ko, j, ii, ki; "
    "precompute w = C at ko in register; pack P = W[ko, j, ki] at root in memory; vector ki; unroll ii; parallel io"
)


@dataclass(slots=True)
class Probe:
    """A timed call, and its amount of work.

    Attributes:
        threads: threads of the kernel; for products of torch, torch's threads.
        work: operations or bytes of a call.
        least: least times of its turns.
    """

    call: Callable[[], Any]
    threads: int
    work: float
    least: Least = field(default_factory=lambda: Least(2, APART))

    @property
    def least_us(self) -> float:
        """The least time so far."""
        return self.least.us

    @property
    def rate(self) -> float:
        """Operations or bytes a microsecond."""
        return self.work / self.least_us

    def run(self) -> None:
        """Runs one more turn; calls are timed one by one, because the least disturbed call counts."""
        self.call()
        end = time.perf_counter_ns() + SAMPLE_NS
        least_ns = float("inf")
        while True:
            started = time.perf_counter_ns()
            self.call()
            stopped = time.perf_counter_ns()
            least_ns = min(least_ns, stopped - started)
            if stopped > end:
                self.least.add(least_ns / 1e3)
                return


_known: dict[str, Machine] = {}
# Keys measured by this process, which measures each at most once.
_final: set[str] = set()


def cached_machine(options: Options) -> Machine:
    """The machine as measured earlier, by this process or another; otherwise the assumed machine."""
    key = key_of(options)
    if key not in _known:
        found = _read(options, key)
        if found is None:
            return scaled(count(options), target.vector_bytes(options))
        _known[key] = found
    return _known[key]


def measured(options: Options) -> Machine:
    """The machine as measured, now if necessary; the assumed machine if `tune_seconds` is 0.

    Raises:
        CompilerError: the probes cannot be compiled.
    """
    found, key = cached_machine(options), key_of(options)
    is_final = key in _final or (found.is_measured and (found.is_agreed or found.tries >= TRIES))
    if is_final or options.tune_seconds == 0 or count(options) != torch.get_num_threads():
        return found
    made = measure(options)
    if found.is_measured:
        made = joined(found, made)
    _known[key] = made
    _final.add(key)
    _write(options, key, made)
    return made


def key_of(options: Options) -> str:
    """The cache key of a machine: processor, threads, vectors, versions, and the directory of the figures."""
    parts = (
        EDITION, sparsify.__version__, torch.__version__, target.cpu_digest(), count(options),
        target.vector_bytes(options), options.compiler, options.compiler_flags, cache_directory.cache_dir(options),
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:40]


def measure(options: Options) -> Machine:
    """The figures of this machine, as free as possible of other load."""
    threads, before = count(options), torch.get_num_threads()
    with torch.no_grad(), override(dump=(), tune_seconds=0.0, strict=True):
        names = _probes(threads)
        made = side_by_side(list(names.values()))
        probes = {}
        for name, probe in zip(names, made, strict=True):
            if isinstance(probe, Exception):
                raise probe
            if probe is not None:
                probes[name] = probe
        try:
            _run(list(probes.values()), threads)
        finally:
            torch.set_num_threads(before)
    agreed = sum(probe.least.is_agreed for probe in probes.values())
    found = believable(_machine(probes, threads, target.vector_bytes(options)))
    return replace(found, is_agreed=agreed >= AGREED * len(probes))


def _run(probes: Sequence[Probe], threads: int) -> None:
    """Runs all probes in turn until the turns of each agree.

    Probes with equal thread counts run together: a change of the count makes torch stop and start threads.
    """
    end = time.perf_counter() + SECONDS
    for turn in range(ROUNDS):
        for number in sorted({1, threads}):
            torch.set_num_threads(number)
            for probe in probes:
                if probe.threads != number or probe.least.is_agreed:
                    continue
                if turn > 0 and time.perf_counter() > end:
                    return
                probe.run()


def _probes(threads: int) -> dict[str, Callable[[], Probe | None]]:
    """The maker of each probe, by name; probes of all threads only if there are several."""
    found: dict[str, Callable[[], Probe | None]] = {}
    for name, number in (("one", 1), ("all", threads))[: 1 + (threads > 1)]:
        found[f"fma {name}"] = partial(_product, number)
        for size in SIZES:
            found[f"read {size} {name}"] = partial(_read_probe, size, number)
        found[f"call {name}"] = partial(_read_probe, LINE * 4, number, 1)
        for least in DENSE:
            found[f"dense {least} {name}"] = partial(_dense, least, 256, 256, number)
        found[f"small {name}"] = partial(_dense, 64, 64, 64, number)
        found[f"tall {name}"] = partial(_dense, 4096, 64, 16, number)
        found[f"onednn {name}"] = partial(_onednn, 256, number)
    found |= {f"gather {size}": partial(_gather, size) for size in SIZES}
    found["torch"] = partial(_dense, 1, 1, 1, 1)
    return found


def _kernel(text: str, schedule: str, threads: int, sizes: dict[str, int], **operands: Any) -> Any:
    """A call of a kernel on exactly this many threads."""
    with override(threads=threads, serial_threshold=1 << 60 if threads == 1 else 0):
        kernel = evaluate_kernel(text, None, format=None, schedule=schedule, sizes=sizes, **operands)
    return partial(kernel, *(operands[name] for name in kernel.program.inputs))


def _read_probe(size: int, threads: int, repeats: int = 0) -> Probe:
    """Sums over memory of `size` bytes for each thread, read repeatedly."""
    repeats = repeats or max(1, READ_BYTES // size)
    x = torch.ones(threads, size // (LINE * 4), LINE)
    call = _kernel("y[t,r,l] = sum(p, x[t,p,l])", READ, threads, {"r": repeats}, x=x)
    return Probe(call, threads, float(threads * repeats * size))


def _gather(size: int) -> Probe:
    """The sum of random rows of a table of `size` bytes; coordinates ascend in each row of the matrix."""
    rows, tables = size // (GATHERED * 4), STORED // A_ROW
    apart = torch.arange(A_ROW) * (rows // A_ROW)
    drawn = torch.randint(0, rows // A_ROW, (tables, A_ROW), generator=torch.Generator().manual_seed(0))
    places = torch.stack([torch.arange(tables).repeat_interleave(A_ROW), (apart + drawn).flatten()])
    A = tensor((places, torch.ones(STORED), (tables, rows)), "csr")
    X = torch.ones(rows, GATHERED)
    return Probe(
        _kernel("Y[i,k] = sum(j, A[i,j] * X[j,k])", GATHER, 1, {}, A=A, X=X), 1, STORED * GATHERED * 4.0
    )


def _product(threads: int) -> Probe:
    """A register-tiled dense product of matrices that fit the second-level cache."""
    A, W = torch.ones(PRODUCT_ROWS * threads, PRODUCT), torch.ones(PRODUCT, PRODUCT)
    rows, columns = product_tile(target.vector_bytes(current()))
    schedule = MULTIPLY.format(rows=rows, columns=columns)
    call = _kernel("C[i,k] = sum(j, A[i,j] * W[j,k])", schedule, threads, {}, A=A, W=W)
    return Probe(call, threads, 2.0 * threads * PRODUCT_ROWS * PRODUCT**2)


def product_tile(vector_bytes: int) -> tuple[int, int]:
    """Rows and columns of the register tile: enough accumulators to hide the latency of an fma.

    >>> product_tile(32), product_tile(64)
    ((6, 16), (12, 32))
    """
    lanes = max(8, vector_bytes // 4)
    return tile_rows(lanes, 4), VECTORS * lanes


def _dense(rows: int, columns: int, outputs: int, threads: int) -> Probe:
    """torch's product."""
    x, w = torch.ones(rows, columns), torch.ones(outputs, columns)
    call = partial(torch.nn.functional.linear, x, w)
    return Probe(call, threads, 2.0 * rows * columns * outputs)


def _onednn(size: int, threads: int) -> Probe | None:
    """oneDNN's product with a packed weight, `None` if torch lacks it."""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(torch.ones(size, size), size)
        call = partial(
            torch.ops.mkldnn._linear_pointwise, torch.ones(size, size), packed, None, "none", [], ""
        )
        call()
    except (AttributeError, RuntimeError, TypeError):
        return None
    return Probe(call, threads, 2.0 * size**3)


def _machine(probes: dict[str, Probe], threads: int, vector_bytes: int) -> Machine:
    """The machine model from the probes; several threads are never modelled as slower than one."""

    call_us = probes["call one"].least_us
    fork_us = min(max(probes["call all"].least_us - call_us, 0.1), MOST_FORK_US) if threads > 1 else 0.1

    def best(name: str) -> float:
        """The rate of all threads without the time to start them, at least the rate of one thread."""
        one, all_ = probes[f"{name} one"], probes.get(f"{name} all")
        if all_ is None:
            return one.rate
        return max(one.rate, all_.work / max(all_.least_us - fork_us, all_.least_us / 2))

    return Machine(
        threads,
        vector_bytes,
        probes["fma one"].rate,
        best("fma"),
        Curve(tuple((size, probes[f"read {size} one"].rate) for size in SIZES)),
        Curve(tuple((size, best(f"read {size}")) for size in SIZES)),
        Curve(tuple((size, probes[f"gather {size}"].rate) for size in SIZES)),
        Curve(tuple((least, best(f"dense {least}")) for least in DENSE)),
        best("small"),
        best("tall"),
        best("onednn") if "onednn one" in probes else 0.0,
        call_us,
        probes["torch"].least_us,
        fork_us,
        is_measured=True,
    )


def _place(options: Options, key: str) -> Path:
    return cache_directory.cache_dir(options) / f"{key}.machine"


def _read(options: Options, key: str) -> Machine | None:
    """The figures on disk; `None` if missing, damaged, or owned by another user."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return from_dict(json.loads(records.read(_place(options, key))))
    return None


def _write(options: Options, key: str, machine: Machine) -> None:
    """Stores the figures; if the disk refuses, the next process measures again."""
    with suppress(OSError):
        records.write(_place(options, key), json.dumps(machine.to_dict(), indent=1), options)


def summary(machine: Machine) -> dict[str, str]:
    """The figures in readable form."""
    if not machine.is_measured:
        return {"machine": "not measured: sparsify doctor measures it"}
    gigabytes = "{:.1f}".format
    sizes = " / ".join(f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB" for size in SIZES)

    def curve(rates: Curve) -> str:
        return " / ".join(gigabytes(rate / 1e3) for _, rate in rates.points)

    return {
        "fma_gflops": f"{machine.fma / 1e3:.1f} one thread, {machine.fma_all / 1e3:.1f} all",
        "read_gb_s": f"{curve(machine.reads)} one thread, {curve(machine.reads_all)} all, of {sizes}",
        "gather_gb_s": f"{curve(machine.gathers)} one thread, of {sizes}",
        "dense_gflops": f"{curve(machine.dense)} with {' / '.join(map(str, DENSE))} rows, "
        f"{machine.dense_small / 1e3:.1f} small, {machine.dense_tall / 1e3:.1f} tall, "
        f"{machine.onednn / 1e3:.1f} by oneDNN",
        "measured": "calmly" if machine.is_agreed else f"beside other work, {machine.tries} of {TRIES} times",
        "call_us": f"{machine.call_us:.1f} ours, {machine.torch_us:.1f} torch's product, "
        f"{machine.fork_us:.1f} to start threads",
    }


def try_measured(options: Options) -> Machine:
    """The machine of `measured`; without a compiler the machine of `cached_machine`."""
    try:
        return measured(options)
    except SparsifyError:
        return cached_machine(options)
