"""Convolutions that stay torch's, with what follows them: in the form that torch computes fastest.

In:  `%c = conv2d(%x, %w, None, [2, 2], [3, 3]); %n = batch_norm(%c, ...); %r = relu(%n); %m = max_pool2d(%r, [3, 3])`.
Out: the same graph; where it runs without gradients, one function for all four nodes: a convolution whose weights have
     the normalisation in them, over pixels whose channels are neighbours if that is faster, and the rest in its memory.

Where images or a weight come with channels as neighbours the nodes run as they are: results then lie so, too.
Each chain is timed as it is and in both forms; without seconds for that it stays as it is. Traces see the graph.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.nn.functional import conv2d
from torch.nn.utils.fusion import fuse_conv_bn_weights

from sparsify.compiler.schedule.sizes import Sizes
from sparsify.passes.call.bind import extract
from sparsify.passes.call.tracing import is_unseen
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.autotune import Candidate, Winner, autotune
from sparsify.passes.choose.estimate import UNKNOWN_ROWS, example
from sparsify.passes.choose.price import extents
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import (
    argument,
    known_size,
    operator_name,
    overwritten,
    scope,
    tensor_value,
)
from sparsify.passes.operands.cached_operands import Structure
from sparsify.passes.operands.convolution_operands import Chosen
from sparsify.passes.operands.sliding_window import recycled
from sparsify.report import ChainEntry, ConversionEntry
from sparsify.storage.own_memory import PLAIN

FORMS: Final = {"rows": torch.contiguous_format, "channels": torch.channels_last}
AS_IT_IS: Final = "as it is"
POOLING: Final = "max_pool2d"
# Weights that have a normalisation in them, for so many copies of a model.
PACKED: Final = 2


@dataclass
class Chain:
    """A convolution and the operators behind it that torch computes with it.

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


class Folded:
    """A convolution with what follows it.

    Args:
        chain: its nodes.
        form: the name of the layout of images.
        has_pool: whether it computes the largest of neighbours, too, where nothing else reads the rest.
        entry: where it is reported how often weights are laid out.

    Attributes:
        inputs: the nodes that it reads: images, what is added, and parameters.
        covered: the nodes that it computes.
    """

    def __init__(
        self,
        chain: Chain,
        form: str,
        has_pool: bool = True,
        entry: ConversionEntry | None = None,
    ) -> None:
        node = chain.node
        pool = pool_behind(chain) if has_pool else None
        self.covered = [*chain.covered, *([] if pool is None else [pool])]
        added = [] if chain.added is None else [chain.added]
        parameters = parameters_of(chain)
        self.inputs = list(
            dict.fromkeys(n for n in (node.args[0], *added, *parameters) if isinstance(n, fx.Node))
        )
        at = {read: place for place, read in enumerate(self.inputs)}
        self.leaves = tuple([at.get(n) for n in parameters])
        self.added = None if chain.added is None else at[chain.added]
        self.image = at[node.args[0]]  # type: ignore[index]
        ways = (("stride", 1), ("padding", 0), ("dilation", 1), ("groups", 1))
        self.how = tuple([argument(node, place, *way) for place, way in enumerate(ways, 3)])
        self.eps = 0.0 if chain.norm is None else float(argument(chain.norm, 7, "eps"))
        self.activation, self.layout = chain.activation, FORMS[form]
        self.pool = None if pool is None else extract(node.graph, [chain.last], [pool]).forward
        self.plain = extract(node.graph, self.inputs, [self.covered[-1]]).forward
        self.remember(entry or entry_of(chain, form))
        self.__name__ = f"folded_{node.name}"

    def remember(self, entry: ConversionEntry) -> None:
        """Begins to remember weights in this form."""
        self.structure = Structure(self.pack, (0, 1), entry, most=PACKED)

    def __call__(self, *arguments: Tensor) -> Tensor:
        """The result; by the nodes as they are where gradients or anything else follow them."""
        if is_free(arguments):
            return self.computed(arguments)
        found: Tensor = self.plain(*arguments)[0]
        return found

    def computed(self, arguments: Sequence[Tensor]) -> Tensor:
        """The result in this form, in memory as torch has it."""
        weight, bias = self.structure(tuple([None if at is None else arguments[at] for at in self.leaves]))
        found = conv2d(arguments[self.image], weight, bias, *self.how)
        if self.added is not None:
            made = recycled(tuple(found.shape), found)
            found = torch.add(found, arguments[self.added], out=made)
        if self.activation:
            found = found.relu_()
        if self.pool is not None:
            found = self.pool(found)[0]
        return found if found.is_contiguous() else recycled(tuple(found.shape), found).copy_(found)

    def pack(self, weight: Tensor, bias: Tensor | None, *norm: Any) -> list[Any]:
        """The weight and bias with the normalisation in them, the weight laid out as images are."""
        if norm:
            mean, variance, scale, shift = norm
            weight, bias = fuse_conv_bn_weights(weight, bias, mean, variance, self.eps, scale, shift)
        weight = weight.detach().contiguous(memory_format=self.layout)
        return [weight, None if bias is None else bias.detach()]


def fold(draft: Draft) -> Draft:
    """The draft whose convolutions of torch know the fastest form of their chains.

    With `memory: compact` all stay as they are: other forms have copies of weights.
    """
    if draft.options.tune_seconds == 0 or draft.is_trainable or draft.recipe.compile.memory == "compact":
        return draft
    for chain in chains(draft.graph):
        found = autotune(
            "convolution",
            asked(chain),
            partial(candidates, draft, chain),
            sizes=Sizes({}, {}),
            options=draft.options,
            seconds=draft.options.tune_seconds,
        )
        line = described(chain, found)
        draft.report.chains.append(line)
        if found.name:
            entry = entry_of(chain, found.name)
            entry.bytes_after = line.bytes_beside = copied_bytes(draft, chain, found.name)
            set_info(chain.node, form=Chosen(found.name, entry))
            draft.report.conversions.append(entry)
    return draft


def entry_of(chain: Chain, form: str) -> ConversionEntry:
    """The report's line about weights in a form."""
    return ConversionEntry("W, b", chain.node.name, f"by {form}")


def described(chain: Chain, found: Winner) -> ChainEntry:
    """The report's line about a chain."""
    covered = ", ".join(operator_name(node) for node in Folded(chain, "rows").covered)
    times = {AS_IT_IS if name == AS_IT_IS else f"by {name}": us for name, us in found.times}
    form = f"by {found.name}" if found.name else AS_IT_IS
    return ChainEntry(chain.node.name, scope(chain.node), covered, form, times, found.is_agreed)


def copied_bytes(draft: Draft, chain: Chain, form: str) -> int:
    """The bytes of a weight and bias in a form, 0 where they are the model's own."""
    weight = draft.known_tensor(parameters_of(chain)[0])
    assert weight is not None, "weights of chains are parameters"
    if chain.norm is None:
        return 0 if weight.is_contiguous(memory_format=FORMS[form]) else weight.nbytes
    return weight.nbytes + len(weight) * weight.itemsize


def folded(graph: fx.Graph) -> list[Folded]:
    """The chains of a graph that are faster in another form."""
    known = [(chain, info(chain.node).form) for chain in chains(graph)]
    return [Folded(at, how.form, entry=how.entry) for at, how in known if how]


def chains(graph: fx.Graph) -> list[Chain]:
    """The convolutions of images with what follows them, in order; each node is in one of them."""
    taken: set[fx.Node] = set()
    written = overwritten(graph)
    found = []
    for node in graph.nodes:
        if (chain := chain_at(node, taken, written)) is not None:
            found.append(chain)
            taken.update(chain.covered)
    return found


def chain_at(
    node: fx.Node, taken: Collection[fx.Node], written: Collection[fx.Node], can_add: bool = True
) -> Chain | None:
    """The chain of a convolution of images, `None` where its parameters or its images may change in between.

    Args:
        taken: nodes that belong to other chains.
        written: nodes that may be in memory that an operator writes into.
        can_add: whether something may be added to the result.
    """
    if operator_name(node) != "conv2d":
        return None
    chain = chain_of(node, taken, can_add)
    parameters = [n for n in parameters_of(chain) if isinstance(n, fx.Node)]
    read = [node.args[0], *parameters, *([] if chain.added is None else [chain.added])]
    values = [tensor_value(n) for n in (*read, node)]
    if any(value is None or value.dtype != torch.float32 for value in values):
        return None
    if any(n.op != "get_attr" for n in parameters) or any(n in written for n in read):
        return None
    if not all(isinstance(n, fx.Node) and is_expected_by_rows(n) for n in (*read, node)):
        return None
    return chain if values[0].dim() == values[-1].dim() == 4 else None  # type: ignore[union-attr]


def chain_of(node: fx.Node, taken: Collection[fx.Node], can_add: bool) -> Chain:
    """The convolution with the operators behind it, each the only reader of the one before.

    Args:
        taken: nodes that belong to other regions.
        can_add: whether something may be added to the result there.
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
    """The summand beside `one`, a tensor of the same shape; `None` for others, or more than once."""
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


def parameters_of(chain: Chain) -> list[Any]:
    """The weight and bias of a convolution, and the statistics, scale and shift of its normalisation."""
    return [argument(chain.node, 1, "weight"), argument(chain.node, 2, "bias"), *chain.learned]


def pool_behind(chain: Chain) -> fx.Node | None:
    """The only reader of a chain where that takes the largest of neighbours."""
    readers = list(chain.last.users)
    is_pool = len(readers) == 1 and operator_name(readers[0]) == POOLING
    return readers[0] if is_pool and readers[0].all_input_nodes == [chain.last] else None


def asked(chain: Chain) -> str:
    """The key of a contest: the operators with their numbers, and the shapes that they read."""
    nodes = Folded(chain, "rows")
    shapes = [extents(node) for node in nodes.inputs]
    calls = [(str(n.target), [a for a in n.args if not isinstance(a, fx.Node)]) for n in nodes.covered]
    return f"fastest form of {calls} of {shapes}"


def candidates(draft: Draft, chain: Chain) -> list[Candidate]:
    """The nodes as they are, and the chain in all forms."""
    forms = {name: Folded(chain, name) for name in FORMS}
    first = next(iter(forms.values()))
    arguments = [example(draft, node) for node in first.inputs]
    made = [Candidate(name, partial(form.computed, arguments)) for name, form in forms.items()]
    return [Candidate(AS_IT_IS, partial(first.plain, *arguments)), *made]


def is_free(arguments: Sequence[Tensor]) -> bool:
    """Whether only the result of a call matters: nothing follows its tensors, plain ones with entries, by rows."""
    if torch.is_grad_enabled() and any(value.requires_grad for value in arguments):
        return False
    if torch.is_autocast_enabled("cpu") or not is_unseen():
        return False
    return all(
        type(v) in PLAIN
        and v.is_cpu
        and v.dtype is torch.float32
        and v.numel() > 0
        and (v.dim() != 4 or is_by_rows(v))
        for v in arguments
    )


def is_by_rows(images: Tensor) -> bool:
    """Whether images or a weight lie pixel by pixel, also where extents of 1 leave that to the strides.

    Of others torch's convolution gives channels as neighbours, on which what follows may rely.
    """
    return images.is_contiguous() and images.stride(3) < images.stride(1) * images.shape[1]


def is_expected_by_rows(node: fx.Node) -> bool:
    """Whether a node gives images or a weight that lie so in the example, or anything else."""
    value = tensor_value(node)
    if value is None or value.dim() != 4:
        return True
    numbers = [known_size(n, UNKNOWN_ROWS) or UNKNOWN_ROWS for n in (*value.shape, *value.stride())]
    return is_by_rows(torch.empty_strided(numbers[:4], numbers[4:], device="meta"))
