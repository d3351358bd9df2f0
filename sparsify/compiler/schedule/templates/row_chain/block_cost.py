"""The cost of a row-wise chain over blocks as one kernel: products in register tiles, entries in vectors.

In: the statements of attention over 150,000 scores a head, a machine. Out: about 2.4 ms of one thread for 12 heads.
"""

from collections.abc import Mapping
from math import prod
from typing import Final

from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.schedule.cost.machine import Machine
from sparsify.compiler.schedule.cost.statement import loops_us
from sparsify.compiler.schedule.templates.row_chain.chain import Nest, RowChain

# Vectors' times, fitted to measurements on AVX2: per vector of a tile's sums; per vector of reduced entries; per entry
# of transposed keys.
TILED: Final = 1.15
REDUCED: Final = 5.0
TURNED: Final = 2.8


def chain_us(
    program: Program,
    chain: RowChain,
    extents: Mapping[str, int],
    stored: Mapping[str, int],
    machine: Machine,
    item_bytes: int,
) -> float:
    """The time of one thread for the loops of a chain over blocks.

    Args:
        program: statements of the chain.
        chain: matched chain.
        extents: extents of all index variables.
        stored: entries of sparse tensors, including temporaries.
        machine: machine model.
        item_bytes: bytes of a lane.
    """
    tiled = {nest.result for nest in chain.nests if nest.kind != "entries"}
    rest = [statement for statement in program.statements if statement.target.tensor not in tiled]
    busy = sum(loops_us(program, statement, extents, stored, machine) for statement in rest)
    lanes = max(1, machine.vector_bytes // item_bytes)
    count = prod(extents[name] for name in chain.leading) * stored[chain.mask.name]
    return busy + sum(_tiled(nest, extents, count / lanes) for nest in chain.nests) * machine.vector_us


def _tiled(nest: Nest, extents: Mapping[str, int], vectors: float) -> float:
    """Vectors' times of a tiled nest over `vectors` vectors of entries."""
    match nest.kind:
        case "scores":
            turned = 0 if nest.turned is None else prod(extents[name] for name in index_names(nest.turned))
            return vectors * (extents[nest.inner] * TILED + REDUCED) + turned * TURNED
        case "reduction" | "gathered":
            return vectors * REDUCED
        case "product" | "columns":
            return vectors * extents[nest.lane] * TILED
    return 0.0
