"""Alternatives timed beside the dense and the sparse model in a run of a graph model.

In: the request of `gcn`, a graph. Out: the same passes by torch alone, and under each prefix of the recipe's rules.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

import torch
from torch import Tensor, nn

from sparsify.passes.capture.draft import ApplyRequest
from sparsify.passes.capture.shell import shared_copy
from sparsify.passes.module.check.verify import pairs
from sparsify.passes.module.prune_and_capture import pruned, sparse_module
from sparsify.recipe import Recipe
from sparsify.report import Report
from sparsify.runner.measure import Call, Timing
from sparsify.runner.request import Request
from sparsify.runner.subject import Subject

BY_HAND: Final = "torch"


@dataclass(slots=True)
class Alternative:
    """A contender beside the dense and the sparse model.

    Attributes:
        name: `torch` for torch alone, else the last rule of the prefix of rules.
        largest_error: the largest absolute difference of outputs from the dense model's.
        agrees: whether all outputs are within the recipe's tolerance.
        timing: times of the turns.
    """

    name: str
    largest_error: float
    agrees: bool
    timing: Timing = field(default_factory=Timing)

    def to_dict(self) -> dict[str, Any]:
        """The alternative as plain data."""
        return {
            "name": self.name,
            "median_ms": self.timing.median_ms,
            "runs_ms": self.timing.runs_ms,
            "largest_error": self.largest_error,
            "agrees": self.agrees,
        }


def alternatives(
    request: Request, asked: Subject, dense: nn.Module, expected: Any, report: Report
) -> tuple[list[Alternative], list[Call]]:
    """Alternatives and calls: the model by torch alone, then sparse with rule 1, with rules 1 and 2, and so on.

    Args:
        request: model, recipe and data.
        asked: the model before pruning, and inputs.
        dense: the pruned model.
        expected: the result of `dense`.
        report: report of the model with all rules; rules without a match are left out.
    """
    if asked.graph is None:
        return [], []
    made: dict[str, Call] = {}
    if (by_hand := request.entry.written_by_hand(dense, asked.graph)) is not None:
        made[BY_HAND] = without_gradients(by_hand)
    rules = zip(request.recipe.rules, report.rules, strict=False)  # none of a model that was not captured
    matched = [(rule, entry.rule) for rule, entry in rules if entry.matched]
    for count, (_, label) in enumerate(matched[:-1], 1):
        first = request.recipe.with_rules(rule for rule, _ in matched[:count])
        how = ApplyRequest(first, verify=False, trainable=False)
        model = sparse_module(pruned(shared_copy(asked.model).eval(), how, asked.example), how)
        made[label] = one_pass(model, asked.example)
    found = [Alternative(name, *difference(expected, call(), request.recipe)) for name, call in made.items()]
    return found, list(made.values())


def one_pass(model: Callable[..., Any], example: Sequence[Tensor]) -> Call:
    """A call: one forward pass without gradients."""
    return without_gradients(lambda: model(*example))


def without_gradients(made: Call) -> Call:
    """The call under `torch.no_grad`."""

    def call() -> Any:
        with torch.no_grad():
            return made()

    return call


def difference(expected: Any, found: Any, recipe: Recipe) -> tuple[float, bool]:
    """The largest absolute difference between the tensors of two outputs, and whether all are within tolerance."""
    rtol, atol = recipe.verify.rtol, recipe.verify.atol
    errors, agrees = [0.0], True
    for _, want, have in pairs(expected, found):
        if want.shape != have.shape:
            return inf, False
        errors.append(float((want - have).abs().max()) if want.numel() else 0.0)
        agrees = agrees and torch.allclose(have, want, rtol=rtol, atol=atol)
    return float(torch.tensor(errors, dtype=torch.float64).max()), agrees  # propagates nan
