"""Flattening of a model's call into tensors, and the inverse.

In: `model(x, adj=A)` with A a sparse tensor. Out: leaves `x`, `adj.rows`, `adj.columns`, `adj.values`, `adj.extent`, a
hashable structure equal for calls of one graph, and the order of the leaves.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from sparsify.errors import CaptureError, SparsifyError, UnsupportedOperatorError
from sparsify.passes.capture.constant_keys import contents
from sparsify.passes.capture.libraries import torch_geometric_data, transformers_cache
from sparsify.storage.interop.tensors import tensor
from sparsify.storage.own_memory import has_memory
from sparsify.storage.tensor import SparseTensor

# Limit of the entries of sparse inputs made dense to diagnose a failed call.
MOST_TRIED = 2**24
SPARSE_LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
PARTS = ("rows", "columns", "values", "extent")
# Types of constants that compare in a trace.
CONSTANTS: Final = (bool, int, float, str, type(None), torch.dtype)
LISTS: Final = (list, tuple)


@dataclass(frozen=True)
class Leaf:
    """One value of a call: its name, and the key of interchangeable values."""

    name: str
    kind: str
    detail: tuple[Any, ...]

    @property
    def is_told(self) -> bool:
        """Whether the value is a tensor, or has known contents."""
        return self.kind != "constant" or self.detail[1] is not None

    @property
    def is_extent(self) -> bool:
        """Whether the value is an integer that may be a tensor's extent: 0 and 1 are special to export."""
        return self.kind == "constant" and self.detail[0] is int and int(self.detail[1]) > 1


@dataclass(frozen=True)
class CallShape:
    """The structure of a call: equal structures can share a graph when the extents fit too.

    Attributes:
        key: structure as plain values, in the form of `structure_key`.
    """

    names: tuple[str, ...]
    tree: str
    leaves: tuple[Leaf, ...]
    key: Any = field(default=None, compare=False)

    @property
    def has_past(self) -> bool:
        """Whether calls of the structure pass keys of earlier calls."""
        return f"TreeSpec({transformers_cache.Kept.__name__}," in self.tree

    def tensor_names(self) -> list[str]:
        """The names of the graph's tensor inputs, in order."""
        names: list[str] = []
        for leaf in self.leaves:
            if leaf.kind == "tensor":
                names.append(leaf.name)
            elif leaf.kind == "sparse":
                names += [f"{leaf.name}.{part}" for part in PARTS]
            elif leaf.kind == "size":
                names.append(leaf.name)
        return names

    def sizes(self) -> list[str]:
        """The names of the graph's integer inputs, each passed as the extent of a tensor without entries."""
        return [leaf.name for leaf in self.leaves if leaf.kind == "size"]

    def integers_unlike(self, other: "CallShape") -> set[str]:
        """The integers in which two calls differ; empty for a difference in any other leaf."""
        if (self.names, self.tree) != (other.names, other.tree):
            return set()
        unlike = [(leaf, left) for leaf, left in zip(self.leaves, other.leaves, strict=True) if leaf != left]
        are_integers = all(
            leaf.is_extent and (left.is_extent or left.kind == "size") and leaf.name == left.name
            for leaf, left in unlike
        )
        return {leaf.name for leaf, _ in unlike} if are_integers else set()


@dataclass
class Call:
    """A flattened call: its structure, the tree for rebuilding and the leaves."""

    shape: CallShape
    spec: pytree.TreeSpec
    values: list[Any]

    def tensors(self, parts: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """The tensor inputs of the graph; `parts` returns the parts of a sparse tensor."""
        inputs: list[torch.Tensor] = []
        for leaf, value in zip(self.shape.leaves, self.values, strict=True):
            if leaf.kind == "tensor":
                inputs.append(value)
            elif leaf.kind == "sparse":
                inputs.extend(parts(value))
            elif leaf.kind == "size":
                inputs.append(torch.empty((value, 0)))
        return inputs

    def rebuild(self, tensors: Sequence[torch.Tensor], sparse: Callable[..., Any]) -> dict[str, Any]:
        """The named arguments with `tensors` in place of the leaves; `sparse(leaf, ...)` joins four parts."""
        rest = iter(tensors)
        leaves: list[Any] = []
        for leaf, value in zip(self.shape.leaves, self.values, strict=True):
            if leaf.kind == "tensor":
                leaves.append(next(rest))
            elif leaf.kind == "sparse":
                leaves.append(sparse(leaf, *(next(rest) for _ in PARTS)))
            elif leaf.kind == "size":
                leaves.append(next(rest).shape[0])
            else:
                leaves.append(transformers_cache.fresh(value))
        arguments: dict[str, Any] = pytree.tree_unflatten(leaves, self.spec)
        return arguments


def signature(model: torch.nn.Module) -> inspect.Signature:
    """The signature of the model's own forward."""
    return inspect.signature(model.forward)


def flatten(
    model_signature: inspect.Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    opens: bool = True,
    varying: Collection[str] = (),
) -> Call:
    """The flattened call `model(*args, **kwargs)`; omitted arguments stay omitted.

    Args:
        model_signature: signature of the model's forward.
        args, kwargs: arguments of the call.
        opens: whether keys of earlier calls in caches become tensors of the call.
        varying: names of integers that are symbols of the graph.
    """
    try:
        bound = model_signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CaptureError(
            f"the example inputs do not fit the model's forward{model_signature}: {error}"
        ) from None
    arguments = {name: transformers_cache.opened(v) if opens else v for name, v in bound.arguments.items()}
    paths, spec = pytree.tree_flatten_with_path(arguments, is_leaf=is_tensor)
    if torch_geometric_data.register([value for _, value in paths]):
        paths, spec = pytree.tree_flatten_with_path(arguments, is_leaf=is_tensor)
    leaves = tuple(as_size(leaf_of(pytree.keystr(path), value), varying) for path, value in paths)
    values = [value for _, value in paths]
    has_sizes = bool(varying) and any(leaf.kind == "size" for leaf in leaves)
    shape = CallShape(tuple(arguments), str(spec), leaves, None if has_sizes else structure_key(arguments))
    return Call(shape, spec, values)


def as_size(leaf: Leaf, varying: Collection[str]) -> Leaf:
    """The leaf of a varying integer as the extent of a tensor; other leaves are unchanged."""
    return Leaf(leaf.name, "size", (int,)) if leaf.name in varying and leaf.is_extent else leaf


def structure_key(value: Any) -> Any:
    """The cache key of values of one graph; None where a trace cannot describe the value.

    Made of types, numbers and names alone: plain values compare under Dynamo's tracing, structures do not.

    >>> structure_key([torch.ones(2), 3])
    (<class 'list'>, (('tensor', torch.strided, torch.float32, 1, 'cpu'), (<class 'int'>, 3)))
    >>> structure_key(object())
    """
    if isinstance(value, torch.Tensor):
        if is_sparse(value):
            return None
        return "tensor", value.layout, value.dtype, value.dim(), value.device.type
    kind = type(value)
    if kind in CONSTANTS:
        return kind, repr(value) if kind is float else value  # -0.0 == 0.0
    if kind is not dict and kind not in LISTS:
        return None
    parts = tuple([structure_key(part) for part in (value.values() if kind is dict else value)])
    if None in parts:
        return None
    return (kind, tuple(value), parts) if kind is dict else (kind, parts)


def is_tensor(value: Any) -> bool:
    """Whether `value` is a tensor; sparse tensors are leaves, too, despite their parts."""
    return isinstance(value, torch.Tensor)


def with_tensors(call: Call, tensors: Sequence[Any]) -> Call:
    """The call with other values in place of its tensors, in order, and fresh copies of its caches."""
    rest = iter(tensors)
    return replace(
        call,
        values=[
            transformers_cache.fresh(value) if leaf.kind in ("constant", "size") else next(rest)
            for value, leaf in zip(call.values, call.shape.leaves, strict=True)
        ],
    )


def copied(call: Call) -> Call:
    """The call with copies of its tensors, safe for in-place writes by a model."""
    return with_tensors(call, [value.clone() for value in call.values if isinstance(value, torch.Tensor)])


def anew(model: Callable[..., Any], args: Any, kwargs: Any, may_write: bool) -> Callable[[], Any]:
    """A repeatable call: copies of caches, and of tensors that the model may overwrite, in each run."""

    def private(value: Any) -> Any:
        if may_write and isinstance(value, torch.Tensor) and not is_sparse(value):
            return value.clone()
        return transformers_cache.copied(value)

    def call() -> Any:
        positional, named = pytree.tree_map(private, (args, kwargs), is_leaf=transformers_cache.is_cache)
        return model(*positional, **named)

    return call


def is_ours(value: Any) -> bool:
    """Whether `value` is a sparse tensor of this package."""
    return isinstance(value, SparseTensor)


def as_torch(value: Any) -> Any:
    """A sparse tensor of this package as torch's, for the code of models; other values are unchanged."""
    return value.to_torch() if is_ours(value) else value


def run_call(model: Callable[..., Any], signature: inspect.Signature, call: Call) -> Any:
    """The result of a model's code with a signature for a call; empty caches of the call stay empty."""
    values = [transformers_cache.fresh(value) for value in call.values]
    args, kwargs = arguments_of(pytree.tree_unflatten(values, call.spec), signature)
    return run_source(model, args, kwargs)


def is_strided(value: Any) -> bool:
    """Whether a value is a strided tensor of torch, or None."""
    return value is None or (type(value) is torch.Tensor and value.layout is torch.strided)


def run_source(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The source model's result for sparse tensors of torch, or of this package.

    Raises:
        Exception: raised by the model.
    """

    def run(become: Callable[[Any], Any]) -> Any:
        positional, named = pytree.tree_map(become, (args, dict(kwargs)), is_leaf=is_tensor)
        return model(*positional, **named)

    if all(map(is_strided, args)) and all(map(is_strided, kwargs.values())):
        return model(*args, **kwargs)
    leaves = pytree.tree_leaves((args, dict(kwargs)), is_leaf=is_tensor)
    if not any(map(is_sparse, leaves)):
        return model(*args, **kwargs)
    try:
        return run(as_torch)
    except (RuntimeError, TypeError) as error:
        if isinstance(error, SparsifyError):
            raise
        try:
            return run(as_ours)
        except SparsifyError:
            raise  # the error names an alternative
        except Exception:
            raise reason(model, run, leaves, error) from None


def reason(
    model: Callable[..., Any], run: Callable[..., Any], leaves: Sequence[Any], error: Exception
) -> Exception:
    """The error of a model that takes no sparse tensors: its own error if dense ones fail, too.

    Args:
        model: the called model.
        run: function that calls the model with transformed leaves.
        leaves: leaves of the call.
        error: torch's error for the sparse tensors.
    """
    if sum(leaf.numel() for leaf in leaves if is_sparse(leaf)) > MOST_TRIED:
        return error
    try:
        run(lambda value: as_torch(value).to_dense() if is_sparse(value) else value)
    except Exception as dense_error:
        return dense_error
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return UnsupportedOperatorError(
        f"{type(model).__name__} does not take sparse inputs, for which torch says: {first}",
        "give dense ones, as value.to_dense()",
    )


def as_ours(value: Any) -> Any:
    """A torch sparse tensor as one of this package, with more supported layouts; other values are unchanged."""
    return tensor(value, duplicates="sum") if is_sparse(value) and not is_ours(value) else value


def is_sparse(value: Any) -> bool:
    """Whether `value` is a sparse matrix of torch or of this package."""
    return isinstance(value, SparseTensor) or (
        isinstance(value, torch.Tensor) and value.layout in SPARSE_LAYOUTS
    )


def leaf_of(path: str, value: Any) -> Leaf:
    """The leaf of `value` at `path`."""
    name = path.replace("['", ".").replace("']", "").replace("[", ".").replace("]", "").strip(".")
    if not isinstance(value, torch.Tensor):
        cache = transformers_cache.described(value)
        return Leaf(name, "constant", contents(value) if cache is None else (str, cache))
    kind = "sparse" if is_sparse(value) else "tensor"
    layout = "sparsify" if isinstance(value, SparseTensor) else str(value.layout)
    device = value.device.type
    is_read = isinstance(value, SparseTensor) or device != "cpu" or has_memory(value)
    return Leaf(name, kind, (layout, value.dtype, value.dim(), device if is_read else type(value)))


def arguments_of(
    bound: Mapping[str, Any], model_signature: inspect.Signature
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments, reconstructed from the named ones."""
    arguments = inspect.BoundArguments(model_signature, dict(bound))
    return list(arguments.args), dict(arguments.kwargs)
