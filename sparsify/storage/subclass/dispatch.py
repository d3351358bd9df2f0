"""Operators of torch's dispatcher on a `SparseTensor`: copies, optimizer steps and pointwise operators on one pattern.

In: `aten.addcdiv_(p, m, v)` with tensors of one pattern. Out: the same operator on the values; the fill of the
result is the operator on the fills.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from sparsify.errors import UnsupportedOperatorError
from sparsify.storage import validate
from sparsify.storage.fill import Fill, decided, same
from sparsify.storage.tensor import SparseTensor, take_place, values_at, wrap

aten = torch.ops.aten

KEEP_FILL = frozenset(
    {aten.clone, aten._to_copy, aten.lift_fresh, aten.positive}  # the tensor itself
)
SET_FILL: dict[Any, Callable[..., Fill]] = {
    aten.zeros_like: lambda *_: 0,
    aten.empty_like: lambda *_: 0,
    aten.ones_like: lambda *_: 1,
    aten.full_like: lambda _, value: value,
    aten.zero_: lambda *_: 0,
    aten.fill_: lambda _, value: value.item() if isinstance(value, Tensor) else value,
}
KEEP_ZERO = frozenset(
    getattr(aten, name)
    for name in (
        *("mul", "mul_", "neg", "neg_", "abs", "sqrt", "sqrt_", "add_", "sub_", "lerp", "lerp_", "addcmul_"),
        *("maximum", "_foreach_mul_", "_foreach_mul", "_foreach_lerp_", "_foreach_addcmul_", "_foreach_sqrt"),
        *("_foreach_neg", "_foreach_maximum_", "_foreach_zero_"),
    )
)
FOREACH = frozenset(
    getattr(aten, f"_foreach_{name}{suffix}")
    for name in (
        *("add", "sub", "mul", "div", "maximum", "minimum", "addcmul", "addcdiv", "lerp", "sqrt", "rsqrt"),
        *("neg", "abs", "sign", "reciprocal", "pow", "exp", "clamp_min", "clamp_max"),
    )
    for suffix in ("", "_")
)


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a torch operator with sparse arguments.

    Raises:
        UnsupportedOperatorError: the operator has no meaning on values alone.
    """
    packet = func.overloadpacket
    if packet in HANDLERS:
        return HANDLERS[packet](func, args, kwargs)
    if packet in KEEP_FILL:
        return _on_values(func, args, kwargs, lambda fills, _: fills[0])
    if packet in SET_FILL:
        fill = SET_FILL[packet](*args)
        return _on_values(func, args, kwargs, lambda *_: fill)
    if packet in FOREACH or packet is aten._foreach_zero_:
        return _foreach(func, args, kwargs)
    if torch.Tag.pointwise in func.tags and torch.Tag.nondeterministic_seeded not in func.tags:
        return _on_values(
            func, args, kwargs, lambda fills, scalars: pointwise_fill(func, args, fills, scalars)
        )
    raise unsupported(func)


def unsupported(func: Any) -> UnsupportedOperatorError:
    """The error for an operator without a meaning on values alone."""
    name = str(func.overloadpacket).removeprefix("aten.")
    return UnsupportedOperatorError(
        f"torch's {name} has no implementation on a SparseTensor",
        "use sparsify.einsum or sparsify.evaluate, act on .values(), or ask for .to_dense()",
    )


def _on_values(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fill_of: Callable[[list[Fill], Callable[[], Any]], Fill],
) -> Any:
    """The operator on the values of operands with one pattern."""
    flat, tree = tree_flatten((args, kwargs))
    sparse = [a for a in flat if isinstance(a, SparseTensor)]
    _check_operands(func, flat, sparse)
    pattern = sparse[0]._pattern
    new_args, new_kwargs = tree_unflatten([a._vals if isinstance(a, SparseTensor) else a for a in flat], tree)

    def on_fills() -> Any:
        """The operator on 0-dimensional tensors of the fills, as a number."""
        scalars = [torch.full((), a._fill, dtype=a.dtype) if isinstance(a, SparseTensor) else a for a in flat]
        fill_args, fill_kwargs = tree_unflatten(scalars, tree)
        return func(*fill_args, **fill_kwargs).item()

    def untraced() -> Any:
        """The operator on fills outside of tracing, if all operands are numbers; other operands belong to the graph."""
        if any(isinstance(a, Tensor) and not isinstance(a, SparseTensor) for a in flat):
            return on_fills()
        with _disable_current_modes():
            return on_fills()

    fill = fill_of([a._fill for a in sparse], untraced)
    new_kwargs.pop("memory_format", None)
    result = func(*new_args, **new_kwargs)
    if _is_inplace(func):
        return _written(args[0], fill)
    if result.dtype != sparse[0].dtype:
        validate.value_dtype(result.dtype)
    return wrap(pattern, result, fill)


def _check_operands(func: Any, flat: Sequence[Any], sparse: Sequence[SparseTensor]) -> None:
    """Checks that all sparse operands have one pattern, and all others are scalars."""
    pattern = sparse[0]._pattern
    for operand in sparse[1:]:
        if not operand._pattern.equals(pattern):
            raise UnsupportedOperatorError(
                f"{_name(func)} of different patterns, {pattern} and {operand._pattern}",
                "sparsify.evaluate combines them: C[i,j] = A[i,j] + B[i,j]; optimizers that mix entries, as Muon does, "
                "are for dense parameters",
            )
    for operand in flat:
        if isinstance(operand, Tensor) and not isinstance(operand, SparseTensor) and operand.dim():
            raise UnsupportedOperatorError(
                f"{_name(func)} of {pattern} and a dense tensor of shape {list(operand.shape)}",
                "sparsify.evaluate combines them, or ask for .to_dense()",
            )


def pointwise_fill(
    func: Any, args: Sequence[Any], fills: Sequence[Fill], on_fills: Callable[[], Any]
) -> Fill:
    """The fill of a pointwise result; zero annihilates in products and quotients."""
    packet = func.overloadpacket
    is_sparse = all(isinstance(a, SparseTensor) for a in args)  # 1.0 in add_(1.0) arrives as a tensor
    if packet in KEEP_ZERO and _all_zero(fills) and (is_sparse or packet in (aten.mul, aten.mul_)):
        return fills[0]
    decided = _annihilated(_name(func), fills)
    if decided is not None:
        return decided
    result: Fill = on_fills()
    return result


def _foreach(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A `_foreach_` operator on lists of sparse and dense tensors: on the values of the sparse ones.

    Dense operands in the same list position as sparse ones are refused.
    """
    lists = [a for a in args if isinstance(a, list | tuple) and a and isinstance(a[0], Tensor)]
    for operands in zip(*lists, strict=True):
        sparse = [a for a in operands if isinstance(a, SparseTensor)]
        if sparse:
            _check_operands(func, operands, sparse)
    fills = _foreach_fills(func, args, kwargs, lists)
    results = func(*(_values_of(a) for a in args), **{k: _values_of(v) for k, v in kwargs.items()})
    if _is_inplace(func):
        for target, fill in zip(lists[0], fills, strict=True):
            if isinstance(target, SparseTensor):
                _written(target, fill)
        return None
    pairs = zip(lists[0], results, fills, strict=True)
    return [wrap(a._pattern, r, f) if isinstance(a, SparseTensor) else r for a, r, f in pairs]


def _foreach_fills(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], lists: Sequence[Sequence[Tensor]]
) -> list[Fill]:
    """The fills of the results of a `_foreach_` operator, 0 for dense ones."""
    packet = func.overloadpacket
    columns = [[_scalar_of(a) for a in operands] for operands in zip(*lists, strict=True)]
    is_zero = all(_all_zero(fills) for fills in columns)
    if packet is aten._foreach_zero_ or (
        is_zero and packet in KEEP_ZERO and "Scalar" not in func._overloadname
    ):
        return [0] * len(columns)
    scalars = [_fills_of(a) for a in args]
    computed = func(*scalars, **kwargs)
    targets = scalars[0] if computed is None or _is_inplace(func) else computed
    result_fills = []
    for fills, result in zip(columns, targets, strict=True):
        annihilated = _annihilated(_name(func), fills)
        result_fills.append(result.item() if annihilated is None else annihilated)
    return result_fills


def _annihilated(name: str, fills: Sequence[Fill]) -> Fill | None:
    """The fill, if decided by a zero alone, else `None`."""
    start: Fill = 0
    match name.removeprefix("_foreach_").removesuffix("_"), tuple(fills):
        case "addcmul", (start, first, second):  # a number argument is no fill
            function, operands = "mul", [first, second]
        case "addcdiv", (start, dividend, _):
            function, operands = "div", [dividend]
        case "mul", (*factors,):
            function, operands = "mul", factors
        case "div", (dividend, _):
            function, operands = "div", [dividend]
        case _:
            return None
    return (
        start if any(decided(function, position, fill)[0] for position, fill in enumerate(operands)) else None
    )


def _values_of(argument: Any) -> Any:
    """Values in the place of sparse tensors."""
    if isinstance(argument, list | tuple):
        return [_values_of(a) for a in argument]
    return argument._vals if isinstance(argument, SparseTensor) else argument


def _fills_of(argument: Any) -> Any:
    """Fills in place of sparse tensors, zeros in place of dense ones in lists; other arguments unchanged."""
    if not (isinstance(argument, list | tuple) and argument and isinstance(argument[0], Tensor)):
        return argument
    return [torch.full((), _scalar_of(a), dtype=a.dtype) for a in argument]


def _scalar_of(operand: Tensor) -> Fill:
    """The fill of a sparse operand, the value of a zero-dimensional one, 0 for a dense one."""
    if isinstance(operand, SparseTensor):
        return operand._fill
    number: Fill = 0 if operand.dim() else operand.item()
    return number


def _all_zero(fills: Sequence[Fill]) -> bool:
    return all(fill == 0 for fill in fills)


def _is_inplace(func: Any) -> bool:
    return bool(func._schema.name.endswith("_")) and not func._schema.name.endswith("__")


def _name(func: Any) -> str:
    return str(func.overloadpacket).removeprefix("aten.")


def _copy(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`target.copy_(source)`: into a dense tensor all entries, into a sparse one the entries of the same pattern.

    A parameter takes the pattern of a sparse source, in its own format: `load_state_dict` replaces the entries.
    """
    target, source = args[0], args[1]
    if not isinstance(target, SparseTensor):
        return target.copy_(source.to_dense(), *args[2:], **kwargs)
    if not isinstance(source, SparseTensor):
        source = on_pattern(source, target)
    if not source._pattern.equals(target._pattern):
        if isinstance(target, Parameter) and source.shape == target.shape:
            values = source._vals.detach().to(target.dtype, copy=True)
            take_place(target, wrap(source._pattern, values, source._fill).to(format=target.format))
            return _written(target, source._fill)
        raise UnsupportedOperatorError(
            f"copy_ into {target._pattern} from {source._pattern}",
            "a source of the same pattern; sparsify.training.set_mask changes that of a parameter",
        )
    target._vals.copy_(source._vals, *args[2:], **kwargs)
    return _written(target, source._fill)


def on_pattern(dense: Tensor, like: SparseTensor) -> SparseTensor:
    """The entries of a dense tensor on the pattern of a sparse one.

    Raises:
        UnsupportedOperatorError: another shape, or an entry outside the pattern different from the fill.
    """
    pattern = like._pattern
    if dense.shape != like.shape:
        raise UnsupportedOperatorError(
            f"{pattern} from a dense tensor of {list(dense.shape)}", "a source of the same shape"
        )
    result = wrap(pattern, values_at(dense, pattern).to(like.dtype), like._fill)
    read, expected = result.to_dense(), dense.to(like.dtype)
    differ = (read != expected) & ~(read.isnan() & expected.isnan())
    if outside := int(differ.sum()):
        raise UnsupportedOperatorError(
            f"{pattern} from a dense tensor with {outside} entries outside of the pattern that are not {like._fill}",
            "sparsify.tensor(source, format) as the source, or set_mask(parameter, source != 0) first",
        )
    return result


def _written(target: SparseTensor, fill: Fill) -> SparseTensor:
    """Increments the version of a written tensor, because torch does not count writes below its dispatcher."""
    increment_version(target._vals)
    target._fill = fill
    return target


def _foreach_copy(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """`copy_` of each of several tensors."""
    for target, source in zip(args[0], args[1], strict=True):
        target.copy_(source, *args[2:], **kwargs)


def _entrywise_step(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A fused step on lists of tensors, entry by entry, as of a fused optimizer: on the values.

    Tensors in the same place of the lists have one pattern.
    """
    lists = [a for a in args if isinstance(a, list | tuple) and a and isinstance(a[0], Tensor)]
    for position, first in enumerate(lists[0]):
        if isinstance(first, SparseTensor):
            operands = [one[position] for one in lists if len(one) == len(lists[0]) and one[position].dim()]
            _check_operands(func, operands, [a for a in operands if isinstance(a, SparseTensor)])
    result = func(*(_values_of(a) for a in args), **kwargs)
    for target in (a for one in lists for a in one if isinstance(a, SparseTensor)):
        _written(target, target._fill)
    return result


def _same_entries(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The tensor over the same values; on the path of every detach, hence short."""
    tensor: SparseTensor = args[0]
    return wrap(tensor._pattern, func(tensor._vals), tensor._fill)


def _norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A norm over all entries, from the values; unstored entries must be 0."""
    _whole_norm(func, [args[0]], args[2:])
    return func(args[0]._vals, *args[1:], **kwargs)


def _foreach_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The norms of several tensors."""
    _whole_norm(func, [a for a in args[0] if isinstance(a, SparseTensor)], ())
    return func(_values_of(args[0]), *args[1:], **kwargs)


def _whole_norm(func: Any, tensors: Sequence[SparseTensor], rest: Sequence[Any]) -> None:
    """Whether the norm is over all modes and all unstored entries are 0."""
    if any(argument not in (None, False, []) for argument in rest):
        raise UnsupportedOperatorError(
            f"{_name(func)} along some modes", "sparsify.evaluate: n[i] = sqrt(sum(j, ...))"
        )
    for tensor in tensors:
        if tensor._fill != 0 and not tensor.format.is_dense:
            raise UnsupportedOperatorError(
                f"{_name(func)} of a tensor with fill {tensor._fill}", "a fill of 0"
            )


def _equal(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """`torch.equal`: the same pattern, values and fill."""
    first, second = args
    if not (isinstance(first, SparseTensor) and isinstance(second, SparseTensor)):
        raise unsupported(func)
    fills = same(first._fill, second._fill)
    return fills and first._pattern.equals(second._pattern) and torch.equal(first._vals, second._vals)


def _same_size(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(args[0].shape == args[1].shape)


def _empty_strided(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SparseTensor:
    """A tensor of the same pattern, the target of autograd's copy of a shared gradient."""
    tensor, size = args[:2]
    if not isinstance(tensor, SparseTensor) or tuple(size) != tuple(tensor.shape):
        raise unsupported(func)
    return wrap(tensor._pattern, torch.empty_like(tensor._vals, dtype=kwargs.get("dtype")), 0)


HANDLERS: dict[Any, Callable[..., Any]] = {
    aten.detach: _same_entries,
    aten.alias: _same_entries,
    aten.copy_: _copy,
    aten.linalg_vector_norm: _norm,
    aten._foreach_norm: _foreach_norm,
    aten.equal: _equal,
    aten.is_same_size: _same_size,
    aten.new_empty_strided: _empty_strided,
    aten._foreach_copy_: _foreach_copy,
    aten._amp_foreach_non_finite_check_and_unscale_: _entrywise_step,
    **{getattr(aten, f"_fused_{name}_"): _entrywise_step for name in ("sgd", "adam", "adamw", "adagrad")},
}
