"""Invariants of an einsum program, with errors in the user's own names.

In: a program, or statements and the ranks of their inputs. Out: nothing, or `EinsumError` and `ShapeError`.
"""

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches

from sparsify.compiler.einsum.affine import affine
from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.extents import mode_extents
from sparsify.compiler.einsum.monoids import MONOIDS, PLACES
from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Declaration,
    Expr,
    Index,
    Program,
    Reduce,
    Stored,
)
from sparsify.compiler.ir.node import children, find, walk
from sparsify.errors import EinsumError, ShapeError


def verify(program: Program) -> None:
    """Raises unless `program` is well formed.

    Raises:
        EinsumError: a name, an index variable, a function or an assignment that does not fit.
        ShapeError: an access with the wrong number of indices.
    """
    names = [declared.name for declared in program.declarations]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise EinsumError(f"{twice} is declared twice")
    for name in (*program.inputs, *program.outputs):
        if name not in names:
            raise EinsumError(
                f"{name} is an input or output and has no declaration; declared are {_list(names)}"
            )
    for declared in program.declarations:
        if declared.pattern_of is not None and declared.pattern_of not in names:
            raise EinsumError(
                f"{declared.name} shares the pattern of {declared.pattern_of}, which is not declared"
            )
        if declared.format.rank != len(declared.extents):
            raise ShapeError(
                f"{declared.name} has {len(declared.extents)} modes and its format "
                f"{str(declared.format)!r} has {declared.format.rank}"
            )
        _verify_interior(declared)
    ranks = {declared.name: len(declared.extents) for declared in program.declarations}
    verify_statements(program.statements, {name: ranks[name] for name in program.inputs}, program.outputs)
    _verify_extents(program)


def _verify_interior(declared: Declaration) -> None:
    """Raises for rows of zeros around a tensor that is not dense in the order of its modes, or has other modes."""
    interior, form = declared.interior, declared.format
    if interior is None:
        return
    is_plain = form.is_dense and form.is_short and form.ordering == tuple(range(form.rank))
    if not is_plain or len(interior.all_strides) != form.rank:
        raise EinsumError(
            f"{declared.name}, stored {form}, is {interior}; rows of zeros are around a dense tensor in the order of "
            f"its modes, with a stride for each mode but the first"
        )


def verify_statements(
    statements: Sequence[Assign], inputs: Mapping[str, int], outputs: Collection[str] = ()
) -> None:
    """Raises unless `statements` are well formed over `inputs`, names with their ranks."""
    ranks = dict(inputs)
    started: dict[str, str | None] = {}
    read: set[str] = set()
    for statement in statements:
        _verify_target(statement, inputs, started)
        if statement.target.tensor in read:
            raise EinsumError(f"`{statement}`: {statement.target.tensor} is read before; complete it first")
        read |= {node.tensor for node in find(statement.value, Access)}
        _verify_expression(statement, ranks)
        _verify_indices(statement)
        target = statement.target
        rank = ranks.setdefault(target.tensor, len(target.indices))
        if rank != len(target.indices):
            raise ShapeError(f"`{statement}`: {target.tensor} has {rank} modes elsewhere")
    for name in outputs:
        if name not in ranks:
            raise EinsumError(f"the output {name} is never assigned; assigned are {_list(started)}")


def _verify_target(statement: Assign, inputs: Collection[str], started: dict[str, str | None]) -> None:
    """Checks the left side: plain distinct index variables of an assignable tensor."""
    target, name = statement.target, statement.target.tensor
    for index in target.indices:
        if not isinstance(index, Index):
            raise EinsumError(
                f"`{statement}`: the index {index} on the left is not a plain index variable; "
                f"write the result with plain ones and put the arithmetic on the right"
            )
    names = [index.name for index in target.indices if isinstance(index, Index)]
    twice = next((i for i in names if names.count(i) > 1), None)
    if twice is not None:
        raise EinsumError(
            f"`{statement}`: {twice} occurs twice on the left; each mode of a result has its own"
        )
    if name in inputs:
        raise EinsumError(f"`{statement}`: {name} is an input; give the result another name")
    if statement.monoid is not None and statement.monoid not in MONOIDS:
        raise EinsumError(f"`{target}` is reduced by {statement.monoid}; known are {_list(MONOIDS)}")
    if name in started and statement.monoid is None:
        raise EinsumError(f"`{statement}`: {name} is assigned before; a name is assigned once with `=`")
    if started.get(name) is not None and started[name] != statement.monoid:
        raise EinsumError(
            f"`{statement}`: {name} is reduced by {started[name]} before; use a name for each reduction"
        )
    started[name] = statement.monoid


def _verify_expression(statement: Assign, ranks: Mapping[str, int]) -> None:
    """Checks the names on the right: tensors assigned before, known functions with their number of arguments."""
    for node in walk(statement.value):
        match node:
            case Access(tensor, indices):
                _verify_access(statement, node, ranks)
                if len(indices) != ranks[tensor]:
                    raise ShapeError(
                        f"{node} has {len(indices)} indices and {tensor} has {ranks[tensor]} modes; "
                        f"write one index for each mode"
                    )
            case Call(name, args):
                if name not in FUNCTIONS:
                    raise EinsumError(f"`{statement}`: {name} is not a function{_suggest(name, FUNCTIONS)}")
                arity = FUNCTIONS[name].arity
                if len(args) != arity:
                    raise EinsumError(
                        f"`{statement}`: {name} takes {arity} arguments, {len(args)} were given"
                    )
            case Reduce(monoid, indices, body) if monoid in PLACES:
                if len(indices) != 1 or indices[0] not in free_indices(body):
                    raise EinsumError(
                        f"`{statement}`: {monoid} runs over {_list(indices)}; it takes one index variable that its "
                        f"body has, {monoid}(j, A[i,j])"
                    )
            case Reduce(monoid, _, _) if monoid not in MONOIDS:
                known = [*MONOIDS, *PLACES]
                raise EinsumError(f"`{statement}`: {monoid} is not a reduction{_suggest(monoid, known)}")


def _verify_access(statement: Assign, access: Access, ranks: Mapping[str, int]) -> None:
    """Checks an access: a tensor with a value, affine indices."""
    if access.tensor == statement.target.tensor:
        raise EinsumError(f"`{statement}` reads what it assigns; use another name on the left")
    if access.tensor not in ranks:
        raise EinsumError(
            f"`{statement}`: {access.tensor} has no value here{_suggest(access.tensor, ranks)}; "
            f"known are {_list(ranks)}"
        )
    for index in access.indices:
        if affine(index) is None:
            raise EinsumError(
                f"{access}: the index {index} is not affine; an index is made of index variables, integers, "
                f"`+`, `-` and products with integers"
            )


def _verify_indices(statement: Assign) -> None:
    """Checks that every index variable is on the left or bound by one reduction; `op=` reduces free ones."""
    outer = frozenset(free_indices(statement.target))
    if statement.monoid is not None:
        outer |= frozenset(free_indices(statement.value))
    _verify_binders(statement, statement.value, outer)
    if statement.monoid is None:
        for name in free_indices(statement.value):
            if name not in outer:
                raise EinsumError(
                    f"`{statement}`: {name} is neither on the left nor reduced; write sum({name}, ...)"
                )


def _verify_binders(statement: Assign, expr: Expr, bound: frozenset[str]) -> None:
    """Checks that no reduction rebinds an index variable of an enclosing scope."""
    if isinstance(expr, Reduce):
        if not expr.indices:
            raise EinsumError(f"`{statement}`: {expr.monoid} runs over no index variable")
        for n, name in enumerate(expr.indices):
            if name in bound or name in expr.indices[:n]:
                raise EinsumError(
                    f"`{statement}`: {name} is bound twice; give {expr.monoid} its own index variable"
                )
        bound |= frozenset(expr.indices)
    for child in children(expr):
        if isinstance(child, Expr) and not isinstance(expr, (Access, Stored)):
            _verify_binders(statement, child, bound)


def _verify_extents(program: Program) -> None:
    """Checks the declared extents against those implied by accesses."""
    ranks = {declared.name: len(declared.extents) for declared in program.declarations}
    implied = mode_extents(program.statements, ranks)
    representative: dict[str, str] = {}
    for declared in program.declarations:
        for mode, (own, other) in enumerate(zip(declared.extents, implied[declared.name], strict=True)):
            if representative.setdefault(other, own) != own:
                raise ShapeError(
                    f"mode {mode} of {declared.name} is declared with extent {own}, its accesses need "
                    f"that of {representative[other]}"
                )


def _list(names: Collection[str]) -> str:
    """Text of names in a message."""
    return ", ".join(names) or "none"


def _suggest(name: str, known: Collection[str]) -> str:
    """`; did you mean ...?` when a known name is close."""
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
