"""The mask of a trained parameter: read, and replaced while training continues.

In: `set_mask(weight, mask, optimizer)`. Out: the same parameter, storing the entries of the mask. Kept entries
keep value and optimizer state bit for bit, dropped ones lose both, grown ones start at 0.

The mask of a dense parameter is the set of nonzeros, until `set_mask` stores a mask beside the parameter
(`storage/subclass/trained_masks.py`): a grown entry equal to 0 belongs to the mask and gets a gradient.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, optim
from torch.autograd.graph import increment_version

from sparsify.errors import DtypeError, FormatError, InvalidTensorError, ShapeError, public
from sparsify.passes.module.weights.optimizer_steps import watch_trained
from sparsify.storage import convert, expand
from sparsify.storage.pattern import Pattern
from sparsify.storage.subclass.trained_masks import entries, remember
from sparsify.storage.tensor import SparseTensor, values_at, wrap

STARTS: Final = {"sum": "initial_accumulator_value", "step_size": "lr"}
"""By the name of an optimizer's state the option at which it starts; others start at 0."""
Optimizers = optim.Optimizer | Iterable[optim.Optimizer]


def mask_of(parameter: Tensor) -> Tensor:
    """The trained entries of a parameter, bool [*shape]: the stored ones if sparse, the mask if dense.

    >>> mask_of(torch.tensor([0.0, 2.0])).tolist()
    [False, True]
    """
    return entries(parameter).clone()


@public
def set_mask(parameter: Tensor, mask: Tensor, optimizers: Optimizers = ()) -> None:
    """Gives a parameter the entries of a mask, in place and in the same format.

    Kept entries keep values, gradients and optimizer state; dropped ones lose all three; grown ones start at 0 (the
    running sum of Adagrad at `initial_accumulator_value`). Optimizer state of the whole parameter, as `step`, is
    unchanged. Gradients of a dense parameter are 0 outside of the mask from now on.

    Args:
        parameter: a leaf, dense or a `SparseTensor`.
        mask: bool [*shape], true for kept and grown entries.
        optimizers: one or several training the parameter.

    Raises:
        ShapeError, DtypeError: a mask of another shape or dtype.
        FormatError: a format that cannot store exactly the entries of the mask, as partly kept blocks.
        InvalidTensorError: the parameter is the result of a computation. Nothing has changed after any error.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 2.0]))
    >>> set_mask(weight, torch.tensor([True, False]))
    >>> weight.tolist()
    [3.0, 0.0]
    """
    _require_fit(parameter, mask)
    several = [optimizers] if hasattr(optimizers, "param_groups") else list(optimizers)
    states = list(_states(parameter, several))
    mask = mask.detach().to(parameter.device)
    if isinstance(parameter, SparseTensor):
        moves = _sparse_moves(parameter, mask, states)
    else:
        moves = list(_dense_moves(parameter, mask, states))
    with torch.no_grad():
        for move in moves:
            move()


@public
def set_pattern(parameter: Tensor, pattern: Pattern, values: Tensor, optimizers: Optimizers = ()) -> None:
    """Gives a parameter the entries of a pattern and new values, in place and in the format of the parameter.

    Optimizer state and gradients follow the entries as in `set_mask`.

    Args:
        parameter: a leaf, dense or a `SparseTensor`.
        pattern: the entries, in any format.
        values: [pattern.nnz] in storage order of the pattern.
        optimizers: one or several training the parameter.

    Raises:
        InvalidTensorError: values of another length than the pattern, or as in `set_mask`. Nothing has changed.

    >>> from sparsify import Format
    >>> weight = torch.nn.Parameter(torch.tensor([[3.0, 2.0]]))
    >>> other = Pattern(Format("csr"), (1, 2), (None, torch.tensor([0, 1])), (None, torch.tensor([1])))
    >>> set_pattern(weight, other, torch.tensor([5.0]))
    >>> weight.tolist()
    [[0.0, 5.0]]
    """
    source = SparseTensor(pattern, values.detach())
    if isinstance(parameter, SparseTensor):
        source = source.to(format=parameter.format)
    set_mask(parameter, mask_of(source), optimizers)
    with torch.no_grad():
        parameter.copy_(source)


def follow_parameter(old: Tensor, new: SparseTensor, optimizers: Optimizers) -> None:
    """Replaces a dense parameter by a sparse one in optimizers, with the state and gradient of the entries.

    Args:
        old: dense parameter, no longer trained.
        new: sparse parameter with the entries of the mask.
        optimizers: one or several training the parameter.
    """
    several: list[Any] = [optimizers] if hasattr(optimizers, "param_groups") else list(optimizers)

    def taken(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dim() or value.shape != new.shape:
            return value
        if isinstance(value, SparseTensor):
            if value._pattern.equals(new._pattern):
                return value
            value = value.to_dense()
        return wrap(new._pattern, values_at(value, new._pattern))

    with torch.no_grad():
        for optimizer in several:
            for group in optimizer.param_groups:
                group["params"][:] = [new if one is old else one for one in group["params"]]
            if old in optimizer.state:
                optimizer.state[new] = {name: taken(v) for name, v in optimizer.state.pop(old).items()}
        if old.grad is not None:
            new.grad = taken(old.grad)


@dataclass(frozen=True)
class State:
    """An optimizer tensor with one number per entry of a parameter.

    Attributes:
        store, name: dictionary and key of the tensor in the optimizer.
        start: initial number of a grown entry.
    """

    store: dict[str, Any]
    name: str
    start: float

    @property
    def tensor(self) -> Tensor:
        """The current tensor of the optimizer."""
        current: Tensor = self.store[self.name]
        return current


def _require_fit(parameter: Tensor, mask: Tensor) -> None:
    """Raises if a mask does not fit a parameter."""
    if not isinstance(parameter, Tensor) or not parameter.is_leaf:
        raise InvalidTensorError("set_mask of what is no leaf", "give the parameter itself")
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or isinstance(mask, SparseTensor):
        actual = (
            f"a mask of {mask.dtype}" if type(mask) is Tensor else f"a mask that is a {type(mask).__name__}"
        )
        raise DtypeError(actual, "a dense tensor of torch.bool, mask != 0")
    if mask.shape != parameter.shape:
        raise ShapeError(f"a mask {list(mask.shape)} for a parameter {list(parameter.shape)}")


def _states(parameter: Tensor, optimizers: Iterable[Any]) -> Iterator[State]:
    """The optimizer tensors with one number per entry of a parameter."""
    for optimizer in optimizers:
        groups = [g for g in optimizer.param_groups if any(p is parameter for p in g["params"])]
        store = optimizer.state.get(parameter, {})
        for name, value in store.items():
            if isinstance(value, Tensor) and value.dim() and value.shape == parameter.shape:
                yield State(store, name, groups[0].get(STARTS.get(name), 0) if groups else 0)


def _dense_moves(parameter: Tensor, mask: Tensor, states: Iterable[State]) -> Iterator[Callable[[], Any]]:
    """The steps to apply a mask to a dense parameter."""
    stays = entries(parameter) & mask
    mask = mask.clone()
    for state in states:
        yield lambda state=state: state.tensor.masked_fill_(~stays, state.start)  # type: ignore[misc]
    if parameter.grad is not None:
        gradient = parameter.grad
        yield lambda: gradient.masked_fill_(~stays, 0)
    yield lambda: parameter.masked_fill_(~stays, 0)
    yield watch_trained
    yield lambda: remember(parameter, mask)


def _sparse_moves(parameter: SparseTensor, mask: Tensor, states: Iterable[State]) -> list[Callable[[], Any]]:
    """The steps to give a sparse parameter another pattern; all tensors are made before the first step."""
    pattern = parameter._pattern
    changed = masked_pattern(pattern, mask.cpu())
    if changed is None:
        return []
    target, source = changed
    is_old = (source >= 0).to(parameter.device)
    source = source.clamp(min=0).to(parameter.device)

    def moved(tensor: Tensor, start: float) -> SparseTensor:
        if not isinstance(tensor, SparseTensor) or not tensor._pattern.equals(pattern):
            raise InvalidTensorError(
                f"a gradient or optimizer state that is not stored as the parameter, {pattern}",
                "load optimizer state and parameters of one step",
            )
        if not pattern.nnz:
            return wrap(target, tensor._vals.new_full((target.nnz,), start), tensor._fill)
        taken = tensor._vals.index_select(0, source)
        return wrap(target, taken.masked_fill_(~is_old, start), tensor._fill)

    def write(tensor: Tensor, moved_tensor: SparseTensor) -> None:
        tensor.data = moved_tensor
        increment_version(tensor)

    pairs: list[tuple[Tensor, SparseTensor]] = [(parameter, moved(parameter, 0))]
    pairs += [(state.tensor, moved(state.tensor, state.start)) for state in states]
    if parameter.grad is not None:
        pairs.append((parameter.grad, moved(parameter.grad, 0)))
    return [lambda pair=pair: write(*pair) for pair in pairs]  # type: ignore[misc]


def masked_pattern(pattern: Pattern, mask: Tensor) -> tuple[Pattern, Tensor] | None:
    """The pattern of a mask in the format of another pattern, and the source entry of each entry, or -1.

    Returns:
        `None` if the pattern has exactly the entries of the mask.

    Raises:
        FormatError: the format stores more than the mask, in blocks or groups.
    """
    places, positions = expand.row_major(pattern)
    flat = mask.reshape(-1)
    stays = flat.index_select(0, places)
    mask_places = expand.true_places(mask)
    count = len(mask_places)
    if count == len(places) and bool(stays.all()):
        return None
    coordinates = [
        torch.from_numpy(column) for column in np.unravel_index(mask_places.numpy(), tuple(mask.shape))
    ]
    conversion = convert.placed(coordinates, None, mask.shape, pattern.format)
    inside = conversion.pattern.kept_inside()
    stored = conversion.pattern.nnz if inside is None else int(inside.sum())
    if stored != count:
        raise FormatError(
            f"{pattern.format} stores {stored} entries for a mask of {count}",
            "a mask of whole blocks and full groups, or another format",
        )
    if not count:
        return conversion.pattern, torch.full((conversion.pattern.nnz,), -1)
    was_stored = torch.zeros(mask.numel(), dtype=torch.bool)
    was_stored[places] = True
    staying = expand.true_places(stays)
    # Both lists of the entries that stay are in row-major order.
    source = torch.full((count,), -1)
    source.masked_scatter_(
        was_stored.index_select(0, mask_places), staying if positions is None else positions[staying]
    )
    if not conversion.is_identity:
        source = torch.where(conversion.permutation >= 0, source[conversion.permutation.clamp(min=0)], -1)
    return conversion.pattern, source
