"""Table 1: sparsifiers measured: declared passes and memory, beside the time of an entry and the peak of a call.

In: a `Setting`. Out: the table: each sparsifier on one weight, stored in CSR, against the same rule in torch operators.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from sparsify import sparsifiers
from sparsify.bench.harness import Case, Contender
from sparsify.runner.measure import peak_once
from sparsify.runtime.buffers import POOL
from sparsify.storage.tensor import SparseTensor

from ..reproduce.figure import OURS, Fact, Figure, Outcome, Row, Setting, timed

SHAPE: tuple[int, int] = (3072, 768)
ZEROS: Final = 0.9
THRESHOLD: Final = 1.6449  # a tenth of normal values is larger in magnitude
ABOVE: Final = 1.2816  # and a tenth is larger
BLOCK, KEEP, OF, GROUP = 4, 1, 8, 16
TORCH: Final = "torch"
Rule = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Entry:
    """A sparsifier of the table.

    Attributes:
        paper: row of the paper's table.
        make: maker of the sparsifier for a weight.
        mask: the same rule in torch operators; `None` without an equivalent.
        is_equal: whether both keep the same entries; random draws differ.
    """

    paper: str
    make: Callable[[Tensor], sparsifiers.Sparsifier]
    mask: Rule | None
    is_equal: bool = True


def top(scores: Tensor, zeros: float) -> Tensor:
    """Mask of the largest scores, by one selection over all scores."""
    return scores > scores.flatten().kthvalue(round(scores.numel() * zeros)).values


def blocks(weight: Tensor) -> Tensor:
    """Mask of the blocks with the largest sums of magnitudes."""
    sums = weight.abs().unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK)).sum((1, 3))
    return top(sums, ZEROS).repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)


def per_block(weight: Tensor) -> Tensor:
    """Mask of the largest entries of each `OF` consecutive entries of a row."""
    grouped = weight.abs().unflatten(1, (-1, OF))
    kept = torch.zeros_like(grouped, dtype=torch.bool)
    return kept.scatter_(2, grouped.topk(KEEP, dim=2).indices, True).flatten(1)


def per_row(weight: Tensor) -> Tensor:
    """Mask of the largest entries of each row."""
    kept = torch.zeros_like(weight, dtype=torch.bool)
    return kept.scatter_(1, weight.abs().topk(_row(weight), dim=1).indices, True)


def _row(weight: Tensor) -> int:
    """Number of kept entries of a row."""
    return max(1, round(weight.shape[1] * (1 - ZEROS)))


def scores(weight: Tensor) -> Tensor:
    """Random stand-in for the accumulated scores of movement pruning."""
    return torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))


def even(weight: Tensor) -> Tensor:
    """Mask of a reference with uniformly random entries."""
    return torch.rand(weight.shape, generator=torch.Generator().manual_seed(2)) >= ZEROS


def entries(weight: Tensor) -> dict[str, Entry]:
    """Sparsifiers by name of the row; further operands of rules are built in advance, untimed."""
    moved, reference = scores(weight), even(weight)
    stored = sparsifiers.ScalarThreshold(0.5)(reference.float(), "csr")
    return {
        "KeepAll": Entry("Keep-all", lambda w: sparsifiers.KeepAll(), lambda w: w != 0),
        "RandomFraction": Entry(
            "Random fraction",
            lambda w: sparsifiers.RandomFraction(ZEROS),
            lambda w: torch.rand(w.shape) >= ZEROS,
            is_equal=False,
        ),
        "ScalarThreshold": Entry(
            "Scalar threshold",
            lambda w: sparsifiers.ScalarThreshold(THRESHOLD),
            lambda w: w.abs() >= THRESHOLD,
        ),
        "Where": Entry(
            "Scalar threshold", lambda w: sparsifiers.Where("value > t", t=ABOVE), lambda w: w > ABOVE
        ),
        "ScalarFraction": Entry(
            "Scalar fraction", lambda w: sparsifiers.ScalarFraction(ZEROS), lambda w: top(w.abs(), ZEROS)
        ),
        "BlockFraction": Entry(
            "Block-wise fraction", lambda w: sparsifiers.BlockFraction(ZEROS, (BLOCK, BLOCK)), blocks
        ),
        "PerBlockFraction": Entry(
            "Per-block fraction", lambda w: sparsifiers.PerBlockFraction(KEEP, OF), per_block
        ),
        "PerBlockFraction with a group": Entry(
            "Per-block fraction", lambda w: sparsifiers.PerBlockFraction(KEEP, OF, group=GROUP), None
        ),
        "TopK": Entry("Per-block fraction", lambda w: sparsifiers.TopK(_row(w)), per_row),
        "SameFormat": Entry("(of its code)", lambda w: sparsifiers.SameFormat(stored), lambda w: reference),
        "Movement": Entry(
            "Complex weight", lambda w: sparsifiers.Movement(ZEROS, moved), lambda w: top(moved, ZEROS)
        ),
    }


NAMES: Final = (
    *("KeepAll", "RandomFraction", "ScalarThreshold", "Where", "ScalarFraction", "BlockFraction"),
    *("PerBlockFraction", "PerBlockFraction with a group", "TopK", "SameFormat", "Movement"),
)


def measure(name: str, setting: Setting) -> Outcome:
    """Time and memory of a sparsifier."""
    weight = torch.randn(SHAPE, generator=torch.Generator().manual_seed(setting.seed))
    entry = entries(weight)[name]
    sparsifier = entry.make(weight)
    calls: dict[str, Callable[[], Any]] = {OURS: lambda: sparsifier(weight, "csr")}
    rule = entry.mask
    if rule is not None:
        known = rule
        calls[TORCH] = lambda: _by_torch(weight, known)
    kept = rule(weight) if rule is not None and entry.is_equal else sparsifier.mask(weight)
    case = Case(name, f"{SHAPE[0]} x {SHAPE[1]}", "generated", [], [], lambda: weight.double()[kept])
    case.contenders += [
        Contender(who, call, who != OURS, is_checked=who == OURS or entry.is_equal)
        for who, call in calls.items()
    ]
    times = timed(case, setting, seconds=4.0)
    extra = {who: raised(call) for who, call in calls.items()}
    facts: dict[str, Fact] = {
        "passes": sparsifier.passes,
        "memory": sparsifier.memory,
        "kind": sparsifier.kind,
        "kept, %": 100 * float(kept.float().mean()),
        "ns an entry": times[OURS].median_ms * 1e6 / weight.numel(),
        **_shown(extra, weight),
    }
    return Outcome(times, {}, facts, f"{entry.paper} of the paper")


def _by_torch(weight: Tensor, rule: Rule) -> Tensor:
    """Kept entries in torch's CSR."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR layout a beta
        return (weight * rule(weight)).to_sparse_csr()


def raised(call: Callable[[], Any]) -> int | None:
    """Peak bytes of a call minus its result, minimum of three; `None` without a memory counter."""
    found = []
    for _ in range(3):
        POOL.clear()
        if (peak := peak_once(call)) is None:
            return None
        found.append(max(0, peak - size_of(call())))
    return min(found)


def size_of(result: Any) -> int:
    """Bytes of a sparse result."""
    if isinstance(result, SparseTensor):
        arrays = [result.values(), *result.pattern.pos, *result.pattern.crd]
    else:
        arrays = [result.values(), result.crow_indices(), result.col_indices()]
    return sum(array.numel() * array.element_size() for array in arrays if array is not None)


def _shown(extra: Mapping[str, int | None], weight: Tensor) -> dict[str, float]:
    """Extra memory of each contender, in units of the weight's size."""
    whole = weight.numel() * weight.element_size()
    return {f"extra of {who}, weights": peak / whole for who, peak in extra.items() if peak is not None}


def rows(setting: Setting) -> Sequence[Row]:
    """Rows of the sparsifiers in the order of the paper's table."""
    seconds = 5.0 if setting.quick else 10.0
    return [Row(name, "generated", partial(measure, name), (), seconds) for name in NAMES]


FIGURE = Figure(
    "table1",
    "sparsifiers of a weight of 3072 x 768, stored in CSR",
    rows,
    TORCH,
    "passes, memory and kind alone, no times.",
    numbers={
        "KeepAll": "1, O(1), streaming",
        "RandomFraction": "1, O(1), streaming",
        "ScalarThreshold": "1, O(1), streaming",
        "Where": "1, O(1), streaming",
        "ScalarFraction": "2, O(nnz), materializing",
        "BlockFraction": "2, O(nnz), materializing",
        "PerBlockFraction": "2, O(b), blocking",
        "PerBlockFraction with a group": "2, O(b), blocking",
        "TopK": "2, O(b), blocking",
        "Movement": ">= 1, O(nnz), materializing",
    },
    facts=(
        "passes",
        "memory",
        "kind",
        "kept, %",
        "ns an entry",
        "extra of sparsify, weights",
        "extra of torch, weights",
    ),
    why={
        TORCH: "it keeps any of several equal entries; ours the first ones, which takes more passes over a group"
    },
)
