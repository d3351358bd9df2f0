"""One run of a model that runs on no graph: pruned by its recipe, applied, verified and timed.

In: the request of `bert`. Out: a `PrunedResult`: the model with its pruned weights in torch against that in kernels.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from sparsify.passes.lift.attention.program import UNDER
from sparsify.passes.module.compare import pairs
from sparsify.passes.rules.prune import prune
from sparsify.report import Report
from sparsify.runner import measure
from sparsify.runner.machine import machine
from sparsify.runner.progress import Progress
from sparsify.runner.pruned_result import PrunedResult
from sparsify.runner.request import Request
from sparsify.runner.result import Contender
from sparsify.runner.subject import Subject, subject

# Passes of which each region's time is a median; of long ones, one pass tells it.
REPEATS: Final = 5


def run_pruned(request: Request, seconds: float) -> PrunedResult:
    """The result of pruning the request's model, of making it sparse and of running both."""
    from sparsify.api import apply

    asked = subject(request)
    dense = prune(asked.model, request.recipe, run=partial(asked.model, *asked.example)).eval()
    call = one_pass(dense, asked)
    expected, dense_first = measure.once(call)
    progress = Progress(request.entry.name, asked.text, dense_first)
    progress.begun()
    has_masks = any(rule.mask is not None for rule in request.recipe.rules)
    sparse, apply_ms = measure.once(
        lambda: apply(asked.model, request.recipe, asked.example, trainable=False, verify=False)
    )
    progress.applied(apply_ms)
    sparse_call = one_pass(sparse, asked)
    found, sparse_first = measure.once(sparse_call)
    if has_masks:  # the dense model attends to everything: another result
        with torch.no_grad():
            expected = sparse.original(*asked.example)
    error, agrees = difference(expected, found, request.recipe.verify.rtol, request.recipe.verify.atol)
    del expected, found
    is_long = dense_first > measure.LONG_MS
    timings = measure.interleave(call, sparse_call, seconds=seconds, is_warm=is_long, told=progress.turn)
    timings[0].first_ms, timings[1].first_ms = dense_first, sparse_first
    with torch.no_grad():
        sparse.measure(*asked.example, repeats=1 if timings[1].median_ms > measure.LONG_MS else REPEATS)
    return PrunedResult(
        model=request.entry.name,
        arguments=dict(request.arguments),
        recipe=request.recipe.name,
        data={"name": request.dataset, "inputs": asked.text},
        weights=weights(asked.model, dense, request),
        masks=masks(sparse.report),
        seed=request.seed,
        dense=Contender(None, timings[0], measure.peak_bytes(call)),
        sparse=Contender(None, timings[1], measure.peak_bytes(sparse_call)),
        largest_error=error,
        tolerance={"rtol": request.recipe.verify.rtol, "atol": request.recipe.verify.atol},
        agrees=agrees,
        apply_ms=apply_ms,
        report=sparse.report,
        machine=machine(),
    )


def one_pass(model: nn.Module, asked: Subject) -> Callable[[], Any]:
    """A call that runs the model once, without gradients."""

    def call() -> Any:
        with torch.no_grad():
            return model(*asked.example)

    return call


def difference(expected: Any, found: Any, rtol: float, atol: float) -> tuple[float, bool]:
    """The largest absolute difference between the tensors of two outputs, and whether all are within the tolerance."""
    error, agrees = 0.0, True
    for _, want, have in pairs(expected, found):
        if want.shape != have.shape:
            return float("inf"), False
        error = max(error, float((want - have).abs().max()) if want.numel() else 0.0)
        agrees = agrees and torch.allclose(have, want, rtol=rtol, atol=atol)
    return error, agrees


def masks(report: Report) -> list[str]:
    """The patterns of attention, each with how many calls of attention have it."""
    notes = [note for region in report.regions for note in region.notes if note.startswith(UNDER)]
    return [f"{count} x {note.removeprefix(UNDER)}" for note, count in Counter(notes).items()]


def weights(source: nn.Module, pruned: nn.Module, request: Request) -> dict[str, Any]:
    """Where the weights come from, how many were pruned, and their share of zeros."""
    before = dict(source.named_parameters())
    changed = [value for name, value in pruned.named_parameters() if value is not before[name]]
    entries = sum(value.numel() for value in changed)
    zeros = entries - sum(int(torch.count_nonzero(value)) for value in changed)
    return {
        "checkpoint": str(request.arguments.get("checkpoint", "")),
        "pruned": len(changed),
        "entries": entries,
        "zeros": zeros / entries if entries else 0.0,
        "model_bytes": sum(value.nbytes for value in pruned.parameters()),
    }
