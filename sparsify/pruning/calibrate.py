"""One-shot pruning of a model with calibration data, layer by layer: later layers see pruned earlier layers.

In: a model (changed in place), `{"0.weight": Prune(method="wanda", sparsity=0.5)}`, calls. Out: for each weight a
mask, the new weight and the relative error of the layer.

Each round runs the calls up to the products with one common input X, sums X^T X, prunes the weights of these products
and frees the sums: memory is bounded by one layer.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn

from sparsify.errors import DataError, ShapeError, SparsifyError
from sparsify.options import current
from sparsify.pruning.sparsegpt import sparsegpt
from sparsify.pruning.statistics import Kind, Moment, Moments, Part, Product, Reader, relative_error
from sparsify.pruning.structure import Structure
from sparsify.pruning.wanda import wanda
from sparsify.recipe import Prune

METHODS: Final = ("wanda", "sparsegpt")
# Wanda needs only norms; a gram matrix of at most this size is summed in addition, to report the error.
GRAM_BYTES: Final = 256 << 20
SAY_EVERY_S: Final = 5.0
Call = Callable[[nn.Module], Any]


@dataclass(frozen=True)
class Calibrated:
    """A weight after pruning.

    Attributes:
        mask: `True` where an entry is kept.
        weight: the new weight.
        error: `||X W^T - X W'^T|| / ||X W^T||` over the calibration data, None if not measured.
    """

    mask: Tensor
    weight: Tensor
    error: float | None


@dataclass
class Outcome:
    """Pruned weights, and weights left dense with reasons."""

    pruned: dict[str, Calibrated] = field(default_factory=dict)
    passed: dict[str, str] = field(default_factory=dict)


class Enough(BaseException):
    """Ends a call early, without the remaining operators; not an `Exception`, so that models do not catch it."""


def prune_by_calibration(
    model: nn.Module,
    jobs: Mapping[str, Prune],
    calls: Sequence[Call],
    put: Callable[[str, Tensor], None] | None = None,
) -> Outcome:
    """Prunes weights in execution order.

    Args:
        model: receives new weights; the caller sets mode and buffers.
        jobs: pruning options of each weight, by name.
        calls: functions that run the model, each on one batch.
        put: setter of a new weight; None replaces the parameter of the name only.

    Raises:
        DataError: no batch, the model fails for a batch, or inputs are not finite.
        ShapeError: groups or blocks do not divide a weight.
    """
    if not calls:
        raise DataError("the calibration data is empty", "give one batch of inputs or more")
    put = put or (lambda name, weight: put_parameter(model, name, weight))
    for name, prune in jobs.items():
        weight = model.get_parameter(name)
        _, structure = Structure.asked_by(prune).in_matrix(weight.shape, False)
        structure.require_fit(matrix_of(weight, False).shape)
    outcome, progress = Outcome(), Progress(len(jobs))
    with torch.no_grad():
        reads = [reads_of(model, jobs, call, at) for at, call in enumerate(calls)]
        for names in rounds(reads):
            moments = Moments({name: kind_of(model.get_parameter(name), jobs[name]) for name in names})
            for at, (call, products) in enumerate(zip(calls, reads, strict=True)):
                gather(model, call, at, moments, sum(name in names for name, _ in products))
            for name in names:
                prune_one(model, name, jobs[name], moments.of.pop(name, {}), outcome)
                if name in outcome.pruned:
                    put(name, outcome.pruned[name].weight)
                progress.step(name)
    for name in jobs:
        if name not in outcome.pruned:
            outcome.passed.setdefault(name, "no product of the calibration data reads the weight itself")
    return outcome


def prune_one(
    model: nn.Module, name: str, prune: Prune, parts: Mapping[Part, Moment], outcome: Outcome
) -> None:
    """Prunes one weight, or records the reason against pruning, in `outcome`."""
    weight = model.get_parameter(name)
    if reason := refusal(weight, parts):
        outcome.passed[name] = reason
        return
    try:
        outcome.pruned[name] = pruned_weight(weight, prune, parts)
    except (DataError, ShapeError) as error:
        raise type(error)(f"{name}: {error.message}", error.remedy) from error


def put_parameter(model: nn.Module, name: str, weight: Tensor) -> None:
    """Puts a weight under one name."""
    owner, _, attribute = name.rpartition(".")
    old = model.get_parameter(name)
    setattr(model.get_submodule(owner), attribute, nn.Parameter(weight, requires_grad=old.requires_grad))


def run(model: nn.Module, call: Call, at: int) -> None:
    """Runs a batch, until `Enough` ends the call early.

    Raises:
        DataError: the model fails.
    """
    try:
        call(model)
    except Enough:
        pass
    except SparsifyError:
        raise
    except Exception as error:  # any error of the model for unfit inputs
        raise DataError(
            f"the model fails for batch {at + 1} of the calibration data: {error}",
            "batches of the shapes that the model takes",
        ) from error


def reads_of(model: nn.Module, jobs: Mapping[str, Prune], call: Call, at: int) -> list[tuple[str, int]]:
    """Weights read by the products of a call, in order, with a number; consecutive products of one X share a number."""
    reads: list[tuple[str, int]] = []
    last: list[Product] = []  # keeps the source alive: no other tensor can reuse the address

    def take(product: Product) -> None:
        is_same = bool(last) and last[0].input_key == product.input_key
        reads.append((product.name, (reads[-1][1] if reads else 0) + (not is_same)))
        last[:] = [product]

    with Reader({name: model.get_parameter(name) for name in jobs}, take):
        run(model, call, at)
    return reads


def rounds(reads: Sequence[Sequence[tuple[str, int]]]) -> list[list[str]]:
    """Weights in order of first use; weights with a common input X form one round."""
    groups: list[list[str]] = []
    placed: set[str] = set()
    for call in reads:
        last = None
        for name, source in call:
            if name in placed:
                continue
            if source != last:
                groups.append([])
            groups[-1].append(name)
            placed.add(name)
            last = source
    return groups


def gather(model: nn.Module, call: Call, at: int, moments: Moments, expected: int) -> None:
    """Adds the inputs of some weights in a call to the moments; the call ends after the last expected read."""
    left = Counter(reads=expected)

    def take(product: Product) -> None:
        moments.add(product)
        left["reads"] -= 1
        if left["reads"] == 0:
            raise Enough

    if expected:
        with Reader({name: model.get_parameter(name) for name in moments.kinds}, take):
            run(model, call, at)
        moments.last = None


def kind_of(weight: Tensor, prune: Prune) -> Kind:
    """The statistic for a method: the gram matrix if required or small enough, else norms."""
    widest = max(matrix_of(weight, False).shape)
    return "gram" if prune.method == "sparsegpt" or 4 * widest**2 <= GRAM_BYTES else "norm"


def matrix_of(weight: Tensor, is_transposed: bool) -> Tensor:
    """A weight as [outputs, inputs]."""
    matrix = weight.detach().flatten(1)
    return matrix.t() if is_transposed else matrix


def refusal(weight: Tensor, parts: Mapping[Part, Moment]) -> str:
    """Reason for missing statistics of a weight or of a part of the rows; "" if complete."""
    if not parts:
        return "no product of the calibration data reads the weight itself"
    if len({part.is_transposed for part in parts}) > 1:
        return "products sum over both of its modes"
    rows = matrix_of(weight, next(iter(parts)).is_transposed).shape[0]
    bounds = sorted({0, rows, *(part.start for part in parts), *(part.stop for part in parts)})
    for start, stop in pairwise(bounds):
        if not any(part.start <= start and stop <= part.stop for part in parts):
            return f"products of the calibration data do not read its rows {start} to {stop}"
    return ""


def pruned_weight(weight: Tensor, prune: Prune, parts: Mapping[Part, Moment]) -> Calibrated:
    """A weight pruned by statistics; each range of rows uses the sums over the products reading the range."""
    is_transposed = next(iter(parts)).is_transposed
    matrix = matrix_of(weight, is_transposed)
    order, structure = Structure.asked_by(prune).in_matrix(weight.shape, is_transposed)
    structure.require_fit(matrix.shape)
    order = torch.arange(matrix.shape[1]) if order is None else order
    mask, updated = torch.empty(matrix.shape, dtype=torch.bool), torch.empty_like(matrix)
    bounds = sorted({0, len(matrix), *(part.start for part in parts), *(part.stop for part in parts)})
    lost: list[tuple[float, float]] = []
    for start, stop in pairwise(bounds):
        totals = [m.total for part, m in parts.items() if part.start <= start and stop <= part.stop]
        total = torch.stack(totals).sum(0) if len(totals) > 1 else totals[0]
        total = total[order] if total.dim() == 1 else total[order][:, order]
        rows = matrix[start:stop, order]
        rows_mask, changed = one_shot(rows, total, prune, structure)
        mask[start:stop, order], updated[start:stop, order] = rows_mask, changed
        if total.dim() == 2:
            size = float((rows.double() @ total.double() * rows.double()).sum().clamp(min=0))
            lost.append((relative_error(rows, changed, total) ** 2 * size, size))
    mask, updated = (m.t() if is_transposed else m for m in (mask, updated))
    total_size = sum(size for _, size in lost)
    error = (sum(rows for rows, _ in lost) / total_size) ** 0.5 if total_size else 0.0 if lost else None
    return Calibrated(mask.reshape(weight.shape), updated.reshape(weight.shape).contiguous(), error)


def one_shot(matrix: Tensor, total: Tensor, prune: Prune, structure: Structure) -> tuple[Tensor, Tensor]:
    """The mask and the new values of a matrix [outputs, inputs]; magnitude ignores the inputs."""
    sparsity = prune.sparsity or 0.0
    if prune.method == "sparsegpt":
        return sparsegpt(matrix, total, structure, sparsity)
    if prune.method == "wanda":
        mask = wanda(matrix, total if total.dim() == 1 else total.diagonal(), structure, sparsity)
    else:
        mask = structure.select(matrix.abs(), sparsity, by_row=False)
    return mask, torch.where(mask, matrix, 0)


class Progress:
    """Progress lines on standard error for slow pruning.

    Args:
        total: weights to prune.
    """

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.begun = self.said = time.monotonic()

    def step(self, name: str) -> None:
        """Counts one more pruned weight."""
        self.done += 1
        now = time.monotonic()
        if now - self.said < SAY_EVERY_S or current().quiet:
            return
        self.said = now
        print(
            f"calibration: {self.done} of {self.total} weights after {now - self.begun:.0f} s, {name}",
            file=sys.stderr,
            flush=True,
        )
