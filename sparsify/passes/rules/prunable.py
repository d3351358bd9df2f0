"""The parameters taken by a pruning rule: matrices read by products, and parameters named explicitly.

In: `targets: ["param:*.weight"]` and a transformer. Out: the weights of its linear layers, among them `in_proj_weight`;
normalisations and embeddings are passed over, each with a reason.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from torch import nn

from sparsify.recipe import Rule
from sparsify.recipe.suggestion import nearest
from sparsify.recipe.target import kind_of as target_kind
from sparsify.recipe.target import selects

MATRIX: Final = 2
GLOBS: Final = frozenset("*?[")
TABLES: Final = (nn.Embedding, nn.EmbeddingBag)


def selected(model: nn.Module, rule: Rule) -> Iterator[str]:
    """The parameters selected by a rule, under all of their names."""
    for name, _ in model.named_parameters(remove_duplicate=False):
        if is_selected(rule, name, kind_of(model, name)):
            yield name


def idle_targets(model: nn.Module, rule: Rule) -> dict[str, str]:
    """The targets of a rule that name parameters and match none, each with the nearest names.

    Empty for rules that may match nothing, and for rules with a single target (an error elsewhere).
    """
    if rule.optional or len(rule.targets) < 2:
        return {}
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    names = [name for name, _ in tensors]
    return {
        target: nearest(target, [f"param:{name}" for name in names])
        for target in rule.targets
        if target_kind(target) == "param" and not any(selects(target, "param", name) for name in names)
    }


def is_selected(rule: Rule, name: str, kind: str) -> bool:
    """Whether a rule selects a parameter of a module of a class."""
    is_chosen = any(selects(target, "param", name) for target in rule.targets)
    is_ignored = any(selects(target, "param", name) for target in rule.ignore)
    return is_chosen and not is_ignored and (not rule.types or kind in rule.types)


def unnamed(model: nn.Module, rules: Sequence[Rule], read: Collection[str]) -> tuple[str, ...]:
    """The matrices read by products that no rule selects or ignores."""

    def is_known(name: str) -> bool:
        return any(
            selects(target, "param", name) for rule in rules for target in (*rule.targets, *rule.ignore)
        )

    names = dict(model.named_parameters(remove_duplicate=False))
    return tuple(name for name in names if name in read and not is_known(name))


def kind_of(model: nn.Module, name: str) -> str:
    """The class name of the module that owns a parameter."""
    return type(owner_of(model, name)).__name__


def owner_of(model: nn.Module, name: str) -> nn.Module:
    """The module that owns a parameter."""
    return model.get_submodule(name.rpartition(".")[0])


def passed_over(
    model: nn.Module, rule: Rule, read: Collection[str] | None, ties: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """The parameters that a rule selects but does not prune, with reasons.

    Args:
        model: model with the parameters.
        rule: the rule; parameters named by type, or without a glob, are always taken.
        read: parameters read by products, under all names; None if unknown.
        ties: all names of a parameter, by each name.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    names = list(selected(model, rule))
    reasons = {name: _reason(model, rule, name, parameters[name], read) for name in names}
    for name in names:
        tables = [other for other in ties[name] if isinstance(owner_of(model, other), TABLES)]
        if tables and rule.ties == "error" and len(ties[name]) > 1 and not is_named(rule, name):
            reasons[name] = f"tied to a table of rows, {tables[0]}; `ties: share` prunes both"
    return {name: reason for name, reason in reasons.items() if reason is not None}


def is_named(rule: Rule, name: str) -> bool:
    """Whether a rule names a parameter without a glob."""
    return any(target in (name, f"param:{name}") and not GLOBS & set(target) for target in rule.targets)


def _reason(
    model: nn.Module, rule: Rule, name: str, parameter: nn.Parameter, read: Collection[str] | None
) -> str | None:
    """The reason why a rule passes over a selected parameter, None if the rule takes it."""
    owner = owner_of(model, name)
    kind = type(owner).__name__
    if is_named(rule, name):
        return None
    if parameter.dim() < MATRIX:
        has_matrix = any(p is not None and p.dim() >= MATRIX for p in owner._parameters.values())
        return None if kind in rule.types and not has_matrix else "one mode"
    if kind in rule.types:
        return None
    if isinstance(owner, TABLES) and (rule.ties == "error" or read is None or name not in read):
        return f"a table of rows, of type {kind}"
    if "Norm" in kind:
        return f"no matrix, of type {kind}"
    return "no product reads it" if read is not None and name not in read else None
