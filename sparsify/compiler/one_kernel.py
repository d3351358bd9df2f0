"""Whether one kernel can write the results of several statements, as a schedule for all of them asks.

In: `C[i,k] = sum(j, A[i,j] * B[j,k]); D[i,k] = 2 * C[i,k]`, both stored by row. Out: an error that names C, whose
entries a kernel finds out, and D, which has to wait for them.
"""

from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.unblock import assembled
from sparsify.errors import UnsupportedProgramError


def check_results(program: Program) -> None:
    """Raises where a result needs entries that another statement of the same kernel finds out.

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
