"""Recurrent layers step by step, timed against torch's operators for them.

In: a draft after all passes whose layer `rnn` is step by step, and the calls of `torch.lstm` that it stands for.
Out: a `Winner`, the times of the nodes of the layer and of torch's operators for tensors of the example's shapes.

torch's operators on CPUs are faster than the sum of their products, and a step takes some microseconds of dispatch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from sparsify.passes.call.bind import extract
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.autotune import Candidate, Winner, compare
from sparsify.passes.choose.estimate import UNKNOWN_ROWS, example
from sparsify.passes.graph.operators import is_mutating, is_random, known_size, operator_name, scope


@dataclass(frozen=True, slots=True)
class Called:
    """A call of torch's operator while the model was captured.

    Attributes:
        function: the operator.
        arguments: its arguments, with names of parameters in their place and shapes for other tensors.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor without its entries."""

    extents: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Name:
    """A parameter of the model."""

    text: str


def called(function: Callable[..., Any], arguments: Sequence[Any], names: Mapping[int, str]) -> Called:
    """A call without its tensors; `names` are those of parameters by identity."""

    def described(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in names:
            return Name(names[id(value)])
        return Shape(
            tuple(known_size(size, UNKNOWN_ROWS) or UNKNOWN_ROWS for size in value.shape), value.dtype
        )

    return Called(function, pytree.tree_map(described, tuple(arguments)))


def outcome(draft: Draft, layer: str, calls: Sequence[Called]) -> Winner | None:
    """The times of both for the example; `None` where nothing is timed: without seconds, in training, or for draws.

    Args:
        draft: after all passes.
        layer: the name of the module.
        calls: of torch's operators in it.
    """
    own = [n for n in draft.graph.nodes if n.op == "call_function" and scope(n).partition("@")[0] == layer]
    is_timed = draft.options.tune_seconds > 0 and not draft.is_trainable and bool(own)
    if not is_timed or any(is_mutating(node) or is_random(node) for node in own):
        return None
    steps, theirs = steps_of(draft, own), [operator_of(draft, call) for call in calls]

    def dense() -> None:
        for call in theirs:
            call()

    both = [Candidate("steps", steps), Candidate("torch", dense)]
    return compare("recurrent layer", both, draft.options.tune_seconds)


def described(found: Winner) -> str:
    """The measured times, in words."""
    return f"timed {found.us:.0f} us step by step, torch's {found.us_of('torch'):.0f}{found.disturbed}"


def steps_of(draft: Draft, own: Sequence[fx.Node]) -> Callable[[], Any]:
    """The nodes of a layer as a call with tensors like the example's."""
    inside = set(own)
    outputs = [node for node in own if not set(node.users) <= inside and operator_name(node) != "sym_size"]
    inputs = list(dict.fromkeys(read for node in own for read in node.all_input_nodes if read not in inside))
    module = extract(draft, inputs, [*outputs])
    return partial(module.forward, *[example(draft, node) for node in inputs])


def operator_of(draft: Draft, call: Called) -> Callable[[], Any]:
    """A call of torch's operator with tensors like the example's."""
    generator = torch.Generator().manual_seed(0)

    def made(value: Any) -> Any:
        if isinstance(value, Name):
            return draft.model.get_parameter(value.text).detach()
        if isinstance(value, Shape):
            return torch.randn(value.extents, generator=generator).to(value.dtype)
        return value

    return partial(call.function, *pytree.tree_map(made, call.arguments))
