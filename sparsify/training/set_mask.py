"""The mask of a trained parameter: read, and replaced while its optimizer goes on.

In: `set_mask(weight, mask, optimizer)`. Out: the same parameter, which stores the entries of the mask. Entries that
stay keep value and optimizer state bit for bit, dropped ones lose both, grown ones start at 0.

The mask of a dense parameter is what is not 0, until `set_mask` gives it one, which is kept beside it
(`storage/trained_masks.py`): an entry that grew and is 0 belongs to the mask and gets a gradient.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, optim
from torch.autograd.graph import increment_version

from sparsify.errors import DtypeError, FormatError, InvalidTensorError, ShapeError, public
from sparsify.passes.module.optimizer_steps import watch_trained
from sparsify.storage import convert
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor, values_at, wrap
from sparsify.storage.trained_masks import entries, remember

STARTS: Final = {"sum": "initial_accumulator_value", "step_size": "lr"}
"""By the name of an optimizer's state the option at which it starts; others start at 0."""
Optimizers = optim.Optimizer | Iterable[optim.Optimizer]


def mask_of(parameter: Tensor) -> Tensor:
    """The entries of a parameter that train, bool [*shape]: those a sparse one stores, of a dense one its mask.

    >>> mask_of(torch.tensor([0.0, 2.0])).tolist()
    [False, True]
    """
    return entries(parameter).clone()


@public
def set_mask(parameter: Tensor, mask: Tensor, optimizers: Optimizers = ()) -> None:
    """Gives a parameter the entries of a mask; it stays the same object, in the same format.

    Entries that stay keep their values, gradients and optimizer state; dropped ones lose them; grown ones start at 0
    (the running sum of Adagrad at its `initial_accumulator_value`). What an optimizer keeps once for the whole
    parameter, as `step`, stays. Gradients of a dense parameter are 0 outside of the mask from now on.

    Args:
        parameter: a leaf, dense or a `SparseTensor`.
        mask: bool [*shape], true where entries are kept or grow.
        optimizers: one or several that train the parameter.

    Raises:
        ShapeError, DtypeError: a mask of another shape or dtype.
        FormatError: a format that cannot store just these entries, as blocks of which a part is kept.
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
    """Gives a parameter the entries of a pattern and new values; it stays the same object, in its own format.

    Optimizer state and gradients follow the entries as in `set_mask`.

    Args:
        parameter: a leaf, dense or a `SparseTensor`.
        pattern: the entries, in any format.
        values: [pattern.nnz] in its storage order.
        optimizers: one or several that train the parameter.

    Raises:
        InvalidTensorError: values that do not fit the pattern, or as in `set_mask`. Nothing has changed.

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
    """Has optimizers train a sparse parameter in the place of a dense one, with the state and gradient of its entries.

    Args:
        old: dense; it trains no more.
        new: with the entries of its mask.
        optimizers: one or several that train it.
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
    """A tensor of an optimizer with a number for each entry of a parameter.

    Attributes:
        store, name: where the optimizer has it.
        start: the number of an entry without a past.
    """

    store: dict[str, Any]
    name: str
    start: float

    @property
    def tensor(self) -> Tensor:
        """The tensor that the optimizer has now."""
        found: Tensor = self.store[self.name]
        return found


def _require_fit(parameter: Tensor, mask: Tensor) -> None:
    """Raises where a mask does not fit a parameter."""
    if not isinstance(parameter, Tensor) or not parameter.is_leaf:
        raise InvalidTensorError("set_mask of what is no leaf", "give the parameter itself")
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or isinstance(mask, SparseTensor):
        found = (
            f"a mask of {mask.dtype}" if type(mask) is Tensor else f"a mask that is a {type(mask).__name__}"
        )
        raise DtypeError(found, "a dense tensor of torch.bool, mask != 0")
    if mask.shape != parameter.shape:
        raise ShapeError(f"a mask {list(mask.shape)} for a parameter {list(parameter.shape)}")


def _states(parameter: Tensor, optimizers: Iterable[Any]) -> Iterator[State]:
    """The tensors of optimizers that have a number for each entry of a parameter."""
    for optimizer in optimizers:
        groups = [g for g in optimizer.param_groups if any(p is parameter for p in g["params"])]
        store = optimizer.state.get(parameter, {})
        for name, value in store.items():
            if isinstance(value, Tensor) and value.dim() and value.shape == parameter.shape:
                yield State(store, name, groups[0].get(STARTS.get(name), 0) if groups else 0)


def _dense_moves(parameter: Tensor, mask: Tensor, states: Iterable[State]) -> Iterator[Callable[[], Any]]:
    """The steps that give a dense parameter a mask."""
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
    """The steps that give a sparse parameter another pattern; all tensors are made before the first one."""
    pattern = parameter._pattern
    if torch.equal(mask.cpu(), mask_of(parameter)):
        return []
    made, source = masked_pattern(pattern, mask.cpu())
    is_old = (source >= 0).to(parameter.device)
    source = source.clamp(min=0).to(parameter.device)

    def moved(tensor: Tensor, start: float) -> SparseTensor:
        if not isinstance(tensor, SparseTensor) or not tensor._pattern.equals(pattern):
            raise InvalidTensorError(
                f"a gradient or optimizer state that is not stored as the parameter, {pattern}",
                "load optimizer state and parameters of one step",
            )
        if not pattern.nnz:
            return wrap(made, tensor._vals.new_full((made.nnz,), start), tensor._fill)
        taken = tensor._vals.index_select(0, source)
        return wrap(made, taken.masked_fill_(~is_old, start), tensor._fill)

    def write(tensor: Tensor, found: SparseTensor) -> None:
        tensor.data = found
        increment_version(tensor)

    pairs: list[tuple[Tensor, SparseTensor]] = [(parameter, moved(parameter, 0))]
    pairs += [(state.tensor, moved(state.tensor, state.start)) for state in states]
    if parameter.grad is not None:
        pairs.append((parameter.grad, moved(parameter.grad, 0)))
    return [lambda pair=pair: write(*pair) for pair in pairs]  # type: ignore[misc]


def masked_pattern(pattern: Pattern, mask: Tensor) -> tuple[Pattern, Tensor]:
    """The pattern of a mask in the format of another one, and which entry of that each of its entries is, or -1.

    Raises:
        FormatError: the format stores more than the mask, in blocks or groups.
    """
    places, positions = _places(pattern)
    slots = torch.full((mask.numel(),), -1, dtype=torch.int32 if mask.numel() < 2**31 else torch.int64)
    slots[places] = positions.to(slots.dtype)
    kept = mask.reshape(-1).nonzero().squeeze(1)
    coordinates = list(torch.unravel_index(kept, mask.shape))
    found = convert.placed(coordinates, None, mask.shape, pattern.format)
    inside = found.pattern.kept_inside()
    stored = found.pattern.nnz if inside is None else int(inside.sum())
    if stored != len(kept):
        raise FormatError(
            f"{pattern.format} stores {stored} entries for a mask of {len(kept)}",
            "a mask of whole blocks and full groups, or another format",
        )
    if not len(kept):
        return found.pattern, torch.full((found.pattern.nnz,), -1)
    source = slots[kept].long()
    if not found.is_identity:
        source = torch.where(found.permutation >= 0, source[found.permutation.clamp(min=0)], -1)
    return found.pattern, source


def _places(pattern: Pattern) -> tuple[Tensor, Tensor]:
    """For each entry inside the shape its place in the dense tensor, and its position in storage order."""
    coordinates, inside = pattern.kept_coordinates(False), pattern.kept_inside()
    positions = torch.arange(pattern.nnz) if inside is None else inside.nonzero().squeeze(1)
    places = torch.zeros(pattern.nnz, dtype=torch.int64)
    for column, extent in zip(coordinates, pattern.shape, strict=True):
        places = places * extent + column
    return places[positions], positions
