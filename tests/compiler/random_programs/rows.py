"""Reductions over the rows of matrices, with heavy rows shared by threads.

In: `draw_rows(7)`. Out: a `Case` such as `Y[i,k] = relu(sum(j, A[i,j] * X[j,k]) + b[k])`, A in CSR.
"""

import numpy as np

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.infer.extents import accesses
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.kernel.kernel import result_index_dtypes
from sparsify.storage.format import Format
from tests.compiler.random_programs.data import Case, Data, fill_operands
from tests.compiler.random_programs.generate import WIDTHS

# `{}` is what is summed, of `k` columns or of one, and what it is where nothing is stored.
TEXTS = (
    *("Y[i,k] = {many}", "Y[i,k] = relu(sum(j, {many}) + b[k])", "Y[i,k] = sum(j, {many}) * c[i] + G[i,k]"),
    *("y[i] = {one}", "y[i] = relu(sum(j, {one}) - c[i])", "y[i] = sum(j, {one}) + sum(j, A[i,j])"),
    *("Y[i,k] max= where(stored(A[i,j]), {many}, -inf)", "Y[i,k] min= where(stored(A[i,j]), {many}, inf)"),
    *("y[i] max= where(stored(A[i,j]), {one}, -inf)", "Y[i,k] *= where(stored(A[i,j]), {many}, 1)"),
    *("Y[i,h,k] = A[i,j] * Z[j,h,k]", "Y[i,k] = sum(j, sum(h, A[i,j] * Z[j,h,k]))", "Y[k,i] = {many}"),
)
MANY = ("A[i,j] * X[j,k]", "A[i,j] * B[i,j] * X[j,k]", "A[i,j] * (X[j,k] - b[k])", "A[i,j] * X[j,k] * x[j]")
ONE = ("A[i,j] * x[j]", "A[i,j]", "A[i,j] * (x[j] + c[i])", "A[i,j] * A[i,j] * x[j]", "A[i,j] * B[i,j]")
LONG = Data(extents=(2, 5, 9, 18, 26), densities=(0.1, 0.3, 1.0), hollow=0.2, most=2000)
FORMS = (
    "csr",
    "csr",
    "csr",
    "dense, compressed(crd=int16)",
    "dense, compressed(pos=int64, crd=int64)",
    "csc",
    "dcsr",
)
# Stored by columns, whose entries are added to rows of the result.
SCATTERED = ("csc", "csc", "j: dense, i: compressed(crd=int16)", "dcsc")


def draw_rows(seed: int, forms: tuple[str, ...] = FORMS) -> Case:
    """Case of a seed, with matrices in some of the formats."""
    rng = np.random.default_rng([seed, 8])
    text = str(rng.choice(TEXTS)).format(many=rng.choice(MANY), one=rng.choice(ONE))
    statements = parse(text)
    dtype = str(rng.choice(["float32", "float32", "float64", "int32"]))
    if "inf" in text and dtype == "int32":
        dtype = "float64"
    operands = {}
    for access in accesses(statements):
        form = Format(", ".join(["dense"] * len(access.indices)))
        if access.tensor in ("A", "B"):
            form = Format(str(rng.choice(forms)))
        operands[access.tensor] = Operand(form, dtype, 0.0, result_index_dtypes(form, "int32"))
    operands.pop(statements[-1].target.tensor)
    program = declare(statements, operands)
    # Any eight seeds in a row have all widths on one thread and on two.
    case = Case(seed, program, WIDTHS[seed % 4], 1 + seed // 4 % 2, LONG)
    fill_operands(case, rng)
    return case
