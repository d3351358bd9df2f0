"""Scheduling time of random einsums: order of products, loop orders, and the first schedule of every kernel.

In: `--rows scheduling`. Out: the median, the 95th percentile and the slowest of 300 einsums of six to eight index
variables and two to five operands, in milliseconds of one thread. Nothing is compiled.
"""

import gc
import random
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from sparsify.compiler import pipeline
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.einsum.text.subscripts import read_subscripts
from sparsify.compiler.plan.plan import steps
from sparsify.compiler.plan.step import Step
from sparsify.compiler.schedule.cost import loop_order
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.storage.format import Format

# In milliseconds, for every einsum.
ASKED: Final = 20.0
COUNT: Final = 300
REPEATS: Final = 2
LETTERS: Final = "abcdefgh"
FORMATS: Final[Mapping[int, tuple[str, ...]]] = {
    1: ("dense", "compressed"),
    2: ("dense", "csr", "csc", "dcsr", "coo"),
    3: ("dense", "csf", "coo"),
}
EXTENTS: Final = (4, 10, 30, 100, 1000)
MOST_DENSE: Final = 10**7
MOST_STORED: Final = 10**6
VECTOR_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Drawn:
    """A random einsum; operands are known by format, extents and number of stored entries only.

    Attributes:
        subscripts: subscripts of the einsum.
        formats: formats of the operands.
        program: einsum program of the subscripts.
        sizes: extents and stored entries.
    """

    subscripts: str
    formats: tuple[str, ...]
    program: Program
    sizes: Sizes

    def __str__(self) -> str:
        return f"{self.subscripts} {' '.join(self.formats)}"


def draw(seed: int) -> Drawn:
    """Random einsum of a seed."""
    take = random.Random(seed)
    letters = LETTERS[: take.choice((6, 7, 8, 8))]
    terms = _terms(take, letters)
    extents = {letter: take.choice(EXTENTS) for letter in letters}
    kept = [letter for letter in letters if take.random() < 0.4][:4]
    take.shuffle(kept)
    shapes = [tuple(extents[letter] for letter in term) for term in terms]
    formats = tuple(_format(take, shape) for shape in shapes)
    names = tuple("ABCDE"[: len(terms)])
    subscripts = f"{','.join(terms)}->{''.join(kept)}"
    operands = {
        name: Operand(Format(format, rank=len(shape)), "float32")
        for name, format, shape in zip(names, formats, shapes, strict=True)
    }
    program = declare((read_subscripts(subscripts, shapes, names, "Y"),), operands, ("Y",))
    known: dict[str, int] = {}
    stored: dict[str, int] = {}
    for name, shape, format in zip(names, shapes, formats, strict=True):
        known.update(zip(program.declaration(name).extents, shape, strict=True))
        if format != "dense":
            share = 10 ** -take.uniform(0.3, 4)
            stored[name] = max(1, min(MOST_STORED, int(prod(shape) * share)))
    return Drawn(subscripts, formats, program, Sizes(known, stored))


def _terms(take: random.Random, letters: str) -> list[str]:
    """Subscripts of two to five operands of up to five modes; together they contain all letters."""
    count = take.choice((2, 3, 4, 5, 5))
    terms = ["" for _ in range(count)]
    for letter in letters:
        for n in take.sample(range(count), min(count, take.choice((1, 2, 2, 3, 3)))):
            terms[n] += letter
    shuffled = ["".join(take.sample(term, len(term)))[:5] for term in terms]
    missing = [letter for letter in letters if not any(letter in term for term in shuffled)]
    filled = [term or take.choice(letters) for term in shuffled]
    for letter in missing:
        filled[min(range(count), key=lambda n: len(filled[n]))] += letter
    return filled


def _format(take: random.Random, shape: tuple[int, ...]) -> str:
    """Random format of an operand; never dense above `MOST_DENSE` elements."""
    found = FORMATS[min(len(shape), 3)]
    return take.choice(found if prod(shape) <= MOST_DENSE else found[1:])


def scheduled(drawn: Drawn) -> int:
    """Number of kernels of an einsum; finds the first schedule of each with empty memos."""
    loop_order.searched_before.cache_clear()
    pipeline.plain_notation.cache_clear()
    kernels = [step for step in steps(drawn.program, drawn.sizes) if isinstance(step, Step)]
    for step in kernels:
        pipeline.chosen(step, VECTOR_BYTES, drawn.sizes)
    return len(kernels)


def milliseconds(drawn: Drawn) -> float:
    """Thread time of scheduling, minimum of `REPEATS` runs; garbage of earlier runs is collected before each."""
    taken = []
    for _ in range(REPEATS):
        gc.collect(0)
        began = time.thread_time()
        scheduled(drawn)
        taken.append((time.thread_time() - began) * 1e3)
    return min(taken)


def row(count: int = COUNT) -> dict[str, Any]:
    """Row of the table over `count` random einsums."""
    scheduled(draw(0))
    found = {seed: milliseconds(draw(seed)) for seed in range(count)}
    slowest = max(found, key=found.__getitem__)
    reached = {
        "median": statistics.median(found.values()),
        "95 %": statistics.quantiles(found.values(), n=20)[-1],
        "worst": found[slowest],
    }
    targets = [
        {"label": label, "asked": ASKED, "reached": value, "met": value <= ASKED}
        for label, value in reached.items()
    ]
    return {
        "name": "scheduling",
        "kind": "limits",
        "work": f"six to eight index variables, slowest {draw(slowest)}",
        "data": f"{count} einsums",
        "unit": "ms",
        "taken_ms": found,
        "targets": targets,
    }
