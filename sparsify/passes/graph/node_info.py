"""Notes of passes on graph nodes, one frozen record per node: the only communication between passes.

In: `set_info(node, mark=Mark(...))`. Out: `info(node).mark`, and `info(copy).mark` of a copy of the node, with
independent notes from then on.
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

    input_name: str | None = None  # name of a placeholder's argument
    is_parameter: bool = False  # whether a placeholder is a parameter
    has_no_grad: bool | None = None  # whether the node was captured without gradients
    is_write: bool | None = None  # whether the node writes into a tensor; None if not determined yet
    is_itself: bool = False  # whether the node is the result of an in-place operator
    is_contiguous: bool = False  # whether an input has to be contiguous
    mark: "Mark | None" = None  # origin and kind of its sparsity
    attention: Any = None  # nodes of attention around a softmax
    no_attention: str | None = None  # refusal of an attention pattern
    own_pattern: Any = None  # built-in pattern of its attention
    dense_reason: str | None = None  # reason to stay dense
    region: "Region | None" = None  # region with the node as output
    rows_of: fx.Node | None = None  # tensor with the same rows
    matrix: fx.Node | None = None  # base matrix of rows of a view
    parts: Any = None  # shape of the parts of a view
    decided: Any = None  # chosen experts of a gate, with the source nodes
    order: Any = None  # order of its rows
    is_made_dense: bool = False  # whether the node is a sparse input as a dense tensor
    shown: fx.Node | None = None  # node shown in its place in reports
    is_listed_dense: bool = False  # whether the report lists the node under another node's name
    is_under_mask: bool = False  # whether the node is a weight trained under a mask
    form: "Chosen | None" = None  # form of torch's convolution
    call: "RegionCall | None" = None  # call that replaces a region's nodes


NOTHING: Final = NodeInfo()


def info(node: fx.Node) -> NodeInfo:
    """The notes about a node."""
    result: NodeInfo = node.meta.get(KEY, NOTHING)
    return result


def set_info(node: fx.Node, **changes: Any) -> None:
    """Changes notes of a node; copies of the node with the same record keep theirs."""
    node.meta[KEY] = replace(info(node), **changes)


def call_of(node: fx.Node) -> "RegionCall":
    """The call of an emitted region's node."""
    region_call = info(node).call
    assert region_call is not None, f"{node.name} calls no region"
    return region_call
