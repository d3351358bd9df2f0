"""Bags of rows of a table, `nn.EmbeddingBag`, as the product of a sparse operand and the table.

In:  `%e = embedding_bag(%table, %indices, %offsets, mode=sum); %y = getitem(%e, 0)`.
Out: a region over the bags `A`, one entry for each index: `Y[b,k] = sum(p,j, A[b,p,j] * W[j,k])`.

Means are divided by the number of indices of a bag, largest entries are over the rows that it names; a bag without
indices gives 0, as in torch. Rows that a bag names twice count twice.
"""

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler.dtypes import name_of
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.nodes import Const
from sparsify.compiler.einsum.parse import parse
from sparsify.passes.capture.draft import Mark
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import argument, operator_name, tensor_value
from sparsify.passes.region.region import Region
from sparsify.passes.region.sparse_operand import Bags
from sparsify.storage.format import Format

DTYPES: Final = (torch.float32, torch.float64)
SUM: Final = "Y[b,k] = sum(p, j, A[b,p,j] * W[j,k])"
MEAN: Final = """
    n[b] += A[b,p,j]
    Y[b,k] = sum(p, j, A[b,p,j] * W[j,k]) / where(n[b] == 0, 1, n[b])"""
MAX: Final = """
    n[b] += A[b,p,j]
    m[b,k] max= where(stored(A[b,p,j]), W[j,k], -inf)
    Y[b,k] = where(n[b] == 0, 0, m[b,k])"""
# By torch's number of the mode.
TEXTS: Final = (SUM, MEAN, MAX)


@dataclass(frozen=True)
class EmbeddingBag:
    """What an embedding of bags is made of.

    Attributes:
        node: its result.
        call: the operator, of whose results it is the first.
        table: [rows, columns].
    """

    node: fx.Node
    call: fx.Node
    table: fx.Node

    @property
    def mark(self) -> Mark | None:
        """The mark of the rule that reached it."""
        found = info(self.call).mark
        return found if isinstance(found, Mark) else None

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument of the operator."""
        return argument(self.call, position, name, default)


def recognise(node: fx.Node) -> EmbeddingBag | None:
    """The bags whose result `node` is; `None` where it is something else, or the operator has other results in use."""
    if operator_name(node) != "getitem" or node.args[1] != 0:
        return None
    call = node.args[0]
    if not isinstance(call, fx.Node) or operator_name(call) != "embedding_bag" or len(call.users) != 1:
        return None
    table = call.args[0]
    return EmbeddingBag(node, call, table) if isinstance(table, fx.Node) else None


def bags_region(match: EmbeddingBag, mark: Mark) -> Region | str:
    """The region of an embedding of bags, or why there is none."""
    table, result = tensor_value(match.table), tensor_value(match.node)
    indices, offsets = match.argument(1, "indices"), match.argument(2, "offsets")
    why = reason_against(match, table)
    if why:
        return why
    assert table is not None and result is not None, "embeddings are of tensors"
    rows = int(table.shape[0])
    padding = match.argument(8, "padding_idx", None)
    bags = Bags(
        name=f"A_{match.call.name}",
        extents=(result.shape[0], indices.meta["val"].shape[0], rows),
        indices=indices,
        offsets=offsets,
        weights=match.argument(6, "per_sample_weights"),
        has_last=bool(match.argument(7, "include_last_offset", False)),
        padding=None if padding is None else int(padding) % rows,
        dtype=table.dtype,
        mark=mark,
    )
    columns = int(table.shape[1])
    declared = {"A": bags.declared, "W": Operand(Format("dense", rank=2), name_of(table.dtype))}
    text = TEXTS[match.argument(4, "mode", 0)]
    program = declare(parse(text), declared, ("Y",), sizes={"j": rows, "k": columns})
    operands: dict[str, Any] = {bags.name: bags, match.table.name: match.table}
    names = {bags.name: "A", match.table.name: "W", match.node.name: "Y"}
    statement = (match.node, ("b", "k"), Const(0))
    covered = [match.call, match.node]
    return Region([statement], operands, covered, [], program, names, is_contested=True)


def reason_against(match: EmbeddingBag, table: torch.Tensor | None) -> str:
    """Why an embedding of bags has no program, "" when it has one."""
    if table is None or table.dtype not in DTYPES:
        return f"tables in {'no tensor' if table is None else table.dtype} are not supported yet"
    if not all(str(extent).isdigit() for extent in table.shape):
        return "how many rows and columns the table has is known in a call alone"
    if match.argument(5, "sparse", False):
        return "sparse=True asks for gradients as torch's sparse tensors"
    if match.argument(3, "scale_grad_by_freq", False):
        return "scale_grad_by_freq=True asks for gradients that no derivative of the result is"
    weights = tensor_value(match.argument(6, "per_sample_weights"))
    if weights is not None and weights.dtype != table.dtype:
        return f"weights in {weights.dtype} of rows in {table.dtype} are not supported"
    return ""
