"""Fused chains against one kernel per statement: costs expected by the cost model, and measured times.

In: `python -m experiments.fusion.boundaries [--rows GAT ...] [--out boundaries.csv]`. Out: a row for each chain,
forward and for its gradients by rows and by columns, the median error of expected ratios, the chains fused although
fusion is slower, and CSV.

Times are thread times of one thread, so that a busy machine does not matter; both forms are measured alternately.
"""

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from tabulate import tabulate
from torch import Tensor

from sparsify.bench.predicted import uniform
from sparsify.compiler.einsum.infer.extents import name_extents
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.kernel.kernel import Kernel, planned
from sparsify.compiler.plan.fuse.row_chain import Fusion
from sparsify.compiler.plan.fuse.rows_and_columns import divide
from sparsify.compiler.plan.plan import apart, joined, joined_rows
from sparsify.compiler.schedule.sizes import sizes_of

SOFTMAX: Final = """
m[{h}i] max= S[{h}i,j]
P[{h}i,j] = exp(S[{h}i,j] - where(m[{h}i] == -inf, 0, m[{h}i]))
d[{h}i] += P[{h}i,j]
"""
WEIGHTED: Final = SOFTMAX.format(h="h,") + "Y[i,h,f] += P[h,i,j] * X[j,h,f] / where(d[h,i] == 0, 1, d[h,i])"
DROPPED: Final = SOFTMAX.format(h="h,") + (
    "W[h,i,j] = where(stored(A[i,j]), where(uniform(seed[h], i, j) < 0.6, 0, 2.5), 0)\n"
    "D[h,i,j] = where(stored(A[i,j]), P[h,i,j] * W[h,i,j], 0)\n"
    "Y[i,h,f] += D[h,i,j] * X[j,h,f] / where(d[h,i] == 0, 1, d[h,i])"
)
HEADS_FIRST: Final = (
    SOFTMAX.format(h="h,") + "Y[h,i,f] += P[h,i,j] * V[h,j,f] / where(d[h,i] == 0, 1, d[h,i])"
)
ONE_HEAD: Final = SOFTMAX.format(h="") + "Y[i,f] += P[i,j] * X[j,f] / where(d[i] == 0, 1, d[i])"
LEAKY: Final = "where({0} > 0, {0}, 0.2 * ({0}))"
SUMS: Final = LEAKY.format("a[j,h] + b[i,h]")
MIXED: Final = f"sum(k, {LEAKY.format('Q[i,h,k] + X[j,h,k]')} * w[0,h,k])"
PROGRAMS: Final = {
    "GAT": f"S[h,i,j] = where(stored(A[i,j]), {SUMS} + A[i,j], -inf)" + WEIGHTED,
    "GAT, dropped": f"S[h,i,j] = where(stored(A[i,j]), {SUMS} + A[i,j], -inf)" + DROPPED,
    "GATv2": f"S[h,i,j] = where(stored(A[i,j]), {MIXED} + A[i,j], -inf)" + WEIGHTED,
    "TransformerConv": "S[h,i,j] = where(stored(A[i,j]), sum(k, Q[i,h,k] * K[j,h,k]) / 2.8 + A[i,j], -inf)"
    + WEIGHTED,
    "attention": "S[h,i,j] = where(stored(A[i,j]), 0.125 * sum(k, Q[h,i,k] * K[h,j,k]), -inf)" + HEADS_FIRST,
    "edge softmax": "S[i,j] = where(stored(A[i,j]), A[i,j], -inf)" + ONE_HEAD,
    "SDDMM, softmax, SpMM": "S[i,j] = where(stored(A[i,j]), sum(k, Q[i,k] * K[j,k]), -inf)" + ONE_HEAD,
    "SDDMM, SpMM": "S[i,j] = A[i,j] * sum(k, Q[i,k] * K[j,k])\nY[i,f] += S[i,j] * X[j,f]",
}
# Nodes, edges of each, heads and features of a head.
SIZES: Final = {
    "GAT": ((20_000, 10, 8, 8), (4_000, 30, 8, 8), (4_000, 30, 4, 32), (4_000, 10, 3, 5), (50, 5, 8, 8)),
    "GAT, dropped": ((20_000, 10, 8, 8), (4_000, 30, 2, 4), (4_000, 30, 4, 32)),
    "GATv2": ((20_000, 10, 8, 8), (4_000, 30, 8, 8), (4_000, 30, 2, 64)),
    "TransformerConv": ((20_000, 10, 8, 8), (4_000, 30, 8, 8), (4_000, 30, 4, 32)),
    "attention": ((4_000, 30, 4, 32), (1_000, 60, 12, 64), (1_024, 20, 12, 64)),
    "edge softmax": (
        (20_000, 10, 1, 64),
        (4_000, 30, 1, 64),
        (20_000, 1, 1, 64),
        (4_000, 2, 1, 3),
        (4_000, 30, 1, 500),
    ),
    "SDDMM, softmax, SpMM": ((20_000, 10, 1, 64), (4_000, 30, 1, 64), (2_000, 200, 1, 64), (50, 5, 1, 16)),
    "SDDMM, SpMM": ((20_000, 10, 1, 64), (4_000, 30, 1, 64), (2_000, 200, 1, 64), (50, 5, 1, 16)),
}
SECONDS: Final = 0.1
# Measurement noise: relative slowdown of a fused chain that does not count as a loss.
NOISE: Final = 0.05
TURNS: Final = 3


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain and its operands.

    Attributes:
        name: name of the case.
        program: statements of the chain.
        operands: operands by name.
    """

    name: str
    program: Program
    operands: dict[str, Any]

    @property
    def given(self) -> tuple[Any, ...]:
        """Operands in the order of the program."""
        return tuple([self.operands[name] for name in self.program.inputs])

    def expected(self) -> Fusion | None:
        """Expected costs of the fused and the separate form; `None` if the program is no row chain."""
        return joined_rows(self.program, sizes_of(self.program, self.given))


@dataclass(frozen=True, slots=True)
class Row:
    """Expected and measured microseconds of one kernel and of a kernel for each statement."""

    name: str
    fused_expected_us: float
    apart_expected_us: float
    fused_us: float
    apart_us: float

    @property
    def expected(self) -> float:
        """Expected speedup of the fused form."""
        return self.apart_expected_us / self.fused_expected_us

    @property
    def measured(self) -> float:
        """Measured speedup of the fused form."""
        return self.apart_us / self.fused_us

    @property
    def is_lost(self) -> bool:
        """Whether the chain is fused although the fused form is slower."""
        return self.expected >= 1 and self.fused_us > (1 + NOISE) * self.apart_us

    @property
    def off(self) -> float:
        """Error of the expected speedup as a ratio, 1 or more."""
        return max(self.expected / self.measured, self.measured / self.expected)


def chains(names: Sequence[str] = ()) -> Iterator[Chain]:
    """Every chain, and the two chains of its divided gradients; `names` selects by prefix."""
    for name, text in PROGRAMS.items():
        if names and not any(name.startswith(wanted) for wanted in names):
            continue
        for nodes, edges, heads, features in SIZES[name]:
            yield from _chains(name, text, nodes, edges, heads, features)


def _chains(name: str, text: str, nodes: int, edges: int, heads: int, features: int) -> Iterator[Chain]:
    """Chain of one size, and the chains of its gradients."""
    extents = {"i": nodes, "j": nodes, "h": heads, "f": features, "k": features, "0": 1}
    generator = torch.Generator().manual_seed(0)
    operands: dict[str, Any] = {"A": uniform(nodes, nodes, edges)}
    for tensor in "abQKXVw":
        if f"{tensor}[" in text:
            modes = text.split(f"{tensor}[")[1].split("]")[0].split(",")
            operands[tensor] = torch.randn([extents[mode] for mode in modes], generator=generator)
    if "seed[" in text:
        operands["seed"] = torch.arange(heads, dtype=torch.int32)
    fixed = {index: extents[index] for index in "hfk" if f"{index}," in text or f",{index}]" in text}
    kernel = evaluate_kernel(text, "Y", sizes=fixed, **operands)
    name = f"{name} {nodes} x {edges}, {heads} x {features}"
    yield Chain(name, kernel.program, operands)
    dense = tuple(tensor for tensor in kernel.program.inputs if tensor not in ("A", "seed"))
    reverse = kernel.adjoint(dense).program if len(dense) > 1 else None
    parts = None if reverse is None else divide(name_extents(reverse))
    if reverse is None or parts is None:
        return
    given = tuple([operands[tensor] for tensor in kernel.program.inputs])
    known = {**operands, **kernel.run(given)}
    kept = tuple(n for n in reverse.inputs if n not in known and not n.startswith("g_"))
    if kept:
        found = kernel.temporaries(kept)(*given)
        known |= dict(zip(kept, found if isinstance(found, tuple) else (found,), strict=True))
    known["g_Y"] = torch.randn(known["Y"].shape, generator=generator)
    for part in (parts.first, parts.rows):
        if part is not None:
            known |= planned(part, apart(part)).run(tuple([known[n] for n in part.inputs]))
    known[parts.twin.name] = known["A"].to(format=parts.twin.format)
    yield Chain(f"{name}, gradients of rows", parts.rows, known)
    yield Chain(f"{name}, of columns", parts.columns, known)


def measured(chain: Chain) -> Row | None:
    """Times of both forms of a chain, with equal results; `None` if one kernel has no schedule."""
    expected = chain.expected()
    if expected is None or expected.fused_us is None or expected.apart_us is None:
        return None
    sizes = sizes_of(chain.program, chain.given)
    forms = [
        planned(chain.program, joined(chain.program)),
        planned(chain.program, apart(chain.program, sizes)),
    ]
    for form in forms:
        form.prepare(sizes)
    with torch.no_grad():
        one, several = (_results(form, chain.given) for form in forms)
        torch.testing.assert_close(one, several, rtol=1e-3, atol=1e-3)
        turns = [[_least_us(form, chain.given) for form in forms] for _ in range(TURNS)]
    fused_us, apart_us = (min(times) for times in zip(*turns, strict=True))
    return Row(chain.name, expected.fused_us, expected.apart_us, fused_us, apart_us)


def _results(kernel: Kernel, given: tuple[Any, ...]) -> list[Tensor]:
    """Results of a form."""
    known = kernel.run(given)
    return [known[name] for name in kernel.program.outputs]


def _least_us(kernel: Kernel, given: tuple[Any, ...]) -> float:
    """Minimum thread time of a call in microseconds, over `SECONDS` of calls."""
    call: Callable[[tuple[Any, ...]], Any] = kernel.run
    least, end = float("inf"), time.thread_time() + SECONDS
    while True:
        started = time.thread_time()
        call(given)
        stopped = time.thread_time()
        least = min(least, stopped - started)
        if stopped > end:
            return least * 1e6


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", default=[], help="how names begin")
    parser.add_argument("--out", type=Path, help="write CSV here")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows = [row for chain in chains(arguments.rows) if (row := measured(chain)) is not None]
    lines = [(r.name, f"{r.expected:.2f}", f"{r.measured:.2f}", f"{r.off:.2f}") for r in rows]
    print(tabulate(lines, headers=("chain", "expected", "measured", "off"), tablefmt="simple"))
    if rows:
        print(f"within {statistics.median(r.off for r in rows):.2f}x in the median of {len(rows)} chains")
        lost = [row.name for row in rows if row.is_lost]
        print(f"{len(lost)} are one kernel and slower than several", *lost, sep="\n  ")
    if arguments.out is not None:
        with arguments.out.open("w", newline="") as file:
            fields = list(asdict(rows[0])) if rows else []
            writer = csv.DictWriter(file, fields)
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
