"""Rules that prune with calibration data: selection of data and weights, and report entries.

In: a model, rules with `method: wanda` or `sparsegpt`, batches. Out: new weights by name.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sparsify.errors import CaptureError, DataError, SparsifyError
from sparsify.passes.capture import calls
from sparsify.passes.capture.draft import Pruning, kept_buffers
from sparsify.passes.capture.shell import in_modes, modes, shared_copy
from sparsify.passes.capture.shell import replace as replace_parameter
from sparsify.passes.rules.mark import rule_error
from sparsify.passes.rules.product_weights import spelled_attention
from sparsify.pruning.calibrate import Calibrated, Outcome, prune_by_calibration, put_parameter
from sparsify.recipe import Calibration, Prune, Recipe, Rule
from sparsify.report import CalibrationEntry
from sparsify.warn import warn


def is_calibrated(rule: Rule) -> bool:
    """Whether a rule needs calibration data."""
    return rule.origin == "prune" and rule.prune is not None and rule.prune.is_calibrated


@dataclass(frozen=True)
class CalibrationData:
    """Batches for runs of a model before pruning.

    Attributes:
        batches: calls of the model.
        samples: total rows of the first mode of the inputs.
        length: longest second mode, 0 for inputs without one.
        digest: SHA-256 of all tensors.
    """

    batches: tuple[calls.Call, ...]
    samples: int
    length: int
    digest: str


def calibration_data(batches: Iterable[calls.Call], how: Calibration | None) -> CalibrationData:
    """The part of batches requested by a recipe.

    Raises:
        DataError: no data is left.
    """
    how = how or Calibration()
    selected: list[tuple[calls.Call, Tensor]] = []
    left = how.samples
    for batch in batches:
        if left is not None and how.seed is None and left <= 0:
            break
        if not any(isinstance(value, Tensor) for value in batch.values):
            raise DataError(
                f"batch {len(selected) + 1} of the calibration data holds no tensor", "inputs of the model"
            )
        count = rows_of(batch)
        chosen = range(count) if left is None or how.seed is not None else range(min(left, count))
        selected.append((batch, torch.tensor(chosen)))
        left = None if left is None else left - len(chosen)
    if how.seed is not None and how.samples is not None and selected:
        generator = torch.Generator().manual_seed(how.seed)
        ends = torch.tensor([len(rows) for _, rows in selected]).cumsum(0).tolist()
        drawn = torch.randperm(ends[-1], generator=generator)[: how.samples].sort().values
        starts = [0, *ends[:-1]]
        selected = [
            (batch, drawn[(drawn >= start) & (drawn < end)] - start)
            for (batch, _), start, end in zip(selected, starts, ends, strict=True)
        ]
    cut_batches = tuple(cut(batch, rows, how.length) for batch, rows in selected if len(rows))
    samples = sum(map(rows_of, cut_batches))
    if not samples:
        raise DataError("the calibration data is empty", "give one batch of inputs or more")
    if how.samples is not None and samples < how.samples:
        warn(f"the recipe asks for {how.samples} calibration samples, the data has {samples}")
    lengths = [first.shape[1] for batch in cut_batches if (first := first_of(batch)).dim() > 1]
    return CalibrationData(cut_batches, samples, max(lengths, default=0), digest(cut_batches))


def first_of(batch: calls.Call) -> Tensor:
    """The first tensor of a batch."""
    return next(value for value in batch.values if isinstance(value, Tensor))


def rows_of(batch: calls.Call) -> int:
    """The samples of a batch, the first mode of its first tensor."""
    first = first_of(batch)
    return first.shape[0] if first.dim() else 1


def cut(batch: calls.Call, rows: Tensor, length: int | None) -> calls.Call:
    """Some rows of the batch tensors with as many rows as the first tensor, up to a length."""
    first = first_of(batch)
    shape = first.shape

    def cut_value(value: Any) -> Any:
        if not isinstance(value, Tensor) or calls.is_sparse(value) or not value.dim():
            return value
        if value.shape[0] == shape[0] and len(rows) < shape[0]:
            value = value[rows]
        if length is not None and value.dim() > 1 and len(shape) > 1 and value.shape[1] == shape[1]:
            value = value[:, :length]
        return value

    return replace(batch, values=[cut_value(value) for value in batch.values])


def digest(batches: Sequence[calls.Call]) -> str:
    """SHA-256 of the dtypes, shapes and numbers of the tensors of batches."""
    sha256 = hashlib.sha256()
    for batch in batches:
        for value in batch.values:
            if isinstance(value, Tensor):
                dense = (value.to_dense() if calls.is_sparse(value) else value).detach().cpu().contiguous()
                sha256.update(f"{dense.dtype} {tuple(dense.shape)} ".encode())
                sha256.update(dense.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha256.hexdigest()


def flattened(
    batches: Iterable[Any], model: nn.Module, as_call: Any, example: calls.Call | None = None
) -> Iterable[calls.Call]:
    """Batches as calls of a model.

    Args:
        batches: inputs, each in the form of the example inputs of `apply`.
        model: the model to call.
        as_call: function from inputs to positional and keyword arguments.
        example: call of the example inputs, with the required number of modes per tensor; None: any number.

    Raises:
        DataError: the batches do not fit, or are no batches.
    """
    if isinstance(batches, Tensor | Mapping | str) or not isinstance(batches, Iterable):
        raise DataError(
            f"calibration data of type {type(batches).__name__}",
            "a list or another iterable of batches, each as the example inputs: calibration=[x1, x2]",
        )
    for at, batch in enumerate(batches):
        try:
            args, kwargs = as_call(batch)
            call = calls.flatten(calls.signature(model), args, kwargs)
        except CaptureError as error:
            raise DataError(f"batch {at + 1} of the calibration data: {error}") from error
        if example is not None:
            require_modes(call, example, at + 1)
        yield call


def require_modes(call: calls.Call, example: calls.Call, number: int) -> None:
    """Raises where a tensor of a batch and of the example inputs differ in the number of modes."""
    example_values = {
        leaf.name: value for leaf, value in zip(example.shape.leaves, example.values, strict=True)
    }
    for leaf, value in zip(call.shape.leaves, call.values, strict=True):
        like = example_values.get(leaf.name)
        if isinstance(value, Tensor) and isinstance(like, Tensor) and value.dim() != like.dim():
            hint = f"{leaf.name}[None] is a batch of one" if value.dim() == like.dim() - 1 else "like batches"
            raise DataError(
                f"batch {number} of the calibration data: {leaf.name} is {list(value.shape)}, "
                f"with {value.dim()} of modes; that of the example inputs is {list(like.shape)}, with {like.dim()}",
                f"batches as the example inputs are: {hint}",
            )


def calibrated(
    model: nn.Module,
    recipe: Recipe,
    rules: Mapping[int, tuple[Rule, Sequence[str]]],
    pruning: Pruning,
    data: CalibrationData | None,
) -> dict[str, Calibrated]:
    """New weights by name.

    Args:
        model: the model, unchanged.
        recipe: recipe with the rules.
        rules: rules that need calibration data by position, with the names of their weights.
        pruning: record of unpruned weights and report entries, updated in place.
        data: calibration data for the model.

    Raises:
        RecipeError: data is missing, or a rule does not fit a weight.
        DataError: the data does not fit the model.
    """
    first = next(iter(rules.values()))[0]
    assert first.prune is not None, "rules that prune say how"
    if data is None:
        raise rule_error(
            recipe,
            first,
            f"`method: {first.prune.method}` needs calibration data: apply(..., calibration=batches), an iterable of "
            "inputs of the model",
        )
    jobs = {name: rule.prune for rule, names in rules.values() for name in names if rule.prune}
    by_name = {name: (at, rule) for at, (rule, names) in rules.items() for name in names}
    copy = shared_copy(model)

    def put(name: str, weight: Tensor) -> None:
        old = copy.get_parameter(name)
        if by_name[name][1].ties == "share":
            replace_parameter(copy, old, nn.Parameter(weight, requires_grad=old.requires_grad))
        else:
            put_parameter(copy, name, weight)

    try:
        outcome = run_outside(copy, jobs, data, put)
    except DataError:
        raise
    except SparsifyError as error:
        raise rule_error(recipe, first, str(error)) from error
    for name, reason in outcome.passed.items():
        pruning.passed.setdefault(by_name[name][0], {})[name] = reason
    how = recipe.calibration or Calibration()
    errors: dict[str, tuple[str, float | None]] = {
        name: (jobs[name].method, done.error) for name, done in outcome.pruned.items()
    }
    pruning.calibration = CalibrationEntry(
        data.digest, data.samples, data.length, how.split, "per layer", errors
    )
    return outcome.pruned


def run_outside(
    model: nn.Module, jobs: Mapping[str, Prune], data: CalibrationData, put: Callable[[str, Tensor], None]
) -> Outcome:
    """Weights pruned by evaluation runs of a model, which keeps its buffers, modes and random state."""
    signature = calls.signature(model)
    runs = [lambda m, b=batch: calls.run_call(m, signature, calls.copied(b)) for batch in data.batches]
    with ExitStack() as stack:
        stack.enter_context(kept_buffers(model))
        stack.enter_context(spelled_attention())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(in_modes(model, tuple(False for _ in modes(model))))
        return prune_by_calibration(model, jobs, runs, put)
