"""Convolutions with pruned weights, with what follows them: a normalisation in evaluation, a sum, relu.

In:  `%c = conv2d(%x, %w, %b, [2, 2], [1, 1]); %n = batch_norm(%c, ...); %r = relu(%n)`.
Out: a region over the packed weight and flat images: `Y[n,o,p] = relu(s[o] * sum(k, W[o,k] * F[n,k+p]) + b[o])`.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, fx

from sparsify.compiler.dtypes import name_of
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.nodes import Const, Program
from sparsify.compiler.einsum.parse import parse
from sparsify.compiler.kernel import result_index_dtypes
from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import argument, known_size, operator_name, tensor_value
from sparsify.passes.operands.convolution_operands import FlatImages, Places, texts
from sparsify.passes.operands.sliding_window import CSR, Grid, Window, packed_bytes, packed_format
from sparsify.passes.region.region import Region
from sparsify.passes.region.sparse_operand import SCALES, Matrix, scales_of
from sparsify.recipe.schema import Compile
from sparsify.report import Choice
from sparsify.sparsification.rounding import rounded, scale_dtype
from sparsify.storage.format import Format

DTYPES: Final = {torch.float32: "float32", torch.float64: "float64"}
# The modes of an image, by operator.
MODES: Final = {"conv1d": 1, "conv2d": 2, "conv3d": 3}


@dataclass
class Chain:
    """A convolution and the operators behind it that its kernel computes too.

    Attributes:
        node: the convolution.
        covered: its nodes in order.
        norm: the normalisation.
        added: what is added to the result.
        activation: what is applied to it, "" for nothing.
    """

    node: fx.Node
    covered: list[fx.Node] = field(default_factory=list)
    norm: fx.Node | None = None
    added: fx.Node | None = None
    activation: str = ""

    @property
    def learned(self) -> tuple[Any, ...]:
        """The running mean and variance of the normalisation, its weight and its bias; nothing without one."""
        return () if self.norm is None else (*self.norm.args[3:5], *self.norm.args[1:3])

    @property
    def last(self) -> fx.Node:
        """The node whose value is the result."""
        return self.covered[-1]


def mark_of(node: fx.Node) -> Mark | None:
    """The mark of a convolution's weight, `None` for other nodes and for weights that no rule reached."""
    if operator_name(node) not in MODES:
        return None
    weight: Any = argument(node, 1, "weight")
    mark = info(weight).mark
    return mark if weight.op == "get_attr" and isinstance(mark, Mark) else None


def windows_of(node: fx.Node) -> tuple[Window, ...] | None:
    """The windows of a convolution, a mode each; `None` where there is more padding behind images than before."""
    rank, weight = MODES[operator_name(node)], tensor_value(argument(node, 1, "weight"))
    assert weight is not None, "weights are tensors"
    sizes = [int(size) for size in weight.shape[2:]]
    strides, dilations = (
        every_mode(argument(node, place, name, 1), rank) for place, name in ((3, "stride"), (5, "dilation"))
    )
    padding: Any = argument(node, 4, "padding", 0)
    if padding == "same":
        whole = [dilation * (size - 1) for dilation, size in zip(dilations, sizes, strict=True)]
        if any(count % 2 for count in whole):
            return None
        padding = [count // 2 for count in whole]
    paddings = every_mode(0 if padding == "valid" else padding, rank)
    return tuple(Window(*numbers) for numbers in zip(sizes, strides, paddings, dilations, strict=True))


def every_mode(numbers: Any, rank: int) -> list[int]:
    """A number for each mode of an image, where one may stand for all."""
    listed = [numbers] if isinstance(numbers, int) else list(numbers)
    return listed * rank if len(listed) == 1 else listed


def reason_against(node: fx.Node, mark: Mark) -> str:
    """Why a convolution has no program, "" when it has one."""
    image, value = tensor_value(node.args[0]), tensor_value(node)
    weight = tensor_value(argument(node, 1, "weight"))
    if image is None or value is None or weight is None:
        return "its operands are not all tensors"
    if argument(node, 6, "groups", 1) != 1:
        return "its channels are in groups: a result reads too few entries for zeros among them to be worth a list"
    if value.dtype not in DTYPES or weight.dtype != value.dtype or image.dtype != value.dtype:
        return f"convolutions in {value.dtype} are not supported yet"
    if mark.format not in ("auto", str(CSR), "csr"):
        return f"its kernels read CSR alone, not {mark.format}"
    if windows_of(node) is None:
        return "padding='same' of an even kernel, more behind images than before, is not supported; pad them before"
    return ""


def chain_of(node: fx.Node, taken: Collection[fx.Node], can_add: bool) -> Chain:
    """The convolution with the operators behind it, each the only reader of the one before.

    Args:
        taken: nodes that belong to other regions.
        can_add: whether something may be added to the result where the kernel has it.
    """
    chain = Chain(node, [node])
    while len(chain.last.users) == 1 and not chain.activation:
        reader = next(iter(chain.last.users))
        if reader in taken or not same_value(reader, node):
            break
        name = operator_name(reader)
        if name == "batch_norm" and is_fixed(reader) and len(chain.covered) == 1:
            chain.norm = reader
        elif name == "add" and can_add and chain.added is None and (other := summand(reader, chain.last)):
            chain.added = other
        elif name == "relu":
            chain.activation = "relu"
        else:
            break
        chain.covered.append(reader)
    return chain


def is_fixed(norm: fx.Node) -> bool:
    """Whether a normalisation is by what was learned, in the dtype of what it normalises."""
    parts = [tensor_value(part) for part in norm.args[1:5]]
    value = tensor_value(norm)
    assert value is not None, "normalisations give tensors"
    has_statistics = parts[2] is not None and parts[3] is not None
    same = all(part is None or part.dtype == value.dtype for part in parts)
    return not argument(norm, 5, "training", True) and has_statistics and same


def summand(add: fx.Node, one: fx.Node) -> fx.Node | None:
    """What is added to `one`, a tensor of the same shape; `None` for others, or more than once."""
    others = [arg for arg in add.args[:2] if arg is not one]
    if len(others) != 1 or argument(add, 2, "alpha", 1) != 1 or not isinstance(others[0], fx.Node):
        return None
    return others[0] if same_value(others[0], one) else None


def same_value(one: fx.Node, other: fx.Node) -> bool:
    """Whether two nodes have values of the same shape, symbols included, and dtype."""
    first, second = tensor_value(one), tensor_value(other)
    if first is None or second is None or first.dtype != second.dtype:
        return False
    return [str(extent) for extent in first.shape] == [str(extent) for extent in second.shape]


def convolution(draft: Draft, node: fx.Node, mark: Mark, taken: Collection[fx.Node]) -> Region | str:
    """The region of a convolution and what follows it, or why there is none."""
    why = reason_against(node, mark)
    if why:
        return why
    if draft.is_trainable:
        return "in training it is torch's, whose gradients for the weight are those of its entries that are not 0"
    weight = draft.known_tensor(argument(node, 1, "weight"))
    rank = MODES[operator_name(node)]
    extents = [known_size(extent) for extent in node.args[0].meta["val"].shape[-rank:]]  # type: ignore[union-attr]
    if weight is None or None in extents:
        return "the extents of its images, or its weight, are not known"
    if mark.dtype != "same" and not is_rounded(draft, node, weight, mark.dtype):
        return f"its weight is not rounded to {mark.dtype}: those of modules for convolutions are"
    windows = windows_of(node)
    assert windows is not None, "others have no program"
    grid = Grid(windows, tuple(extents))  # type: ignore[arg-type]
    found = packed(weight, grid, mark.dtype, draft.recipe.compile.memory == "compact")
    if not found.is_smaller:
        return Choice(
            f"{found.share:.0%} of its weight are stored: they and their coordinates take more memory than all"
        )
    return convolution_region(node, mark, grid, found, taken, draft.recipe.compile)


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight as it would be held.

    Attributes:
        share: of its entries that are stored.
        bytes: that it takes with what lies beside it.
        dense_bytes: that it takes as it is.
        keeps_places: whether the places of its entries in images are listed once, and not in each call.
    """

    share: float
    bytes: int
    dense_bytes: int
    keeps_places: bool

    @property
    def is_smaller(self) -> bool:
        """Whether it takes less memory than the weight as it is."""
        return self.bytes < self.dense_bytes


def packed(weight: Tensor, grid: Grid, dtype: str, is_compact: bool) -> Packed:
    """How a weight would be held, places listed once where that is smaller than the dense weight.

    Args:
        dtype: of its values, "same" for their own.
        is_compact: whether places are never kept.
    """
    stored = int(torch.count_nonzero(weight))
    value_bytes = weight.itemsize if dtype == "same" else getattr(torch, dtype).itemsize
    scales = len(weight) * scale_dtype(weight.dtype).itemsize if dtype == "int8" else 0
    held = packed_bytes(weight.shape, stored, value_bytes) + scales
    with_places = held + grid.bytes_of_places(stored, len(weight), value_bytes)
    share = stored / max(1, weight.numel())
    if not is_compact and with_places < weight.nbytes:
        return Packed(share, with_places, weight.nbytes, True)
    return Packed(share, held, weight.nbytes, False)


def is_rounded(draft: Draft, node: fx.Node, weight: Tensor, dtype: str) -> bool:
    """Whether a weight is what values of a dtype hold, with its scales beside it."""
    if dtype == "int8":
        owner, _, name = str(argument(node, 1, "weight").target).rpartition(".")
        if not hasattr(draft.model.get_submodule(owner), f"{name}{SCALES}"):
            return False
    return torch.equal(rounded(weight, dtype), weight)


def convolution_region(
    node: fx.Node, mark: Mark, grid: Grid, found: Packed, taken: Collection[fx.Node], asked: Compile
) -> Region:
    """The region of a convolution that has a program.

    Args:
        grid: of the example's images.
        found: how the weight will be held.
        taken: nodes that belong to other regions.
        asked: what memory and which libraries the recipe allows.
    """
    chain = chain_of(node, taken, grid.is_whole)
    x, weight, bias = (argument(node, place, name) for place, name in enumerate(("input", "weight", "bias")))
    read = list(
        dict.fromkeys(n for n in (x, weight, bias, *chain.learned, chain.added) if isinstance(n, fx.Node))
    )

    def at(operand: Any) -> int | None:
        return read.index(operand) if isinstance(operand, fx.Node) else None

    image, whole, value = tensor_value(x), tensor_value(weight), tensor_value(node)
    assert image is not None and whole is not None and value is not None, "convolutions are of tensors"
    scales = scales_of(weight, whole) if mark.dtype == "int8" else None
    places = Places(
        0, 1, at(bias), tuple(map(at, chain.learned)), at(chain.added), None if scales is None else len(read)
    )
    eps = 0.0 if chain.norm is None else float(argument(chain.norm, 7, "eps"))
    is_single = image.dim() < whole.dim()
    layout = FlatImages(grid.windows, places, grid.extents, eps, found.keeps_places, is_single)
    stored = value.dtype if mark.dtype == "same" else getattr(torch, mark.dtype)
    program = program_of(layout, chain.activation, DTYPES[value.dtype], name_of(stored))
    names = {x.name: "F", weight.name: "W"} | {n.name: n.name for n in read[2:]} | {chain.last.name: "Y"}
    form = packed_format(whole.shape)
    operands: dict[str, Any] = {n.name: n for n in read}
    operands[weight.name] = Matrix(
        weight.name, None, None, None, None, weight, False, stored, mark, packed=form, scales=scales
    )
    if scales is not None:
        operands[scales.name], names[scales.name] = scales, scales.name
    notes = ["convolution" if chain.norm is None else "convolution, its normalisation in s and b"]
    sizes = f"{found.share:.1%} stored, {found.bytes / 1024:.1f} KiB of {found.dense_bytes / 1024:.1f}"
    how = "" if found.keeps_places else ", places in images listed in each call"
    notes.append(f"{weight.target} packed: {sizes}{how}")
    is_contested = asked.memory != "compact" and asked.allows("torch")
    statement = (chain.last, ("n", "o", "p"), Const(0))
    return Region(
        [statement], operands, chain.covered, notes, program, names, is_contested=is_contested, layout=layout
    )


def program_of(layout: FlatImages, activation: str, dtype: str, stored: str) -> Program:
    """The program of a convolution.

    Args:
        dtype: of images and results.
        stored: of the values of the weight.
    """
    text, ranks = texts(layout.places, activation)
    declared = {name: Operand(Format("dense", rank=rank), dtype) for name, rank in ranks.items()}
    declared["W"] = Operand(CSR, stored, 0.0, result_index_dtypes(CSR))
    ordered: dict[str, Operand] = {
        name: declared[name] for name in ("F", "W", "s", "b", "Z") if name in declared
    }
    return declare(parse(text), ordered, ("Y",), sizes={"p": layout.example.count})
