"""Regions of operators that read the pattern of a rule: their statements over what the pattern stores.

In: `%m = attention_mask(bigbird, (block, 64), %n, %n); %y = scaled_dot_product_attention(%q, %k, %v, attn_mask=%m)`.
Out: a region of `S[h,i,j] = where(stored(M[i,j]), 0.125 * sum(k, Q[h,i,k] * K[h,j,k]), -inf)` and the softmax and sum
of the same rows, over `Q`, `K`, `V` and the pattern `M`.

Views of operands stay torch's, but those that repeat entries: heads that share keys read the same ones.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, Final

from torch import fx

from sparsify.compiler.einsum.nodes import Access, Index
from sparsify.compiler.node import find
from sparsify.passes.capture.draft import Draft
from sparsify.passes.decide.cut import Cut, needed
from sparsify.passes.decide.to_region import region_of
from sparsify.passes.graph.node_info import set_info
from sparsify.passes.graph.operators import operator_name
from sparsify.passes.lift.attention.mask import attention_mask
from sparsify.passes.program.infer import infer
from sparsify.passes.program.model import ModelProgram
from sparsify.passes.program.translate import infer_dtypes, translate
from sparsify.passes.region.region import Region
from sparsify.passes.region.sparse_operand import PatternOperand
from sparsify.passes.rewrite.inline import placed
from sparsify.passes.rewrite.pattern import by_patterns
from sparsify.passes.rewrite.simplify import simplify
from sparsify.sparsification.mask_spec import MaskSpec

# How the note of a region begins.
UNDER: Final = "attention under "
BIASED: Final = "its bias is read by distance; wanted gradients of that are those of dense attention"
REPEATED: Final = ("unsqueeze", "expand")
ATTENTION: Final = ("scaled_dot_product_attention", "dropped_attention")


def pattern_regions(draft: Draft) -> list[Region]:
    """The regions of attention under patterns; why there is none is noted where there is none."""
    patterns = {n.name: pattern_of(n) for n in draft.graph.nodes if n.target is attention_mask}
    if not patterns:
        return []
    inside = {node: nodes_of(node) for node in draft.graph.nodes if operator_name(node) in ATTENTION}
    inside = {node: nodes for node, nodes in inside.items() if any(n.name in patterns for n in nodes)}
    every = {node for nodes in inside.values() for node in nodes}
    program = translate(draft.graph, [n for n in draft.graph.nodes if n not in every or n.name in patterns])
    leaves = {name: pattern.declared for name, pattern in patterns.items()}
    own = {name for name in program.statements if program.source[name] in inside}
    put_masks_in(program, own)
    infer_dtypes(program)
    whole = {name for name, pattern in patterns.items() if pattern.spec.is_whole}
    by_patterns(program, infer(program, leaves, {}), patterns, whole)
    storage = infer(program, leaves, {})
    made = []
    for node in inside:
        found: Region | str = program.opaque.get(node.name, "")
        if not found:
            cut = needed(Cut(list(program.statements.values())), [node.name])
            found = region_of(program, storage, cut, patterns)
        if isinstance(found, str):
            set_info(node, dense_reason=found)
            continue
        specs = [operand.spec for operand in found.operands.values() if isinstance(operand, PatternOperand)]
        found.notes += [f"{UNDER}{spec}" for spec in dict.fromkeys(specs)]
        found.densely = by_distance(found)
        found.equations = None  # rules ask for patterns: their formats and kernels are in no contest
        found.notes += [BIASED] if found.densely else []
        made.append(found)
    return made


def put_masks_in(program: ModelProgram, own: Collection[str]) -> None:
    """Puts all statements into those that read them, in place, but those of attention itself."""
    for name in [name for name in reversed(program.statements) if name not in own]:
        for reader in program.readers().get(name, ()):
            consumer = program.statements[reader]
            value = simplify(placed(program, consumer.value, program.statements[name]))
            program.statements[reader] = replace(consumer, value=value)
        del program.statements[name]


def pattern_of(node: fx.Node) -> PatternOperand:
    """The pattern that a node makes dense, as an operand."""
    kind, arguments, rows, columns, stamp = node.args
    spec = MaskSpec(kind, arguments, stamp)  # type: ignore[arg-type]
    return PatternOperand(f"M_{node.name}", spec, (rows, columns), spec.example().format)


def nodes_of(attention: fx.Node) -> list[fx.Node]:
    """The nodes that a region has: attention, what makes its mask of a pattern, and what repeats its operands."""
    reads: dict[fx.Node, bool] = {}

    def reads_pattern(node: fx.Node) -> bool:
        if node not in reads:
            reads[node] = node.target is attention_mask or any(map(reads_pattern, masks_of(node)))
        return reads[node]

    found, waiting = dict[fx.Node, None](), [attention]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found[node] = None
            inputs = node.all_input_nodes if node.target is not attention_mask else []
            waiting += [n for n in inputs if operator_name(n) in REPEATED or reads_pattern(n)]
    return list(found)


def masks_of(node: fx.Node) -> Iterable[fx.Node]:
    """The operands of a node that may be made of a pattern."""
    mask: Any = node.kwargs.get("attn_mask")
    if operator_name(node) in ATTENTION:
        return [mask] if isinstance(mask, fx.Node) else []
    return node.all_input_nodes if operator_name(node) in ("combined_mask", "to") else []


def by_distance(region: Region) -> tuple[str, ...]:
    """The operands that a region reads at sums of index variables: kernels add up gradients of these slowly."""
    assert region.program is not None, "the front end writes programs"
    read = [access for s in region.program.statements for access in find(s.value, Access)]
    shifted = {a.tensor for a in read if not all(isinstance(index, Index) for index in a.indices)}
    return tuple(name for name in region.program.inputs if name in shifted)
