"""Hoisted loads: vectors read by several sums of a loop are loaded once, not once per sum as by C++ compilers.

In:  `for k: w_0 = fma(q_0, K[k ..8], w_0); w_1 = fma(q_1, K[k ..8], w_1)`.
Out: `for k: K_k = held(K[k ..8]); w_0 = fma(q_0, K_k, w_0); w_1 = fma(q_1, K_k, w_1)`.

A processor with two fused multiply-adds per cycle also loads two vectors per cycle: four rows by two vectors of
columns take six loads for eight sums, or twelve with a load per operand.
"""

from collections import Counter
from dataclasses import replace
from typing import Final

from sparsify.compiler.ir.node import Node, find, holds, map_children
from sparsify.compiler.loops import nodes
from sparsify.compiler.loops.names import Names
from sparsify.compiler.loops.nodes import Block, Declare, Load, Op, Set, Stmt, Var, type_of

# Vector registers by the bytes of one: 16 up to AVX2, 32 of AVX-512.
REGISTERS: Final = 16
WIDE_REGISTERS: Final = 32
WIDE_BYTES: Final = 64
DTYPES: Final = ("float32", "float64")


def hold(function: nodes.Function) -> nodes.Function:
    """The kernel with the shared vectors of neighbouring sums in variables, if enough registers are free."""
    names = Names({node.name for node in find(function.body, Var)})
    registers = WIDE_REGISTERS if function.vector_bytes >= WIDE_BYTES else REGISTERS

    def visit(node: Node) -> Node:
        if not holds(node, Set):
            return node
        node = map_children(node, visit)
        return _block(node, names, registers) if isinstance(node, Block) else node

    body = visit(function.body)
    assert isinstance(body, Stmt)
    return function if body == function.body else replace(function, body=body)


def _block(block: Block, names: Names, registers: int) -> Block:
    """The block with the shared vectors of each run of sums loaded before the run."""
    statements: list[Stmt] = []
    run: list[Set] = []
    for stmt in block.statements:
        if isinstance(stmt, Set) and _is_sum(stmt):
            run.append(stmt)
            continue
        statements += [*_held(run, names, registers), stmt]
        run = []
    statements += _held(run, names, registers)
    return block if tuple(statements) == block.statements else Block(tuple(statements))


def _is_vector(load: Load) -> bool:
    """Whether a load fills a vector register."""
    return load.type.lanes > 1 and load.type.dtype in DTYPES


def _is_sum(stmt: Set) -> bool:
    """`w = fma(.., .., w)` or `w = w + ..` of vectors."""
    is_vector = stmt.var.type.lanes > 1
    return is_vector and isinstance(stmt.value, Op) and stmt.var in stmt.value.args


def _held(run: list[Set], names: Names, registers: int) -> list[Stmt]:
    """The sums of a run, preceded by the loads of vectors read by more than one sum."""
    counts = Counter(load for stmt in run for load in find(stmt.value, Load) if _is_vector(load))
    shared = [load for load, count in counts.items() if count > 1]
    changed = {stmt.var.name for stmt in run}
    moved = any(node.name in changed for load in shared for node in find(load, Var))
    if not shared or moved or len(changed) + len(shared) + 1 > registers:
        return list(run)
    variables = {load: Var(names.fresh(f"{load.buffer}_held"), type_of(load)) for load in shared}
    before = [Declare(var, Op("held", (load,), type_of(load))) for load, var in variables.items()]

    def visit(node: Node) -> Node:
        return variables[node] if isinstance(node, Load) and node in variables else map_children(node, visit)

    after = [visit(stmt) for stmt in run]
    return [*before, *(stmt for stmt in after if isinstance(stmt, Stmt))]
