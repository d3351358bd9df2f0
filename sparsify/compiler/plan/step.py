"""Steps of a plan: the statements of one kernel, and conversions of kernel results.

In: a program whose result has blocks of unknown pattern. Out: a `Step` that writes it compressed by row, a `Convert`.
"""

from dataclasses import dataclass, replace
from typing import Final

import torch

from sparsify.compiler.einsum.infer.share import shared_pattern
from sparsify.compiler.einsum.nodes import Declaration, Program
from sparsify.compiler.einsum.rename import fresh, rename_tensors
from sparsify.compiler.einsum.text import serialize
from sparsify.compiler.plan.prepare.pair_numbers import PairView
from sparsify.compiler.plan.prepare.transpose_operands import Twin
from sparsify.compiler.plan.products.dense_product import DenseProduct
from sparsify.storage.convert import conversion, inverted
from sparsify.storage.format import Format
from sparsify.storage.interop.tensors import tensor
from sparsify.storage.tensor import SparseTensor, wrap


@dataclass(frozen=True, slots=True)
class Step:
    """The statements of one kernel, mostly one.

    Attributes:
        program: statements.
        twins: operands read in another format, mostly another mode ordering.
        order: loop order, outermost first, if chosen by cost.
    """

    program: Program
    twins: tuple[Twin, ...] = ()
    order: tuple[str, ...] = ()

    @property
    def result(self) -> str:
        """The tensor computed by the step, the first of several."""
        return self.program.outputs[0]


@dataclass(frozen=True, slots=True)
class Convert:
    """Conversion of `source` to another format as `result`, on the pattern of `pattern_of` if known.

    Attributes:
        why: reason that no kernel writes the result in its own format.
    """

    result: str
    source: str
    format: Format
    pattern_of: str | None
    fill: float
    why: str

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of its operands."""
        return (self.source,) if self.pattern_of is None else (self.source, self.pattern_of)

    def compute(self, operands: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The converted tensor."""
        from sparsify.compiler.plan.prepare.expand_blocks import unblocked_format

        source = operands[0]
        if self.pattern_of is None:
            return tensor(source, self.format, fill=self.fill).to(format=self.format)
        pattern = shared_pattern(operands[1]._pattern, self.format, source.shape)  # type: ignore[attr-defined]
        if not isinstance(source, SparseTensor):  # full diagonals, computed as dense rows
            source = tensor(source, unblocked_format(pattern.format))
        found = conversion(pattern, source.format)
        if (
            found.permutation.shape[0] == pattern.nnz and not found.is_padded
        ):  # reads in another order beat writes
            places = pattern.cached(("inverse", source.format), lambda: inverted(found.permutation))
            return wrap(pattern, source._vals.index_select(0, places), self.fill)
        filled = torch.full((pattern.nnz,), self.fill, dtype=source.dtype)
        return wrap(pattern, filled.index_copy_(0, found.permutation, source._vals), self.fill)

    def __str__(self) -> str:
        return f"{self.result} = {self.source}.to(format={str(self.format)!r}), {self.why}"


# Steps that torch's operators compute.
TorchStep = DenseProduct | Convert | PairView
# Serializable classes of plans, by name.
STEP_CLASSES: Final = {
    **serialize.CLASSES,
    **{kind.__name__: kind for kind in (Step, Twin, Convert, DenseProduct, PairView)},
}


def with_wide_result(step: Step) -> Step | None:
    """`step` with int64 positions and coordinates in its result, `None` if they are int64 already."""
    declared = step.program.declaration(step.result)
    wide = tuple(("int64" if pos else "", "int64" if crd else "") for pos, crd in declared.index_dtypes)
    if wide == declared.index_dtypes:
        return None
    declarations = tuple(
        replace(d, index_dtypes=wide) if d is declared else d for d in step.program.declarations
    )
    return replace(step, program=replace(step.program, declarations=declarations))


def one_step(program: Program) -> tuple[Step, *tuple[Convert, ...]]:
    """All statements as one step, every operand as stored; results that no kernel writes as requested are converted."""
    from sparsify.compiler.plan.prepare.expand_blocks import assembled

    taken = {declared.name for declared in program.declarations}
    converted: list[Convert] = []
    declarations: list[Declaration] = []
    for declared in program.declarations:
        if declared.name in program.inputs:
            declared = replace(declared, pattern_of=None)
        elif declared.name in program.outputs and declared.pattern_of is None:
            written = converted_from(declared, assembled(declared.format), taken)
            if written is not None:
                format, why = declared.format, f"no kernel writes {declared.format}"
                converted.append(Convert(declared.name, written.name, format, None, declared.fill, why))
                declared = written
        declarations.append(declared)
    made = replace(program, declarations=tuple(declarations))
    return Step(rename_tensors(made, {made.result: made.source for made in converted})), *converted


def converted_from(output: Declaration, format: Format, taken: set[str]) -> Declaration | None:
    """The tensor in `format` from which a result is converted; `None` if the formats agree."""
    from sparsify.compiler.plan.prepare.expand_blocks import index_dtypes_in

    if format == output.format:
        return None
    name = fresh(f"{output.name}_{format.letters}", taken)
    return replace(output, name=name, format=format, index_dtypes=index_dtypes_in(format, output))
