"""First calls of programs: time from the call to the result, for newly built kernels and for kernels on disk.

In: a directory for the cache. Out, from a separate process: the milliseconds of the first call of each of a
dozen programs. The second process with the same directory finds the kernels on disk.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

# The limits, in milliseconds.
ASKED = {"built, median": 250.0, "built, worst": 1000.0, "found, median": 5.0}


def programs() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names and calls of programs with distinct operations, formats or dtypes."""
    import torch

    import sparsify

    torch.manual_seed(0)
    dense = torch.randn(300, 300) * (torch.rand(300, 300) < 0.05)
    x, y, v, b = torch.randn(300, 64), torch.randn(300, 64), torch.randn(300), torch.randn(64)
    a = {name: sparsify.tensor(dense, name) for name in ("csr", "csc", "coo", "dcsr")}
    c = sparsify.tensor(dense * (torch.rand(300, 300) < 0.5), "csr")
    a64 = sparsify.tensor(dense.double(), "csr")
    layer = "Y[i,k] = relu(A[i,j] * X[j,k] + b[k])"
    for name in a:
        yield f"spmm {name}", partial(sparsify.einsum, "ij,jk->ik", a[name], x)
    yield "spmm float64", lambda: sparsify.einsum("ij,jk->ik", a64, x.double())
    yield "spmv", lambda: sparsify.einsum("ij,j->i", a["csr"], v)
    yield "transposed spmm", lambda: sparsify.einsum("ji,jk->ik", a["csr"], x)
    yield "sddmm", lambda: sparsify.einsum("ij,ik,jk->ij", a["csr"], x, y)
    yield "sum of sparse", lambda: sparsify.evaluate("Y[i,j] = A[i,j] + B[i,j]", A=a["csr"], B=c)
    yield "layer", lambda: sparsify.evaluate(layer, A=a["csr"], X=x, b=b)
    yield "gelu layer", lambda: sparsify.evaluate(layer.replace("relu", "gelu"), A=a["csr"], X=x, b=b)
    yield "scaled sum", lambda: sparsify.evaluate("y[i] = 2 * A[i,j] * z[i]", A=a["csr"], z=v)


def first_calls() -> dict[str, float]:
    """Milliseconds of the first call of each program in this process."""
    found = {}
    for name, call in programs():
        started = time.perf_counter_ns()
        call()
        found[name] = (time.perf_counter_ns() - started) / 1e6
    return found


def row() -> dict[str, Any]:
    """Row of the table: first calls with an empty cache directory, then with the directory of the first process."""
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as directory:
        built, found = (_in_a_new_process(directory) for _ in range(2))
    reached = {
        "built, median": statistics.median(built.values()),
        "built, worst": max(built.values()),
        "found, median": statistics.median(found.values()),
    }
    limits = [
        {"label": label, "asked": asked, "reached": reached[label], "met": reached[label] <= asked}
        for label, asked in ASKED.items()
    ]
    return {
        "name": "first-kernel",
        "kind": "limits",
        "work": f"{len(built)} programs, each for the first time",
        "data": "generated",
        "unit": "ms",
        "built_ms": built,
        "found_ms": found,
        "targets": limits,
    }


def _in_a_new_process(directory: str) -> dict[str, float]:
    """`first_calls` in a new process: nothing is cached in memory."""
    environment = {**os.environ, "SPARSIFY_CACHE_DIR": directory}
    line = [sys.executable, "-m", "experiments.foundation.firsts"]
    answer = subprocess.run(line, env=environment, check=True, capture_output=True, text=True)
    calls: dict[str, float] = json.loads(answer.stdout)
    return calls


if __name__ == "__main__":
    print(json.dumps(first_calls()))
