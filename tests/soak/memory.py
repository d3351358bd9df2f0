"""Memory that must not grow: many applies of small models, and many shapes through one model and one expression.

In: `python -m tests.soak.memory applies --count 2000 --seconds 600`. Out: a line of JSON with the resident bytes after
warm-up and at the end, and what each call added; 1 where that is more than is allowed.
"""

import argparse
import ctypes
import gc
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import torch
from torch import nn

import sparsify

RULE: Final = {
    "targets": ["param:*.weight"],
    "prune": {"method": "magnitude", "sparsity": 0.8},
    "format": "csr",
}
RECIPE: Final = {"schema": 1, "name": "pruned", "sparsify": [RULE]}
WARM_UP: Final = 0.2
# Each half has so many calls at least, whatever they take.
FEWEST_CALLS: Final = 10
# What may be added after warm-up: memos that are full after 4,096 shapes, and fragments of the allocator.
ALLOWED_BYTES: Final = 16 << 20
# torch.export keeps a shape environment of each call for good.
ALLOWED_PER_CALL: Final = {"applies": 64 << 10, "shapes": 0, "einsums": 0}


def resident_bytes() -> int:
    """The bytes of this process in memory, once free memory is given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def applies() -> Iterator[None]:
    """Applies a recipe to a new model, calls the result and drops it."""
    x = torch.randn(3, 16)
    while True:
        model = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4)).eval()
        sparsify.apply(model, RECIPE, x)(x)
        yield


def shapes() -> Iterator[None]:
    """Calls one sparse model with another number of rows each time."""
    model = sparsify.apply(nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4)).eval(), RECIPE)
    rows = 2
    while True:
        model(torch.randn(rows, 16))
        rows += 1
        rows = 2 if rows > 30_000 else rows
        yield


def einsums() -> Iterator[None]:
    """Multiplies a sparse matrix of another size each time."""
    rows = 2
    while True:
        A = sparsify.tensor(torch.eye(rows % 500 + 1, 7), "csr")
        sparsify.einsum("ij,jk->ik", A, torch.ones(7, 1 + rows // 500))
        rows += 1
        yield


CALLS: Final[dict[str, Callable[[], Iterator[None]]]] = {
    "applies": applies,
    "shapes": shapes,
    "einsums": einsums,
}


def measure(name: str, count: int, seconds: float) -> dict[str, int]:
    """Runs `count` calls, fewer where they take longer than `seconds`; what they did to the memory."""
    start, steps = time.monotonic(), CALLS[name]()
    done = before = warm = 0
    for done in range(1, count + 1):
        next(steps)
        spent = time.monotonic() - start if done >= FEWEST_CALLS else 0.0
        if not warm and (done >= WARM_UP * count or spent > WARM_UP * seconds):
            before, warm = resident_bytes(), done
        if spent > seconds and done >= 2 * FEWEST_CALLS:
            break
    return {"calls": done, "warm": warm, "before": before, "grown": resident_bytes() - before}


def is_flat(name: str, found: dict[str, int]) -> bool:
    """Whether calls after warm-up added no more than is allowed."""
    calls = found["calls"] - found["warm"]
    return found["grown"] <= ALLOWED_BYTES + ALLOWED_PER_CALL[name] * calls


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=list(CALLS))
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=600)
    given = parser.parse_args()
    found = measure(given.name, given.count, given.seconds)
    print(json.dumps(found))
    return int(not is_flat(given.name, found))


if __name__ == "__main__":
    sys.exit(main())
