"""Legality of one kernel for several results, required by a schedule of all statements.

In: `C[i,k] = sum(j, A[i,j] * B[j,k]); D[i,k] = 2 * C[i,k]`, both stored by row. Out: an error that names C, whose
pattern the kernel computes, and D, which has to wait for the pattern.
"""

from sparsify.compiler.cpp.toolchain import target
from sparsify.compiler.einsum.infer.format import infer_format
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.loops.lower import lower
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.notation.lane_width import lane_bytes, lanes
from sparsify.compiler.notation.verify import verify
from sparsify.compiler.plan.prepare.expand_blocks import assembled
from sparsify.compiler.schedule.directives import apply
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.candidates import candidates
from sparsify.errors import DiscordantError, ScheduleError, UnsupportedProgramError
from sparsify.options import current


def check_results(program: Program) -> None:
    """Raises if a result needs a pattern that another statement of the same kernel computes.

    Raises:
        UnsupportedProgramError: a result of unknown pattern is not the only one, or another follows its pattern.
    """
    results = [program.declaration(name) for name in program.outputs]
    known = {*program.inputs, *program.outputs}
    found = [d.name for d in results if d.pattern_of is None and not assembled(d.format).is_dense]
    found += [d.pattern_of for d in results if d.pattern_of is not None and d.pattern_of not in known]
    if found and (len(results) > 1 or found[0] not in program.outputs):
        names = dict.fromkeys((*found, *program.outputs))
        dense = ", ".join(f'"{name}": "dense"' for name in names)
        raise UnsupportedProgramError(
            f"one kernel for {' and '.join(names)}: which entries of {found[0]} are stored is not known before",
            f"no schedule=, a call for each statement, or format={{{dense}}}",
        )


def is_one_kernel(program: Program, whole: Program, sizes: Sizes) -> bool:
    """Whether some schedule of all statements lowers.

    Args:
        program: statements with results in the requested formats.
        whole: the same statements with results in formats that a kernel can write.
    """
    plain = concretize(infer_format(whole))
    vector_bytes = target.vector_bytes(current())
    try:
        check_results(program)
    except UnsupportedProgramError:
        return False
    for schedule in candidates(plain, lanes(plain, vector_bytes), lane_bytes(plain), sizes):
        try:
            tree = apply(plain, schedule)
            verify(tree)
            lower(tree, vector_bytes)
        except (DiscordantError, ScheduleError, UnsupportedProgramError):
            continue
        return True
    return False
