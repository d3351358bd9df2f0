"""Kernels in traced graphs: a kernel on the parts of its operands is one operator of torch.

In: a kernel and operands that stand for others, under `torch.compile` or `torch.export`. Out: results that stand
for those of the kernel; the graph holds `torch.ops.sparsify.compute(handle, tensors)`, the tensors being dense
operands and, of sparse ones, the values and the arrays of their patterns.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from sparsify.errors import UnsupportedProgramError
from sparsify.storage.fill import Fill
from sparsify.storage.format import Format
from sparsify.storage.pattern import shared
from sparsify.storage.tensor import SparseTensor, wrap

PLAIN: Final = frozenset({Tensor, torch.nn.Parameter})


@dataclass(frozen=True, slots=True)
class Parts:
    """How a sparse operand is put together: its values come first, then the arrays that exist."""

    format: Format
    shape: tuple[int, ...]
    fill: Fill
    pos: tuple[bool, ...]
    crd: tuple[bool, ...]

    @property
    def count(self) -> int:
        """How many tensors it has."""
        return 1 + sum(self.pos) + sum(self.crd)


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """A kernel with the parts of its operands, `None` for dense ones."""

    kernel: Any
    parts: tuple[Parts | None, ...]

    def operands(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The operands from their parts."""
        left = iter(tensors)
        return [next(left) if parts is None else _together(parts, left) for parts in self.parts]

    def places(self) -> list[int]:
        """Per operand where its first tensor, the values of a sparse one, lies among all tensors."""
        found = [0]
        for parts in self.parts:
            found.append(found[-1] + (1 if parts is None else parts.count))
        return found[:-1]


_traced: dict[int, Traced] = {}
_handles: dict[Any, int] = {}


def is_traced(operands: Sequence[Tensor]) -> bool:
    """Whether operands stand for those that a graph will be called with."""
    for operand in operands:
        inner = operand._vals if isinstance(operand, SparseTensor) else operand
        if type(inner) not in PLAIN and isinstance(inner, FakeTensor | FunctionalTensor):
            return True
    return False


def call(kernel: Any, operands: Sequence[Tensor]) -> Any:
    """The results of a kernel in a traced graph; differentiable.

    Raises:
        UnsupportedProgramError: a result whose pattern only the kernel can find.
    """
    program = kernel.program
    for name in program.outputs:
        declared = program.declaration(name)
        if not declared.format.is_dense and declared.pattern_of not in program.inputs:
            raise UnsupportedProgramError(
                f"{name}, stored {declared.format}, has a pattern that a traced graph cannot know",
                "compute it outside of torch.compile, or ask for a dense result with format=",
            )
    parts, tensors = _apart(operands)
    found = torch.ops.sparsify.compute(_handle(kernel, parts), tensors)
    results = []
    for name, result in zip(program.outputs, found, strict=True):
        declared = program.declaration(name)
        if not declared.format.is_dense:
            root = operands[program.inputs.index(declared.pattern_of)]
            result = SparseTensor(root._pattern, result, declared.fill)
        results.append(result)
    return results[0] if len(results) == 1 else tuple(results)


def _handle(kernel: Any, parts: tuple[Parts | None, ...]) -> int:
    """The number of a kernel with the parts of its operands; it follows from what they are.

    torch keeps compiled graphs on disk, and another process that finds one there has to mean the same kernel by it.
    """
    key = (kernel, parts)
    handle = _handles.get(key)
    if handle is None:
        program = kernel.program
        text = f"{program}\n{program.statements!r}\n{program.declarations!r}\n{parts!r}"
        handle = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
        _handles[key], _traced[handle] = handle, Traced(kernel, parts)
    return handle


def _apart(operands: Sequence[Tensor]) -> tuple[tuple[Parts | None, ...], list[Tensor]]:
    """How operands are put together, and all their tensors."""
    parts: list[Parts | None] = []
    tensors: list[Tensor] = []
    for operand in operands:
        if not isinstance(operand, SparseTensor):
            parts.append(None)
            tensors.append(operand)
            continue
        pattern = operand._pattern
        there = [tuple(a is not None for a in arrays) for arrays in (pattern.pos, pattern.crd)]
        shape = tuple(int(extent) for extent in pattern.shape)
        parts.append(Parts(pattern.format, shape, operand._fill, *there))
        tensors.append(operand.values())
        tensors += [a for a in (*pattern.pos, *pattern.crd) if a is not None]
    return tuple(parts), tensors


def _together(parts: Parts, left: Any) -> SparseTensor:
    """The sparse operand from the next tensors; those of one pattern share it again."""
    values = next(left)
    pos, crd = ([next(left) if there else None for there in role] for role in (parts.pos, parts.crd))
    return wrap(shared(parts.format, parts.shape, pos, crd), values, parts.fill)


def _values(result: Tensor) -> Tensor:
    return result._vals if isinstance(result, SparseTensor) else result


def run(handle: int, tensors: list[Tensor]) -> list[Tensor]:
    """The operator's computation: dense results, and the values of sparse ones."""
    traced = _traced[handle]
    with torch.no_grad():
        found = traced.kernel(*traced.operands([tensor.detach() for tensor in tensors]))
    return [_values(result) for result in (found if isinstance(found, tuple) else (found,))]


def shapes_only(handle: int, tensors: list[Tensor]) -> list[Tensor]:
    """The operator on tensors that stand for others."""
    traced = _traced[handle]
    program, places = traced.kernel.program, traced.places()
    extents: dict[str, Any] = dict(program.extents)
    for name, parts, place in zip(program.inputs, traced.parts, places, strict=True):
        shape = tensors[place].shape if parts is None else parts.shape
        extents.update(zip(program.declaration(name).extents, shape, strict=True))
    results = []
    for name in program.outputs:
        declared = program.declaration(name)
        dtype = getattr(torch, declared.dtype)
        if declared.format.is_dense:
            results.append(tensors[0].new_empty([extents[e] for e in declared.extents], dtype=dtype))
        else:
            root = tensors[places[program.inputs.index(declared.pattern_of)]]
            results.append(root.new_empty(root.shape, dtype=dtype))
    return results


def run_backward(
    handle: int, gradients: list[Tensor], tensors: list[Tensor], needed: list[int]
) -> list[Tensor]:
    """The gradients of the tensors at the positions `needed`; the forward pass is computed again."""
    traced = _traced[handle]
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_(place in needed) for place, t in enumerate(tensors)]
        operands = traced.operands(leaves)
        at = traced.places()
        operands = [
            SparseTensor(o._pattern, leaves[place], o._fill) if isinstance(o, SparseTensor) else o
            for o, place in zip(operands, at, strict=True)
        ]
        found = traced.kernel(*operands)
        results = [
            r.values() if isinstance(r, SparseTensor) else r
            for r in (found if isinstance(found, tuple) else (found,))
        ]
        wanted = [leaves[place] for place in needed]
        made = torch.autograd.grad(results, wanted, gradients, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g.contiguous() for g, t in zip(made, wanted, strict=True)]


def backward_shapes(
    handle: int, gradients: list[Tensor], tensors: list[Tensor], needed: list[int]
) -> list[Tensor]:
    """The gradients on tensors that stand for others."""
    return [torch.empty_like(tensors[place], memory_format=torch.contiguous_format) for place in needed]


def remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    """Keeps what backward needs."""
    ctx.handle, tensors = inputs
    ctx.needed = [place for place, tensor in enumerate(tensors) if tensor.requires_grad]
    ctx.save_for_backward(*tensors)


def backward(ctx: Any, gradients: list[Tensor]) -> tuple[None, list[Tensor | None]]:
    """The gradients of all tensors."""
    tensors = list(ctx.saved_tensors)
    found = torch.ops.sparsify.compute_backward(ctx.handle, gradients, tensors, ctx.needed)
    made: list[Tensor | None] = [None] * len(tensors)
    for place, value in zip(ctx.needed, found, strict=True):
        made[place] = value
    return None, made


SCHEMAS = (
    "compute(int handle, Tensor[] tensors) -> Tensor[]",
    "compute_backward(int handle, Tensor[] gradients, Tensor[] tensors, int[] needed) -> Tensor[]",
)


def register() -> torch.library.Library:
    """The operators `sparsify::compute` and `sparsify::compute_backward`, as long as the library lives."""
    library = torch.library.Library("sparsify", "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema)
    library.impl("compute", run, "CompositeExplicitAutograd")
    library.impl("compute_backward", run_backward, "CompositeExplicitAutograd")
    torch.library.register_fake("sparsify::compute", shapes_only, lib=library)
    torch.library.register_fake("sparsify::compute_backward", backward_shapes, lib=library)
    torch.library.register_autograd("sparsify::compute", backward, setup_context=remember, lib=library)
    return library


_library = register()
