"""The public functions: tensors, expressions, explanations and whole models.

In: `einsum("ij,jk->ik", A, B)`. Out: the result, dense or sparse by the rules of format inference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.einsum_string import read_subscripts
from sparsify.compiler.einsum.nodes import Assign, Const, Program
from sparsify.compiler.einsum.parse import read
from sparsify.compiler.einsum.rename import substitute_scalars
from sparsify.compiler.explain import explain_kernel
from sparsify.compiler.kernel import Kernel, compile_program, index_dtypes
from sparsify.compiler.schedule.directives import Schedule
from sparsify.errors import DtypeError, EinsumError
from sparsify.options import Options, current
from sparsify.passes.apply import apply
from sparsify.storage.format import Format
from sparsify.storage.interop import tensor
from sparsify.storage.tensor import SparseTensor

__all__ = ["apply", "einsum", "evaluate", "explain", "tensor"]

DTYPES = ("float32", "float64")
REMEMBERED = 4096

_descriptions: dict[Operand, Operand] = {}
_kernels: dict[Any, tuple[Kernel, tuple[int, ...], Options]] = {}


def einsum(
    subscripts: str,
    *operands: torch.Tensor,
    format: Format | str | None = None,
    schedule: Schedule | str | None = None,
) -> torch.Tensor:
    """`torch.einsum` over sparse and dense operands.

    Args:
        subscripts: as torch's: ellipsis, repeated indices, implicit output, spaces.
        operands: dense tensors and `SparseTensor`s of float32 or float64.
        format: of the result; inferred without it.
        schedule: text as `explain` prints it; chosen without it.

    Raises:
        EinsumError, ShapeError, DtypeError: what does not fit, with the index variable.
        ScheduleError: a schedule that does not fit.

    >>> import torch
    >>> A = tensor(torch.eye(2), "csr")
    >>> einsum("ij,jk->ik", A, torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """
    kernel, used = _einsum_kernel(subscripts, operands, format, schedule)
    return kernel(*used)  # type: ignore[no-any-return]


def evaluate(
    text: str,
    outputs: str | Sequence[str] | None = None,
    *,
    format: Format | str | Mapping[str, Format | str] | None = None,
    schedule: Schedule | str | None = None,
    sizes: Mapping[str, int] | None = None,
    **operands: torch.Tensor | float,
) -> Any:
    """The results of statements in index notation, `y[i] = A[i,j] * x[j] + z[i]`.

    Args:
        text: one statement a line.
        outputs: the names to return, in this order; the last assigned one without it.
        format: of the result, or a mapping from results to formats.
        schedule: for a single statement.
        sizes: extents of index variables that no operand has.
        operands: tensors and Python scalars by name.

    Raises:
        ParseError, EinsumError, ShapeError, DtypeError: mistakes in the text or the operands.

    >>> import torch
    >>> evaluate("y[i] = A[i,j] * x[j]", A=tensor(torch.eye(2), "csr"), x=torch.ones(2))
    tensor([1., 1.])
    """
    if sizes:
        raise EinsumError("sizes= gives extents that no operand has", "index a tensor of that extent instead")
    scalars = {name: value for name, value in operands.items() if not isinstance(value, torch.Tensor)}
    tensors = {name: value for name, value in operands.items() if isinstance(value, torch.Tensor)}
    statements = _with_scalars(read(text).statements, scalars)
    names = (outputs,) if isinstance(outputs, str) else tuple(outputs or ())
    if isinstance(format, Format | str):
        format = {statements[-1].target.tensor: format}
    program = _declare(statements, tensors, names, format)
    kernel = compile_program(program, schedule, current())
    return kernel(*(tensors[name] for name in program.inputs))


def explain(subject: Any, *operands: torch.Tensor, schedule: Schedule | str | None = None) -> str:
    """How an einsum or an applied model is computed: formats, schedule, notation, loops and generated C++.

    Args:
        subject: subscripts with their operands, or a `SparseModule`.
    """
    if isinstance(subject, str):
        kernel, _ = _einsum_kernel(subject, operands, None, schedule)
        return explain_kernel(kernel)
    return str(subject.report)


def _einsum_kernel(
    subscripts: str,
    operands: tuple[torch.Tensor, ...],
    format: Format | str | None,
    schedule: Schedule | str | None,
) -> tuple[Kernel, tuple[torch.Tensor, ...]]:
    """The kernel of an einsum and its operands in the order of the program."""
    options = current()
    key: list[Any] = [subscripts, format, schedule, id(options)]
    for operand in operands:
        # Operands of equal description are one object: its identity is a key that costs no deep hash.
        if isinstance(operand, SparseTensor):
            key += (id(_describe(operand)), operand._pattern.shape)
        elif isinstance(operand, torch.Tensor):
            key += (operand.dtype, operand.layout, operand.shape)
        else:
            raise EinsumError(
                f"an operand of type {type(operand).__name__}", "torch tensors, sparse or dense"
            )
    found = _kernels.get(tuple(key))
    if found is None:
        described = tuple(_describe(operand) for operand in operands)
        shapes = tuple(tuple(operand.shape) for operand in operands)
        wanted = Format(format) if isinstance(format, str) else format
        program, order = _einsum_program(subscripts, described, shapes, wanted)
        found = (compile_program(program, schedule, options), order, options)
        if len(_kernels) >= REMEMBERED:
            _kernels.clear()
        _kernels[tuple(key)] = found
    kernel, order, _ = found
    return kernel, tuple([operands[n] for n in order])


@lru_cache(maxsize=4096)
def _einsum_program(
    subscripts: str,
    described: tuple[Operand, ...],
    shapes: tuple[tuple[int, ...], ...],
    format: Format | None,
) -> tuple[Program, tuple[int, ...]]:
    """The program of an einsum, and which operand each of its inputs is."""
    names = tuple(f"{letter}" for letter in _names(len(described)))
    assign = read_subscripts(subscripts, shapes, names, "Y")
    formats = {"Y": format} if format is not None else None
    program = declare((assign,), dict(zip(names, described, strict=True)), ("Y",), formats=formats)
    return program, tuple(names.index(name) for name in program.inputs)


def _names(count: int) -> list[str]:
    """`A`, `B`, ..., without the name of the result."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXZ"
    return [letters[n] if count <= len(letters) else f"A{n}" for n in range(count)]


def _describe(operand: torch.Tensor) -> Operand:
    """Format, dtype and fill of an operand; equal ones are the same object."""
    if isinstance(operand, SparseTensor):
        pattern, key = operand._pattern, (operand._vals.dtype, operand._fill)
        found: Operand = pattern.recall(key) or pattern.cached(key, lambda: _describe_sparse(operand))
        return found
    return _describe_dense(operand.dtype, operand.dim(), operand.layout)


def _describe_sparse(operand: SparseTensor) -> Operand:
    fill = operand.fill
    if isinstance(fill, complex):
        raise DtypeError(f"an operand with the fill {fill}", "a real fill: operand.with_fill(0)")
    made = Operand(operand.format, _dtype_name(operand.dtype), float(fill), index_dtypes(operand.pattern))
    return _descriptions.setdefault(made, made)


@lru_cache
def _describe_dense(dtype: torch.dtype, rank: int, layout: torch.layout) -> Operand:
    if layout != torch.strided:
        raise EinsumError(f"an operand of layout {layout}", "sparsify.tensor(operand)")
    made = Operand(Format(", ".join(["dense"] * rank) or "scalar"), _dtype_name(dtype))
    return _descriptions.setdefault(made, made)


def _dtype_name(dtype: torch.dtype) -> str:
    """`float32`, when kernels can be generated for it."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise DtypeError(
            f"an operand of dtype {name}", f"one of {', '.join(DTYPES)}: operand.to(torch.float32)"
        )
    return name


def _declare(
    statements: tuple[Assign, ...],
    tensors: Mapping[str, torch.Tensor],
    outputs: tuple[str, ...],
    formats: Mapping[str, Format | str] | None,
) -> Program:
    described = {name: _describe(value) for name, value in tensors.items()}
    wanted = {n: Format(f) if isinstance(f, str) else f for n, f in formats.items()} if formats else None
    return declare(statements, described, outputs, formats=wanted)


def _with_scalars(statements: tuple[Assign, ...], scalars: Mapping[str, Any]) -> tuple[Assign, ...]:
    """The statements with Python numbers in place of their names."""
    numbers = {name: Const(value) for name, value in scalars.items()}
    return tuple(replace(s, value=substitute_scalars(s.value, numbers)) for s in statements)
