"""Evaluation of expressions over tensors: their programs, and memoized kernels for such operands.

In: `einsum("ij,jk->ik", A, B)`. Out: the result, dense or sparse by the rules of format inference.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import copysign
from typing import Any

import numpy as np
import torch
from torch.compiler import is_dynamo_compiling
from torch.nn.parameter import is_lazy

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.einsum.rewrite.restrict import restrict
from sparsify.compiler.einsum.text.subscripts import read_subscripts
from sparsify.compiler.ir.memo import recall, remember
from sparsify.compiler.kernel.fast_call import Learn, Operands, shortcut
from sparsify.compiler.kernel.kernel import Kernel, compile_program, plan
from sparsify.compiler.kernel.tracing import is_traced
from sparsify.compiler.kernel.transforms import dynamo_nodes
from sparsify.compiler.kernel.transforms.torch_operators import Operator, register
from sparsify.compiler.operands.operand_types import describe
from sparsify.compiler.operands.program_of import (
    conditions_by_result,
    formats_by_result,
    program_of,
    results_by_value,
    selections_by_result,
)
from sparsify.compiler.operands.scalars import lifted
from sparsify.compiler.operands.sort_operands import ascending
from sparsify.compiler.plan.prepare.sparsified import evaluate_sparsified
from sparsify.compiler.plan.prepare.specialise import specialised
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.sizes import sizes_of
from sparsify.errors import EinsumError, FormatError, ScheduleError, SparsifierError, public
from sparsify.options import Options, current
from sparsify.storage.format import Format
from sparsify.storage.tensor import SparseTensor

# Values hold the options, so that no other object reuses the identity in the key.
_kernels: dict[Any, tuple[Kernel, tuple[int, ...], Options]] = {}
_shortcuts: dict[Any, tuple[Callable[[Operands], Any], Options]] = {}
_evaluations: dict[Any, tuple[Kernel, dict[str, torch.Tensor], Options]] = {}
# Kernels with scalars as operands, valid for all values of the scalars.
_lifted: dict[Any, Kernel] = {}


def einsum(
    subscripts: str,
    *operands: torch.Tensor,
    format: Format | str | None = None,
    schedule: Schedule | str | None = None,
) -> torch.Tensor:
    """`torch.einsum` over sparse and dense operands.

    Args:
        subscripts: subscripts of torch: ellipsis, repeated indices, implicit output, spaces.
        operands: dense tensors and `SparseTensor`s; dtypes promote as in `torch.result_type`.
        format: format of the result; inferred by default.
        schedule: schedule text as printed by `explain`; chosen by default.

    Raises:
        EinsumError, ShapeError, DtypeError: mismatched operands, with the index variable.
        ScheduleError: a schedule that does not fit.

    >>> from sparsify.storage.interop.tensors import tensor
    >>> A = tensor(torch.eye(2), "csr")
    >>> einsum("ij,jk->ik", A, torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """
    if is_dynamo_compiling():
        return dynamo_nodes.einsum(subscripts, operands, format, schedule)
    key = (subscripts, format, schedule, id(current()))
    try:
        known = _shortcuts.get(key)
    except TypeError:  # an unhashable argument is in no key
        known = None
    if known is not None:
        return known[0](operands)  # type: ignore[no-any-return]
    return _first_call(key, partial(_einsum, subscripts, format, schedule), operands)  # type: ignore[no-any-return]


def _first_call(key: Any, otherwise: Callable[[Operands, Learn], Any], operands: Operands) -> Any:
    """The result; later calls take the fast path."""
    result = otherwise(operands, None)
    remember(_shortcuts, key, (shortcut(otherwise), current()))
    return result


@public
def _einsum(
    subscripts: str,
    format: Format | str | None,
    schedule: Schedule | str | None,
    operands: Operands,
    learn: Learn,
) -> Any:
    """The result of an einsum; the kernel stores the frame for the fast path."""
    operands = tuple(map(ascending, operands))
    kernel, order = einsum_kernel(subscripts, operands, format, schedule)
    result = kernel(*[operands[place] for place in order])
    if learn is not None:
        kernel.teach(learn, operands, order)
    return result


def evaluate(
    text: str,
    outputs: str | Sequence[str] | None = None,
    *,
    format: Format | str | Mapping[str, Format | str] | None = None,
    schedule: Schedule | str | None = None,
    sizes: Mapping[str, int] | None = None,
    sparsifier: Any = None,
    **operands: torch.Tensor | complex,
) -> Any:
    """The results of statements in index notation, `y[i] = A[i,j] * x[j] + z[i]`.

    Args:
        text: one statement a line.
        outputs: names of the results to return, in order; by default the last assigned one.
        format: format of the result, or a mapping from results to formats. `csr where abs(Y) >= 0.5` stores the entries
            of Y for which the condition holds, `csr by value` the entries different from the fill, `csr largest 2 of 4`
            the two largest of every four neighbours of a row, `csr largest 10` ten of each row, zeros included.
        sparsifier: sparsifier of the result from `sparsify.sparsifiers`, or a mapping from results to sparsifiers.
            Streaming sparsifiers become conditions of the kernel that writes the result: dropped entries and entries
            equal to the fill are not written. n:m and top-k of one result are selected row by row in the same kernel.
            Other sparsifiers run after the kernel.
        schedule: schedule of all statements as one kernel; by default each statement gets a schedule.
        sizes: extents of index variables without an operand.
        operands: tensors and scalars of Python or numpy by name. One kernel serves all values of a scalar that is
            multiplied with tensors, added to dense ones or compared; other scalars are constants of a kernel.

    Raises:
        ParseError, EinsumError, ShapeError, DtypeError: mistakes in the text or the operands.
        SparsifierError: an invalid sparsifier, or one that does not fit the result.

    >>> from sparsify.storage.interop.tensors import tensor
    >>> evaluate("y[i] = A[i,j] * x[j]", A=tensor(torch.eye(2), "csr"), x=torch.ones(2))
    tensor([1., 1.])
    """
    if is_dynamo_compiling():
        if sparsifier is not None:
            raise SparsifierError(
                "a sparsifier within torch.compile", "its condition, format='csr where abs(Y) >= 0.5'"
            )
        return dynamo_nodes.evaluate(text, outputs, format, schedule, sizes, operands)
    if sparsifier is not None:
        how = {"schedule": schedule, "sizes": sizes}
        return evaluate_sparsified(evaluate, text, outputs, format, sparsifier, operands, **how)
    return _evaluated((text, outputs, format, schedule, sizes, tuple(operands)), tuple(operands.values()))


def evaluate_pair(text: str, A: torch.Tensor, B: torch.Tensor) -> Any:
    """`evaluate(text, A=A, B=B)` of two tensors."""
    if is_dynamo_compiling():
        return dynamo_nodes.evaluate(text, None, None, None, None, {"A": A, "B": B})
    return _evaluated((text, None, None, None, None, ("A", "B")), (A, B))


def _evaluated(asked: tuple[Any, ...], operands: tuple[Any, ...]) -> Any:
    """The results of a request; repeated calls take the fast path in C."""
    key = (asked, id(current()))
    try:
        known = _shortcuts.get(key)
    except TypeError:  # lists and mappings may change, and symbols have no hash
        known = (partial(_evaluate, asked, learn=None), current())
    return _first_call(key, partial(_evaluate, asked), operands) if known is None else known[0](operands)


@public
def _evaluate(asked: tuple[Any, ...], operands: tuple[Any, ...], learn: Learn) -> Any:
    """The results of a request; the kernel stores the frame for the fast path."""
    text, outputs, format, schedule, sizes, names = asked
    given = _held(dict(zip(names, operands, strict=True)))
    are_lifted = _are_at_hand(given.values())
    kernel, numbers = _evaluate_kernel(text, outputs, format, schedule, sizes, given, are_lifted=are_lifted)
    used = kernel.program.inputs
    if numbers:
        return kernel(*[numbers[name] if name in numbers else given[name] for name in used])
    results = kernel(*[given[name] for name in used])
    if learn is not None and kernel.has_frames:
        kernel.teach(learn, tuple(given.values()), [names.index(name) for name in used])
    return results


def _are_at_hand(operands: Collection[Any]) -> bool:
    """Whether scalars are present and no tensor is traced or transformed: traced graphs keep numbers as constants."""
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    if len(tensors) == len(operands):
        return False
    return not is_traced(tensors) and not torch._C._are_functorch_transforms_active()


def evaluate_kernel(
    text: str,
    outputs: str | Sequence[str] | None = None,
    *,
    format: Format | str | Mapping[str, Format | str] | None = None,
    schedule: Schedule | str | None = None,
    sizes: Mapping[str, int] | None = None,
    **operands: Any,
) -> Kernel:
    """The kernel of an `evaluate`."""
    given = _held(operands)
    kernel, _ = _evaluate_kernel(text, outputs, format, schedule, sizes, given)
    if not kernel.is_prepared:
        kernel.prepare(sizes_of(kernel.program, [given[name] for name in kernel.program.inputs]))
    return kernel


def _evaluate_kernel(
    text: str,
    outputs: str | Sequence[str] | None,
    format: Format | str | Mapping[str, Format | str] | None,
    schedule: Schedule | str | None,
    sizes: Mapping[str, int] | None,
    operands: Mapping[str, Any],
    *,
    are_lifted: bool = False,
) -> tuple[Kernel, dict[str, torch.Tensor]]:
    """The kernel of an `evaluate` with complex numbers as tensors, and the values of its numbers by name.

    Args:
        are_lifted: whether scalars may be operands of the kernel; otherwise all are constants.
    """
    _check_kinds("evaluate", 'statements, "y[i] = A[i,j] * x[j]"', text, format, schedule)
    if not isinstance(sizes, Mapping | None):
        raise EinsumError(f"sizes={sizes!r}", 'extents by index variable, sizes={"i": 5}')
    if not isinstance(outputs, str | Sequence | None) or not all(isinstance(o, str) for o in outputs or ()):
        raise EinsumError(f"outputs={outputs!r}", "the name of a result, or a list of them")
    options = current()
    names = outputs if isinstance(outputs, str) or outputs is None else tuple(outputs)
    formats = format if isinstance(format, Format | str) or format is None else tuple(format.items())
    key: list[Any] = [text, names, formats, schedule, tuple((sizes or {}).items()), id(options)]
    scalars: list[Any] = [are_lifted]
    for name, operand in operands.items():
        if isinstance(operand, int | float):
            scalars += (name, *_key_of_number(operand))
        else:
            key += (name, *_key(operand))
    found = recall(_evaluations, (*key, *scalars))
    if found is None:
        program, source = program_of(text, names, format, sizes, operands)
        program, numbers = lifted(program, source) if are_lifted else (program, {})
        kernel = recall(_lifted, (*key, program)) if numbers else None
        if kernel is None:
            given = [numbers[name] if name in numbers else operands[name] for name in program.inputs]
            met = sizes_of(program, given)
            kernel = plan(specialised(program, met), schedule, options, met)
            kernel.prepare_for(met, given)
            if numbers:
                remember(_lifted, (*key, program), kernel)
        found = kernel, numbers, options
        remember(_evaluations, (*key, *scalars), found)
    return found[0], found[1]


def _key_of_number(number: float) -> tuple[Any, ...]:
    """The cache key of a scalar, type and sign: `0.0 == -0.0`, but `1 / x` differs."""
    return type(number), number, copysign(1.0, number) if isinstance(number, float) else None


def _check_kinds(name: str, wanted: str, text: Any, format: Any, schedule: Any) -> None:
    """Raises for a text, format or schedule of a wrong type."""
    if not isinstance(text, str):
        raise EinsumError(f"{name} of a {type(text).__name__}", f"{wanted}, come first")
    if not isinstance(format, Format | str | Mapping | None):
        raise FormatError(f"format={format!r}", '"csr", a sparsify.Format or formats by result')
    if not isinstance(schedule, Schedule | str | None):
        raise ScheduleError(f"schedule={schedule!r}", "text as sparsify.explain prints it")


def _held(operands: Mapping[str, Any]) -> dict[str, Any]:
    """Sorted operands, with complex numbers as scalar tensors: no complex constants exist, and promotion is the same.

    Numbers of numpy become Python numbers.
    """
    plain = {name: o.item() if isinstance(o, np.generic) else o for name, o in operands.items()}
    return {
        name: torch.tensor(operand, dtype=torch.complex128)
        if isinstance(operand, complex)
        else ascending(operand)
        for name, operand in plain.items()
    }


def einsum_kernel(
    subscripts: str,
    operands: tuple[torch.Tensor, ...],
    format: Format | str | None,
    schedule: Schedule | str | None,
) -> tuple[Kernel, tuple[int, ...]]:
    """The kernel of an einsum, and the operand index of each program input."""
    _check_kinds("einsum", 'subscripts, "ij,jk->ik"', subscripts, format, schedule)
    options = current()
    key: list[Any] = [subscripts, format, schedule, id(options)]
    for operand in operands:
        key += _key(operand)
    found = recall(_kernels, tuple(key))
    if found is None:
        described = tuple(describe(operand) for operand in operands)
        shapes = tuple(tuple(operand.shape) for operand in operands)
        program, order = _einsum_program(subscripts, described, shapes, format)
        sizes = sizes_of(program, [operands[n] for n in order])
        program = specialised(program, sizes)
        found = (compile_program(program, schedule, options, sizes), order, options)
        remember(_kernels, tuple(key), found)
    kernel: Kernel = found[0]
    places: tuple[int, ...] = found[1]
    return kernel, places


def _key(operand: torch.Tensor) -> tuple[Any, ...]:
    """The cache key of an operand: all facts that a kernel depends on, cheap to find and to hash.

    Sparse operands of equal description share one object, whose identity needs no deep hash.
    """
    if isinstance(operand, SparseTensor):
        return id(describe(operand)), operand._pattern.shape
    if isinstance(operand, torch.Tensor):
        if operand.is_nested:
            raise EinsumError("a nested tensor", "one operand a tensor, or operand.to_padded_tensor(0)")
        if is_lazy(operand):
            raise EinsumError("a parameter without a shape", "materialize it first")
        return operand.dtype, operand.layout, operand.shape
    raise EinsumError(
        f"an operand of type {type(operand).__name__}", "torch tensors; sparsify.tensor converts others"
    )


def _einsum_program(
    subscripts: str,
    described: tuple[Operand, ...],
    shapes: tuple[tuple[int, ...], ...],
    format: Format | str | None,
) -> tuple[Program, tuple[int, ...]]:
    """The program of an einsum, and the operand index of each of its inputs."""
    names = tuple(f"{letter}" for letter in _names(len(described)))
    assign = read_subscripts(subscripts, shapes, names, "Y")
    (assign,) = restrict((assign,), conditions_by_result((assign,), format))
    formats = formats_by_result((assign,), format)
    operands = dict(zip(names, described, strict=True))
    given = dict(zip(names, shapes, strict=True))
    drops = results_by_value((assign,), format)
    selections = selections_by_result((assign,), format)
    program = declare(
        (assign,), operands, ("Y",), formats=formats, shapes=given, drops=drops, selections=selections
    )
    return program, tuple(names.index(name) for name in program.inputs)


def _names(count: int) -> list[str]:
    """`A`, `B`, ..., without the name of the result."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXZ"
    return [letters[n] if count <= len(letters) else f"A{n}" for n in range(count)]


def _program(
    text: str,
    outputs: str | tuple[str, ...] | None,
    format: Format | str | Mapping[str, Format | str] | None,
    sizes: Mapping[str, int] | None,
    operands: Mapping[str, Any],
) -> Program:
    """The program of an `evaluate` with scalars as constants."""
    return program_of(text, outputs, format, sizes, operands)[0]


def _einsum_of_graph(*arguments: Any) -> Any:
    """The operator `sparsify::einsum`."""
    from sparsify.compiler.dynamo_kernels import einsum_of_graph  # loads Dynamo

    return einsum_of_graph(einsum_kernel, *arguments)


def _evaluate_of_graph(*arguments: Any) -> Any:
    """The operator `sparsify::evaluate`."""
    from sparsify.compiler.dynamo_kernels import evaluate_of_graph

    return evaluate_of_graph(evaluate_kernel, *arguments)


_library = register(
    Operator(dynamo_nodes.EINSUM, _einsum_of_graph), Operator(dynamo_nodes.EVALUATE, _evaluate_of_graph)
)
