"""Recipe rules to marks on graph nodes: sparse tensors with roles and formats.

In: `targets: ["input:adj"], role: adjacency, format: csr` and a placeholder `adj`.
Out: `info(adj).mark == Mark(role="adjacency", format="csr", ...)`; every rule is listed in the report.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from math import prod
from typing import Final

import torch
from torch import fx

from sparsify.compiler.ir.dtypes import name_of
from sparsify.errors import RecipeError, SparsifyError
from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.graph import operators
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.lift.attention.mask import GIVEN
from sparsify.passes.lift.experts.mixture import gate_of
from sparsify.passes.rules import prunable
from sparsify.passes.rules.scatters import is_inner, reason_against, scatters_features
from sparsify.recipe import Recipe, Rule
from sparsify.recipe.suggestion import nearest
from sparsify.recipe.target import KINDS, selects
from sparsify.report import Choice, RuleEntry
from sparsify.sparsification.from_recipe import parts_of
from sparsify.sparsification.masks import patterns
from sparsify.sparsification.masks.mask_spec import HEADED, MaskSpec
from sparsify.sparsification.sparsified import Parts
from sparsify.storage.format import Format
from sparsify.storage.recipe_format import recipe_format

# The names of formats for tensors of every rank, two modes or more.
OF_ANY_RANK: Final = ("coo", "csf")
MATRIX: Final = 2

ATTENTION = "scaled_dot_product_attention"


@dataclass(frozen=True)
class Candidate:
    """A node under one of the names that rules may select."""

    kind: str
    name: str
    node: fx.Node

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def mark(draft: Draft) -> Draft:
    """The draft with `info(node).mark` on the nodes that the recipe's rules select.

    Raises:
        RecipeError: a rule matches nothing, two rules match one tensor, or a rule does not fit its match.
    """
    candidates = list(named(draft))
    for position, rule in enumerate(draft.recipe.rules):
        label = rule.id or f"rule {position + 1}"
        passed = draft.request.pruning.passed.get(position, {})
        selected = select(draft, rule, label, candidates, passed)
        chosen, notes = within_limits(draft, rule, selected)
        report_unread(draft, rule, candidates, passed)
        masks = draft.request.pruning.merged
        notes += [f"{c.name} stores {masks[c.name]}" for c in chosen if c.kind == "param" and c.name in masks]
        for candidate in chosen:
            put(draft, rule, label, candidate)
        draft.report.rules.append(
            RuleEntry(label, where(draft.recipe, rule), [str(c) for c in chosen], "; ".join(notes))
        )
    return draft


def rule_error(recipe: Recipe, rule: Rule | None, message: str) -> RecipeError:
    """An error about a rule, with its position in the file."""
    return RecipeError(message, recipe.file, rule.line if rule else 0, rule.column if rule else 0)


def where(recipe: Recipe, rule: Rule) -> str:
    """The file and line of a rule, `gcn.yaml:9`."""
    name = recipe.file.replace("\\", "/").rsplit("/", 1)[-1] or recipe.name
    return f"{name}:{rule.line}" if rule.line else name


def carries_extents(draft: Draft, name: str) -> bool:
    """Whether a placeholder is used for the shape of a sparse input alone, or is an integer."""
    if name in draft.captured.shape.sizes():
        return True
    return name.endswith(".extent") and name.removesuffix("extent") + "values" in draft.examples


def named(draft: Draft) -> Iterator[Candidate]:
    """Every node under every name that a rule may select."""
    parameters = aliases(draft.model)
    for node in draft.graph.nodes:
        if node.op == "placeholder":
            name = str(info(node).input_name or node.target)
            if carries_extents(draft, name):
                continue  # no tensor of the user's
            yield Candidate("input", name, node)
            if name.endswith(".values"):
                yield Candidate("input", name.removesuffix(".values"), node)
        elif node.op == "get_attr":
            for name in parameters.get(str(node.target), [str(node.target)]):
                yield Candidate("param", name, node)
        elif node.op != "output":
            scope = operators.scope(node)
            yield Candidate("node", f"{scope}.{node.name}" if scope else node.name, node)
            if scope:
                yield Candidate("scope", scope, node)
            yield Candidate("op", ATTENTION if is_attention(node) else operators.operator_name(node), node)
            if (gate := gate_of(node)) is not None:
                yield Candidate("op", "experts", gate)
            if scatters_features(node) and not is_inner(node):
                yield Candidate("op", "message_passing", node)


def named_in_modules(draft: Draft) -> Iterator[Candidate]:
    """Every node under each enclosing module, by its torch.fx name in a trace of the module alone.

    The first `gelu` of `blocks.1` is `blocks.1.gelu`, although its name is `gelu_1` in the whole graph, in a module
    `blocks.1.1`.
    """
    last_numbers: dict[str, int] = {}
    for node in draft.graph.nodes:
        scope = operators.scope(node)
        if node.op in ("placeholder", "get_attr", "output") or not scope:
            continue
        path, base = scope.partition("@")[0], re.sub(r"_\d+$", "", node.name)
        modules = path.split(".")
        for length in range(1, len(modules) + 1):
            name = f"{'.'.join(modules[:length])}.{base}"
            number = last_numbers[name] = last_numbers.get(name, -1) + 1
            yield Candidate("node", f"{name}_{number}" if number else name, node)


def is_attention(node: fx.Node) -> bool:
    """Whether a node is attention, or the softmax of attention written out by a model."""
    return operators.operator_name(node) == ATTENTION or info(node).attention is not None


def aliases(model: torch.nn.Module) -> dict[str, list[str]]:
    """All qualified names of every parameter and buffer, by each of its names."""
    by_identity: dict[int, list[str]] = {}
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in tensors:
        by_identity.setdefault(id(tensor), []).append(name)
    return {name: by_identity[id(tensor)] for name, tensor in tensors}


def select(
    draft: Draft, rule: Rule, label: str, candidates: list[Candidate], passed: Mapping[str, str]
) -> list[Candidate]:
    """The candidates selected by a rule, each node once, except parameters passed over by pruning."""
    types = {operators.module_type(node) for node in draft.graph.nodes} - {""}
    chosen = [c for c in candidates if any(matches(target, c, types) for target in rule.targets)]
    if not chosen and any(target.startswith("node:") for target in rule.targets):
        inner = list(named_in_modules(draft))
        chosen = [c for c in inner if any(matches(target, c, types) for target in rule.targets)]
    chosen = [c for c in chosen if not any(matches(target, c, types) for target in rule.ignore)]
    if rule.origin == "mask":
        others = chosen
        chosen = [c for c in chosen if is_attention(c.node)]
        if others and not chosen and not rule.optional:
            reason = f"`mask` is for attention, op:{ATTENTION}, and {others[0]} is none"
            raise rule_error(draft.recipe, rule, reason)
    if rule.types:
        chosen = [c for c in chosen if type_of(draft, c) in rule.types]
    left = [c.name for c in chosen if c.kind == "param" and c.name in passed]
    chosen = [c for c in chosen if c.kind != "param" or c.name not in passed]
    unique = list({c.node: c for c in reversed(chosen)}.values())[::-1]
    if unique or rule.optional:
        return unique
    text = "; ".join(f"{target!r}{suggestion(target, candidates)}" for target in rule.targets)
    text += near_attention(draft) if rule.origin == "mask" else ""
    text += "".join(
        f"; {name} is passed over: {passed[name]}, and taken where `types` names its type" for name in left
    )
    text += "".join(f"; nothing in this call reads param:{name}" for name in unread(draft, rule, candidates))
    raise rule_error(
        draft.recipe, rule, f"{label} matches nothing: {text}; `optional: true` lets it match nothing"
    )


def unread(draft: Draft, rule: Rule, candidates: list[Candidate]) -> list[str]:
    """The parameters named by a rule without a reader in the graph."""
    read = {candidate.name for candidate in candidates if candidate.kind == "param"}
    return [name for name in prunable.selected(draft.model, rule) if name not in read]


def report_unread(draft: Draft, rule: Rule, candidates: list[Candidate], passed: Mapping[str, str]) -> None:
    """Lists the parameters named by a rule without a reader, except parameters passed over by pruning.

    Graphs of later calls, such as calls of a decoder alone, need not read all parameters.
    """
    for name in unread(draft, rule, candidates):
        if name not in passed:
            owner, text = name.rpartition(".")[0], f"param:{name}: nothing reads it"
            draft.report.left_dense(name, "param", owner, Choice(text) if draft.stored else text)


def near_attention(draft: Draft) -> str:
    """The reasons why softmaxes of the graph are no attention, for an error."""
    reasons = {node: info(node).no_attention for node in draft.graph.nodes}
    return "".join(f"; {node} is no attention: {reason}" for node, reason in reasons.items() if reason)


def matches(target: str, candidate: Candidate, types: set[str]) -> bool:
    """Whether a target of a rule names the candidate; a module type names the nodes of its modules."""
    if target in types:
        return candidate.kind == "node" and operators.module_type(candidate.node) == target
    return selects(target, candidate.kind, candidate.name)


def type_of(draft: Draft, candidate: Candidate) -> str:
    """The class name of the module that owns or runs the candidate."""
    if candidate.kind != "param":
        return operators.module_type(candidate.node)
    owner, _, _ = candidate.name.rpartition(".")
    return type(draft.model.get_submodule(owner)).__name__


def suggestion(target: str, candidates: list[Candidate]) -> str:
    """The three nearest names of the same kind; for message passing the refusals of the model's scatters."""
    if target == "op:message_passing":
        refusals = ((c.node, reason_against(c.node)) for c in candidates if c.kind == "op")
        reasons = [f"{node.name} {reason}" for node, reason in refusals if reason]
        return f" ({'; '.join(dict.fromkeys(reasons)) or 'nothing is scattered'})"
    kind = target.partition(":")[0]
    names = sorted({str(c) for c in candidates if c.kind == kind or kind not in KINDS})
    return nearest(target, names)


def within_limits(draft: Draft, rule: Rule, selected: list[Candidate]) -> tuple[list[Candidate], list[str]]:
    """The candidates inside the rule's `when`, and a note on each other candidate."""
    if rule.when is None:
        return selected, []
    inside, notes = [], []
    for candidate in selected:
        complaint = outside(draft, rule, candidate)
        if complaint is None:
            inside.append(candidate)
        else:
            notes.append(f"{candidate} left dense: {complaint}")
            draft.report.left_dense(
                candidate.node.name, candidate.kind, operators.scope(candidate.node), Choice(complaint)
            )
    return inside, notes


def outside(draft: Draft, rule: Rule, candidate: Candidate) -> str | None:
    """The reason why a tensor is outside the limits of a rule, None when inside."""
    tensor = draft.known_tensor(candidate.node)
    when = rule.when
    if tensor is None or when is None:
        return None
    if when.min_size is not None and tensor.numel() < when.min_size:
        return f"{tensor.numel()} entries, below min_size {when.min_size}"
    density = float(torch.count_nonzero(tensor)) / max(1, entries(draft, candidate.node, tensor))
    if when.max_density is not None and density > when.max_density:
        return f"density {density:.3g} is above max_density {when.max_density:g}"
    if when.min_density is not None and density < when.min_density:
        return f"density {density:.3g} is below min_density {when.min_density:g}"
    return None


def entries(draft: Draft, node: fx.Node, tensor: torch.Tensor) -> int:
    """The number of entries a tensor has, unstored ones of a sparse input included."""
    extents = extents_given(draft, node)
    return tensor.numel() if extents is None else prod(extents)


def extents_given(draft: Draft, node: fx.Node) -> tuple[int, ...] | None:
    """The extents of a sparse input, by the node of its values; `None` for other nodes."""
    name = str(info(node).input_name or "")
    carrier = draft.examples.get(name.removesuffix("values") + "extent") if name.endswith(".values") else None
    return None if carrier is None else tuple(carrier.shape[:-1])


def rank_of(draft: Draft, node: fx.Node) -> int:
    """The number of modes of a tensor, or of the sparse input with a node of values."""
    extents, value = extents_given(draft, node), operators.tensor_value(node)
    return len(extents) if extents is not None else 0 if value is None else value.dim()


def put(draft: Draft, rule: Rule, label: str, candidate: Candidate) -> None:
    """Writes the mark of a rule on a node."""
    location = where(draft.recipe, rule)
    recipe = draft.recipe
    if rule.origin == "prune" and candidate.kind != "param":
        raise rule_error(recipe, rule, f"`prune` makes zeros in parameters, and {candidate} is none")
    if rule.dtype != "same":
        require_rounded(draft, rule, candidate)
    earlier = info(candidate.node).mark
    if earlier is not None:
        raise rule_error(recipe, rule, f"{candidate} is selected by {earlier.rule} already ({earlier.where})")
    text = format_text(recipe, rule, rank_of(draft, candidate.node))
    require_own_pattern(recipe, rule, candidate)
    outputs, gradients = sparsified_parts(draft, rule, candidate) if rule.has_parts else (None, None)
    mask = mask_spec(recipe, rule) if rule.mask is not None else None
    if mask is not None and mask.heads is not None:
        require_heads(recipe, rule, candidate, mask.heads)
    role = rule.role or ("attention_mask" if mask is not None else inferred_role(candidate))
    new_mark = Mark(
        label,
        location,
        role,
        text,
        rule.static,
        reorder=rule.reorder,
        dtype=rule.dtype,
        mask=mask,
        outputs=outputs,
        gradients=gradients,
    )
    set_info(candidate.node, mark=new_mark)


def sparsified_parts(draft: Draft, rule: Rule, candidate: Candidate) -> tuple[Parts, Parts | None]:
    """The four parts of a result and of its gradient, checked against the tensor.

    Raises:
        RecipeError: the node is no single result of an operator, or the sparsifiers do not fit it.
    """
    recipe, node = draft.recipe, candidate.node
    value = operators.tensor_value(node)
    if candidate.kind in ("param", "input"):
        raise rule_error(recipe, rule, f"sparsifiers are for results of operators, and {candidate} is none")
    if value is None or not value.dtype.is_floating_point:
        raise rule_error(
            recipe,
            rule,
            f"sparsifiers are for tensors of numbers that are not whole, and {candidate} gives none",
        )
    try:
        outputs, gradients = parts_of(rule), parts_of(rule.grad)
        assert outputs is not None, "a rule has parts"
        for parts in (outputs, gradients):
            for form in () if parts is None else (parts.temporary, parts.format):
                if form not in ("auto", "same"):
                    recipe_format(form)
            shape = [operators.known_size(extent) or 0 for extent in value.shape]
            sparsifiers = () if parts is None else (parts.inline, parts.external)
            for sparsifier in sparsifiers if 0 not in shape else ():
                sparsifier.mask(torch.zeros(shape, dtype=value.dtype))
    except (SparsifyError, TypeError) as error:
        raise rule_error(recipe, rule, f"{candidate}: {error}") from None
    return outputs, gradients


def require_rounded(draft: Draft, rule: Rule, candidate: Candidate) -> None:
    """Raises where the values of a tensor cannot be stored in a separate dtype."""
    request = f"`dtype: {rule.dtype}`"
    if candidate.kind != "param":
        raise rule_error(
            draft.recipe,
            rule,
            f"{request} rounds parameters, and {candidate} is none; name it as `param:...`",
        )
    if draft.is_trainable:
        raise rounded_in_training(draft.recipe, rule, str(candidate))


def rounded_in_training(recipe: Recipe, rule: Rule, parameter: str) -> RecipeError:
    """The error for a trained parameter that a rule stores in a separate dtype."""
    return rule_error(
        recipe,
        rule,
        f"`dtype: {rule.dtype}` stores {parameter} rounded, and steps of training are smaller than that; train with "
        "`dtype: same`, and apply this rule to the model in evaluation mode or with trainable=False",
    )


def require_own_pattern(recipe: Recipe, rule: Rule, candidate: Candidate) -> None:
    """Raises where a rule requires attention with its own pattern, and a candidate has none."""
    is_given = rule.mask is not None and rule.mask.kind == GIVEN
    if is_given and info(candidate.node).own_pattern is None:
        reason = (
            f"`mask: {{kind: given}}` is for attention that has a pattern itself, and {candidate} has none"
        )
        raise rule_error(recipe, rule, reason)


def require_heads(recipe: Recipe, rule: Rule, candidate: Candidate, heads: int) -> None:
    """Raises where a pattern has another number of heads than the attention."""
    query = operators.tensor_value(operators.argument(candidate.node, 0, "query"))  # or scores
    assert query is not None, "attention is of tensors"
    query_heads = str(query.shape[-3]) if query.dim() > HEADED else "no mode of"
    if query.dim() > HEADED and not query_heads.isdigit():
        reason = (
            f"mask: a pattern for each of {heads} heads, and how many {candidate} has is an extent of inputs that may "
            "vary; dynamic=() fixes all extents, dynamic={name: modes} all but those that it names"
        )
        raise rule_error(recipe, rule, reason)
    if query_heads != str(heads):
        reason = (
            f"mask: a pattern for each of {heads} heads, and {candidate} has {query_heads} heads; "
            "one for all has none"
        )
        raise rule_error(recipe, rule, reason)


def mask_spec(recipe: Recipe, rule: Rule) -> MaskSpec:
    """The pattern of a rule, with its numbers checked for a few tokens; draws follow the recipe's seed."""
    assert rule.mask is not None, "rules that mask say how"
    if rule.mask.kind == GIVEN:
        return MaskSpec(GIVEN, ())
    numbers = dict(rule.mask.model_extra or {})
    try:
        keywords = patterns.arguments(rule.mask.kind, numbers)
        if "seed" in signature(patterns.KINDS[rule.mask.kind]).parameters:
            keywords.setdefault("seed", recipe.seed or 0)
        spec = MaskSpec.of(rule.mask.kind, keywords)
        spec.example()
    except (SparsifyError, TypeError) as error:
        raise rule_error(recipe, rule, f"mask: {error}") from None
    return spec


def format_text(recipe: Recipe, rule: Rule, rank: int) -> str:
    """The checked format of a rule as text; names that fit every rank get the rank of the tensor."""
    form = rule.format
    if form == "auto":
        return "auto"
    try:
        named_format = recipe_format(form)
        return str(Format(form, rank=rank) if form in OF_ANY_RANK and rank >= MATRIX else named_format)
    except Exception as error:
        raise rule_error(recipe, rule, f"format: {error}") from None


def inferred_role(candidate: Candidate) -> str:
    """The default role: weight by name, adjacency for square inputs and indices, otherwise activation."""
    if candidate.kind == "param":
        return "weight"
    if candidate.kind == "op" and candidate.name == "embedding_bag":
        return "activation"
    value = operators.tensor_value(candidate.node)
    shape = [] if value is None else [str(extent) for extent in value.shape]
    is_square = len(shape) == 2 and shape[0] == shape[1]
    is_edges = len(shape) == 1 or (value is not None and name_of(value.dtype).startswith("int"))
    return "adjacency" if candidate.kind == "op" or is_square or is_edges else "activation"


def derived(source: Mark) -> Mark:
    """The mark of a tensor with sparsity derived from another tensor."""
    return replace(source, static=False, derived=True, reorder="none")
