"""Chains of torch's convolutions with their following operators, in the form fastest in torch.

In:  `%c = conv2d(%x, %w, None, [2, 2], [3, 3]); %n = batch_norm(%c, ...); %r = relu(%n); %m = max_pool2d(%r, [3, 3])`.
Out: the same graph; without gradients, one function runs all four nodes: a convolution with the normalisation folded
into its weights, in channels-last layout if faster, and the other operators in place.

Where images or a weight arrive in channels-last layout, the unchanged nodes run: their results are channels-last, too.
Each chain is timed unchanged and in both forms; without a tuning budget it stays unchanged. Traces see the unchanged
graph.
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
# Maximum number of memoized folded weights, for copies of a model.
PACKED: Final = 2


@dataclass
class Chain:
    """A convolution and the following operators fused with it.

    Attributes:
        node: the convolution.
        covered: nodes of the chain in order.
        norm: the normalisation.
        added: summand of the result.
        activation: activation of the result, "" for none.
    """

    node: fx.Node
    covered: list[fx.Node] = field(default_factory=list)
    norm: fx.Node | None = None
    added: fx.Node | None = None
    activation: str = ""

    @property
    def learned(self) -> tuple[Any, ...]:
        """Running mean and variance of the normalisation, its weight and its bias; empty without a normalisation."""
        return () if self.norm is None else (*self.norm.args[3:5], *self.norm.args[1:3])

    @property
    def last(self) -> fx.Node:
        """The result node of the chain."""
        return self.covered[-1]


class Folded:
    """A convolution fused with its following operators.

    Args:
        chain: nodes of the chain.
        form: name of the image layout.
        has_pool: whether to fuse a following max pooling, if the only reader.
        entry: report entry that counts the conversions of weights.

    Attributes:
        inputs: input nodes: images, the summand, and parameters.
        covered: fused nodes.
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
        at = {read: position for position, read in enumerate(self.inputs)}
        self.leaves = tuple([at.get(n) for n in parameters])
        self.added = None if chain.added is None else at[chain.added]
        self.image = at[node.args[0]]  # type: ignore[index]
        ways = (("stride", 1), ("padding", 0), ("dilation", 1), ("groups", 1))
        self.how = tuple([argument(node, position, *way) for position, way in enumerate(ways, 3)])
        self.eps = 0.0 if chain.norm is None else float(argument(chain.norm, 7, "eps"))
        self.activation, self.layout = chain.activation, FORMS[form]
        self.pool = None if pool is None else extract(node.graph, [chain.last], [pool]).forward
        self.plain = extract(node.graph, self.inputs, [self.covered[-1]]).forward
        self.remember(entry or entry_of(chain, form))
        self.__name__ = f"folded_{node.name}"

    def remember(self, entry: ConversionEntry) -> None:
        """Sets up the memo of converted weights."""
        self.structure = Structure(self.pack, (0, 1), entry, most=PACKED)

    def __call__(self, *arguments: Tensor) -> Tensor:
        """The result; by the unchanged nodes under autograd, transforms or modes."""
        if is_free(arguments):
            return self.computed(arguments)
        result: Tensor = self.plain(*arguments)[0]
        return result

    def computed(self, arguments: Sequence[Tensor]) -> Tensor:
        """The result in the chosen form, in torch's default memory layout."""
        weight, bias = self.structure(tuple([None if at is None else arguments[at] for at in self.leaves]))
        result = conv2d(arguments[self.image], weight, bias, *self.how)
        if self.added is not None:
            target = recycled(tuple(result.shape), result)
            result = torch.add(result, arguments[self.added], out=target)
        if self.activation:
            result = result.relu_()
        if self.pool is not None:
            result = self.pool(result)[0]
        return result if result.is_contiguous() else recycled(tuple(result.shape), result).copy_(result)

    def pack(self, weight: Tensor, bias: Tensor | None, *norm: Any) -> list[Any]:
        """The weight and bias with the normalisation folded in, the weight in the layout of images."""
        if norm:
            mean, variance, scale, shift = norm
            weight, bias = fuse_conv_bn_weights(weight, bias, mean, variance, self.eps, scale, shift)
        weight = weight.detach().contiguous(memory_format=self.layout)
        return [weight, None if bias is None else bias.detach()]


def fold(draft: Draft) -> Draft:
    """The draft with the fastest form recorded for each chain of torch's convolutions.

    With `memory: compact` all stay unchanged: other forms copy weights.
    """
    if draft.options.tune_seconds == 0 or draft.is_trainable or draft.recipe.compile.memory == "compact":
        return draft
    for chain in chains(draft.graph):
        timing = autotune(
            "convolution",
            question(chain),
            partial(candidates, draft, chain),
            sizes=Sizes({}, {}),
            options=draft.options,
            seconds=draft.options.tune_seconds,
        )
        line = described(chain, timing)
        draft.report.chains.append(line)
        if timing.name:
            entry = entry_of(chain, timing.name)
            entry.bytes_after = line.bytes_beside = copied_bytes(draft, chain, timing.name)
            set_info(chain.node, form=Chosen(timing.name, entry))
            draft.report.conversions.append(entry)
    return draft


def entry_of(chain: Chain, form: str) -> ConversionEntry:
    """The report's line about weights in a form."""
    return ConversionEntry("W, b", chain.node.name, f"by {form}")


def described(chain: Chain, timing: Winner) -> ChainEntry:
    """The report's line about a chain."""
    covered = ", ".join(operator_name(node) for node in Folded(chain, "rows").covered)
    times = {AS_IT_IS if name == AS_IT_IS else f"by {name}": us for name, us in timing.times}
    form = f"by {timing.name}" if timing.name else AS_IT_IS
    return ChainEntry(chain.node.name, scope(chain.node), covered, form, times, timing.is_agreed)


def copied_bytes(draft: Draft, chain: Chain, form: str) -> int:
    """The bytes of a weight and bias in a form, 0 if shared with the model."""
    weight = draft.known_tensor(parameters_of(chain)[0])
    assert weight is not None, "weights of chains are parameters"
    if chain.norm is None:
        return 0 if weight.is_contiguous(memory_format=FORMS[form]) else weight.nbytes
    return weight.nbytes + len(weight) * weight.itemsize


def folded(graph: fx.Graph) -> list[Folded]:
    """The chains of a graph with a faster form."""
    forms = [(chain, info(chain.node).form) for chain in chains(graph)]
    return [Folded(at, how.form, entry=how.entry) for at, how in forms if how]


def chains(graph: fx.Graph) -> list[Chain]:
    """The convolutions of images with their following operators, in order; the chains are disjoint."""
    taken: set[fx.Node] = set()
    written = overwritten(graph)
    result = []
    for node in graph.nodes:
        if (chain := chain_at(node, taken, written)) is not None:
            result.append(chain)
            taken.update(chain.covered)
    return result


def chain_at(
    node: fx.Node, taken: Collection[fx.Node], written: Collection[fx.Node], can_add: bool = True
) -> Chain | None:
    """The chain of a convolution of images, `None` if an in-place write may change its operands in between.

    Args:
        taken: nodes of other chains.
        written: nodes that may alias memory overwritten by an operator.
        can_add: whether a summand may be fused.
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
    """The convolution with the operators after it, each the only reader of its predecessor.

    Args:
        taken: nodes of other regions.
        can_add: whether a summand may be fused.
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
    """Whether a normalisation uses learned statistics, in the dtype of its operand."""
    parts = [tensor_value(part) for part in norm.args[1:5]]
    value = tensor_value(norm)
    assert value is not None, "normalisations give tensors"
    has_statistics = parts[2] is not None and parts[3] is not None
    same = all(part is None or part.dtype == value.dtype for part in parts)
    return not argument(norm, 5, "training", True) and has_statistics and same


def summand(add: fx.Node, one: fx.Node) -> fx.Node | None:
    """The other summand, a tensor of the same shape; `None` for other operators, and for `one` added twice."""
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
    """The only reader of a chain, if a max pooling."""
    readers = list(chain.last.users)
    is_pool = len(readers) == 1 and operator_name(readers[0]) == POOLING
    return readers[0] if is_pool and readers[0].all_input_nodes == [chain.last] else None


def question(chain: Chain) -> str:
    """The cache key of a benchmark: operators with their constants, and the shapes of their inputs."""
    nodes = Folded(chain, "rows")
    shapes = [extents(node) for node in nodes.inputs]
    calls = [(str(n.target), [a for a in n.args if not isinstance(a, fx.Node)]) for n in nodes.covered]
    return f"fastest form of {calls} of {shapes}"


def candidates(draft: Draft, chain: Chain) -> list[Candidate]:
    """The unchanged nodes, and the chain in all forms."""
    forms = {name: Folded(chain, name) for name in FORMS}
    first = next(iter(forms.values()))
    arguments = [example(draft, node) for node in first.inputs]
    folded_candidates = [Candidate(name, partial(form.computed, arguments)) for name, form in forms.items()]
    return [Candidate(AS_IT_IS, partial(first.plain, *arguments)), *folded_candidates]


def is_free(arguments: Sequence[Tensor]) -> bool:
    """Whether a fused call is unobserved: no autograd or modes, and plain non-empty row-major tensors."""
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
    """Whether images or a weight have row-major layout, also where extents of 1 leave strides ambiguous.

    For other layouts torch's convolution returns channels-last results, on which later operators may rely.
    """
    return images.is_contiguous() and images.stride(3) < images.stride(1) * images.shape[1]


def is_expected_by_rows(node: fx.Node) -> bool:
    """Whether a node is row-major in the example, or no 4-mode tensor."""
    value = tensor_value(node)
    if value is None or value.dim() != 4:
        return True
    numbers = [known_size(n, UNKNOWN_ROWS) or UNKNOWN_ROWS for n in (*value.shape, *value.stride())]
    return is_by_rows(torch.empty_strided(numbers[:4], numbers[4:], device="meta"))
