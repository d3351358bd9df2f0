"""`torch.export` without side effects on other threads.

In: `with confined_export(): torch.export.export(...)`. Out: the changes of torch in its own modules during an export
are visible to this thread alone: `torch.compiler.is_compiling()`, calls and attributes of `nn.Module`, `max`, `min` and
`math.pow`. Only the switches of oneDNN and NNPACK, turned off by torch during the export, are global to the process.
The changed parts are private to torch: where a version lacks one, its side effects remain.
"""

import builtins
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import FunctionType
from typing import Any, Final

import torch
from torch import fx, nn
from torch._export import non_strict_utils as inputs
from torch.export import _trace as trace
from torch.fx import _symbolic_trace as tracer

from sparsify.runtime import confined

# The option of fx that omits the stack trace of each node, which takes a tenth of an export; torch 2.9 lacks it.
WITHOUT_TRACES: Final = "do_not_emit_stack_traces"
FLAGS: Final = ("_is_compiling_flag", "_is_exporting_flag")
BUILTINS: Final = ((builtins, "max"), (builtins, "min"), (math, "pow"))
REVERT: Final = "_maybe_revert_all_patches"
Context = Callable[..., AbstractContextManager[Any]]


@contextmanager
def confined_export() -> Iterator[None]:
    """A context in which exports of this thread change no state of other threads."""
    changes: list[tuple[Any, str, Callable[[Any], Callable[..., Any]]]] = [
        (trace, "_compiling_state_context", lambda _: state),
        (trace, "_override_builtin_ops", confined_builtins),
        (tracer, "_new_patcher", confined_patcher),
        (tracer.Tracer, "trace", confined_trace),
        (trace, "_gather_constant_attrs", without_parameters),
        (inputs, "_gather_constant_attrs", without_parameters),
        (torch._ops, "mode_stack_state_for_pre_dispatch", own_modes),
    ]
    with ExitStack() as stack:
        for owner, name, confine in changes:
            if hasattr(owner, name):
                context = confine(getattr(owner, name))
                stack.enter_context(confined.substituted(owner, name, context))
        if hasattr(fx.config, WITHOUT_TRACES):
            stack.enter_context(confined.flagged(fx.config, WITHOUT_TRACES))
        yield


class Shown:
    """A view of a module for the search of constants: attributes and children, without parameters.

    Args:
        module: module to search.
        known: identities of all parameters and buffers.
    """

    def __init__(self, module: nn.Module, hidden: set[int]) -> None:
        children = [(name, Shown(child, hidden)) for name, child in module.named_children()]
        self.__dict__.update({name: value for name, value in vars(module).items() if id(value) not in hidden})
        object.__setattr__(self, "named_children", lambda: children)

    def parameters(self) -> tuple[()]:
        """None are shown."""
        return ()

    buffers = parameters


def without_parameters(gather: Callable[[Any], Any]) -> Callable[[nn.Module], Any]:
    """A function that finds the constants of a module, without references to its parameters.

    torch's function refers to itself: parameters in its closure would live until a garbage collection.
    """

    def gathered(module: nn.Module) -> Any:
        hidden = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
        try:
            return gather(Shown(module, hidden))
        except AttributeError:  # another version of torch looks at more
            return gather(module)

    return gathered


@contextmanager
def state() -> Iterator[None]:
    """A context in which torch reports this thread as exporting."""
    with ExitStack() as stack:
        for name in FLAGS:
            stack.enter_context(confined.flagged(torch.compiler, name))
        yield


def confined_builtins(override: Context) -> Context:
    """A context manager that replaces builtins for one thread, from one that replaces them globally."""

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


def confined_trace(trace: Callable[..., Any]) -> Callable[..., Any]:
    """A function that traces as `trace` does, but sets the tracing flag for its own thread alone.

    The flag is written into a copy of fx's globals: code compiled by Dynamo refuses to run in threads that see the
    flag.
    """
    original = inspect.unwrap(trace)  # Dynamo's wrapper, which excludes the function from compilation

    def tracing(*args: Any, **kwargs: Any) -> Any:
        private_trace = FunctionType(
            original.__code__,
            dict(vars(tracer)),
            original.__name__,
            original.__defaults__,
            original.__closure__,
        )
        private_trace.__kwdefaults__ = original.__kwdefaults__
        if original is not trace:
            private_trace = torch.compiler.disable(private_trace)
        with confined.flagged(tracer, "_is_fx_tracing_flag"):
            return private_trace(*args, **kwargs)

    return tracing


def confined_patcher(new_patcher: Context) -> Context:
    """A context manager in which fx patches methods of classes for one thread instead of globally.

    fx's own context registers its patches globally: Dynamo, compiling in another thread, would revert them, so that the
    trace misses calls, and reapply them afterwards, even after the end of the trace.
    """

    @contextmanager
    def patching() -> Iterator[Any]:
        if not hasattr(tracer, "_Patcher"):
            with new_patcher() as patcher:
                yield patcher
            return
        methods: list[tuple[type, str, Callable[..., Any]]] = []
        with ExitStack() as patches, tracer._Patcher() as patcher:

            def patch_here(cls: type, name: str, new: Callable[..., Any], deduplicate: bool = True) -> None:
                methods.append((cls, name, new))
                patches.enter_context(confined.substituted(cls, name, new))

            @contextmanager
            def reverted() -> Iterator[None]:
                patches.close()
                patcher.revert_all_patches()
                try:
                    yield
                finally:
                    patcher.reapply_all_patches()
                    for method in methods:
                        patches.enter_context(confined.substituted(*method))

            patcher.patch_method = patch_here  # type: ignore[assignment, method-assign]
            with revertible(reverted):
                yield patcher

    return patching


def own_modes(modes_of_process: Callable[[], Any]) -> Callable[[], Any]:
    """A function that returns this thread's own dispatch modes before autograd.

    torch keeps one global list of modes: Dynamo, compiling in another thread, would trace its symbols into the exported
    graph.
    """
    modes = type(modes_of_process())()
    return lambda: modes


def revertible(reverted: Context) -> AbstractContextManager[None]:
    """A context in which Dynamo, compiling in this thread, reverts the patches of this thread."""
    if not hasattr(tracer, REVERT):
        return nullcontext()
    return confined.substituted(tracer, REVERT, reverted)
