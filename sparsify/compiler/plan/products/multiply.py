"""Products of dense matrices: by torch, or by a generated kernel if expected to be faster.

In:  `T[j,k] = sum(f, X[j,f] * W[f,k])` of 19717 x 500 and 500 x 128, vectors of 64 bytes, two threads.
Out: whether a kernel is generated; in this example yes: about 8 ms against 18.
"""

from sparsify.compiler.cpp.toolchain import target
from sparsify.compiler.einsum.nodes import Access, Assign, Program, Reduce
from sparsify.compiler.ir.dtypes import BYTES
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.schedule.cost.machine import scaled
from sparsify.compiler.schedule.cost.matmul import is_tiled
from sparsify.compiler.schedule.cost.statement import dense_shape, known_extents
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.options import current
from sparsify.runtime.threads import count

GENERATED = ("float32", "float64")


def is_generated(program: Program, statement: Assign, sizes: Sizes) -> bool:
    """Whether a product of dense matrices becomes a generated kernel: known sizes, and torch expected to be slower."""
    dtype = program.declaration(statement.target.tensor).dtype
    (product,) = find(statement.value, Reduce)
    rows = index_names(statement.target)[0]
    # Rows of the left operand lie along the sum.
    along = {index_names(a) for a in find(product, Access)}
    if dtype not in GENERATED or (rows, product.indices[0]) not in along:
        return False
    extents = known_extents(program, sizes.extents)
    if not {*index_names(statement.target), *product.indices} <= extents.keys():
        return False
    shape = dense_shape(program, statement, extents)
    # The assumed machine, not a measured one: the choice must not depend on the momentary load.
    machine = scaled(count(current()), target.vector_bytes(current()))
    return shape is not None and is_tiled(*shape, machine, BYTES[dtype])
