"""Programs from texts in index notation and operands by name.

In: `y[i] = a * A[i,j] * x[j]`, tensors A and x, a number a. Out: the program, with the format of y inferred.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from sparsify.compiler.einsum.declare import declare
from sparsify.compiler.einsum.infer.extents import bind_extents
from sparsify.compiler.einsum.nodes import Access, Assign, Program, Selection
from sparsify.compiler.einsum.rename import all_indices
from sparsify.compiler.einsum.rewrite.restrict import restrict, selected, selection_of, stored_under
from sparsify.compiler.einsum.text.parse import read
from sparsify.compiler.ir.node import find
from sparsify.compiler.operands.operand_types import describe
from sparsify.compiler.operands.scalars import Substituted, substituted
from sparsify.errors import EinsumError
from sparsify.storage.format import Format


def program_of(
    text: str,
    outputs: str | tuple[str, ...] | None,
    format: Format | str | Mapping[str, Format | str] | None,
    sizes: Mapping[str, int] | None,
    operands: Mapping[str, Any],
) -> tuple[Program, Substituted]:
    """The program of statements over operands, with constants for scalars, and the substituted statements.

    Args:
        text: one statement a line.
        outputs: names of results.
        format: format of the result, or formats by result.
        sizes: extents of index variables.
        operands: tensors and Python numbers by name.
    """
    tensors = {name: value for name, value in operands.items() if isinstance(value, torch.Tensor)}
    scalars = {name: value for name, value in operands.items() if name not in tensors}
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    source = read(text, sizes=sizes, shapes=shapes)
    selections = selections_by_result(source.statements, format)
    asked = restrict(source.statements, conditions_by_result(source.statements, format))
    asked = selected(asked, selections)
    found = substituted(asked, scalars)
    statements = found.statements
    slices = {name for name, _ in source.sizes}
    given = {**dict(source.sizes), **(sizes or {})}
    names = (outputs,) if isinstance(outputs, str) else outputs or ()
    _check_outputs(names, statements, operands)
    described = {name: describe(value) for name, value in tensors.items()}
    formats = formats_by_result(statements, format)
    drops = results_by_value(statements, format)
    program = declare(
        statements,
        described,
        names,
        formats=formats,
        sizes=given,
        shapes=shapes,
        drops=drops,
        selections=selections,
    )
    _check_names(asked, operands, sizes or {})
    bind_extents(statements, {name: tensors[name].shape for name in program.inputs}, given, slices)
    return program, found


def _check_outputs(names: Sequence[str], statements: Sequence[Assign], operands: Mapping[str, Any]) -> None:
    """Raises for a requested result that is an operand, or that is requested twice.

    Raises:
        EinsumError: names the result.
    """
    assigned = {statement.target.tensor for statement in statements}
    for place, name in enumerate(names):
        if name in operands and name not in assigned:
            raise EinsumError(f"outputs has {name!r}, an operand", "the names of assigned tensors alone")
        if name in names[:place]:
            raise EinsumError(f"outputs has {name!r} twice", "each result once")


def _check_names(statements: tuple[Assign, ...], operands: Collection[str], sizes: Collection[str]) -> None:
    """Raises for an operand or an extent that no statement uses."""
    read_names = {n.tensor for s in statements for n in find(s.value, Access)}
    for name in operands:
        if name not in read_names:
            raise EinsumError(
                f"{name} is given and not read; the statements read {', '.join(sorted(read_names)) or 'nothing'}"
            )
    indices = all_indices(statements)
    for name in sizes:
        if name not in indices:
            raise EinsumError(
                f"sizes= names {name}, which is no index variable; there are {', '.join(indices) or 'none'}"
            )


def formats_by_result(
    statements: tuple[Assign, ...], wanted: Format | str | Mapping[str, Format | str] | None
) -> dict[str, Format]:
    """The requested formats, by result; a single format applies to the last result."""
    ranks = {statement.target.tensor: len(statement.target.indices) for statement in statements}
    found = {}
    for name, form in _asked(statements, wanted).items():
        text = (stored_under(form) or (form,))[0] if isinstance(form, str) else form
        if text:
            found[name] = Format(text, rank=ranks.get(name)) if isinstance(text, str) else text
    return found


def results_by_value(
    statements: tuple[Assign, ...], wanted: Format | str | Mapping[str, Format | str] | None
) -> list[str]:
    """The results requested `by value` or under a condition: entries equal to the fill are not stored."""
    asked = _asked(statements, wanted).items()
    return [name for name, form in asked if isinstance(form, str) and stored_under(form) is not None]


def selections_by_result(
    statements: tuple[Assign, ...], wanted: Format | str | Mapping[str, Format | str] | None
) -> dict[str, Selection]:
    """The requested selections of row entries by result, `csr largest 2 of 4`."""
    asked = _asked(statements, wanted).items()
    found = {name: selection_of(form) for name, form in asked if isinstance(form, str)}
    return {name: selection for name, selection in found.items() if selection is not None}


def conditions_by_result(
    statements: tuple[Assign, ...], wanted: Format | str | Mapping[str, Format | str] | None
) -> dict[str, str]:
    """The requested conditions for storing an entry, by result, `csr where abs(Y) > 0.5`."""
    found = {
        name: stored_under(form) for name, form in _asked(statements, wanted).items() if isinstance(form, str)
    }
    return {name: form[1] for name, form in found.items() if form is not None and form[1] is not None}


def _asked(
    statements: tuple[Assign, ...], wanted: Format | str | Mapping[str, Format | str] | None
) -> Mapping[str, Format | str]:
    """The requested formats, by result."""
    if wanted is None or isinstance(wanted, Mapping):
        return wanted or {}
    return {statements[-1].target.tensor: wanted}
