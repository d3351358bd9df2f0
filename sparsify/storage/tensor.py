"""`SparseTensor`: a shared pattern and values, as a `torch.Tensor`.

In: `SparseTensor(pattern, values)`. Out: a tensor that trains, copies, saves and loads like any other.

A wrapper subclass: `operators` intercepts torch's names before decomposition, `dispatch` serves the rest by
acting on the values. Operators unknown to both go to `unsupported`.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor, nn
from torch.overrides import resolve_name

from sparsify.errors import FormatError, InvalidTensorError, UnsupportedOperatorError
from sparsify.storage import convert, transformed, validate
from sparsify.storage.fill import Fill
from sparsify.storage.format import Format
from sparsify.storage.modes import inverse, mode_of, strides
from sparsify.storage.pattern import Pattern, shared

if TYPE_CHECKING:
    import scipy.sparse

Operator = Callable[..., Any]

operators: dict[Operator, Operator] = {}
"""torch's functions and their implementation on sparse tensors."""
FILLED_BY: Final = ("sparsify.storage.subclass.methods", "sparsify.ops")
"""The modules that fill `operators`, imported when the first of torch's functions meets a sparse tensor."""
_is_filled = False

overriding: list[Callable[[Operator, tuple[Any, ...], dict[str, Any]], Any]] = []
"""Computes a function by users' own implementations, before all others; `NotImplemented` where there is none."""
unsupported: list[Callable[[Operator, tuple[Any, ...], dict[str, Any], UnsupportedOperatorError], Any]] = []
"""Computes a function that has no implementation, from its arguments and the reason."""


class SparseTensor(torch.Tensor):
    """A tensor with a common value, the fill, for all unstored entries.

    Args:
        pattern: the stored entries.
        values: [pattern.nnz] in storage order; the result is differentiable in them and shares their memory.
        fill: value of unstored entries.

    Raises:
        InvalidTensorError: a malformed pattern, values of another shape, a fill outside the dtype.

    >>> pattern = Pattern(Format("csr"), (2, 3), (None, torch.tensor([0, 1, 2])), (None, torch.tensor([2, 0])))
    >>> SparseTensor(pattern, torch.tensor([5.0, 7.0])).to_dense().tolist()
    [[0.0, 0.0, 5.0], [7.0, 0.0, 0.0]]
    """

    _pattern: Pattern
    _vals: Tensor
    _fill: Fill
    __array_ufunc__ = None  # numpy's operators leave mixed operands to Python's protocol

    @staticmethod
    def __new__(cls, pattern: Pattern, values: Tensor, fill: Fill = 0) -> "SparseTensor":
        validate.values(pattern, values)
        pattern.validated()
        fill = validate.fill(fill, values.dtype)
        if values.requires_grad and torch.is_grad_enabled():
            return cast(SparseTensor, _FromValues.apply(values, pattern, fill))  # type: ignore[no-untyped-call]
        # A new view of the memory: a `resize_` by the caller does not affect kernels.
        return wrap(pattern, values.detach(), fill)

    def __init__(self, pattern: Pattern, values: Tensor, fill: Fill = 0) -> None:
        pass

    @property
    def pattern(self) -> Pattern:
        """The coordinates of the stored entries."""
        return self._pattern

    @property
    def format(self) -> Format:
        """The format of the stored entries."""
        return self._pattern.format

    @property
    def fill(self) -> Fill:
        """The value of an unstored entry."""
        return self._fill

    @property
    def nnz(self) -> int:
        """The number of stored entries, explicit fills and block padding included."""
        return self._pattern.nnz

    @property
    def density(self) -> float:
        """The stored share of all entries."""
        return self._pattern.density

    def values(self) -> Tensor:
        """The stored values [nnz] in storage order, differentiable, in memory shared with the tensor."""
        if self.requires_grad and torch.is_grad_enabled():
            return cast(Tensor, _ToValues.apply(self))  # type: ignore[no-untyped-call]
        return self._vals.detach()

    def coordinates(self) -> Tensor:
        """The coordinates of the stored entries, int64 [d, nnz], aligned with the values."""
        return self._pattern.coordinates()

    def with_values(self, values: Tensor) -> "SparseTensor":
        """A tensor with the same pattern and fill, and other values [nnz]."""
        return SparseTensor(self._pattern, values, self._fill)

    def with_fill(self, fill: Fill) -> "SparseTensor":
        """A tensor with the same stored entries, in shared memory, and another fill."""
        return SparseTensor(self._pattern, self.values(), fill)

    def to_dense(self, dtype: torch.dtype | None = None, *, masked_grad: bool | None = None) -> Tensor:
        """The dense tensor, unstored entries set to the fill; differentiable."""
        values = self.values() if dtype is None else self.values().to(dtype)
        pattern = self._pattern
        if pattern.format.is_dense and pattern.format.is_short:
            stored = values.view([pattern.shape[mode] for mode in pattern.format.ordering])
            return stored.permute(inverse(pattern.format.ordering)).clone(
                memory_format=torch.contiguous_format
            )
        coordinates, inside = pattern.kept_coordinates(values.requires_grad), pattern.kept_inside()
        if inside is not None:
            coordinates, values = coordinates[:, inside], values[inside]
        dense = torch.full(pattern.shape, self._fill, dtype=values.dtype, device=values.device)
        return dense.index_put(tuple(coordinates), values)

    def to_torch(self) -> Tensor:
        """The torch sparse tensor of the closest layout, sharing values if possible; differentiable."""
        from sparsify.storage.interop.tensors import to_torch

        return to_torch(self)

    def to_nested(self) -> Tensor:
        """The nested tensor, `layout=torch.jagged`, of a tensor in `dense, ragged`, over the same values.

        Raises:
            FormatError: another format, or a fill other than 0.
        """
        from sparsify.storage.interop.torch_layouts import to_jagged

        return to_jagged(self)

    def to_scipy(self) -> "scipy.sparse.sparray":
        """The scipy sparse array of the closest layout, sharing values if possible."""
        from sparsify.storage.interop.tensors import to_scipy

        return to_scipy(self)

    def to(self, *args: Any, format: "Format | str | None" = None, **kwargs: Any) -> "SparseTensor":
        """In another dtype as `torch.Tensor.to`, or with `format=` in another format; differentiable.

        A conversion from a dense format drops the entries equal to the fill; any other keeps the explicit ones.
        """
        result = cast(SparseTensor, super().to(*args, **kwargs)) if args or kwargs else self
        if format is None:
            return result
        target = Format(format, rank=self.dim())
        source, values = result._pattern, result.values()
        if source.format.is_dense and not target.is_dense and source.format != target:
            source, values = _stored_only(source, values, self._fill)
        target_entries = convert.conversion(source, target)
        return SparseTensor(
            target_entries.pattern, convert.permuted(values, target_entries, self._fill), self._fill
        )

    def permute(self, *modes: Any) -> "SparseTensor":
        """The tensor with permuted modes; the same arrays, no copy."""
        order = modes[0] if len(modes) == 1 and isinstance(modes[0], Sequence) else modes
        modes_in_order = tuple(mode_of(mode, self.dim()) for mode in order)
        if sorted(modes_in_order) != list(range(self.dim())):
            raise FormatError(f"permute{tuple(order)} of a tensor of {self.dim()} modes", "every mode once")
        return SparseTensor(
            convert.permuted_pattern(self._pattern, modes_in_order), self.values(), self._fill
        )

    def transpose(self, first: int = 0, second: int = 1) -> "SparseTensor":
        """The tensor with two modes exchanged; the same arrays, no copy.

        Raises:
            IndexError: the mode does not exist.
        """
        order = list(range(self.dim()))
        first, second = (mode_of(mode, self.dim()) for mode in (first, second))
        order[first], order[second] = order[second], order[first]
        return self.permute(order)

    def __iter__(self) -> Iterator[Tensor]:
        """The slices along the first mode, one at a time: rows of a matrix as sparse vectors."""
        rows: Iterator[Tensor] = self.__torch_function__(Tensor.__iter__, (SparseTensor,), (self,))
        return rows

    def __tensor_flatten__(self) -> tuple[list[str], tuple[Any, ...]]:
        pattern = self._pattern
        return ["_vals", *[name for name, _ in _of_tensors(pattern)[1]]], (str(pattern.format), self._fill)

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, Tensor],
        context: tuple[Any, ...],
        outer_size: Sequence[int],
        outer_stride: Sequence[int],
    ) -> "SparseTensor":
        format, fill = Format(context[0]), context[1]
        levels = range(len(format.levels))
        pos, crd = ([inner.get(f"_{role}{n}") for n in levels] for role in ("pos", "crd"))
        return wrap(shared(format, outer_size, pos, crd, inner["_vals"].shape[0]), inner["_vals"], fill)

    @classmethod
    def __torch_function__(
        cls, func: Operator, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not _is_filled:
            _fill()
        kwargs = kwargs or {}
        if len(types) > 1 and any(_is_foreign(kind) for kind in types):
            return NotImplemented
        if transformed.are_active() and not transformed.is_followed((args, kwargs)):
            with transformed.outside():  # within, the result would be wrapped, and sparse no more
                return cls.__torch_function__(func, types, args, kwargs)
        for override in overriding:
            if (result := override(func, args, kwargs)) is not NotImplemented:
                return result
        if (operator := operators.get(func)) is not None:
            return operator(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            try:
                return func(*args, **kwargs)
            except UnsupportedOperatorError as error:
                name = resolve_name(func) or getattr(func, "__name__", str(func))
                reason = UnsupportedOperatorError(f"{name}: {error.message}", error.remedy)
        for compute in unsupported:
            return compute(func, args, kwargs, reason)
        raise reason

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        from sparsify.storage.subclass.dispatch import dispatch

        return dispatch(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        fill = "" if self._fill == 0 else f", fill {self._fill}"
        grad = ", requires_grad" if self.requires_grad else ""
        size = f"shape {list(self.shape)}, {self.nnz} stored, {self.dtype}{fill}{grad}"
        return f"SparseTensor({self.format}; {size};\n  values {self._vals})"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        pattern = self._pattern
        arrays = (list(pattern._pos), list(pattern._crd), self._vals)
        flags = (self._fill, self.requires_grad, isinstance(self, nn.Parameter))
        return rebuild, (str(pattern.format), pattern.shape, *arrays, *flags)

    def __deepcopy__(self, memo: dict[int, Any]) -> "SparseTensor":
        if id(self) in memo:
            return cast(SparseTensor, memo[id(self)])
        if not self.is_leaf:
            raise InvalidTensorError(
                "a deep copy of a tensor that is the result of a computation", "detach it first"
            )
        copied = wrap(self._pattern, self._vals.clone(), self._fill)
        copied = _as_leaf(copied, self.requires_grad, isinstance(self, nn.Parameter))
        if self.grad is not None:
            copied.grad = self.grad.clone()
        memo[id(self)] = copied
        return copied


def _is_foreign(kind: type) -> bool:
    """Whether a class overrides torch's functions, as proxies do, and is to be dispatched first."""
    if issubclass(kind, SparseTensor) or issubclass(SparseTensor, kind):
        return False
    overriding = getattr(kind.__torch_function__, "__func__", None)  # type: ignore[attr-defined]
    return overriding is not Tensor.__torch_function__.__func__  # type: ignore[attr-defined]


def wrap(pattern: Pattern, values: Tensor, fill: Fill = 0) -> SparseTensor:
    """The tensor over values without differentiation."""
    if values.dim() != 1 or values.shape[0] != pattern.nnz:
        raise InvalidTensorError(
            f"values of shape {list(values.shape)} for {pattern}", f"one dimension of {pattern.nnz}"
        )
    steps, arrays = pattern.cached("of tensors", lambda: _of_tensors(pattern))
    result = torch.Tensor._make_wrapper_subclass(
        SparseTensor, pattern.shape, strides=steps, dtype=values.dtype, device=values.device
    )
    result._pattern, result._vals, result._fill = pattern, values, fill
    for name, array in arrays:
        setattr(result, name, array)
    return result


def take_place(tensor: SparseTensor, data: SparseTensor) -> None:
    """Gives a tensor the pattern, values and fill of another one of equal shape and dtype, in place."""
    for name in tensor.__tensor_flatten__()[0]:
        delattr(tensor, name)
    tensor._pattern, tensor._fill = data._pattern, data._fill
    for name in data.__tensor_flatten__()[0]:
        setattr(tensor, name, getattr(data, name))


def _of_tensors(pattern: Pattern) -> tuple[list[int], list[tuple[str, Tensor]]]:
    """Strides of tensors over a pattern, and the arrays as attributes."""
    named = [(f"{role}{n}", a) for role in ("_pos", "_crd") for n, a in enumerate(getattr(pattern, role))]
    return strides(pattern.shape), [(name, array) for name, array in named if array is not None]


def rebuild(
    text: str,
    shape: Sequence[int],
    pos: Sequence[Tensor | None],
    crd: Sequence[Tensor | None],
    values: Tensor,
    fill: Fill,
    requires_grad: bool,
    is_parameter: bool,
) -> SparseTensor:
    """The tensor from a pickle; tensors saved over one pattern share the pattern again."""
    pattern = shared(Format(text), tuple(shape), pos, crd)
    return _as_leaf(SparseTensor(pattern, values, fill), requires_grad, is_parameter)


def _as_leaf(tensor: SparseTensor, requires_grad: bool, is_parameter: bool) -> SparseTensor:
    """`tensor` as a leaf, a parameter if requested."""
    if not is_parameter:
        return cast(SparseTensor, tensor.requires_grad_(requires_grad))
    return cast(SparseTensor, nn.Parameter(tensor, requires_grad))


def _stored_only(pattern: Pattern, values: Tensor, fill: Fill) -> tuple[Pattern, Tensor]:
    """A dense pattern without the entries equal to the fill, in coordinate format, and the values."""
    positions, inside = is_stored(values.detach(), fill), pattern.kept_inside()
    positions = (positions if inside is None else positions & inside).nonzero().squeeze(1)
    coordinates = pattern.kept_coordinates()[:, positions]
    format = Format("coo", rank=pattern.rank)
    sorting = convert.order(list(coordinates), pattern.shape)
    if sorting is not None:
        coordinates, positions = coordinates[:, sorting], positions[sorting]
    coordinate_pattern, _ = convert.from_sorted(list(coordinates), pattern.shape, format)
    return coordinate_pattern, values.index_select(0, positions)


def is_stored(values: Tensor, fill: Fill) -> Tensor:
    """The mask of entries different from the fill."""
    return ~values.isnan() if fill != fill else values != fill


class _FromValues(torch.autograd.Function):
    """`values -> tensor`; the gradient is read at the stored coordinates."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, pattern: Pattern, fill: Fill) -> SparseTensor:
        ctx.pattern = pattern
        return wrap(pattern, values.detach(), fill)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return values_at(grad, ctx.pattern), None, None


class _ToValues(torch.autograd.Function):
    """`tensor -> values`; the gradient lies on the pattern of the tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: SparseTensor) -> Tensor:
        ctx.pattern = tensor._pattern
        return tensor._vals.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> SparseTensor:
        return SparseTensor(ctx.pattern, grad.contiguous())


def values_at(tensor: Tensor, pattern: Pattern) -> Tensor:
    """The entries of a tensor at the stored coordinates of a pattern [nnz], 0 in the padding of blocks."""
    if isinstance(tensor, SparseTensor):
        if tensor._pattern.equals(pattern) or tensor._pattern.stands_for(pattern):
            return tensor.values()
        raise UnsupportedOperatorError(
            f"values of {tensor._pattern} at the entries of {pattern}", "one pattern for both"
        )
    coordinates, inside = pattern.kept_coordinates(), pattern.kept_inside()
    if inside is None:
        return tensor[tuple(coordinates)].reshape(-1)
    coordinates, inside = coordinates.to(tensor.device), inside.to(tensor.device)
    safe = torch.where(inside, coordinates, 0)
    return torch.where(
        inside, tensor[tuple(safe)], tensor.new_zeros(())
    )  # 0 alone makes integers of truth values


def _fill() -> None:
    """Imports the modules with operator registrations."""
    global _is_filled
    _is_filled = True
    for name in FILLED_BY:
        import_module(name)


torch.serialization.add_safe_globals([rebuild, SparseTensor])
