"""Tensors in user formats: a `torch.Tensor` around an object with its own storage of the entries.

In: a class with `from_dense` and `to_dense`, registered by `register_format`. Out: `UserTensor`s around objects of the
class, with a shape, a dtype and a gradient like other tensors.

torch's functions are dispatched to registered implementations; without one the tensors are converted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from sparsify.errors import ConversionError, InvalidTensorError, SparsifierError, UnsupportedOperatorError
from sparsify.storage.tensor import SparseTensor

C = TypeVar("C", bound=type)
_formats: dict[str, type] = {}
# torch's functions of the tensor object itself, or copies for autograd.
OWN: Final = frozenset(
    {
        *("__get__", "__set__", "__delete__", "dim", "size", "numel", "is_floating_point", "is_complex"),
        *("backward", "requires_grad_", "detach", "__repr__", "register_hook", "retain_grad", "__hash__"),
        "clone",
    }
)


class UserTensor(Tensor):
    """A tensor with entries stored in an object of a user's class; `wrapped` is the object.

    >>> @register_format
    ... class Plain:
    ...     def __init__(self, data): self.data = data
    ...     @staticmethod
    ...     def from_dense(tensor): return Plain(tensor.clone())
    ...     def to_dense(self): return self.data
    >>> wrap(Plain(torch.ones(2, 3)), (2, 3)).to_dense().sum()
    tensor(6.)
    """

    # The object, in a list shared by tensors of the same memory.
    _objects: list[Any]

    @property
    def wrapped(self) -> Any:
        """The object; a write into the tensor replaces the object."""
        return self._objects[0]

    @property
    def format(self) -> type:
        """The class of the object."""
        return type(self.wrapped)

    @property
    def wrapped_tensor(self) -> Any:
        """The object, under STen's name."""
        return self.wrapped

    def to_dense(self, dtype: torch.dtype | None = None, *, masked_grad: bool | None = None) -> Tensor:
        """The dense tensor; differentiable."""
        dense: Tensor = _ToDense.apply(self)  # type: ignore[no-untyped-call]
        return dense if dtype is None else dense.to(dtype)

    def to_sparse_tensor(self) -> SparseTensor | None:
        """A `SparseTensor` of the same entries, `None` for a class without `to_sparse`."""
        return self.wrapped.to_sparse() if hasattr(self.wrapped, "to_sparse") else None

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        grad = ", requires_grad" if self.requires_grad else ""
        return f"UserTensor({self.format.__name__}; shape {list(self.shape)}, {self.dtype}{grad})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in OWN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        from sparsify.sparsification.registered.dispatch import call

        return call(func, args, kwargs or {})[0]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if name in ("detach", "alias", "clone", "view_as", "lift_fresh"):
            result = wrap(args[0].wrapped, tuple(args[0].shape), args[0].dtype)
            if name != "clone":
                result._objects = args[0]._objects
            return result
        dense = dict[int, Tensor]()
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, UserTensor) and id(leaf) not in dense:
                dense[id(leaf)] = leaf.wrapped.to_dense().clone()
        result = func(
            *tree_map(lambda a: dense.get(id(a), a), args), **tree_map(lambda a: dense.get(id(a), a), kwargs)
        )
        originals = {id(dense[id(a)]): a for a in tree_leaves((args, kwargs)) if id(a) in dense}
        for written in _written(func, args, kwargs):
            _write(written, dense[id(written)])
        return tree_map(lambda a: originals.get(id(a), a), result) if func._schema.is_mutable else result

    def __deepcopy__(self, memo: dict[int, Any]) -> "UserTensor":
        if id(self) in memo:
            memoized: UserTensor = memo[id(self)]
            return memoized
        if not self.is_leaf:
            raise InvalidTensorError(
                "a deep copy of a tensor that is the result of a computation", "detach it first"
            )
        copied = wrap(deepcopy(self.wrapped, memo), tuple(self.shape), self.dtype)
        if isinstance(self, nn.Parameter):
            copied = nn.Parameter(copied, self.requires_grad)  # type: ignore[assignment]
        copied.requires_grad_(self.requires_grad)
        if self.grad is not None:
            copied.grad = deepcopy(self.grad, memo)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return wrap, (self.wrapped, tuple(self.shape), self.dtype)


def _written(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[UserTensor]:
    """The tensors in user formats written by an operator, by its schema."""
    for number, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written = args[number] if number < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in tree_leaves(written) if isinstance(leaf, UserTensor))


def _write(tensor: UserTensor, dense: Tensor) -> None:
    """Puts new entries into a tensor.

    Raises:
        UnsupportedOperatorError: the write changed the shape or the dtype.
    """
    if dense.shape != tensor.shape or dense.dtype != tensor.dtype:
        raise UnsupportedOperatorError(
            f"a write that makes {tensor!r} {dense.dtype} {list(dense.shape)}", "make another tensor"
        )
    tensor._objects[0] = tensor.format.from_dense(dense)  # type: ignore[attr-defined]


class _ToDense(torch.autograd.Function):
    """`tensor -> dense`; the gradient is dense."""

    @staticmethod
    def forward(ctx: Any, tensor: UserTensor) -> Tensor:
        dense: Tensor = tensor.wrapped.to_dense()
        return dense.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class _FromDense(torch.autograd.Function):
    """`dense -> tensor` around an object made from the dense tensor; gradients in user formats become dense."""

    @staticmethod
    def forward(ctx: Any, dense: Tensor, stored: Any, drops: bool) -> UserTensor:
        ctx.stored = stored if drops else None
        return wrap(stored, tuple(dense.shape), dense.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        dense = grad.to_dense() if isinstance(grad, UserTensor | SparseTensor) else grad
        return (
            (dense if ctx.stored is None else torch.where(ctx.stored.to_dense() != 0, dense, 0)),
            None,
            None,
        )


def wrap(stored: Any, shape: tuple[int, ...] | None = None, dtype: torch.dtype | None = None) -> UserTensor:
    """A tensor around an object of a registered format.

    Args:
        stored: an object of a class registered by `register_format`.
        shape, dtype: of the tensor; by default of the object, or of its dense tensor.

    Raises:
        SparsifierError: an object of another class.
    """
    if format_class(type(stored)) is None:
        raise SparsifierError(
            f"a tensor in the format {type(stored).__name__}, which is not registered",
            f"@sparsify.register_format above class {type(stored).__name__}",
        )
    if shape is None or dtype is None:
        like = stored if hasattr(stored, "shape") and hasattr(stored, "dtype") else stored.to_dense()
        shape, dtype = tuple(like.shape), like.dtype
    result = torch.Tensor._make_wrapper_subclass(UserTensor, shape, dtype=dtype)
    result._objects = [stored]
    return result


def made_of(dense: Tensor, stored: Any) -> UserTensor:
    """A tensor around an object with some entries of a dense tensor; gradients reach the kept entries."""
    result: UserTensor = _FromDense.apply(dense, stored, True)  # type: ignore[no-untyped-call]
    return result


def from_dense(dense: Tensor, cls: type) -> UserTensor:
    """A dense tensor in a user format, differentiable.

    Raises:
        ConversionError: the class returns another type.
    """
    stored = cls.from_dense(dense.detach())  # type: ignore[attr-defined]
    if not isinstance(stored, cls):
        raise ConversionError(
            f"{cls.__name__}.from_dense returned a {type(stored).__name__}", f"a {cls.__name__}"
        )
    result: UserTensor = _FromDense.apply(dense, stored, False)  # type: ignore[no-untyped-call]
    return result


@overload
def register_format(cls: C) -> C: ...
@overload
def register_format(*, name: str) -> Callable[[C], C]: ...


def register_format(cls: Any = None, *, name: str | None = None) -> Any:
    """Registers a class as a format of tensors; a decorator.

    The class has `from_dense(tensor)`, a static or class method returning an object of the class, and `to_dense(self)`.
    With `to_sparse(self)`, returning a `SparseTensor` of the same entries without loss, the compiler computes functions
    without a registered implementation; otherwise the functions are computed densely, with one warning.

    Args:
        cls: the class.
        name: name for `format=`; by default the name of the class. Registering a name again replaces the class.

    Raises:
        SparsifierError: not a class, a class without the methods, or a name of another format.

    Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, appendix A.3.

    >>> @register_format
    ... class Rows:
    ...     def __init__(self, data): self.data = data
    ...     @staticmethod
    ...     def from_dense(tensor): return Rows(list(tensor))
    ...     def to_dense(self): return torch.stack(self.data)
    >>> from sparsify.sparsification.apply import sparsify
    >>> from sparsify.sparsification.sparsifiers import KeepAll
    >>> sparsify(torch.eye(2), KeepAll(), Rows)
    UserTensor(Rows; shape [2, 2], torch.float32)
    """
    if cls is None:
        return lambda decorated: register_format(decorated, name=name)  # type: ignore[call-overload]
    if not isinstance(cls, type):
        raise SparsifierError(f"register_format of {cls!r}", "a class; it is a decorator")
    missing = [n for n in ("from_dense", "to_dense") if not callable(getattr(cls, n, None))]
    if missing:
        raise SparsifierError(f"the format {cls.__name__} without {' and '.join(missing)}", "both methods")
    label = name or cls.__name__
    from sparsify.storage.format_text import NAMED

    if label in NAMED or not label.isidentifier():
        raise SparsifierError(f"a format called {label!r}", "a name that no other format has")
    _formats[label] = cls
    return cls


def format_class(form: Any) -> type | None:
    """The class of a registered format, by the class or its name; `None` for other formats."""
    if isinstance(form, str):
        return _formats.get(form)
    return form if isinstance(form, type) and form in _formats.values() else None
