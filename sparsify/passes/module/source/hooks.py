"""Hooks of a sparse model's modules: with any hook the source model runs, which has real modules.

In: `sparse.get_submodule("encoder").register_forward_hook(record)`. Out: calls of the source model with the hook on its
`encoder`, and one warning.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch import nn

from sparsify.passes.capture.draft import Notices
from sparsify.passes.capture.shell import HOOKS
from sparsify.runtime.locks import Lock

FORWARD: Final = ("_forward_pre_hooks", "_forward_hooks")
BACKWARD: Final = ("_backward_pre_hooks", "_backward_hooks")


class Hooks:
    """The modules of a sparse model with hooks.

    Attributes:
        paths: paths of shells with hooks, and of modules of the source model with gradient hooks; never changed in
            place. Paths without hooks any more stay until the next call.
    """

    def __init__(self, source: nn.Module) -> None:
        self.lock = Lock()
        self.paths = [path for path, part in source.named_modules() if has_hooks(part, BACKWARD)]

    def __bool__(self) -> bool:
        """Whether hooks may exist."""
        return bool(self.paths)

    def add(self, path: str) -> None:
        """A shell got hooks."""
        with self.lock:
            self.paths = list(dict.fromkeys((*self.paths, path)))

    def follow(self, sparse: nn.Module, source: nn.Module) -> None:
        """The modules are other ones now."""
        with self.lock:
            self.paths = [path for path, _ in source.named_modules() if _may_run(sparse, source, path)]

    def active(self, sparse: nn.Module, source: nn.Module) -> list[str]:
        """The paths of modules whose hooks would run in a call now."""
        with self.lock:
            self.paths = [path for path in self.paths if _may_run(sparse, source, path)]
        kinds = BACKWARD if torch.is_grad_enabled() else ()
        shells = [path for path in self.paths if path and _has(sparse, path, (*FORWARD, *kinds))]
        parts = [path for path in self.paths if _has(source, path, kinds)]
        return list(dict.fromkeys((*shells, *parts)))


def _may_run(sparse: nn.Module, source: nn.Module, path: str) -> bool:
    """Whether the shell at a path has hooks, or the module of the source model some for gradients."""
    return (bool(path) and _has(sparse, path, (*FORWARD, *BACKWARD))) or _has(source, path, BACKWARD)


def _has(model: nn.Module, path: str, kinds: tuple[str, ...]) -> bool:
    """Whether a module exists at a path and has hooks of some kinds."""
    try:
        return has_hooks(model.get_submodule(path), kinds)
    except AttributeError:  # another thread is about to replace the module
        return False


def has_hooks(module: nn.Module, kinds: tuple[str, ...]) -> bool:
    """Whether a module has hooks of some kinds."""
    return any(vars(module).get(kind) for kind in kinds)


@contextmanager
def hooked(sparse: nn.Module, source: nn.Module, paths: list[str]) -> Iterator[None]:
    """A context that puts shells' hooks on modules of the source model; hooks are called with the shells."""
    with ExitStack() as stack:
        for path in filter(None, paths):
            stack.enter_context(_hooked(sparse.get_submodule(path), source.get_submodule(path)))
        yield


@contextmanager
def _hooked(shell: nn.Module, part: nn.Module) -> Iterator[None]:
    """A context that puts the hooks of one shell on a module of the source model."""
    before = {name: vars(part)[name] for name in HOOKS}
    for name in HOOKS:
        shell_hooks = vars(shell)[name]
        if not isinstance(shell_hooks, dict):
            vars(part)[name] = before[name] if shell_hooks is None else shell_hooks
            continue
        is_code = name in FORWARD or name in BACKWARD
        merged = {key: _for(shell, hook) if is_code else hook for key, hook in shell_hooks.items()}
        vars(part)[name] = type(before[name])({**before[name], **merged})
    try:
        yield
    finally:
        vars(part).update(before)


def _for(shell: nn.Module, hook: Any) -> Any:
    """A wrapper of a hook, called with a shell in place of the running module."""

    def run(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return hook(shell, *args, **kwargs)

    return run


def drop_gradient_hooks(model: nn.Module) -> None:
    """Removes gradient hooks from a model copy: calls with such hooks run in the source model."""
    for part in model.modules():
        vars(part).update({kind: OrderedDict() for kind in BACKWARD})


def report_recorders(source: nn.Module, notices: Notices) -> None:
    """Warns of the source model's earlier hooks: their results are in the graph, and they no longer run."""
    paths = [path or "the model" for path, part in source.named_modules() if _has_recorders(part)]
    if paths:
        notices.warn(
            f"hooks of {', '.join(paths)} run while the model is captured: what they return is part of the graph, and "
            "what else they do is not; register them on the sparse model in place of the source model"
        )


def _has_recorders(part: nn.Module) -> bool:
    """Whether a module has hooks other than torch's own (weight_norm, for example)."""
    hooks = [hook for kind in FORWARD for hook in vars(part)[kind].values()]
    return not all((getattr(hook, "__module__", None) or "").startswith("torch.") for hook in hooks)
