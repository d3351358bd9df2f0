"""Calls of sparse models under Dynamo or `torch.export` tracing, described by plain values.

In: the parameters of a model and `(x, k=2.0)`. Out: `(("x", (tensor, float32, 2, ..)), ("k", (float, "2.0")))`, equal
for calls that share a graph. The description consists of types, numbers and names alone, and so can be compared in a
trace, where the structure of `calls.flatten` is unavailable.
"""

import inspect
from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import torch

from sparsify.errors import CaptureError
from sparsify.passes.call.tracing import is_elsewhere
from sparsify.passes.capture import calls
from sparsify.passes.capture.shell import modes

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

# Names of parameters, and whether each takes one argument, one by name alone, all further ones or all further names.
Parameters = tuple[tuple[str, str], ...]
# Evaluation-frame callbacks such as Dynamo's: for calls with torch's sparse matrices, Dynamo traces only the inside.
# Called by its own name: a wrapper would be traced, too.
watcher: Final = torch._C._dynamo.eval_frame.get_eval_frame_callback
NO_GRAPH: Final = (
    "the sparse model has not been captured for this mode and these arguments; call it once with them, "
    "not compiled, before torch.compile or torch.export looks at it"
)
NOT_TOLD: Final = (
    "a trace cannot tell what this call of a sparse model brings, which is told by plain tensors, constants, lists, "
    "tuples and dicts, without autocast; caches and sparse matrices are looked at outside of it"
)

# Class attribute that keeps a function for all graphs of the class.
SEPARATE_COPY: Final = "_forward"
NOT_NAMED: Final = (
    "torch.export does not tell under which names a sparse model gets its arguments",
    "export a module whose forward calls it with them",
)


def separate_copy(kind: type, function: Any) -> Any:
    """An equal function of `kind` alone: Dynamo limits compilations per function, over all callers."""
    copy = kind.__dict__.get(SEPARATE_COPY)
    if copy is None:
        code = function.__code__.replace(co_name=function.__name__)  # a separate code object
        copy = FunctionType(code, function.__globals__, closure=function.__closure__)
        for name in ("__doc__", "__annotations__", "__qualname__", "__module__"):
            setattr(copy, name, getattr(function, name))
        setattr(kind, SEPARATE_COPY, copy)
    return copy


def parameters_of(signature: Signature) -> Parameters:
    """The parameters of a model's forward."""
    kinds: dict[Any, str] = {
        Parameter.KEYWORD_ONLY: "name",
        Parameter.VAR_POSITIONAL: "all",
        Parameter.VAR_KEYWORD: "names",
    }
    return tuple((name, kinds.get(parameter.kind, "one")) for name, parameter in signature.parameters.items())


def arguments(
    parameters: Parameters, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The arguments of a call by parameter, in order; None where an argument fits no parameter.

    Same as `Signature.bind`, which does not run in traces.

    >>> arguments((("x", "one"), ("rest", "all"), ("how", "names")), (1, 2, 3), {"deep": True})
    {'x': 1, 'rest': (2, 3), 'how': {'deep': True}}
    >>> arguments((("x", "one"), ("how", "name")), (1, 2), {})
    """
    bound: dict[str, Any] = {}
    left, named = list(args), dict(kwargs)
    for name, kind in parameters:
        if kind == "one" and left:
            bound[name] = left.pop(0)
        elif kind == "all" and left:
            bound[name], left = tuple(left), []
        elif kind == "names" and named:
            bound[name], named = named, {}
        elif kind in ("one", "name") and name in named:
            bound[name] = named.pop(name)
    return None if left or named else bound


def exported_names(module: torch.nn.Module) -> tuple[str, ...] | None:
    """Argument names of a `torch.export` call that runs the graph of `module`; None if not found.

    `torch.export` passes only values to the graph, in the order of the call: the names are read from the frame that
    requests the graph.
    """
    frame = inspect.currentframe()
    while frame is not None:
        named = frame.f_locals.get("kwargs")
        if frame.f_locals.get("mod") is module and isinstance(named, dict):
            return tuple(named)
        frame = frame.f_back
    return None


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors of a describable value, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if type(value) is dict else value if type(value) in calls.LISTS else ()
    return [tensor for part in inner for tensor in tensors_of(part)]


def traced(module: "SparseModule", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result while tracing: from the matching variant, otherwise computed outside of the trace."""
    bound = arguments(module._taking, args, kwargs)
    if bound is None:
        return run_outside(module, args, kwargs, is_told=True)
    key = None if torch.is_autocast_enabled("cpu") else calls.structure_key(bound)
    if key is None:
        return run_outside(module, args, kwargs, is_told=False)
    mode, tensors = modes(module), tensors_of(bound)
    variant = module._captures.traced(mode, key, tuple([tensor.shape for tensor in tensors]))
    if variant is not None and variant.is_laid_out(tensors):
        return module.finish(variant, tensors)
    if module._captures.are_refused(mode, key) and not module._request.has_masks:
        return module.original(*args, **kwargs)
    return run_outside(module, args, kwargs, is_told=True)


def fail_without_graph() -> None:
    """Raises: `torch.export` runs the graph of a `GraphModule`, and this one has none."""
    raise CaptureError(
        "this sparse model has no graph to export",
        "call it once with these arguments before torch.export; where capturing failed, which its report says, export "
        "the source model",
    )


def run_outside(module: torch.nn.Module, args: Any, kwargs: Any, *, is_told: bool) -> Any:
    """The result of a call outside of the trace, where the whole call is known.

    Raises:
        CaptureError: in `torch.export`, which has no outside.
    """
    # Neither holds after Dynamo gave up: Dynamo traces a function a limited number of times, and then runs it.
    if torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling() and not is_elsewhere():
        raise CaptureError(NO_GRAPH if is_told else NOT_TOLD)
    from sparsify.passes.module.source import graph_break  # loads Dynamo, already loaded when tracing

    return (graph_break.run_now if is_told else graph_break.run_untold)(module, args, kwargs)
