"""Where the operands and extents of a region's program come from.

In: `Y[i,k] = sum(j, A[i,j] * X[j,k])` in a call with the arguments (x, edge_index, 2708). Out: `Operand("X", 0)`, A
that a structure makes of argument 1, and `SizeAt(2)` for the extent of i.
"""

from dataclasses import dataclass

from sparsify.passes.operands.cached_operands import Structure


@dataclass(frozen=True)
class SizeAt:
    """An extent that is an argument of the call."""

    argument: int


@dataclass(frozen=True)
class Operand:
    """Where an operand of the program comes from.

    Attributes:
        name: its name in the program.
        argument: the position of the tensor among the call's arguments; with a structure that of a sparse
            operand's values, -1 when the structure knows them.
        structure: what computes it once per graph.
        leaves: the positions of the structure's leaves among the arguments.
        result: the position among the structure's results.
        is_full: whether it is a dense input whose zeros are left out: its gradient is not zero there.
    """

    name: str
    argument: int
    structure: Structure | None = None
    leaves: tuple[int, ...] = ()
    result: int = 0
    is_full: bool = False
