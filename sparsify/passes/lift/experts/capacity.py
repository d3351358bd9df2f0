"""Gates of slots, as GShard writes a mixture with a capacity: which experts compute a token.

In:  weights of slots `%combine` [groups.., tokens, experts, slots], and `%dispatch`, 1 where a token is in a slot.
Out: the gate `%g = sum(%combine, -1)` [groups.., tokens, experts], and where it chooses,
     `%u = tokens_of_slots(%combine, %dispatch, ..)`.

Source: GShard, Lepikhin et al., 2021, section 2.2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from sparsify.errors import SparsifyError
from sparsify.passes.graph.insert import call
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.lift.experts.gate import is_choice, places

aten = torch.ops.aten


@dataclass(frozen=True)
class Decided:
    """The choices of a gate of slots.

    Attributes:
        places: node with the chosen positions, of the gate's shape.
        parts: source nodes of the gate and its positions.
    """

    places: fx.Node
    parts: tuple[fx.Node, ...]


def gate_of_slots(
    weights: fx.Node, choice: fx.Node, order: list[int], choice_order: list[int]
) -> fx.Node | str:
    """The gate of slots, added to the graph with the mark of their weights; or the refusal.

    Args:
        weights: weights of slots; 0 for a token in none.
        choice: 1 where a token is in a slot.
        order: modes of the weights in the order [groups.., tokens, experts, slots].
        choice_order: modes of the choice in the same order.
    """
    if not is_choice(choice):
        return f"{choice.name} may have gradients, which single slots have none of"
    chosen = places(weights)
    if chosen is None:
        return f"nothing says where {weights.name} is 0 whatever its weights are"
    graph = weights.graph
    with graph.inserting_after(max(choice, weights, chosen)):
        used = graph.call_function(tokens_of_slots, (weights, choice, chosen, order, choice_order))
    with graph.inserting_after(used):
        permuted = call(aten.permute.default, weights, order)
    with graph.inserting_after(permuted):
        gate = call(aten.sum.dim_IntList, permuted, [-1])
    used.meta["val"] = gate.meta["val"].to(torch.bool)
    parts = tuple(dict.fromkeys((weights, choice, chosen)))
    set_info(gate, mark=info(weights).mark, decided=Decided(used, parts))
    set_info(weights, mark=None)
    return gate


def in_groups(rows: Tensor, weights: Tensor, modes: list[int]) -> Tensor:
    """Rows of tokens [tokens, ..] in groups: [groups.., tokens, ..], with some modes of the weights."""
    return rows.reshape([*(weights.shape[mode] for mode in modes), *rows.shape[1:]])


def tokens_of_slots(
    weights: Tensor, choice: Tensor, chosen: Tensor, order: list[int], choice_order: list[int]
) -> Tensor:
    """The mask of the experts of each token, bool [groups.., tokens, experts].

    A token with a NaN weight takes no slot from others; experts compute the token, with the result NaN.

    Args:
        weights: weights of slots; 0 for a token in none.
        choice: 1 where a token is in a slot.
        chosen: tensor of the weights' shape, 0 where weights are always 0.
        order: modes of the weights in the order [groups.., tokens, experts, slots].
        choice_order: modes of the choice in the same order.

    Raises:
        SparsifyError: a slot with a weight holds several tokens, or a token other than the weighted one.
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
        return is_used.any(-1)
