"""Tokens that are sent to slots of experts and weighted back, as GShard writes a mixture with a capacity.

In:  `%d = einsum("gsec,gsm->egcm", %dispatch, %x)`, rows of experts for `%d`, and
     `%y = einsum("gsec,egcm->gsm", %combine, %rows)`.
Out: a gate `%t = einsum("gsec->gse", %combine)` as [tokens, experts], and where it chooses,
     `%u = tokens_of_slots(%combine, %dispatch, ..)`.

A slot holds one token or none: what an expert computes for a slot it computes for a token, and slots need not exist.
That they hold no sums of tokens is what the values say, so each call looks.

Source: GShard, Lepikhin et al., 2021, section 2.2.
"""

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, fx

from sparsify.errors import SparsifyError
from sparsify.passes.graph.einsum_nodes import Einsum, einsum_of
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import tensor_value
from sparsify.passes.lift.experts.gate import is_choice, places

SLOT, EXPERT, CHANNEL = "c", "e", "o"
# The modes of what has a row for each token, without groups.
ROWS: Final = 2


@dataclass(frozen=True)
class Combine:
    """A weighted sum over slots.

    Attributes:
        weights: of slots, `%combine`.
        order: the modes of the weights as [groups.., tokens, experts, slots].
        groups: how many modes say the group of a token.
        modes: of what experts give, by their names in expressions: "e", "c" and "o", and "g0" .. for groups.
    """

    weights: fx.Node
    order: tuple[int, ...]
    groups: int
    modes: tuple[str, ...]

    @property
    def entry(self) -> frozenset[str]:
        """The modes that tell slots apart."""
        return frozenset(self.modes) - {CHANNEL}


def combine_of(node: fx.Node) -> tuple[Combine, fx.Node] | None:
    """The sum over slots that a node is, and what experts give for these; `None` for other nodes."""
    found = einsum_of(node)
    if found is None or len(found.operands) != 2:
        return None
    for (weights, at), (results, letters) in (found.operands, found.operands[::-1]):
        inner = einsum_of(results)
        if inner is None or len(inner.operands) != 2 or len(inner.output) != len(letters):
            continue
        names = _names(at, letters, found.output, inner)
        if names is None:
            continue
        token, expert, slot = names
        groups = found.output[:-2]
        order = tuple(at.index(letter) for letter in (*groups, token, expert, slot))
        known = {expert: EXPERT, slot: SLOT, found.output[-1]: CHANNEL}
        known |= {letter: f"g{place}" for place, letter in enumerate(groups)}
        return Combine(weights, order, len(groups), tuple(known[letter] for letter in letters)), results
    return None


def _names(at: str, letters: str, output: str, inner: Einsum) -> tuple[str, str, str] | None:
    """The letters of tokens, experts and slots: that of experts is the one which matrices have."""
    if len(output) < ROWS:
        return None
    groups, token, channel = output[:-2], output[-2], output[-1]
    slots = set(at) & set(letters) - set(output)
    is_sum = {*at} == {*groups, token, *slots} and {*letters} == {*groups, channel, *slots}
    if not is_sum or len(slots) != 2 or token in letters or channel in at:
        return None
    outer = dict(zip(inner.output, letters, strict=True))
    shared = [{outer[letter] for letter in modes if letter in outer} & slots for _, modes in inner.operands]
    experts = [found for found in shared if len(found) == 1]
    if len(experts) != 1 or shared.count(slots) != 1:
        return None
    (expert,) = experts[0]
    return token, expert, (slots - {expert}).pop()


@dataclass(frozen=True)
class Gate:
    """A gate [tokens, experts].

    Attributes:
        node: its weights.
        places: where it chooses, `None` where its values say so.
        parts: what both are computed from as parts of the operand, none where others may read them.
    """

    node: fx.Node
    places: fx.Node | None
    parts: tuple[fx.Node, ...] = ()


@dataclass(frozen=True)
class Dispatch:
    """Tokens sent to slots.

    Attributes:
        node: the sum that sends them.
        choice: `%dispatch`, 1 where a token is in a slot.
        order: the modes of the choice as [groups.., tokens, experts, slots].
        tokens: what is sent, [groups.., tokens, channels].
    """

    node: fx.Node
    choice: fx.Node
    order: tuple[int, ...]
    tokens: fx.Node


def dispatch_of(node: fx.Node, modes: tuple[Any, ...], combine: Combine) -> Dispatch | None:
    """How the rows of slots that a node has are rows of tokens; `None` for other nodes.

    Args:
        node: [.., ..] with `modes`, those of a slot and one along the rows.
        modes: by their names in expressions.
        combine: the sum over the slots.
    """
    found = einsum_of(node)
    if found is None or len(found.operands) != 2 or not combine.entry <= set(modes):
        return None
    names = dict(zip(found.output, modes, strict=True))
    groups = [f"g{place}" for place in range(combine.groups)]
    for (choice, at), (tokens, letters) in (found.operands, found.operands[::-1]):
        summed = set(at) & set(letters) - set(found.output)
        if len(summed) != 1 or set(at) - summed - set(names) or set(letters) - summed - set(names):
            continue
        known = {**names, **dict.fromkeys(summed, "t")}
        of_choice, of_tokens = [known[letter] for letter in at], [known[letter] for letter in letters]
        if set(of_choice) != {*groups, "t", EXPERT, SLOT} or of_tokens[:-1] != [*groups, "t"]:
            continue
        if of_tokens[-1] in (*groups, EXPERT, SLOT):
            continue
        order = tuple(of_choice.index(name) for name in (*groups, "t", EXPERT, SLOT))
        return Dispatch(node, choice, order, tokens)
    return None


def gate_of(combine: Combine, dispatch: Dispatch) -> Gate | str:
    """The gate, added to the graph; or why there is none."""
    weights, choice = combine.weights, dispatch.choice
    if not is_choice(choice):
        return f"{choice.name} may have gradients, which single slots have none of"
    chosen = places(weights)
    value = tensor_value(weights)
    if chosen is None or value is None:
        return f"nothing says where {weights.name} is 0 whatever its weights are"
    graph = weights.graph
    with graph.inserting_after(_last(choice, weights, chosen)):
        used = graph.call_function(
            tokens_of_slots, (weights, choice, chosen, list(combine.order), list(dispatch.order))
        )
    with graph.inserting_after(used):
        turned = graph.call_function(torch.ops.aten.permute.default, (weights, list(combine.order)))
    with graph.inserting_after(turned):
        summed = graph.call_function(torch.ops.aten.sum.dim_IntList, (turned, [-1]))
    with graph.inserting_after(summed):
        shown = value.permute(combine.order).sum(-1)
        gate = graph.call_function(torch.ops.aten.flatten.using_ints, (summed, 0, -2))
    turned.meta["val"], summed.meta["val"] = value.permute(combine.order), shown
    gate.meta["val"] = shown.flatten(0, -2)
    used.meta["val"] = gate.meta["val"].to(torch.bool)
    return Gate(gate, used, tuple(dict.fromkeys((weights, choice, chosen))))


def rows_of(dispatch: Dispatch) -> fx.Node:
    """The tokens that are sent as one row each, from which the sum that sends them reads them too."""
    tokens, groups = dispatch.tokens, dispatch.order[:-2]
    value = tensor_value(tokens)
    assert value is not None, "tokens are a tensor"
    if value.dim() == ROWS:
        return tokens
    known: fx.Node | None = next((user for user in tokens.users if info(user).rows_of is tokens), None)
    if known is None:
        with tokens.graph.inserting_before(dispatch.node):
            known = tokens.graph.call_function(torch.ops.aten.flatten.using_ints, (tokens, 0, -2))
        known.meta["val"] = value.flatten(0, -2)
        set_info(known, rows_of=tokens)
    with tokens.graph.inserting_before(dispatch.node):
        shown = tokens.graph.call_function(in_groups, (known, dispatch.choice, list(groups)))
    shown.meta["val"] = value
    dispatch.node.replace_input_with(tokens, shown)
    return known


def as_rows(node: fx.Node, weights: fx.Node, modes: list[int]) -> list[fx.Node]:
    """A sum over experts as one row for each token, and what leads there; all others read it in groups.

    Args:
        weights: what has the groups and tokens as the modes `modes`.
    """
    value = tensor_value(node)
    assert value is not None, "a mixture is a tensor"
    if len(modes) == 1:
        return [node]
    with node.graph.inserting_after(node):
        rows = node.graph.call_function(torch.ops.aten.flatten.using_ints, (node, 0, -2))
    with node.graph.inserting_after(rows):
        shown = node.graph.call_function(in_groups, (rows, weights, modes))
    node.replace_all_uses_with(shown, delete_user_cb=lambda user: user is not rows)
    shown.meta["val"], rows.meta["val"] = value, value.flatten(0, -2)
    return [node, rows]


def in_groups(rows: Tensor, weights: Tensor, modes: list[int]) -> Tensor:
    """Rows of tokens [tokens, ..] in groups: [groups.., tokens, ..], as these modes of weights are."""
    return rows.reshape([*(weights.shape[mode] for mode in modes), *rows.shape[1:]])


def _last(*nodes: fx.Node) -> fx.Node:
    """The one of some nodes that comes last in their graph."""
    found = set(nodes)
    last: fx.Node = [node for node in nodes[0].graph.nodes if node in found][-1]
    return last


def tokens_of_slots(
    weights: Tensor, choice: Tensor, chosen: Tensor, order: list[int], choice_order: list[int]
) -> Tensor:
    """Which experts compute a token, truth values [tokens, experts].

    A token with a weight that is not a number takes no slot from others; experts compute it, and its result is NaN.

    Args:
        weights: of slots; 0 where a token is in none.
        choice: 1 where a token is in a slot.
        chosen: of the shape of the weights, 0 where these are 0 whatever they are.
        order: the modes of the weights as [groups.., tokens, experts, slots].
        choice_order: those of the choice.

    Raises:
        SparsifyError: a slot that has a weight holds several tokens, or not the one that it is weighted for.
    """
    with torch.no_grad():
        weights, chosen = weights.permute(order), chosen.permute(order)
        is_nan = weights.isnan()
        choice = torch.where(is_nan, 0, choice.permute(choice_order))
        is_used = (weights != 0) | ((chosen != 0) & (choice != 0))
        is_alone = choice.abs().sum(-3, keepdim=True) == 1
        wrong = is_used & ~is_nan & ~((choice == 1) & is_alone)
        if wrong.any():
            *_, token, expert, slot = wrong.nonzero()[0].tolist()
            raise SparsifyError(
                f"slot {slot} of expert {expert} is weighted for token {token}, but does not hold this token alone",
                "slots that hold sums of tokens cannot be computed token by token: leave this gate out of the rule",
            )
        return is_used.any(-1).flatten(0, -2)
