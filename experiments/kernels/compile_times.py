"""Compile times of kernels for tiled and packed weights and for block attention: from schedule to loaded code.

In: nothing. Out: a row with the median and the slowest kind of kernel, of code generation and of the C++ compiler, in
processor time. A separate process calls each kind once, in a directory without kernels. Operands are packed, modules
imported and the kernel runtime loaded before the measurement.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

# In milliseconds.
ASKED: Final = 250.0
COLUMNS, OUTPUTS = 768, 192
LAYER: Final = "Y[t,n] = relu(sum(k, X[t,k] * W[n,k]) + b[n])"
PANELS: Final = "j/192: dense, i: dense, j%192: compressed(crd=int16)"
BLOCKS: Final = "j/192: dense, i/{0}: dense, j%192: compressed(crd=int16), i%{0}: dense"
BITS: Final = "i: dense, j/64: dense, j%64: bitmap"
ROWS: Final = (16, 1024)
# Name, rows, format and block of the weight.
LAYERS: Final = (
    ("panels 1", 1, PANELS, (1, 1)),
    ("bits 1", 1, BITS, (1, 1)),
    ("csr 1", 1, "csr", (1, 1)),
    *((f"panels {rows}", rows, PANELS, (1, 1)) for rows in ROWS),
    *((f"csr {rows}", rows, "csr", (1, 1)) for rows in ROWS),
    *((f"{h}x1 {rows}", rows, BLOCKS.format(h), (h, 1)) for h in (4, 8, 16, 32) for rows in ROWS),
    ("16x16 1024", 1024, "bcsr(16,16)", (16, 16)),
    ("32x32 1024", 1024, "bcsr(32,32)", (32, 32)),
    ("2:4 1024", 1024, "nm(2,4)", (1, 1)),
)


def calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names and calls of the kinds; operands are built before the call."""
    import torch

    import sparsify
    from tests.scenarios import test_attention_schedules as attention

    drawn = torch.Generator().manual_seed(0)
    for name, rows, form, (height, width) in LAYERS:
        kept = torch.rand(OUTPUTS // height, COLUMNS // width, generator=drawn)
        mask = (kept < 0.3).repeat_interleave(height, 0).repeat_interleave(width, 1)
        if form.startswith("nm"):
            order = kept.view(OUTPUTS, -1, 4).argsort(-1)
            mask = (order < 2).view(OUTPUTS, COLUMNS)
        operands: dict[str, Any] = {
            "X": torch.randn(rows, COLUMNS, generator=drawn),
            "W": sparsify.tensor(torch.randn(OUTPUTS, COLUMNS, generator=drawn) * mask, form),
            "b": torch.randn(OUTPUTS, generator=drawn),
        }
        yield name, partial(sparsify.evaluate, LAYER, **operands)
    blocks = sparsify.tensor(attention.mask(64, 16, 0.5), "bcsr(16,16)")
    rest = attention.operands((2, 64), 24, 24)
    for name, schedule in (("attention", None), ("attention strips", attention.STRIPS)):
        yield name, partial(sparsify.evaluate, attention.TEXT, "Y", M=blocks, **rest, schedule=schedule)


def compile_times() -> dict[str, tuple[float, float]]:
    """Milliseconds of this process and of its compiler subprocesses by kind; kinds without compilation are left out."""
    import torch

    import sparsify

    sparsify.einsum("i->i", torch.ones(2)) + sparsify.einsum("i->i", torch.ones(2))
    found = {}
    for name, call in calls():
        before = _own(), _children()
        call()
        own, children = _own() - before[0], _children() - before[1]
        if children > 0:  # kinds may share a kernel
            found[name] = own * 1e3, children * 1e3
    return found


def _own() -> float:
    return time.thread_time()


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def row() -> dict[str, Any]:
    """Row of the table, in processor time."""
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as directory:
        environment = {**os.environ, "SPARSIFY_CACHE_DIR": directory}
        line = [sys.executable, "-m", "experiments.kernels.compile_times"]
        answer = subprocess.run(line, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, list[float]] = json.loads(answer.stdout)
    whole = {name: sum(parts) for name, parts in found.items()}
    targets = [_target("median", statistics.median(whole.values()), asked=ASKED)]
    for place, label in enumerate(("codegen", "C++ compiler")):
        times = {name: parts[place] for name, parts in found.items()}
        targets.append(_target(f"{label}, median", statistics.median(times.values())))
        targets.append(_worst(f"{label}, worst", times))
    targets.append(_worst("worst", whole))
    return {
        "name": "compile",
        "kind": "limits",
        "work": f"{len(found)} kinds of kernels, processor time",
        "data": f"{len(found)} kinds",
        "unit": "ms",
        "codegen_ms": {name: parts[0] for name, parts in found.items()},
        "compiler_ms": {name: parts[1] for name, parts in found.items()},
        "targets": targets,
    }


def _target(label: str, reached: float, *, asked: float | None = None) -> dict[str, Any]:
    return {
        "label": label,
        "asked": asked,
        "reached": reached,
        "met": None if asked is None else reached <= asked,
    }


def _worst(label: str, times: dict[str, float]) -> dict[str, Any]:
    """Target of the slowest kind, with its name."""
    name = max(times, key=times.__getitem__)
    return {**_target(label, times[name]), "data": name}


if __name__ == "__main__":
    print(json.dumps(compile_times()))
