"""Capture ahead of time, for the kinds of calls of a server or a threaded program.

In: `[{"training": False, "inputs": (x,)}, {"training": True, "inputs": {"x": x}}]`. Out: a `Prepared` per kind; the
sparse model has graphs for calls of all kinds, with compiled kernels, for training including the gradients' kernels.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sparsify.errors import CaptureError, VerificationError
from sparsify.passes.capture import calls
from sparsify.passes.capture.libraries import torch_geometric_data
from sparsify.passes.capture.shell import Modes, modes
from sparsify.passes.module.variants.run_eager import without_effects
from sparsify.passes.module.variants.variant import Variant
from sparsify.recipe.suggestion import nearest

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

KEYS: Final = ("training", "inputs")
Kind = Mapping[str, Any]


@dataclass(frozen=True)
class Prepared:
    """A kind of call that a model was prepared for.

    Attributes:
        kind: description of the kind.
        is_new: whether the kind was captured now.
        seconds: time of the capture, the kernels and a first call.
        refusal: reason why no graph exists and the source model runs, "" otherwise.
        pieces: number of pieces of the source model in kernels, after a refusal.
    """

    kind: str
    is_new: bool
    seconds: float
    refusal: str = ""
    pieces: int = 0

    def __str__(self) -> str:
        if self.pieces:
            return f"{self.kind}: {self.pieces} pieces run in kernels, {self.refusal}"
        if self.refusal:
            return f"{self.kind}: the source model runs, {self.refusal}"
        return f"{self.kind}: {'captured' if self.is_new else 'known'}, {self.seconds:.1f} s"


def as_call(example_inputs: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Positional and keyword arguments of an example call."""
    if isinstance(example_inputs, Tensor) or torch_geometric_data.is_graph(example_inputs):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        return (), example_inputs
    if not isinstance(example_inputs, list | tuple):
        kind = type(example_inputs).__name__
        raise CaptureError(f"example inputs of type {kind}", "a tensor, or a tuple or mapping of inputs")
    return tuple(example_inputs), {}


def prepare(module: "SparseModule", kinds: Sequence[Kind]) -> list[Prepared]:
    """Captures the calls of all kinds; stops at the first failure.

    Raises:
        CaptureError: a kind is wrong, or its calls fail; the text names the kind.
        VerificationError: as in `apply`.
    """
    checked_kinds = [checked(module, number, kind) for number, kind in enumerate(kinds)]
    prepared_kinds = []
    for name, call, mode in checked_kinds:
        try:
            prepared_kinds.append(prepared(module, name, call, mode))
        except VerificationError as error:
            raise VerificationError(f"{name}: {error}") from error
        except Exception as error:  # the code of the model may raise any exception
            raise CaptureError(f"{name}: {error}") from error
    return prepared_kinds


def checked(module: "SparseModule", number: int, kind: Any) -> tuple[str, calls.Call, Modes]:
    """The name of a kind, its call and the modes of the modules."""
    name = f"kinds[{number}]"
    if not isinstance(kind, Mapping):
        kind_name = type(kind).__name__
        raise CaptureError(
            f"{name} is a {kind_name}", 'a mapping such as {"training": False, "inputs": (x,)}'
        )
    for key in kind:
        if key not in KEYS:
            raise CaptureError(
                f"{name} has {key!r}{nearest(str(key), KEYS)}", f"its keys are {', '.join(KEYS)}"
            )
    if "inputs" not in kind:
        raise CaptureError(f"{name} has no inputs", "give those of one call, as to apply")
    now = modes(module)
    training = kind.get("training", module.training)
    if not isinstance(training, bool):
        raise CaptureError(f"{name} has training={training!r}", "True or False")
    try:
        args, kwargs = as_call(kind["inputs"])
        call = module.flattened_call(args, kwargs)
    except CaptureError as error:
        raise CaptureError(f"{name}: {error}") from None
    if not any(leaf.kind != "constant" for leaf in call.shape.leaves):
        raise CaptureError(f"the inputs of {name} hold no tensor", "give the inputs of one call")
    mode = now if training == module.training else (training,) * len(now)
    shapes = [
        f"{leaf.name} {list(value.shape)}"
        for leaf, value in zip(call.shape.leaves, call.values, strict=True)
        if isinstance(value, Tensor)
    ]
    return f"{name} ({'training' if training else 'evaluation'}, {', '.join(shapes)})", call, mode


def prepared(module: "SparseModule", name: str, call: calls.Call, mode: Modes) -> Prepared:
    """The outcome of one kind."""
    from sparsify.passes.module.capture_call import MAX_CAPTURES, capture_call

    started = time.perf_counter()
    tensors = call.tensors(module._matrices)
    like, shapes = (mode, call.shape), tuple(tensor.shape for tensor in tensors)
    is_new = module._captures.fitting(like, shapes) is None
    variant = capture_call(module, call, tensors, mode)
    if variant is None:
        refusal = module._captures.refused.get(like, f"more than {MAX_CAPTURES} captures")
        report = module._captures.piecewise.get(like)
        pieces = 0 if report is None else sum(entry.regions > 0 for entry in report.pieces)
        return Prepared(name, False, time.perf_counter() - started, refusal, pieces)
    rehearse(module, variant, tensors, any(mode))
    return Prepared(name, is_new, time.perf_counter() - started)


def rehearse(module: "SparseModule", variant: Variant, tensors: Sequence[Tensor], is_trained: bool) -> None:
    """Runs a variant without gradients, as in serving, and with gradients (of all parameters if trained).

    Leaves the gradients of parameters, buffers and random state unchanged.
    """
    run = without_effects(module, variant)
    with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
        with torch.no_grad():
            run(*copies(tensors))
        with torch.enable_grad():
            inputs = copies(tensors)
            leaves = pytree.tree_leaves(run(*inputs))
            outputs = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
            targets = [tensor for tensor in (*module.parameters(), *inputs) if tensor.requires_grad]
            if is_trained and outputs and targets:
                ones = [torch.ones_like(output) for output in outputs]
                torch.autograd.grad(outputs, targets, ones, allow_unused=True)


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of inputs that a variant may write in place, with the `requires_grad` of the originals."""
    return [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in tensors]
