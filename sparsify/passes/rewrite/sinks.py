"""Softmax over scores and an additional logit, a sink, whose weight is dropped.

In: `all[i,t] = cat(x[i,j], z[i])`, `p[i,t]` the softmax of `all`, `w[i,j] = p[i, j + 0]`. Out: the softmax of x, with
sums relative to its own maximum until combined with the sink: `m = max(j, x); e = exp(x - m); d = sum(j, e); n = max(m,
z); c = exp(m - n); t = d * c + exp(z - n)`, and `sum(j, w * v) = sum(j, e * v) * c / t`.

Source: Xiao, Tian, Chen, Han and Lewis, Efficient streaming language models with attention sinks, 2023, section 3.2.
"""

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Cast, Const, Index
from sparsify.compiler.einsum.text.parse import parse_expression
from sparsify.passes.graph.operators import argument, operator_name, tensor_value
from sparsify.passes.program.model import ModelProgram, sizes_of

LETTERS = {"max": "m", "exp": "P", "sum": "d", "mean": "W", "larger": "n", "shrink": "c", "whole": "t"}


def cut_off(statement: Assign, weights: str) -> bool:
    """Whether a statement drops the last columns of weights, `w[i,j] = p[i, j + 0]`."""
    match statement.value:
        case Access(tensor, (*rows, Call("add", (Index() as j, Const(0))))) if tensor == weights:
            return (*rows, j) == statement.target.indices
    return False


def with_sink(program: ModelProgram, name: str) -> tuple[list[str], str] | None:
    """The names from a softmax's operand to a concatenation with one column, and the column; None otherwise."""
    names = [name]
    while operator_name(program.nodes[name]) != "cat":
        statement = program.statements.get(name)
        match statement:
            case Assign(target, _, Access(tensor, indices) | Cast(_, Access(tensor, indices))) if (
                indices == target.indices and tensor in program.nodes
            ):
                name = tensor
                names.append(name)
            case _:
                return None
    node = program.nodes[name]
    value, parts = tensor_value(node), [part.name for part in node.all_input_nodes]
    if value is None or argument(node, 1, "dim", 0) not in (-1, value.dim() - 1) or len(parts) != 2:
        return None
    is_column = sizes_of(program.nodes[parts[1]].meta["val"])[-1] == 1
    return ([*names, parts[0]], parts[1]) if is_column else None


def sink_of(program: ModelProgram, name: str, scores: Assign) -> Access:
    """The sink of each query, at the index variables of the query's scores."""
    sizes = sizes_of(program.nodes[name].meta["val"])
    score_sizes = sizes_of(program.nodes[scores.target.tensor].meta["val"])
    indices = iter(scores.target.indices)
    at = [None if size == 1 else next(indices) for size in score_sizes]
    read = [index for index, size in zip(at, sizes, strict=True) if size != 1 and index is not None]
    program.leaf(program.nodes[name])
    return Access(name, tuple(read))


def write_softmax_with_sink(program: ModelProgram, softmax: str, scores: Assign, sink: Access) -> None:
    """Writes the statements of a softmax with a sink in its total, in place, without the weighted mean."""
    *rows, j = map(str, scores.target.indices)
    at = {suffix: f"{softmax}_{suffix}[{', '.join(rows)}]" for suffix in LETTERS}
    exponential = f"{softmax}_exp[{', '.join([*rows, j])}]"
    texts = {
        "max": f"max({j}, {scores.target})",
        "exp": f"exp({scores.target} - where({at['max']} == -inf, 0, {at['max']}))",
        "sum": f"sum({j}, {exponential})",
        "larger": f"max({at['max']}, {sink})",
        "shrink": f"exp({at['max']} - {at['larger']})",
        "whole": f"{at['sum']} * {at['shrink']} + exp({sink} - {at['larger']})",
    }
    for suffix, text in texts.items():
        value = parse_expression(text, indices=program.extents)
        modes = (*rows, j) if suffix == "exp" else tuple(rows)
        program.assign(f"{softmax}_{suffix}", modes, value, program.nodes[softmax])
