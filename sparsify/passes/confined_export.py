"""`torch.export` without effects on other threads.

In: `with confined_export(): torch.export.export(...)`. Out: what torch changes in its own modules for the time of an
export is seen by this thread alone: `torch.compiler.is_compiling()`, calls and attributes of `nn.Module`, `max`, `min`
and `math.pow`. Only the switches of oneDNN and NNPACK, which torch turns off meanwhile, are those of the process.

These are private parts of torch: where a version does not have one, its effects stay as they are.
"""

import builtins
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final

import torch
from torch.export import _trace as trace
from torch.fx import _symbolic_trace as tracer

from sparsify.runtime import confined

FLAGS: Final = ("_is_compiling_flag", "_is_exporting_flag")
BUILTINS: Final = ((builtins, "max"), (builtins, "min"), (math, "pow"))
Context = Callable[..., AbstractContextManager[Any]]


@contextmanager
def confined_export() -> Iterator[None]:
    """Within this context exports of this thread change nothing that other threads see."""
    changes: list[tuple[Any, str, Callable[[Context], Context]]] = [
        (trace, "_compiling_state_context", lambda _: state),
        (trace, "_override_builtin_ops", confined_builtins),
        (tracer, "_new_patcher", confined_patcher),
    ]
    with ExitStack() as stack:
        for owner, name, confine in changes:
            if hasattr(owner, name):
                context = confine(getattr(owner, name))
                stack.enter_context(confined.substituted(owner, name, context))
        yield


@contextmanager
def state() -> Iterator[None]:
    """Within this context torch says that this thread exports."""
    with ExitStack() as stack:
        for name in FLAGS:
            stack.enter_context(confined.flagged(torch.compiler, name, getattr(torch.compiler, name)))
        yield


def confined_builtins(override: Context) -> Context:
    """A context that replaces builtins for one thread, of one that replaces them for all."""

    @contextmanager
    def overridden() -> Iterator[None]:
        originals = [getattr(owner, name) for owner, name in BUILTINS]
        with override():
            changed = [getattr(owner, name) for owner, name in BUILTINS]
        with ExitStack() as stack:
            for (owner, name), original, substitute in zip(BUILTINS, originals, changed, strict=True):
                if substitute is not original:
                    stack.enter_context(confined.substituted(owner, name, substitute))
            yield

    return overridden


def confined_patcher(new_patcher: Context) -> Context:
    """A context in which fx changes methods of classes for one thread, of one that changes them for all."""
    was_tracing = tracer._is_fx_tracing_flag

    @contextmanager
    def patching() -> Iterator[Any]:
        with ExitStack() as stack:
            stack.enter_context(confined.flagged(tracer, "_is_fx_tracing_flag", was_tracing))
            patcher = stack.enter_context(new_patcher())
            patch_method = patcher.patch_method

            def patch_here(cls: type, name: str, new: Callable[..., Any], deduplicate: bool = True) -> None:
                choice = confined.Choice(getattr(cls, name), new)
                stack.enter_context(choice.here.entered())
                patch_method(cls, name, choice.function, deduplicate)

            patcher.patch_method = patch_here
            yield patcher

    return patching
