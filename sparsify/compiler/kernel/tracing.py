"""Kernels in traced graphs: each kernel is one operator of torch.

In: a kernel and fake operands, under `torch.compile`, `torch.export`, `make_fx` or `FakeTensorMode`. Out: fake results;
the graph holds `torch.ops.sparsify.compute(text, tensors, extents)`. If sparse tensors are decomposed, the tensors are
dense operands and, for sparse ones, the values and the arrays of their patterns, with `extents` their shapes.

The text serializes the whole kernel, so graphs may be stored and run by other processes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import _get_dispatch_mode_pre_dispatch, _len_torch_dispatch_stack_pre_dispatch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from sparsify.compiler.einsum.infer.share import shared_pattern
from sparsify.compiler.einsum.nodes import Declaration, Program
from sparsify.compiler.einsum.text import serialize
from sparsify.compiler.einsum.verify import verify
from sparsify.compiler.kernel.transforms.autograd import pull_back
from sparsify.compiler.kernel.transforms.torch_operators import Operator, register
from sparsify.storage.fill import Fill
from sparsify.storage.format import Format
from sparsify.storage.level.levels import Compressed, Dense
from sparsify.storage.pattern import shared
from sparsify.storage.subclass import dispatch, parametrized
from sparsify.storage.tensor import SparseTensor

PLAIN: Final = frozenset({Tensor, torch.nn.Parameter})


@dataclass(frozen=True, slots=True)
class Parts:
    """Layout of a sparse tensor's arrays: its values come first, then the existing arrays, level by level.

    Attributes:
        levels: for each level whether it has (pos, crd).
    """

    format: Format
    fill: Fill
    levels: tuple[tuple[bool, bool], ...]

    @staticmethod
    def of(tensor: SparseTensor) -> "Parts":
        """Layout of a tensor's arrays."""
        pattern = tensor._pattern
        arrays = zip(pattern._pos, pattern._crd, strict=True)
        levels = tuple((pos is not None, crd is not None) for pos, crd in arrays)
        return Parts(pattern.format, tensor._fill, levels)

    @property
    def count(self) -> int:
        """The number of tensors in the layout."""
        return 1 + sum(sum(level) for level in self.levels)

    def together(self, left: Iterator[Tensor], shape: Sequence[Any]) -> SparseTensor:
        """The tensor assembled from its next parts; tensors of one pattern share the pattern again."""
        values = next(left)
        arrays = [[next(left) if is_there else None for is_there in level] for level in self.levels]
        pos, crd = [pos for pos, _ in arrays], [crd for _, crd in arrays]
        return SparseTensor(shared(self.format, shape, pos, crd, values.shape[0]), values, self.fill)


@dataclass(frozen=True, slots=True)
class Traced:
    """A kernel in a graph; its `repr` is the text in the graph.

    Attributes:
        program: program to compute.
        schedule: text of the requested schedule, "" for an automatic choice.
        parts: layout of each operand, `None` for an operand that is a tensor of the graph.
    """

    program: Program
    schedule: str
    parts: tuple[Parts | None, ...]

    def operands(self, tensors: Sequence[Tensor], extents: Sequence[Any]) -> list[Tensor]:
        """The operands, assembled from their parts."""
        left, shapes = iter(tensors), iter(extents)
        found: list[Tensor] = []
        for parts in self.parts:
            if parts is None:
                found.append(next(left))
            else:
                found.append(parts.together(left, [next(shapes) for _ in range(parts.format.rank)]))
        return found

    def places(self) -> list[int]:
        """For each operand the index of its tensor, or of a sparse operand's values, among all tensors."""
        found = [0]
        for parts in self.parts:
            found.append(found[-1] + (1 if parts is None else parts.count))
        return found[:-1]

    def extents(self, operands: Sequence[Tensor]) -> dict[str, Any]:
        """The extents of the program's index variables."""
        found: dict[str, Any] = dict(self.program.extents)
        for name, operand in zip(self.program.inputs, operands, strict=True):
            found.update(zip(self.program.declaration(name).extents, operand.shape, strict=True))
        return found

    def results(self, flat: Sequence[Tensor], operands: Sequence[Tensor]) -> list[Tensor]:
        """The results, assembled from their parts: a tensor of known pattern consists of values only."""
        extents = self.extents(operands)
        found: list[Tensor] = []
        for name, parts in zip(self.program.outputs, self.split(flat), strict=True):
            declared = self.program.declaration(name)
            if declared.format.is_dense:
                found += parts
            elif (root := _root(self.program, declared, operands)) is not None:
                shape = [extents[extent] for extent in declared.extents]
                pattern = shared_pattern(root._pattern, declared.format, shape)
                found.append(SparseTensor(pattern, parts[0], declared.fill))
            else:
                shape = [extents[extent] for extent in declared.extents]
                found.append(_parts_of(declared).together(iter(parts), shape))
        return found

    def split(self, flat: Sequence[Tensor]) -> list[list[Tensor]]:
        """The parts of each result."""
        left = iter(flat)
        found = []
        for name in self.program.outputs:
            declared = self.program.declaration(name)
            is_found = not declared.format.is_dense and declared.pattern_of not in self.program.inputs
            found.append([next(left) for _ in range(_parts_of(declared).count if is_found else 1)])
        return found


_kernels: dict[str, tuple[Traced, Any]] = {}


def is_traced(operands: Sequence[Tensor]) -> bool:
    """Whether a dispatch mode is active, or operands are fake or functional tensors."""
    if torch._C._len_torch_dispatch_stack():
        return True
    for operand in operands:
        if type(operand) in PLAIN:
            continue
        inner = operand._vals if isinstance(operand, SparseTensor) else operand
        if type(inner) not in PLAIN and isinstance(inner, FakeTensor | FunctionalTensor):
            return True
    return False


def call(kernel: Any, operands: Sequence[Tensor]) -> Any:
    """The results of a kernel in a traced graph; differentiable.

    Raises:
        DynamicOutputShapeException: a pattern that only the kernel can find, in a graph without such sizes.
    """
    whole = Traced(kernel.program, str(kernel.schedule or ""), (None,) * len(operands))
    split, tensors, extents = _apart(whole, operands, [], _is_seen)
    found = compute(_text(split, kernel), tensors, extents)
    if not any(isinstance(tensor, SparseTensor) for tensor in tensors):
        found = split.results(found, operands)
    return found[0] if len(found) == 1 else tuple(found)


def _is_seen(operand: SparseTensor) -> bool:
    """Whether a sparse operand can be passed to the operator whole.

    Tracing before autograd does not know sparse tensors that are not inputs of the graph.
    """
    if not _len_torch_dispatch_stack_pre_dispatch():
        return True
    mode = _get_dispatch_mode_pre_dispatch(torch._C._TorchDispatchModeKey.PROXY)
    return mode is not None and operand in mode.tracer.tensor_tracker


def _text(traced: Traced, kernel: Any) -> str:
    text = repr(traced)
    _kernels[text] = traced, kernel
    return text


def _known(text: str) -> tuple[Traced, Any]:
    """The parsed text and its kernel, created if the graph comes from another process."""
    found = _kernels.get(text)
    if found is None:
        from sparsify.compiler.kernel.kernel import compile_program  # kernels import this module

        traced: Traced = serialize.read(text, {**serialize.CLASSES, "Traced": Traced, "Parts": Parts})
        verify(traced.program)
        found = _kernels[text] = traced, compile_program(traced.program, traced.schedule or None)
    return found


def _apart(
    traced: Traced,
    given: Sequence[Tensor],
    extents: Sequence[Any],
    stays: Callable[[SparseTensor], bool] = lambda operand: False,
) -> tuple[Traced, list[Tensor], list[Any]]:
    """The kernel on parts of its sparse operands, the list of all parts, and the extents of the decomposed operands.

    Args:
        traced: kernel on the given tensors; operands already decomposed stay decomposed.
        given, extents: arguments of the operator.
        stays: predicate of sparse operands passed whole.
    """
    left, shapes = iter(given), iter(extents)
    parts: list[Parts | None] = []
    tensors: list[Tensor] = []
    found: list[Any] = []
    for before in traced.parts:
        operand = next(left)
        is_split = before is None and isinstance(operand, SparseTensor) and not stays(operand)
        if isinstance(operand, SparseTensor) and is_split:
            parts.append(Parts.of(operand))
            tensors += [operand.values(), *operand._pattern.arrays_in_place()]
            found += operand._pattern.shape
            continue
        parts.append(before)
        tensors += [operand, *islice(left, 0 if before is None else before.count - 1)]
        found += islice(shapes, 0 if before is None else before.format.rank)
    return replace(traced, parts=tuple(parts)), tensors, found


def take_apart(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The operator on sparse tensors, below autograd: the same operator on their parts."""
    text, given, extents = args
    traced, kernel = _known(text)
    with torch.no_grad():
        split, tensors, found = _apart(traced, given, extents)
        return split.results(func(_text(split, kernel), tensors, found), traced.operands(given, extents))


def run(text: str, tensors: list[Tensor], extents: list[int]) -> list[Tensor]:
    """The operator's computation: dense results, and the parts of sparse ones."""
    traced, kernel = _known(text)
    with torch.no_grad():
        operands = tuple(traced.operands([tensor.detach() for tensor in tensors], extents))
        values = kernel.run(operands)
    flat: list[Tensor] = []
    for name in traced.program.outputs:
        result = values[name]
        flat.append(result._vals if isinstance(result, SparseTensor) else result)
        declared = traced.program.declaration(name)
        if isinstance(result, SparseTensor) and _root(traced.program, declared, operands) is None:
            flat += result._pattern.arrays_in_place()
    return flat


def shapes_only(text: str, tensors: list[Tensor], extents: list[Any]) -> list[Tensor]:
    """The fake-tensor implementation of the operator."""
    traced, _ = _known(text)
    operands = traced.operands(tensors, extents)
    known = traced.extents(operands)
    flat: list[Tensor] = []
    for name in traced.program.outputs:
        declared = traced.program.declaration(name)
        dtype = getattr(torch, declared.dtype)
        shape = [known[extent] for extent in declared.extents]
        if declared.format.is_dense:
            flat.append(tensors[0].new_empty(shape, dtype=dtype))
        elif (root := _root(traced.program, declared, operands)) is not None:
            pattern = shared_pattern(root._pattern, declared.format, shape)
            flat.append(root._vals.new_empty([pattern.nnz], dtype=dtype))
        else:
            flat += _found_by_the_kernel(declared, shape, tensors[0])
    return flat


def _found_by_the_kernel(declared: Declaration, shape: Sequence[Any], like: Tensor) -> list[Tensor]:
    """The fake parts of a result whose numbers of entries depend on the run of the kernel."""
    arrays: list[Tensor] = []
    positions: Any = 1
    for stored, dtypes in zip(declared.format.levels, declared.index_dtypes, strict=True):
        pos, crd = (getattr(torch, name) if name else None for name in dtypes)
        if pos is not None:
            arrays.append(like.new_empty([positions + 1], dtype=pos))
        match stored.level:
            case Dense():
                positions = positions * stored.expression.extent(shape)
            case Compressed():
                positions = torch.library.get_ctx().new_dynamic_size()
        if crd is not None:
            arrays.append(like.new_empty([positions], dtype=crd))
    return [like.new_empty([positions], dtype=getattr(torch, declared.dtype)), *arrays]


def _root(program: Program, declared: Declaration, operands: Sequence[Tensor]) -> SparseTensor | None:
    """The operand whose pattern a result shares, `None` if the kernel computes the pattern."""
    if declared.pattern_of not in program.inputs:
        return None
    root = operands[program.inputs.index(declared.pattern_of)]
    assert isinstance(root, SparseTensor), "only sparse operands lend their pattern"
    return root


def _parts_of(declared: Declaration) -> Parts:
    """The layout of a result whose pattern the kernel computes."""
    levels = tuple((bool(pos), bool(crd)) for pos, crd in declared.index_dtypes)
    return Parts(declared.format, declared.fill, levels)


def remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    """Saves the tensors of the backward pass."""
    ctx.text, tensors, ctx.extents = inputs
    ctx.count = len(tensors)
    ctx.save_for_backward(*tensors, *output)


def backward(
    ctx: Any, gradients: Sequence[Tensor | None]
) -> tuple[None, list[Tensor | None], list[None] | None]:
    """The gradients of all tensors, by the kernel of the adjoint program, which is the same operator."""
    traced, kernel = _known(ctx.text)
    program, places = traced.program, traced.places()
    saved = ctx.saved_tensors
    tensors, results = list(saved[: ctx.count]), list(saved[ctx.count :])
    operands = traced.operands(tensors, ctx.extents)
    if not any(isinstance(tensor, SparseTensor) for tensor in tensors):
        counts = [len(parts) for parts in traced.split(results)]
        results = traced.results(results, operands)
        gradients = _of_results(gradients, results, counts)
    wrt = tuple(n for n, place in zip(program.inputs, places, strict=True) if tensors[place].requires_grad)
    values = dict(zip((*program.inputs, *program.outputs), (*operands, *results), strict=True))
    found = pull_back(kernel, values, gradients, wrt)
    made: list[Tensor | None] = [None] * ctx.count
    for name, place, parts in zip(program.inputs, places, traced.parts, strict=True):
        if name in found:
            made[place] = found[name] if parts is None else found[name].values()
    # An empty list has no leaves in its tree structure and takes no gradient.
    return None, made, None if ctx.extents else []


def _of_results(
    flat: Sequence[Tensor | None], results: Sequence[Tensor], counts: Sequence[int]
) -> list[Tensor | None]:
    """The gradient of each result; a sparse gradient is built from the gradient of the values."""
    firsts = [flat[sum(counts[:number])] for number in range(len(counts))]
    return [
        SparseTensor(result._pattern, gradient)
        if isinstance(result, SparseTensor) and gradient is not None
        else gradient
        for result, gradient in zip(results, firsts, strict=True)
    ]


SCHEMA: Final = "compute(str program, Tensor[] tensors, SymInt[] extents) -> Tensor[]"
_library = register(Operator(SCHEMA, run, shapes_only, remember, backward))
compute: Final = torch.ops.sparsify.compute.default
dispatch.HANDLERS[torch.ops.sparsify.compute] = take_apart
parametrized.install()
