"""First calls of new expressions: latency of the tests' catalogue with an empty kernel cache.

In: nothing. Out: a row with the median, the 95th percentile and the slowest first calls, each with its name.
A separate process calls each contraction in pairs of formats and each statement once, in a directory without
kernels. Imports and the loading of the kernel runtime, needed once per process, happen before the measurement.
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

from tests.compiler.random_programs import catalogue

# In milliseconds.
MEDIAN, WORST = 300.0, 1500.0
SHOWN: Final = 5
FORMS: Final = ("csr", "csr", "csr")
PROCESSOR: Final = "--cpu-time"


def calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names and calls of the catalogue; operands are built before the call."""
    import sparsify

    for subscripts, kinds in catalogue.CONTRACTIONS:
        dense = catalogue.operands(subscripts, kinds)
        for _, given in catalogue.in_pairs_of_formats(subscripts, kinds, dense):
            forms = [x.format.letters if isinstance(x, sparsify.SparseTensor) else "dense" for x in given]
            yield f"{subscripts} {' '.join(forms)}", partial(sparsify.einsum, subscripts, *given)
    for text, _ in catalogue.STATEMENTS:
        _, tensors, sizes = catalogue.statement_operands(text, FORMS)
        arguments: dict[str, Any] = {"sizes": sizes, **tensors}
        yield text, partial(sparsify.evaluate, text, **arguments)


def first_calls(clock: Callable[[], float], every: int = 1) -> dict[str, float]:
    """Milliseconds of the first call of every `every`-th catalogue entry, in this process."""
    import torch

    import sparsify

    sparsify.einsum("i->i", torch.ones(2)) + sparsify.einsum("i->i", torch.ones(2))
    found = {}
    for number, (name, call) in enumerate(calls()):
        if number % every or name in found:
            continue
        started = clock()
        call()
        found[name] = (clock() - started) * 1e3
    return found


def processor_seconds() -> float:
    """Processor time of this process and of its compiler subprocesses, in seconds."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def row(*, processor: bool = False, every: int = 1) -> dict[str, Any]:
    """Row of the table.

    Args:
        processor: measures processor time of all threads and subprocesses instead of wall-clock time.
        every: stride over the catalogue; 1 calls each entry.
    """
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as directory:
        environment = {**os.environ, "SPARSIFY_CACHE_DIR": directory}
        line = [sys.executable, "-m", "experiments.compiler.first_calls", str(every)]
        line += [PROCESSOR] if processor else []
        answer = subprocess.run(line, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(answer.stdout)
    slowest = sorted(found, key=found.__getitem__, reverse=True)
    beyond = statistics.quantiles(found.values(), n=20)[-1]
    targets = [_target("median", statistics.median(found.values()), MEDIAN), _target("95 %", beyond)]
    targets += [_target("worst", found[slowest[0]], WORST, slowest[0])]
    targets += [
        _target(f"worst but {number}", found[name], None, name)
        for number, name in enumerate(slowest[1:SHOWN], 1)
    ]
    return {
        "name": "first-call",
        "kind": "limits",
        "work": f"{len(found)} expressions, each for the first time",
        "data": f"{len(found)} expressions",
        "unit": "ms",
        "first_ms": found,
        "targets": targets,
    }


def _target(
    label: str, reached: float, asked: float | None = None, name: str | None = None
) -> dict[str, Any]:
    named = {} if name is None else {"data": name}
    met = None if asked is None else reached <= asked
    return {"label": label, "asked": asked, "reached": reached, "met": met, **named}


if __name__ == "__main__":
    measured = first_calls(
        processor_seconds if PROCESSOR in sys.argv else time.perf_counter, int(sys.argv[1])
    )
    print(json.dumps(measured))
