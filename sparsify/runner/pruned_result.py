"""The result of a run of a pruned model: a table with zeros, bytes, and reasons for weights left dense.

In: measurements of `run`. Out: `print(result)`, `result.to_dict()`, `result.write("out/")`.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from sparsify.passes.decide.pattern_regions import UNDER
from sparsify.report import Report
from sparsify.runner.result import Result, mebibytes

MOST_REASONS: Final = 6


@dataclass(slots=True, kw_only=True)
class PrunedResult(Result):
    """A finished run of a model without a graph.

    Attributes:
        weights: the checkpoint, the number of pruned weights, the share of zeros, bytes of the model.
        masks: the patterns of attention; the timed dense model has none.
    """

    weights: dict[str, Any]
    masks: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes of the packed weights, before and after packing."""
        moved = self.report.conversions
        return sum(entry.bytes_before for entry in moved), sum(entry.bytes_after for entry in moved)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data, with the weights and bytes."""
        before, after = self.bytes
        known = {
            "weights": self.weights,
            "masks": self.masks,
            "packed_bytes_before": before,
            "packed_bytes_after": after,
        }
        return {**Result.to_dict(self), **known}

    def about(self) -> list[list[str]]:
        """Rows for the input, the weights, and bytes of weights."""
        w = self.weights
        origin = w["checkpoint"] or f"random, seed {self.seed}"
        pruned = f"{w['zeros']:.1%} zeros in {w['pruned']} pruned ones" if w["pruned"] else "none pruned"
        attention = [["attention", "to all", "under a pattern", ", ".join(self.masks)]] if self.masks else []
        before, after = self.bytes
        rest = w["model_bytes"] - before
        return [
            ["input", "", "", f"{self.data['inputs']}, {self.data['name']}"],
            ["weights", "", "", f"{origin}; {pruned}"],
            *attention,
            ["bytes of packed weights", mebibytes(before), mebibytes(after), f"{mebibytes(rest)} are others"],
        ]

    def notes(self) -> list[str]:
        """Why weights stayed dense, a line for each reason, and the warnings."""
        found: dict[str, list[str]] = {}
        for entry in self.report.dense:
            found.setdefault(kind_of(entry.reason), []).append(f"{entry.node}: {entry.reason}")
        lines = [
            f"dense: {texts[0]}" + (f" ({len(texts) - 1} more such)" if len(texts) > 1 else "")
            for texts in found.values()
        ]
        more = len(lines) - MOST_REASONS
        rest = [f"dense: {more} more reasons; --out or --json lists all"] if more > 0 else []
        return [*lines[:MOST_REASONS], *rest, *Result.notes(self)]


def kind_of(reason: str) -> str:
    """A reason without weight-specific parts: dotted names and numbers."""
    return re.sub(r"\S*\.\S+|\d+", "", reason)


def masks(report: Report) -> list[str]:
    """The patterns of attention, each with the number of attention calls."""
    notes = [note for region in report.regions for note in region.notes if note.startswith(UNDER)]
    return [f"{count} x {note.removeprefix(UNDER)}" for note, count in Counter(notes).items()]


def weights(source: nn.Module, pruned: nn.Module, checkpoint: str) -> dict[str, Any]:
    """Origin of the weights, the number of pruned weights, and the share of zeros among them."""
    before = dict(source.named_parameters())
    changed = [value for name, value in pruned.named_parameters() if value is not before[name]]
    entries = sum(value.numel() for value in changed)
    zeros = entries - sum(int(torch.count_nonzero(value)) for value in changed)
    return {
        "checkpoint": str(checkpoint),
        "pruned": len(changed),
        "entries": entries,
        "zeros": zeros / entries if entries else 0.0,
        "model_bytes": sum(value.nbytes for value in pruned.parameters()),
    }
