"""Plans: a program cut into statements, each a kernel of its own or a dense product of torch.

In: `T[j,k] = sum(f, X[j,f] * W[k,f]); Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])`.
Out: `T = torch.mm(X, W.t())`, then one generated kernel for `Y`.
"""

from dataclasses import dataclass, replace
from typing import Final

import torch

from sparsify.compiler.aggregate import Aggregated, aggregated
from sparsify.compiler.cut import cut
from sparsify.compiler.dense_product import DenseProduct, dense_product
from sparsify.compiler.divide import Divided, divided
from sparsify.compiler.einsum import exact
from sparsify.compiler.einsum.collect import collect
from sparsify.compiler.einsum.extents import name_extents
from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Declaration,
    Extent,
    Program,
    Reduce,
)
from sparsify.compiler.einsum.patterns import pattern_access
from sparsify.compiler.einsum.rename import all_indices, fresh, rename_tensors
from sparsify.compiler.einsum.shared_pattern import shared_access
from sparsify.compiler.fuse import Fusion, fusion
from sparsify.compiler.mixture import WHY, Mixture, mixture
from sparsify.compiler.multiply import is_generated
from sparsify.compiler.narrow import narrow
from sparsify.compiler.node import find
from sparsify.compiler.one_kernel import check_results, is_one_kernel
from sparsify.compiler.schedule.contract import contract
from sparsify.compiler.schedule.order import statement_order
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes
from sparsify.compiler.share import shared_pattern
from sparsify.compiler.turn import Twin, turned_declaration, twins, with_twins
from sparsify.compiler.unblock import Unblocked, assembled, index_dtypes_in, taken_apart, unblocked, whole
from sparsify.compiler.unstored import count_unstored
from sparsify.storage.convert import conversion
from sparsify.storage.format import Format
from sparsify.storage.interop import tensor
from sparsify.storage.tensor import SparseTensor, wrap


@dataclass(frozen=True, slots=True)
class Step:
    """What one kernel computes, mostly one statement.

    Attributes:
        program: the statement.
        twins: the operands that it reads in another mode ordering.
        order: the loops, outermost first, where they were ordered by cost.
    """

    program: Program
    twins: tuple[Twin, ...] = ()
    order: tuple[str, ...] = ()

    @property
    def result(self) -> str:
        """The tensor that the step computes, the first one of several."""
        return self.program.outputs[0]


@dataclass(frozen=True, slots=True)
class Convert:
    """`result` is `source` in another format; on the pattern of `pattern_of` when that is known.

    Attributes:
        why: the reason that no kernel writes the result in its own format.
    """

    result: str
    source: str
    format: Format
    pattern_of: str | None
    fill: float
    why: str

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of its operands."""
        return (self.source,) if self.pattern_of is None else (self.source, self.pattern_of)

    def compute(self, operands: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The converted tensor."""
        source = operands[0]
        if self.pattern_of is None:
            return tensor(source, self.format, fill=self.fill).to(format=self.format)
        pattern = shared_pattern(operands[1]._pattern, self.format, source.shape)  # type: ignore[attr-defined]
        if not isinstance(source, SparseTensor):  # diagonals that are all stored, computed as rows
            source = tensor(source, whole(pattern.format))
        found = conversion(pattern, source.format)
        filled = torch.full((pattern.nnz,), self.fill, dtype=source.dtype)
        return wrap(pattern, filled.index_copy_(0, found.permutation, source._vals), self.fill)

    def __str__(self) -> str:
        return f"{self.result} = {self.source}.to(format={str(self.format)!r}), {self.why}"


# The classes of which plans are made, by name.
STEP_CLASSES: Final = {
    **exact.CLASSES,
    **{kind.__name__: kind for kind in (Step, Twin, Convert, DenseProduct)},
}


def with_wide_result(step: Step) -> Step | None:
    """`step` with int64 positions and coordinates in its result, `None` where they are int64."""
    declared = step.program.declaration(step.result)
    wide = tuple(("int64" if pos else "", "int64" if crd else "") for pos, crd in declared.index_dtypes)
    if wide == declared.index_dtypes:
        return None
    declarations = tuple(
        replace(d, index_dtypes=wide) if d is declared else d for d in step.program.declarations
    )
    return replace(step, program=replace(step.program, declarations=declarations))


def steps(
    program: Program, sizes: Sizes = UNKNOWN, *, scheduled: bool = False, order: tuple[str, ...] | None = None
) -> tuple[DenseProduct | Step | Convert, ...]:
    """The steps of `program` in order; a dense product is one of torch where that is not much slower.

    Products of three and more operands are split where that is cheaper for operands of these sizes. When a schedule
    says how to loop, the whole program is one step; so it is where no tensor could hold a result that one statement
    leaves to another, and where one kernel is expected to be faster than several. `order` is that of the loops in a
    schedule, which operands are turned for.
    """
    program = collect(program)
    if len(program.statements) > 1 and (scheduled or _leaves_blocks(program)):
        if not scheduled and not is_one_kernel(program, _whole(program)[0].program, sizes):
            return apart(program, sizes)
        check_results(program)
        return _whole(program)
    if scheduled:
        order = order or ()
    else:
        chain = joined_rows(program, sizes)
        if chain is not None and chain.is_faster:
            return _whole(program)
        if (experts := joined_experts(program)) is not None:
            return (Step(experts.program, experts.twins), *_moved_back(program, experts))
        several = joined_reductions(program, sizes)
        if several is not None and several.is_faster:
            return _whole(several.program)
        if (parts := divided_rows(program, sizes)) is not None:
            before, after = ([] if p is None else steps(p, sizes) for p in (parts.first, parts.last))
            return (*before, Step(parts.rows), Step(parts.columns, (parts.twin,)), *after)
        return apart(program, sizes)
    return _each(program, sizes, order, scheduled=True)


def apart(program: Program, sizes: Sizes = UNKNOWN) -> tuple[DenseProduct | Step | Convert, ...]:
    """The steps of `program` with one for each statement, be one kernel expected to be faster or not."""
    program = collect(program)
    split = contract(count_unstored(name_extents(program), sizes), sizes)
    program = name_extents(narrow(cut(split.program)))
    return _each(program, sizes.expecting(split.stored), None, scheduled=False)


def _each(
    program: Program, sizes: Sizes, order: tuple[str, ...] | None, *, scheduled: bool
) -> tuple[DenseProduct | Step | Convert, ...]:
    """A step for each statement, and what their results need; loops as a schedule orders them, if there is one."""
    made: list[DenseProduct | Step | Convert] = []
    for statement in program.statements:
        product = None if scheduled else dense_product(program, statement)
        if product is not None and is_generated(program, statement, sizes):
            product = None
        made += _written(program, statement, sizes, order) if product is None else [product]
    return tuple(made)


def joined(program: Program) -> tuple[Step, *tuple[Convert, ...]]:
    """The steps of `program` with one kernel for all statements, be several expected to be faster or not."""
    return _whole(collect(program))


def joined_rows(program: Program, sizes: Sizes) -> Fusion | None:
    """The row-wise chain that all statements of a program are, with what it costs; `None` for other programs.

    Sums over what is not stored, and products that are split, are no part of chains.
    """
    program = collect(program)
    if len(program.statements) < 2 or not _is_uncontracted(program, sizes):
        return None
    return fusion(_whole(program)[0].program, sizes)


def joined_reductions(program: Program, sizes: Sizes) -> Aggregated | None:
    """The reductions over the same rows that all statements of a program are, with what they cost; `None` for none."""
    program = collect(program)
    if len(program.statements) < 2 or not _is_uncontracted(program, sizes):
        return None
    return aggregated(name_extents(_whole(program)[0].program), sizes)


def _is_uncontracted(program: Program, sizes: Sizes) -> bool:
    """Whether no statement sums over what is not stored, nor is split."""
    named = name_extents(program)
    return contract(count_unstored(named, sizes), sizes).program == named


def divided_rows(program: Program, sizes: Sizes) -> Divided | None:
    """The program as a chain over rows and one over columns, where that is faster; `None` for other programs."""
    if len(program.statements) < 3 or not _is_uncontracted(program, sizes):
        return None
    return divided(_whole(name_extents(program))[0].program, sizes)


def joined_experts(program: Program) -> Mixture | None:
    """The mixture of experts that all statements of a program are; `None` for other programs."""
    return mixture(_whole(collect(program))[0].program)


def _moved_back(program: Program, experts: Mixture) -> list[Convert]:
    """The results that a mixture gives on the pattern of a twin, on that of the gate."""
    moved = [(program.declaration(name), source) for name, source in experts.moved]
    return [Convert(d.name, source, d.format, d.pattern_of, d.fill, WHY) for d, source in moved]


def starts_otherwise(program: Program, sizes: Sizes) -> bool:
    """Whether modes of extent 0 among these sizes ask for steps of their own: what is counted there is nothing."""
    program = name_extents(collect(program))
    return count_unstored(program, sizes) != count_unstored(program, UNKNOWN)


def _leaves_blocks(program: Program) -> bool:
    """Whether a result follows the blocks of an operand with fewer modes, `S[h,i,j]` those of `M[i,j]`."""
    for statement in program.statements:
        target = statement.target
        if target.tensor in program.outputs or program.declaration(target.tensor).format.is_dense:
            continue
        root = pattern_access(program, target)
        if len(root.indices) < len(target.indices) and _is_blocked(program.declaration(root.tensor).format):
            return True
    return False


def _whole(program: Program) -> tuple[Step, *tuple[Convert, ...]]:
    """All statements, with every operand as it is stored; results that no kernel writes as they are, converted."""
    taken = {declared.name for declared in program.declarations}
    converted: list[Convert] = []
    declarations: list[Declaration] = []
    for declared in program.declarations:
        if declared.name in program.inputs:
            declared = replace(declared, pattern_of=None)
        elif declared.name in program.outputs and declared.pattern_of is None:
            written = _computed(declared, assembled(declared.format), taken)
            if written is not None:
                format, why = declared.format, f"no kernel writes {declared.format}"
                converted.append(Convert(declared.name, written.name, format, None, declared.fill, why))
                declared = written
        declarations.append(declared)
    made = replace(program, declarations=tuple(declarations))
    return Step(rename_tensors(made, {made.result: made.source for made in converted})), *converted


def _computed(output: Declaration, format: Format, taken: set[str]) -> Declaration | None:
    """The tensor in `format` that a result is converted from; `None` where it has that format."""
    if format == output.format:
        return None
    name = fresh(f"{output.name}_{format.letters}", taken)
    return replace(output, name=name, format=format, index_dtypes=index_dtypes_in(format, output))


def _written(
    program: Program, statement: Assign, sizes: Sizes, order: tuple[str, ...] | None
) -> tuple[Step | Convert, ...]:
    """`statement` alone; where no kernel writes its result as it is stored, in another format and then converted."""
    output = program.declaration(statement.target.tensor)
    apart = unblocked(program, statement)
    why = apart.why
    if output.pattern_of is not None:
        format = apart.formats.get(shared_access(program, statement.target), output.format)
    else:
        format = assembled(output.format)
        why = f"no kernel writes {output.format}"
    computed = _computed(output, format, {declared.name for declared in program.declarations})
    if computed is None:
        return (_step(program, statement, apart, sizes, order),)
    name = computed.name
    inside = replace(program, declarations=(*program.declarations, computed))
    target = replace(statement.target, tensor=name)
    written = _step(inside, replace(statement, target=target), apart, sizes, order)
    return written, Convert(output.name, name, output.format, output.pattern_of, output.fill, why)


def _step(
    program: Program,
    statement: Assign,
    apart: Unblocked,
    sizes: Sizes,
    stated: tuple[str, ...] | None,
) -> Step:
    """`statement` alone, with its operands in formats and mode orderings that let its loops run result first."""
    output = program.declaration(statement.target.tensor)
    if stated is None:
        best = statement_order(taken_apart(program, apart), statement, sizes)
        order = () if best is None else best.names
    else:
        order = stated if set(all_indices((statement,))) <= set(stated) else ()
    found = _concordant_twins(program, statement, apart, order)
    place = None if output.pattern_of is None else shared_access(program, statement.target)
    root = None if place is None else found.get(place)
    if root is not None:
        output = replace(output, pattern_of=None if root.format.is_dense else root.name)
    statement = replace(statement, value=with_twins(statement.value, found))
    reads = {n.tensor for n in find(statement.value, Access)}
    # A result of an earlier step brings the pattern that it shares; operands are what the caller gives.
    roots = {d.pattern_of for d in program.declarations if d.name in reads - set(program.inputs)}
    needed = reads | {root for root in (*roots, output.pattern_of) if root is not None}
    read = [d for d in program.declarations if d.name in needed and d.name != output.name]
    read = [replace(d, pattern_of=None) if d.name in program.inputs or found else d for d in read]
    turned = tuple(dict.fromkeys(found.values()))
    read += [turned_declaration(twin, program.declaration(twin.source)) for twin in turned]
    read += _shapes(program, statement, read)
    names = tuple(d.name for d in read), (output.name,)
    return Step(Program((statement,), (*read, output), *names, program.extents), turned, order)


def _concordant_twins(
    program: Program, statement: Assign, apart: Unblocked, order: tuple[str, ...]
) -> dict[Access, Twin]:
    """The operands that are read in another format; the pattern of the result in its own mode ordering.

    Values are written at its positions as it is stored: loops in another order do not reach them.
    """
    found = twins(program, statement, apart, order)
    place = shared_access(program, statement.target)
    if place == statement.target or place not in found:
        return found
    format = apart.formats.get(place, program.declaration(place.tensor).format)
    if found[place].format.ordering == format.ordering:
        return found
    kept = {access: twin for access, twin in found.items() if access != place}
    return {**kept, place: replace(found[place], format=format)} if place in apart.formats else kept


def _shapes(program: Program, statement: Assign, read: list[Declaration]) -> list[Declaration]:
    """Tensors that are not read, for the extents that those which are do not have."""
    output = program.declaration(statement.target.tensor)
    summed = [name for n in find(statement.value, Reduce) for name in n.indices]
    summed += [n.name for n in find(statement.value, Extent)]
    given = {extent for declared in read for extent in declared.extents} | dict(program.extents).keys()
    known = {extent for declared in program.declarations for extent in declared.extents}
    found: list[Declaration] = []
    for extent in (*output.extents, *(name for name in summed if name in known)):
        if extent not in given:
            owners = [d for d in program.declarations if extent in d.extents and d.name in program.inputs]
            owner = min(owners, key=lambda declared: not declared.format.is_dense)
            found.append(replace(owner, pattern_of=None))
            given |= set(owner.extents)
    return found


def _is_blocked(format_: Format) -> bool:
    return any(stored.expression.kind != "whole" for stored in format_.levels)
