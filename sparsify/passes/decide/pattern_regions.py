"""Regions of attention under the pattern of a rule: statements over the stored coordinates.

In: `%m = attention_mask(bigbird, (block, 64), %n, %n); %p = safe_softmax(where(%m, %s, -inf), -1)` between products.
Out: a region of `S[h,i,j] = where(stored(M[i,j]), 0.125 * sum(k, Q[h,i,k] * K[h,j,k]), -inf)` and the softmax and sum
of the same rows, over `Q`, `K`, `V` and the pattern `M`.

Views of operands are left to torch, except views that repeat entries: heads with shared keys read the same entries.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import fx

from sparsify.compiler.einsum.nodes import Access, Expr, Index, Reduce
from sparsify.compiler.einsum.text.parse import parse_expression
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.passes.capture.draft import Draft
from sparsify.passes.decide.cut import Cut, needed
from sparsify.passes.decide.to_region import region_of
from sparsify.passes.graph.insert import call_before, put_behind
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.lift.attention.find import operands_of
from sparsify.passes.lift.attention.float_casts import widest
from sparsify.passes.lift.attention.mask import attention_mask
from sparsify.passes.lift.attention.reference import safe_softmax
from sparsify.passes.lift.attention.relative_bias import Distances, is_bias, plain
from sparsify.passes.lift.attention.spell import reason_against
from sparsify.passes.program.infer import infer
from sparsify.passes.program.model import ModelProgram, Size, sizes_of
from sparsify.passes.program.translate import infer_dtypes, translate
from sparsify.passes.region.region import Region
from sparsify.passes.region.sparse_operand import PatternOperand
from sparsify.passes.rewrite.attention import (
    Attention,
    attention_of,
    name_as_textbooks,
    put_in_form,
    read_stored,
    without_casts,
)
from sparsify.passes.rewrite.masks import from_factors, in_order
from sparsify.passes.rewrite.pattern import by_patterns
from sparsify.passes.rewrite.split import Joined, Pair, joined, split
from sparsify.sparsification.masks.mask_spec import MaskSpec

SDPA: Final = torch.ops.aten.scaled_dot_product_attention.default
# How the note of a region begins.
UNDER: Final = "attention under "
BIASED: Final = "its bias is read by distance; wanted gradients of that are those of dense attention"


def pattern_regions(draft: Draft) -> list[Region]:
    """The regions of attention under patterns; refusals are noted on the nodes."""
    patterns = {n.name: pattern_of(n) for n in draft.graph.nodes if n.target is attention_mask}
    if not patterns:
        return []
    for node in draft.graph.find_nodes(op="call_function", target=SDPA):
        if info(node).mark is not None:
            set_info(node, dense_reason=reason_against(node))
    softmaxes = [node for node in draft.graph.nodes if node.target is safe_softmax]
    program = translate(draft.graph, [n for n in draft.graph.nodes if n.name in patterns])
    # Gradients of a vector over distances have no fast kernel: in training, biases are unchanged.
    distances = Distances(draft.graph, are_looked_for=not draft.is_trainable)
    attention_names, results = set[str](), {}
    for softmax in softmaxes:
        attention = attention_of(program, softmax.name)
        if isinstance(attention, str):
            set_info(softmax, dense_reason=attention)
            continue
        attention = in_one_dtype(program, with_small_masks(program, attention, distances, patterns))
        statements = put_in_form(program, attention)
        share_keys(program, attention, statements, patterns)
        name_as_textbooks(program, attention)
        attention_names.update(statements)
        results[softmax] = attention
    program.statements = {name: s for name, s in program.statements.items() if name in attention_names}
    program.order()
    infer_dtypes(program)
    leaves = {name: pattern.declared for name, pattern in patterns.items()}
    full_patterns = {name for name, pattern in patterns.items() if pattern.spec.is_whole}
    by_patterns(program, infer(program, leaves, {}), patterns, full_patterns)
    storage = infer(program, leaves, {})
    regions = list[Region]()
    for softmax, attention in results.items():
        cut = needed(Cut(list(program.statements.values())), [attention.result])
        region = region_of(program, storage, cut, patterns)
        if isinstance(region, str):
            set_info(softmax, dense_reason=region)
            continue
        names, node = (
            {softmax.name, *attention.chain, *attention.path, *patterns},
            program.nodes[attention.result],
        )
        while node.name not in names:  # views and copies of the result
            names.add(node.name)
            (node,) = node.all_input_nodes
        region.covered = [node for node in region.covered if node.name in names]
        regions.append(finished(region))
    return regions


def with_small_masks(
    program: ModelProgram, attention: Attention, distances: Distances, patterns: Mapping[str, PatternOperand]
) -> Attention:
    """Attention with masks computed from smaller sources where possible."""
    i, j = program.statements[attention.scores].target.indices[-2:]
    shape = tuple(map(str, program.nodes[attention.scores].meta["val"].shape[-2:]))

    read = {access.tensor for access in find(attention.value, Access)}
    specs = [pattern.spec for name, pattern in patterns.items() if name in read]
    true = in_order((i, j)) if any(spec.is_causal for spec in specs) else ()

    def along(access: Access) -> Expr | None:
        node = program.nodes[access.tensor]
        if access.indices[-2:] != (i, j) or not is_bias(node, distances, shape):
            return None
        vector = plain(distances.along(node), program.nodes[attention.result])
        program.nodes[vector.name] = vector
        program.letters[program.leaf(vector)] = "R"
        distance = parse_expression(f"{j} - {i} + extent({i}) - 1", indices=program.extents)
        return Access(vector.name, (*access.indices[:-2], distance))

    value = from_factors(program, attention.value, attention.factors, (i, j), along, true, patterns)
    return replace(attention, value=without_casts(value))


def share_keys(
    program: ModelProgram, attention: Attention, statements: Collection[str], patterns: Collection[str]
) -> None:
    """Lets heads of queries read shared keys and values in place, except under per-head patterns."""
    target = program.statements[attention.scores].target
    for access in attention.factors:
        joined_mode = joined(program.nodes[access.tensor])
        if joined_mode is None:
            continue
        index = access.indices[joined_mode.mode]
        masks = [a for a in find(program.statements[attention.scores].value, Access) if a.tensor in patterns]
        if index in target.indices[:-2] and not any(index in mask.indices for mask in masks):
            mode = target.indices.index(index)
            if is_shared(program, joined_mode) and fits(program, attention, joined_mode):
                split_mode(program, attention, statements, mode, joined_mode.sizes)
            return


def is_shared(program: ModelProgram, joined_mode: Joined) -> bool:
    """Whether a tensor repeats entries along the second of its joined modes."""
    base = program.statements.get(joined_mode.base.name)
    if joined_mode.is_repeated or base is None or not isinstance(base.value, Access):
        return joined_mode.is_repeated
    return base.target.indices[joined_mode.mode + 1] not in base.value.indices


def fits(program: ModelProgram, attention: Attention, joined_mode: Joined) -> bool:
    """Whether values are repeated as keys are."""
    other = joined(program.nodes[attention.values.tensor])
    return other is not None and other.sizes == joined_mode.sizes and is_shared(program, other)


def split_mode(
    program: ModelProgram,
    attention: Attention,
    statements: Collection[str],
    mode: int,
    sizes: tuple[Size, Size],
) -> None:
    """Splits one mode of attention's scores in two, with views of the operands and the result."""
    result = program.nodes[attention.result]

    def leaf(access: Access, position: int, pair: Pair) -> Access:
        node = program.nodes[access.tensor]
        letter, joined_mode = program.letters.get(node.name), joined(node)
        if joined_mode is not None and joined_mode.mode == position and joined_mode.sizes == sizes:
            rows = access.indices[-2]
            assert isinstance(rows, Index), "operands are read by rows"
            read = read_stored(program, joined_mode.read(access, pair), rows)
            base = program.nodes[read.tensor]
            if base.meta["val"].dtype != node.meta["val"].dtype:
                base = call_before(result, torch.ops.aten.to.dtype, base, node.meta["val"].dtype)
            read = Access(base.name, read.indices)
        else:
            base = call_before(
                result, torch.ops.aten.unflatten.int, node, tensor_mode(node, position), list(sizes)
            )
            read = Access(base.name, (*access.indices[:position], *pair, *access.indices[position + 1 :]))
        program.nodes[base.name] = base
        program.leaf(base)
        if letter is not None:
            program.letters[base.name] = letter
        return read

    modes = split(program, statements, (attention.scores, mode), sizes, leaf)
    at = tensor_mode(result, modes[attention.result])
    parts = put_behind(result, torch.ops.aten.unflatten.int, at, list(sizes))
    put_behind(parts, torch.ops.aten.flatten.using_ints, at, at + 1)
    program.nodes[attention.result] = parts


def tensor_mode(node: fx.Node, mode: int) -> int:
    """The position, in the graph's tensor, of a mode in its program, which omits modes of extent 1."""
    return [position for position, size in enumerate(sizes_of(node.meta["val"])) if size != 1][mode]


def in_one_dtype(program: ModelProgram, attention: Attention) -> Attention:
    """Attention with operands of one dtype and distinct names."""
    result, read_nodes = program.nodes[attention.result], list[fx.Node]()
    dtype = widest([node for node in operands_of(program, attention) if node.target is not attention_mask])

    def visit(part: Node) -> Node:
        if not isinstance(part, Access) or part.tensor in (attention.softmax, *attention.path):
            return map_children(part, visit)
        node = program.nodes[part.tensor]
        value = node.meta["val"]
        if node.target is attention_mask:
            return part
        if value.is_floating_point() and value.dtype != dtype:
            node = call_before(result, torch.ops.aten.to.dtype, node, dtype)
        elif node in read_nodes:
            node = call_before(result, torch.ops.aten.alias.default, node)
        if node.name not in program.nodes:
            program.nodes[node.name] = node
            program.leaf(node)
        read_nodes.append(node)
        program.letters.setdefault(node.name, "B")  # but queries, keys and values
        return Access(node.name, part.indices)

    if (result_dtype := result.meta["val"].dtype) != dtype:
        wide = put_behind(result, torch.ops.aten.to.dtype, dtype)
        put_behind(wide, torch.ops.aten.to.dtype, result_dtype)
        program.nodes[attention.result] = wide
    value, mean = visit(attention.value), visit(attention.mean)
    sink = None if attention.sink is None else visit(attention.sink)
    assert isinstance(value, Expr) and isinstance(mean, Reduce) and isinstance(sink, Access | None)
    return replace(attention, value=value, mean=mean, sink=sink)


def finished(region: Region) -> Region:
    """A region with its notes; excluded from format and kernel benchmarks, as rules require patterns."""
    specs = [operand.spec for operand in region.operands.values() if isinstance(operand, PatternOperand)]
    region.notes += [f"{UNDER}{spec}" for spec in dict.fromkeys(specs)]
    region.densely = by_distance(region)
    region.equations = None
    region.notes += [BIASED] if region.densely else []
    return region


def pattern_of(node: fx.Node) -> PatternOperand:
    """The pattern of a node with a dense mask, as an operand."""
    kind, arguments, rows, columns, stamp = node.args
    spec = MaskSpec(kind, arguments, stamp)  # type: ignore[arg-type]
    return PatternOperand(f"M_{node.name}", spec, (rows, columns), spec.example().format)


def by_distance(region: Region) -> tuple[str, ...]:
    """The operands read at sums of index variables: kernels add up their gradients slowly."""
    assert region.program is not None, "the front end writes programs"
    read = [access for s in region.program.statements for access in find(s.value, Access)]
    shifted = {a.tensor for a in read if not all(isinstance(index, Index) for index in a.indices)}
    return tuple(name for name in region.program.inputs if name in shifted)
