"""A token mode where programs omit it, so that mixtures of a single token iterate over a gate's entries.

In: `u[e,h] = sum(d, x[d] * w[e,h,d]); y[o] = sum(e, g[e] * sum(h, relu(u[e,h]) * v[e,o,h]))`, x [1, 8] and g [1, 4] in
the graph. Out: the same with `u_of_tokens[t,e,h] = sum(d, x_rows[t,d] * w[e,h,d])`, `y[t,o] = ..` and g [t, e].

A result on the pattern of a gate needs two modes, and a kernel of experts reads rows of tokens.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

import torch

from sparsify.compiler.einsum.nodes import Access, Const, Expr, Index, Reduce
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.passes.graph.insert import call
from sparsify.passes.graph.node_info import set_info
from sparsify.passes.program.model import ModelProgram, Size, index_names, sizes_of
from sparsify.passes.rewrite.simplify import renamed

SUFFIX: Final = "_of_tokens"


@cache
def one() -> Size:
    """The number of tokens: a symbol, as programs leave out modes of extent 1."""
    import sympy  # type: ignore[import-untyped]  # loads in half a second

    return sympy.Symbol("tokens", positive=True, integer=True)


@dataclass
class Lifting:
    """Statements with an expert mode, to be extended by a token mode.

    Attributes:
        gate: gate of a single token, `g[e]`.
        token_names: extended statement, by statement.
    """

    program: ModelProgram
    gate: str
    token_names: dict[str, str] = field(default_factory=dict)

    def lifted(self, expr: Node, expert: Index, token: Index) -> Expr:
        """An expression for a single token, extended to each token."""

        def visit(node: Node) -> Node:
            if not isinstance(node, Access):
                return map_children(node, visit)
            if node.tensor == self.gate:
                return Access(self.gate, (token, *node.indices))
            if expert in node.indices and node.tensor in self.program.statements:
                return Access(self.make(node.tensor, node.indices.index(expert)), (token, *node.indices))
            if expert not in node.indices and self.is_of_tokens(node.tensor):
                return Access(self.rows(node.tensor), (token, *node.indices))
            return node

        result = visit(expr)
        assert isinstance(result, Expr)
        return result

    def make(self, name: str, mode: int) -> str:
        """Adds the statement of a tensor per token; returns its name."""
        extended = f"{name}{SUFFIX}"
        if name not in self.token_names:
            self.token_names[name] = extended
            program, statement = self.program, self.program.statements[name]
            names = {old: program.index(program.extents[old]) for old in index_names(statement)}
            statement, token = renamed(statement, names), program.index(one())
            expert = statement.target.indices[mode]
            assert isinstance(expert, Index), "targets have plain indices"
            value = self.lifted(statement.value, expert, Index(token))
            program.assign(
                extended, (token, *map(str, statement.target.indices)), value, program.source[name]
            )
            program.dtypes[extended] = program.dtypes[name]
        return extended

    def is_of_tokens(self, name: str) -> bool:
        """Whether a tensor's leading modes are the gate's token modes, all of extent 1, before a larger mode."""
        node, count = self.program.nodes.get(name), len(self.program.nodes[self.gate].meta["val"].shape) - 1
        if node is None:
            return False
        shape = sizes_of(node.meta["val"])
        return set(shape[:count]) == {1} and any(size != 1 for size in shape[count:])

    def rows(self, name: str) -> str:
        """A tensor with a token mode, as a separate leaf."""
        alias_name = self.token_names.get(name)
        if alias_name is None:
            node = self.program.nodes[name]
            with node.graph.inserting_after(node):
                alias = call(torch.ops.aten.alias.default, node)
            set_info(alias, rows_of=node)
            alias_name = self.token_names[name] = alias.name
            self.program.nodes[alias_name] = self.program.source[alias_name] = alias
            self.program.sizes[alias_name] = (one(), *self.program.sizes[name])
        return alias_name


def with_tokens(program: ModelProgram, gates: Collection[str]) -> None:
    """Adds a token mode to mixtures of a single token, in place."""
    for gate in gates:
        if len(program.sizes.get(gate, ())) != 1:
            continue
        lifting, results = Lifting(program, gate), sums_over(program, gate)
        for name, expert in results.items():
            statement, token = program.statements[name], program.index(one())
            value = lifting.lifted(statement.value, Index(expert), Index(token))
            program.assign(name, (token, *map(str, statement.target.indices)), value, program.source[name])
        first = {*results, gate}
        for name, statement in program.statements.items():
            if name not in results and not name.endswith(SUFFIX):
                program.statements[name] = replace(statement, value=of_first(statement.value, first))
        program.sizes[gate] = (one(), *program.sizes[gate])
        program.drop_unneeded()
        program.order()


def sums_over(program: ModelProgram, gate: str) -> dict[str, str]:
    """The statements that sum products with a gate over its experts, with the expert index of each."""
    modes, expert_index_of = {gate: 0}, dict[str, str]()
    for name, statement in program.statements.items():
        bound = {b for reduction in find(statement.value, Reduce) for b in reduction.indices}
        for access in find(statement.value, Access):
            if access.tensor not in modes:
                continue
            index = access.indices[modes[access.tensor]]
            if isinstance(index, Index) and index.name in bound:
                expert_index_of[name] = index.name
            elif index in statement.target.indices:
                modes[name] = statement.target.indices.index(index)
    return expert_index_of


def of_first(value: Node, names: Collection[str]) -> Expr:
    """An expression with tensors accessed at their single token."""

    def visit(node: Node) -> Node:
        if isinstance(node, Access) and node.tensor in names:
            return Access(node.tensor, (Const(0), *node.indices))
        return map_children(node, visit)

    result = visit(value)
    assert isinstance(result, Expr)
    return result
