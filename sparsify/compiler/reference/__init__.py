"""Programs evaluated by torch's operators: what verification compares with and what runs where no kernel can be built.

What enters is a program with formats and its operands, what leaves are the results that a kernel gives: the same
dtypes, formats, patterns and fills. Nothing is compiled, and nothing is a loop of Python over entries.

Read in this order: `grid` (values and where they are fill entries; `functions`), `stored` (operands, dense or as
sorted entries; `keys`), `space` (points), `cover` (which entries matter) and `join` (the points where they meet),
`fold` and `totals` (reductions), `contract` (products), `evaluate` (statements) and `results`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.reference.evaluate import Evaluation
from sparsify.compiler.reference.results import result

__all__ = ["evaluate_program"]


def evaluate_program(program: Program, operands: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The results of a program in the order of its outputs; no graph for gradients is recorded.

    Args:
        program: every tensor is declared with a format.
        operands: by name; one that is stored in another format than declared is read all the same.

    Raises:
        ShapeError: extents that do not fit.
        UnsupportedProgramError: a dense temporary that no memory holds.
    """
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        evaluation = Evaluation(program, operands)
        evaluation.run()
        return tuple([result(program, name, evaluation.tensors[name], operands) for name in program.outputs])
