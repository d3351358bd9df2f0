"""Reference implementation of programs by torch's operators: for verification, and in place of missing kernels.

In: a program with formats and its operands. Out: the results of a kernel: the same dtypes, formats, patterns and fills.
Nothing is compiled, and no Python loop runs over entries.

Read in this order: `grid` (values and masks of fill entries; `functions`), `stored` (operands, dense or as sorted
entries; `keys`), `space` (points), `cover` (relevant entries) and `join` (points of an intersection), `fold` and
`totals` (reductions), `contract` (products), `evaluate` (statements) and `results`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.reference.evaluate import Evaluation
from sparsify.compiler.reference.results import result

__all__ = ["evaluate_program"]


def evaluate_program(program: Program, operands: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The results of a program in the order of its outputs; autograd records nothing.

    Args:
        program: program with declared formats of all tensors.
        operands: operands by name; another format than declared is accepted.

    Raises:
        ShapeError: extents that do not fit.
        UnsupportedProgramError: a dense temporary too large for memory.
    """
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        evaluation = Evaluation(program, operands)
        evaluation.run()
        return tuple([result(program, name, evaluation.tensors[name], operands) for name in program.outputs])
