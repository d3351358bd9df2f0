"""Plans: a program cut into statements, each a kernel of its own or a dense product of torch.

In: `T[j,k] = sum(f, X[j,f] * W[k,f]); Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])`.
Out: `T = torch.mm(X, W.t())`, then one generated kernel for `Y`.
"""

from dataclasses import dataclass, replace
from typing import Final

import torch

from sparsify.compiler.cut import cut
from sparsify.compiler.dtypes import FLOATING, category
from sparsify.compiler.einsum.collect import collect
from sparsify.compiler.einsum.extents import name_extents
from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Declaration,
    Expr,
    Extent,
    Index,
    Program,
    Reduce,
)
from sparsify.compiler.einsum.patterns import pattern_access
from sparsify.compiler.einsum.rename import all_indices, fresh, rename_tensors
from sparsify.compiler.fuse import Fusion, fusion
from sparsify.compiler.mixture import WHY, Mixture, mixture
from sparsify.compiler.multiply import is_generated
from sparsify.compiler.narrow import narrow
from sparsify.compiler.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.one_kernel import check_results
from sparsify.compiler.schedule.contract import contract
from sparsify.compiler.schedule.order import statement_order
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes
from sparsify.compiler.turn import Twin, index_dtypes_in, turned_declaration, twins, with_twins
from sparsify.compiler.unblock import Unblocked, assembled, unblocked, whole
from sparsify.compiler.unstored import count_unstored
from sparsify.errors import ShapeError
from sparsify.runtime.buffers import POOL, SMALLEST_BYTES
from sparsify.storage.convert import conversion
from sparsify.storage.format import Format
from sparsify.storage.interop import tensor
from sparsify.storage.tensor import SparseTensor, wrap

PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})


@dataclass(frozen=True, slots=True)
class DenseProduct:
    """`result[i,k] = sum(j, left[i,j] * right[j,k])` over dense matrices by torch's product, plus `bias[k]`."""

    result: str
    left: str
    right: str
    left_transposed: bool
    right_transposed: bool
    bias: str = ""

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of its operands."""
        return (self.left, self.right, self.bias) if self.bias else (self.left, self.right)

    def compute(self, operands: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The product."""
        left, right, *rest = operands
        if type(left) not in PLAIN or type(right) not in PLAIN:
            left, right = _plain(left), _plain(right)
        shape = left.size(1 if self.left_transposed else 0), right.size(0 if self.right_transposed else 1)
        if rest and rest[0].shape != shape[1:]:  # torch would take one number for all columns
            raise ShapeError(
                f"{self.bias} has shape {list(rest[0].shape)} for {shape[1]} columns of {self.result}"
            )
        size = shape[0] * shape[1] * left.element_size()
        is_small = size < SMALLEST_BYTES or not POOL.is_recycled(size)
        if is_small and self.right_transposed and not self.left_transposed:
            return torch.nn.functional.linear(left, right, *rest)  # the same product in one call less
        left = left.t() if self.left_transposed else left
        right = right.t() if self.right_transposed else right
        factors = (*(_plain(bias) for bias in rest), left, right)
        # Into memory that is there already nothing is differentiated.
        if is_small or (torch.is_grad_enabled() and any(factor.requires_grad for factor in factors)):
            return torch.addmm(*factors) if rest else torch.mm(left, right)
        memory = POOL.empty(shape, left.dtype)
        return torch.addmm(*factors, out=memory) if rest else torch.mm(left, right, out=memory)

    def __str__(self) -> str:
        right = f"{self.right}.t()" if self.right_transposed else self.right
        factors = f"{self.left}{'.t()' if self.left_transposed else ''}, {right}"
        product = f"torch.addmm({self.bias}, {factors})" if self.bias else f"torch.mm({factors})"
        return f"{self.result} = {product}"


def _plain(operand: torch.Tensor) -> torch.Tensor:
    """The operand as torch lays out a tensor."""
    if type(operand) is not torch.Tensor and isinstance(operand, SparseTensor):
        return operand.to_dense()
    return operand


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
        pattern = operands[1]._pattern  # type: ignore[attr-defined]
        if not isinstance(source, SparseTensor):  # diagonals that are all stored, computed as rows
            source = tensor(source, whole(pattern.format))
        found = conversion(pattern, source.format)
        filled = torch.full((pattern.nnz,), self.fill, dtype=source.dtype)
        return wrap(pattern, filled.index_copy_(0, found.permutation, source._vals), self.fill)

    def __str__(self) -> str:
        return f"{self.result} = {self.source}.to(format={str(self.format)!r}), {self.why}"


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
        split = contract(count_unstored(name_extents(program), sizes), sizes)
        program, sizes = split.program, sizes.expecting(split.stored)
    program = program if scheduled else name_extents(narrow(cut(program)))
    made: list[DenseProduct | Step | Convert] = []
    for statement in program.statements:
        product = None if scheduled else dense_product(program, statement)
        if product is not None and is_generated(program, statement, sizes):
            product = None
        made += _written(program, statement, sizes, order) if product is None else [product]
    return tuple(made)


def joined_rows(program: Program, sizes: Sizes) -> Fusion | None:
    """The row-wise chain that all statements of a program are, with what it costs; `None` for other programs.

    Sums over what is not stored, and products that are split, are no part of chains.
    """
    program = collect(program)
    named = name_extents(program)
    if len(program.statements) < 2 or contract(count_unstored(named, sizes), sizes).program != named:
        return None
    return fusion(_whole(program)[0].program, sizes)


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


def dense_product(program: Program, statement: Assign) -> DenseProduct | None:
    """`statement` as a product of two dense matrices, with a bias or without, `None` when it is anything else."""
    value, bias = without_bias(program, statement)
    if statement.monoid is not None or not isinstance(value, Reduce) or value.monoid != "sum":
        return None
    match value.body:
        case Call("mul", (Access() as left, Access() as right)):
            pass
        case _:
            return None
    for access in (left, right, statement.target):
        declared = program.declaration(access.tensor)
        plain = all(isinstance(index, Index) for index in access.indices)
        if not declared.format.is_dense or len(access.indices) != 2 or not plain:
            return None
        if category(declared.dtype) < FLOATING:
            return None
    if len({program.declaration(a.tensor).dtype for a in (left, right, statement.target)}) > 1:
        return None
    first, second = index_names(statement.target)
    if len(value.indices) != 1 or first == second:
        return None
    if first in index_names(right) and second in index_names(left):
        left, right = right, left
    summed = value.indices[0]
    if set(index_names(left)) != {first, summed} or set(index_names(right)) != {summed, second}:
        return None
    return DenseProduct(
        statement.target.tensor,
        left.tensor,
        right.tensor,
        index_names(left) != (first, summed),
        index_names(right) != (summed, second),
        bias,
    )


def without_bias(program: Program, statement: Assign) -> tuple[Expr, str]:
    """The value of `Y[i,k] = value + b[k]` and the name of `b`; the whole value and "" for other statements."""
    match statement.value:
        case Call("add", (Reduce() as product, Access() as added) | (Access() as added, Reduce() as product)):
            pass
        case _:
            return statement.value, ""
    declared, target = program.declaration(added.tensor), statement.target
    is_vector = declared.format.is_dense and added.indices == target.indices[-1:] and len(target.indices) == 2
    if not is_vector or declared.dtype != program.declaration(target.tensor).dtype:
        return statement.value, ""
    return product, added.tensor


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
        format = apart.formats.get(Access(output.pattern_of, statement.target.indices), output.format)
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
        best = None if apart.formats else statement_order(program, statement, sizes)
        order = () if best is None else best.names
    else:
        order = stated if set(all_indices((statement,))) <= set(stated) else ()
    found = twins(program, statement, apart, order)
    root = found.get(Access(output.pattern_of or "", statement.target.indices))
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
