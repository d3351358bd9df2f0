"""Products with weights in the formats of models: panels, blocks, n of m, narrow coordinates.

In: `draw_layer(7)`. Out: a `Case` such as `Y[t,n] = relu(sum(k, X[t,k] * W[n,k]) + b[n])`, W in panels of 16 columns.
"""

import numpy as np

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.infer.extents import accesses
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.kernel.kernel import result_index_dtypes
from sparsify.storage.format import Format
from tests.compiler.random_programs.data import LAYERS, Case, fill_operands
from tests.compiler.random_programs.generate import WIDTHS

# `{}` is the weight; letters are spelled as its modes n, k are read, first the rows of the result.
TEXTS = (
    *("Y[t,n] = {P}", "Y[t,n] = {P}", "Y[t,n] = relu({P} + b[n])", "Y[t,n] = {P} + b[n]", "Y[s,t,n] = {Q}"),
    *("Y[t,n] = s[n] * {P}", "Y[t,n] = relu({P} + b[n]) * X2[t,n]", "Y[s,t,n] = silu({Q} + b[n])"),
    *("Y[n,t] = sum(k, W[n,k] * Z[k,t])", "y[n] = sum(k, W[n,k] * x[k])", "Y[t,n] = sum(k, X[t,k] * W[k,n])"),
    *("V[n,k] = W[n,k] * sum(t, G[t,n] * X[t,k])", "Y[t,k] = sum(n, G[t,n] * W[n,k])"),
    "H[t,n] = relu({P}); Y[t,m] = sum(n, H[t,n] * U[m,n])",
)
PLAIN = "sum(k, X[t,k] * W[n,k])"
LEADING = "sum(k, X[s,t,k] * W[n,k])"
PANELS = (4, 8, 16, 96)
HEIGHTS = (4, 8, 16, 32)
NARROW = ("", "(crd=int16)", "(crd=int16)", "(crd=int32)")
# Of weights whose rows are mode i and columns mode j.
FORMS = (
    "i: dense, j: compressed{crd}",
    "j/{width}: dense, i: dense, j%{width}: compressed{crd}",
    "j/{width}: dense, i/{height}: dense, j%{width}: compressed{crd}, i%{height}: dense",
    "i/{height}: dense, j: compressed{crd}, i%{height}: dense",
    "bcsr({height}, 1)",
    "bcsr(16, 16)",
    "bcsr(32, 32)",
    "bcsr(1, {height})",
    "nm(2, 4)",
    "nm(1, 4)",
    "nm(4, 8)",
    "nm(2, 4, group={height})",
    "nm(1, 2, group={height})",
    "i: dense, j/4: dense, j%4: grouped(2, crd=int8)",
    "i/{height}: dense, j/4: dense, j%4: grouped(2, crd=int8), i%{height}: dense",
    "i/{height}: dense, j/{width}: dense, i%{height}: dense, j%{width}: sliced({height}, crd=int8)",
)
DTYPES = ("float32", "float32", "float32", "float64", "bfloat16", "float16", "int8")


def draw_form(rng: np.random.Generator) -> Format:
    """Random format of a weight."""
    text = str(rng.choice(FORMS))
    return Format(text.format(crd=rng.choice(NARROW), width=rng.choice(PANELS), height=rng.choice(HEIGHTS)))


def draw_layer(seed: int) -> Case:
    """The case of a seed."""
    rng = np.random.default_rng([seed, 6])
    text = str(rng.choice(TEXTS)).format(P=PLAIN, Q=LEADING)
    statements = parse(text.replace("; ", "\n"))
    dtype = str(rng.choice(["float32", "float32", "float64"]))
    results = {statement.target.tensor for statement in statements}
    operands = {
        access.tensor: Operand(Format(", ".join(["dense"] * len(access.indices))), dtype)
        for access in accesses(statements)
        if access.tensor not in results
    }
    for name in ("W", "U"):
        if name in operands:
            form = draw_form(rng)
            held = str(rng.choice(DTYPES)) if dtype == "float32" else dtype
            operands[name] = Operand(form, held, 0.0, result_index_dtypes(form, "int32"))
    program = declare(statements, operands)
    # Any eight seeds in a row have all widths on one thread and on two.
    case = Case(seed, program, WIDTHS[seed % 4], 1 + seed // 4 % 2, LAYERS)
    fill_operands(case, rng)
    return case
