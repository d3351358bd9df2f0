"""The parameters that a rule which prunes takes: matrices that products read, and others that it names.

In: `targets: ["param:*.weight"]` and a transformer. Out: the weights of its linear layers, among them `in_proj_weight`;
those of its normalisations and embeddings are passed over, each with a reason.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from torch import nn

from sparsify.recipe import Rule
from sparsify.recipe.target import selects

MATRIX: Final = 2
GLOBS: Final = frozenset("*?[")
TABLES: Final = (nn.Embedding, nn.EmbeddingBag)


def selected(model: nn.Module, rule: Rule) -> Iterator[str]:
    """The parameters that a rule selects, under all of their names."""
    for name, _ in model.named_parameters(remove_duplicate=False):
        if is_selected(rule, name, kind_of(model, name)):
            yield name


def is_selected(rule: Rule, name: str, kind: str) -> bool:
    """Whether a rule selects a parameter of a module of a class."""
    is_chosen = any(selects(target, "param", name) for target in rule.targets)
    is_ignored = any(selects(target, "param", name) for target in rule.ignore)
    return is_chosen and not is_ignored and (not rule.types or kind in rule.types)


def unnamed(model: nn.Module, rules: Sequence[Rule], read: Collection[str]) -> tuple[str, ...]:
    """The matrices that products read, and that no rule selects or ignores."""

    def is_known(name: str) -> bool:
        return any(
            selects(target, "param", name) for rule in rules for target in (*rule.targets, *rule.ignore)
        )

    names = dict(model.named_parameters(remove_duplicate=False))
    return tuple(name for name in names if name in read and not is_known(name))


def kind_of(model: nn.Module, name: str) -> str:
    """The class name of the module that has a parameter."""
    return type(owner_of(model, name)).__name__


def owner_of(model: nn.Module, name: str) -> nn.Module:
    """The module that has a parameter."""
    return model.get_submodule(name.rpartition(".")[0])


def passed_over(
    model: nn.Module, rule: Rule, read: Collection[str] | None, ties: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """The parameters that a rule selects and does not prune, with reasons.

    Args:
        model: has the parameters.
        rule: takes what it names by type, or without a glob, whatever it is.
        read: by products, under all names; None where that is not known.
        ties: by name all names of a parameter.
    """
    known = dict(model.named_parameters(remove_duplicate=False))
    names = list(selected(model, rule))
    reasons = {name: _reason(model, rule, name, known[name], read) for name in names}
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
    """Why a rule passes over a parameter that it selects, None where it does not."""
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
