"""Mixtures of experts: programs over the stored entries of a gate, fused into one kernel.

In:  `H[t,e,h] = G[t,e] * relu(sum(d, X[t,d] * W[e,h,d])); Y[t,o] += H[t,e,h] * V[e,o,h]`, G stored by tokens.
Out: the same program reading `G_10`, the transposed copy of G, which lists the tokens of each expert.

An expert multiplies the rows of its tokens; only a gate stored by expert lists these rows contiguously.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sparsify.compiler.cpp.toolchain import target
from sparsify.compiler.einsum.gradient.adjoint import adjoint
from sparsify.compiler.einsum.gradient.gate_gradient import by_entries
from sparsify.compiler.einsum.infer.format import infer_format
from sparsify.compiler.einsum.nodes import Access, Declaration, Program
from sparsify.compiler.einsum.rename import fresh, rename_tensors
from sparsify.compiler.einsum.rewrite.combine_statements import collect
from sparsify.compiler.einsum.rewrite.split_row_sums import rows_apart
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.notation.lane_width import lane_bytes, lanes
from sparsify.compiler.plan.prepare.transpose_operands import Twin, turned_declaration
from sparsify.compiler.schedule.sizes import UNKNOWN
from sparsify.compiler.schedule.templates.experts import experts
from sparsify.errors import UnsupportedProgramError
from sparsify.options import current
from sparsify.storage.format import Format

WHY: Final = "experts list their tokens"
BY_EXPERT: Final = (Format("dense, compressed", ordering=(1, 0)), Format("dense, compressed"))


@dataclass(frozen=True, slots=True)
class Mixture:
    """A mixture of experts as one kernel.

    Attributes:
        program: statements with the gate stored by experts.
        twins: transposed copy of the gate, if the caller stores the gate by tokens.
        moved: pairs of a result on the pattern of the gate and the name of its counterpart on the transposed pattern.
    """

    program: Program
    twins: tuple[Twin, ...] = ()
    moved: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        names = ", ".join(dict.fromkeys(s.target.tensor for s in self.program.statements))
        return f"{names}: one kernel over the entries of the gate, expert by expert"


def mixture(program: Program) -> Mixture | None:
    """The program matched as a mixture of experts; `None` for other programs.

    Args:
        program: all statements, with every operand as stored.
    """
    sparse = [d for d in program.declarations if d.name in program.inputs and not d.format.is_dense]
    if len(sparse) != 1 or len(sparse[0].extents) != 2 or not _has_matrices(program, sparse[0]):
        return None
    gate = sparse[0]
    if _is_one_kernel(program):
        return Mixture(program)
    sparse = [d for d in program.declarations if d.name in program.outputs and not d.format.is_dense]
    if any(declared.pattern_of != gate.name for declared in sparse):
        return None
    for format in BY_EXPERT:
        twin = Twin(_name(program, gate, format), gate.name, format, WHY)
        moved = {declared.name: _name(program, declared, format) for declared in sparse}
        turned = _reading(program, gate, twin, moved)
        if format != gate.format and _is_one_kernel(turned):
            return Mixture(turned, (twin,), tuple(moved.items()))
    return None


def mixture_adjoint(
    program: Program, wrt: Sequence[str], grads: Mapping[str, str], extents: Mapping[str, int]
) -> Program | None:
    """The adjoint of a mixture of experts as a mixture, `None` for other programs.

    Values between the products are rematerialized, for the entries of the gate alone.

    Args:
        program: all statements, with every operand as stored.
        wrt, grads: arguments of `adjoint`.
        extents: known extents by name.
    """
    if mixture(collect(program)) is None:
        return None
    gate = next(d.name for d in program.declarations if d.name in program.inputs and not d.format.is_dense)
    (access,) = {a for s in program.statements for a in find(s.value, Access) if a.tensor == gate}
    program = rows_apart(program, extents)
    given = {*program.inputs, *program.outputs}
    inside = [declared.name for declared in program.declarations if declared.name not in given]
    found = by_entries(adjoint(program, wrt, grads, inside), access, extents)
    return None if mixture(collect(found)) is None else found


def _has_matrices(program: Program, gate: Declaration) -> bool:
    """Whether a dense operand has a matrix for each row or column of the gate."""
    reads = [access for s in program.statements for access in find(s.value, Access)]
    names = {index for access in reads if access.tensor == gate.name for index in access.indices}
    return any(len(access.indices) > 2 and len(names & {*access.indices}) == 1 for access in reads)


def _is_one_kernel(program: Program) -> bool:
    """Whether the template for mixtures of experts has a schedule for `program`."""
    try:
        plain = concretize(program)
    except UnsupportedProgramError:
        return False
    found = experts(plain)
    if found is None:
        return False
    width = lanes(plain, target.vector_bytes(current()))
    return next(found.schedules(width, lane_bytes(plain), UNKNOWN), None) is not None


def _name(program: Program, declared: Declaration, format: Format) -> str:
    """A fresh name for a tensor stored in another format."""
    taken = {other.name for other in program.declarations}
    return fresh(f"{declared.name}_{''.join(map(str, format.ordering))}", taken)


def _reading(program: Program, gate: Declaration, twin: Twin, moved: Mapping[str, str]) -> Program:
    """`program` with the transposed copy in place of the gate, and the formats of temporaries inferred again."""
    stored = turned_declaration(twin, gate)
    inputs = tuple(twin.name if name == gate.name else name for name in program.inputs)
    declarations = []
    for declared in program.declarations:
        if declared is gate:
            declarations.append(stored)
        elif declared.name in moved:
            form, dtypes = stored.format, stored.index_dtypes
            own = replace(declared, name=moved[declared.name], format=form, index_dtypes=dtypes)
            declarations.append(own)
        elif declared.name in (*program.inputs, *program.outputs):
            declarations.append(declared)
    made = replace(program, inputs=inputs, declarations=tuple(declarations))
    return infer_format(rename_tensors(made, {gate.name: twin.name, **moved}))
