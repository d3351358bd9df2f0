"""Notes of passes about nodes of a graph, one frozen record a node: passes tell each other by these alone.

In: `set_info(node, mark=Mark(...))`. Out: `info(node).mark`, and `info(copy).mark` of a copy of the node, whose notes
are its own from then on.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from torch import fx

if TYPE_CHECKING:
    from sparsify.passes.call.region_call import RegionCall
    from sparsify.passes.capture.draft import Mark
    from sparsify.passes.operands.convolution_operands import Chosen
    from sparsify.passes.region.region import Region

KEY: Final = "sparsify"


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The notes about a node."""

    input_name: str | None = None  # of the argument that a placeholder stands for
    is_parameter: bool = False  # whether a placeholder stands for a parameter
    has_no_grad: bool | None = None  # whether the node was captured without gradients
    is_write: bool | None = None  # whether it writes into a tensor; None where nobody has asked
    is_itself: bool = False  # whether it is the result of an operator in place
    is_contiguous: bool = False  # whether an input has to be contiguous
    mark: "Mark | None" = None  # why and how it is sparse
    attention: Any = None  # what a softmax that is attention is taken of
    no_attention: str | None = None  # why it is no attention that rules can give a pattern
    own_pattern: Any = None  # the pattern that its attention has by itself
    dense_reason: str | None = None  # why it stays dense
    region: "Region | None" = None  # the region that ends in it
    rows_of: fx.Node | None = None  # the tensor that it has the rows of
    matrix: fx.Node | None = None  # the matrix of rows that it is a view of
    parts: Any = None  # the shape of the parts that it is a view of
    decided: Any = None  # where it chooses experts, and what that follows from
    order: Any = None  # how its rows are ordered
    is_made_dense: bool = False  # whether it is a sparse input as a dense tensor
    shown: fx.Node | None = None  # the node that stands for it in reports
    is_listed_dense: bool = False  # whether the report lists it under the name of another node
    is_under_mask: bool = False  # whether it is a weight that trains under a mask
    form: "Chosen | None" = None  # how torch computes its convolution
    call: "RegionCall | None" = None  # what computes it instead of the nodes of a region


NOTHING: Final = NodeInfo()


def info(node: fx.Node) -> NodeInfo:
    """The notes about a node."""
    found: NodeInfo = node.meta.get(KEY, NOTHING)
    return found


def set_info(node: fx.Node, **changes: Any) -> None:
    """Changes notes about a node; copies that share its notes keep theirs."""
    node.meta[KEY] = replace(info(node), **changes)


def call_of(node: fx.Node) -> "RegionCall":
    """The call that a node of an emitted region makes."""
    found = info(node).call
    assert found is not None, f"{node.name} calls no region"
    return found
