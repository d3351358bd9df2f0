"""Plans: a program as a sequence of steps, each a generated kernel or a dense product of torch.

In: `T[j,k] = sum(f, X[j,f] * W[k,f]); Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])`.
Out: `T = torch.mm(X, W.t())`, then one generated kernel for `Y`.
"""

from dataclasses import replace
from typing import cast

from sparsify.compiler.einsum.infer.extents import name_extents
from sparsify.compiler.einsum.infer.patterns import pattern_access
from sparsify.compiler.einsum.infer.shared_pattern import shared_access
from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Declaration,
    Extent,
    Program,
    Reduce,
)
from sparsify.compiler.einsum.rename import all_indices
from sparsify.compiler.einsum.rewrite.combine_statements import collect
from sparsify.compiler.ir.node import find
from sparsify.compiler.plan.fuse.experts import WHY, Mixture
from sparsify.compiler.plan.fuse.one_kernel import check_results, is_one_kernel
from sparsify.compiler.plan.fuse.reductions import Aggregated
from sparsify.compiler.plan.fuse.row_chain import Fusion
from sparsify.compiler.plan.fuse.rows_and_columns import Divided
from sparsify.compiler.plan.fuse.rowwise import Rowwise
from sparsify.compiler.plan.partition import (
    Group,
    Partition,
    Prepared,
    experts,
    partition,
    reductions,
    row_chains,
)
from sparsify.compiler.plan.prepare.count_unstored import count_unstored
from sparsify.compiler.plan.prepare.expand_blocks import Unblocked, assembled, taken_apart, unblocked
from sparsify.compiler.plan.prepare.limit_merges import narrow
from sparsify.compiler.plan.prepare.pair_numbers import PairView, paired
from sparsify.compiler.plan.prepare.split_statements import cut
from sparsify.compiler.plan.prepare.transpose_operands import Twin, turned_declaration, twins, with_twins
from sparsify.compiler.plan.products.dense_product import DenseProduct, dense_product
from sparsify.compiler.plan.products.multiply import is_generated
from sparsify.compiler.plan.products.panel_columns import panelled, sampled_in_panels
from sparsify.compiler.plan.step import Convert, Step, TorchStep, converted_from, one_step
from sparsify.compiler.schedule.cost.loop_order import statement_order
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes
from sparsify.storage.format import Format


def steps(
    program: Program, sizes: Sizes = UNKNOWN, *, scheduled: bool = False, order: tuple[str, ...] | None = None
) -> tuple[TorchStep | Step, ...]:
    """The steps of `program` in order; torch computes dense products unless a kernel is expected to be faster.

    Products of three and more operands are split if that is cheaper for operands of these sizes. The whole program is
    one step under a schedule, if a temporary has a format that no tensor can store, and if one kernel is expected to be
    faster than several. `order` is the loop order of the schedule; operands are transposed for it. Without a schedule,
    weights that store pairs of bfloat16 are multiplied pair by pair.
    """
    views: tuple[PairView, ...] = ()
    if not scheduled:
        program, views, sizes = paired(program, sizes)
    return (*views, *_steps(program, sizes, scheduled, order))


def _steps(
    program: Program, sizes: Sizes, scheduled: bool, order: tuple[str, ...] | None
) -> tuple[DenseProduct | Step | Convert, ...]:
    """The steps of a program whose products are as they are computed."""
    prepared = Prepared(program, sizes)
    whole = prepared.program
    if len(whole.statements) > 1 and (scheduled or _leaves_blocks(whole)):
        if not scheduled and not is_one_kernel(whole, prepared.whole.program, sizes):
            return apart(program, sizes)
        check_results(whole)
        return one_step(whole)
    if scheduled:
        return _written(whole, whole.statements[0], sizes, order or ())
    return planned_steps(partition(prepared))


def planned_steps(cut: Partition) -> tuple[DenseProduct | Step | Convert, ...]:
    """The steps of the groups of a program in topological order; each other statement has steps of its own."""
    prepared = cut.prepared
    whole = next((group for group in cut.groups if group.part.is_whole), None)
    if whole is not None:
        return _of_group(whole)
    alone = _apart(prepared)
    if not cut.groups:
        return tuple(step for part in alone.values() for step in part)
    grouped = {name: group for group in cut.groups for name in group.part.names}
    made: list[DenseProduct | Step | Convert] = []
    done: set[str] = set()
    reads = {s.target.tensor: {a.tensor for a in find(s.value, Access)} for s in prepared.program.statements}
    waiting = [grouped[name].part.names if name in grouped else (name,) for name in alone]
    waiting = list(dict.fromkeys(waiting))
    while waiting:
        names = next(n for n in waiting if not {*alone} & set().union(*(reads[m] for m in n)) - done - {*n})
        waiting.remove(names)
        done |= {*names}
        made += _of_group(grouped[names[0]]) if names[0] in grouped else alone[names[0]]
    return tuple(made)


def _of_group(group: Group) -> tuple[DenseProduct | Step | Convert, ...]:
    """The steps of a group."""
    sizes, found = group.part.sizes, group.found
    if isinstance(found, Mixture):
        return (Step(found.program, found.twins), *_moved_back(group.part.program, found))
    if isinstance(found, Divided):
        before, after = (
            [] if p is None else _steps(p, sizes, False, None) for p in (found.first, found.last)
        )
        return (*before, Step(found.rows), Step(found.columns, (found.twin,)), *after)
    if isinstance(found, Aggregated | Rowwise):
        return one_step(found.program) if group.part.is_whole else (Step(found.program),)
    return one_step(group.part.prepared.program) if group.part.is_whole else (Step(group.part.program),)


def apart(program: Program, sizes: Sizes = UNKNOWN) -> tuple[DenseProduct | Step | Convert, ...]:
    """The steps of `program`, one for each statement, whether or not fusion is expected to be faster."""
    return tuple(step for part in _apart(Prepared(program, sizes)).values() for step in part)


def _apart(prepared: Prepared) -> dict[str, tuple[DenseProduct | Step | Convert, ...]]:
    """The steps of each statement and its splits, by result."""
    split = prepared.contracted
    program = name_extents(narrow(cut(split.program)))
    sizes = prepared.sizes.expecting(split.stored)
    results = {statement.target.tensor for statement in prepared.program.statements}
    made: dict[str, tuple[DenseProduct | Step | Convert, ...]] = {}
    before: list[DenseProduct | Step | Convert] = []
    for statement in program.statements:
        product = dense_product(program, statement)
        if product is not None and is_generated(program, statement, sizes):
            product = None
        before += _written(program, statement, sizes, None) if product is None else [product]
        if statement.target.tensor in results:
            made[statement.target.tensor] = tuple(before)
            before = []
    assert not before, "the last statement of a split is that of a result"
    return made


def joined(program: Program) -> tuple[Step, *tuple[Convert, ...]]:
    """The steps of `program` with one kernel for all statements, whether or not fusion is expected to be faster."""
    return one_step(collect(program))


def joined_rows(program: Program, sizes: Sizes) -> Fusion | None:
    """All statements of a program as a row-wise chain, priced; `None` for other programs.

    Chains contain neither reductions over unstored coordinates nor split products.
    """
    found = row_chains(Prepared(program, sizes).whole)
    return None if found is None else cast(Fusion, found.found)


def joined_reductions(program: Program, sizes: Sizes) -> Aggregated | None:
    """All statements of a program as reductions over the same rows, priced; `None` for other programs."""
    found = reductions(Prepared(program, sizes).whole)
    return None if found is None else cast(Aggregated, found.found)


def joined_experts(program: Program) -> Mixture | None:
    """All statements of a program as a mixture of experts; `None` for other programs."""
    found = experts(Prepared(program, UNKNOWN).whole)
    return None if found is None else cast(Mixture, found.found)


def _moved_back(program: Program, experts: Mixture) -> list[Convert]:
    """Conversions of a mixture's results from the transposed pattern to the pattern of the gate."""
    moved = [(program.declaration(name), source) for name, source in experts.moved]
    return [Convert(d.name, source, d.format, d.pattern_of, d.fill, WHY) for d, source in moved]


def starts_otherwise(program: Program, sizes: Sizes) -> bool:
    """Whether modes of extent 0 need other steps: an empty mode has no unstored coordinates to count."""
    program = name_extents(collect(program))
    return count_unstored(program, sizes) != count_unstored(program, UNKNOWN)


def _leaves_blocks(program: Program) -> bool:
    """Whether a temporary follows the blocks of an operand with fewer modes: `S[h,i,j]` the blocks of `M[i,j]`."""
    for statement in program.statements:
        target = statement.target
        if target.tensor in program.outputs or program.declaration(target.tensor).format.is_dense:
            continue
        root = pattern_access(program, target)
        if len(root.indices) < len(target.indices) and _is_blocked(program.declaration(root.tensor).format):
            return True
    return False


def _written(
    program: Program, statement: Assign, sizes: Sizes, order: tuple[str, ...] | None
) -> tuple[Step | Convert, ...]:
    """The steps of one statement; a format that no kernel writes is converted from another format."""
    output = program.declaration(statement.target.tensor)
    apart = unblocked(program, statement)
    if order is None and not apart.formats:
        apart = sampled_in_panels(program, statement, sizes)
    why = apart.why
    if output.pattern_of is not None:
        format = apart.formats.get(shared_access(program, statement.target), output.format)
    else:
        format = assembled(output.format)
        why = f"no kernel writes {output.format}"
    computed = converted_from(output, format, {declared.name for declared in program.declarations})
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
    """The step of one statement, with operands in formats and mode orderings for loops in the order of the result."""
    output = program.declaration(statement.target.tensor)
    if stated is None:
        best = statement_order(taken_apart(program, apart), statement, sizes)
        order = () if best is None else best.names
    else:
        order = stated if set(all_indices((statement,))) <= set(stated) else ()
    found = _concordant_twins(program, statement, apart, order)
    if stated is None:
        found = panelled(program, statement, found, sizes)
    place = None if output.pattern_of is None else shared_access(program, statement.target)
    root = None if place is None else found.get(place)
    if root is not None:
        output = replace(output, pattern_of=None if root.format.is_dense else root.name)
    statement = replace(statement, value=with_twins(statement.value, found))
    reads = {n.tensor for n in find(statement.value, Access)}
    # The result of an earlier step carries its shared pattern; the caller's operands own their patterns.
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
    """The operands read in another format; the pattern of the result keeps its mode ordering.

    Values are written at the stored positions of the pattern, which loops in another order do not reach.
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
    """Unread tensors that declare the extents missing from the read tensors."""
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
