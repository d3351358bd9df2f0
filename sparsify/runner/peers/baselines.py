"""Baselines of a run: the dense model by the fastest other libraries, beside the sparse model in the table.

In: `Baselines(None).made(model, (x,), expected)`. Out: the fastest installed library as a `Baseline` and a call;
`Baselines(("inductor", "openvino"))` gives both, with a reason for a library that is missing or fails.
"""

import copy
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sparsify.errors import SparsifyError
from sparsify.options import current
from sparsify.passes.capture.draft import ApplyRequest
from sparsify.passes.capture.shell import shared_copy
from sparsify.passes.module.prune_and_capture import pruned, sparse_module
from sparsify.recipe import load
from sparsify.runner import measure
from sparsify.runner.measure import Call, Timing, agreement, milliseconds
from sparsify.runner.peers import installed, network_peers

Maker = Callable[[nn.Module, Sequence[Tensor]], Call | None]


@dataclass(frozen=True, slots=True)
class Library:
    """A way to run a dense model.

    Attributes:
        title: name in tables.
        setting: options for best performance, in words.
        make: maker of the call; returns `None` if the library is not installed.
        is_first: whether runs without `--baseline` try the library: float32, and ready in seconds.
        is_exact: whether the library computes in float32.
        package: name for `installed.reason`, "" for parts of torch.
    """

    title: str
    setting: str
    make: Maker
    is_first: bool = False
    is_exact: bool = True
    package: str = ""


def as_it_is(model: nn.Module, inputs: Sequence[Tensor]) -> Call:
    """The model in torch."""
    return without_gradients(model, inputs)


def onednn(model: nn.Module, inputs: Sequence[Tensor]) -> Call:
    """The model with products and convolutions by oneDNN, packed and fused if measured to be faster."""
    recipe = load(DENSE)
    asked = recipe.model_copy(update={"compile": recipe.compile.model_copy(update={"backends": BACKENDS})})
    how = ApplyRequest(asked, verify=False, trainable=False, is_quiet=True)
    return without_gradients(
        sparse_module(pruned(shared_copy(model).eval(), how, tuple(inputs)), how), inputs
    )


def bfloat16(model: nn.Module, inputs: Sequence[Tensor]) -> Call:
    """The model with weights and activations in bfloat16, in torch."""
    narrow = copy.deepcopy(model).to(torch.bfloat16)
    given = [x.to(torch.bfloat16) if x.is_floating_point() else x for x in inputs]
    return without_gradients(narrow, given)


def without_gradients(model: Callable[..., Any], inputs: Sequence[Tensor]) -> Call:
    """A call of the model under `torch.no_grad`."""

    def call() -> Any:
        with torch.no_grad():
            return model(*inputs)

    return call


# All weights of products are selected; no kernel of this project computes one (see BACKENDS).
DENSE: Final[dict[str, Any]] = {
    "schema": 1,
    "name": "dense",
    "sparsify": [{"targets": ["param:*"], "role": "weight", "optional": True}],
}
BACKENDS: Final = ("torch", "onednn")
LIBRARIES: Final = {
    "torch": Library("torch", "as it is", as_it_is),
    "onednn": Library(
        "oneDNN", "weights packed, activations and normalisations fused", onednn, is_first=True
    ),
    "inductor": Library("inductor", "torch.compile with frozen weights", network_peers.inductor),
    "bf16": Library("torch bfloat16", "weights and activations in bfloat16", bfloat16, is_exact=False),
    "openvino": Library(
        "OpenVINO",
        "float32, for latency, as many threads",
        network_peers.openvino,
        is_first=True,
        package="OpenVINO",
    ),
    "onnxruntime": Library(
        "ONNX Runtime",
        "float32, torch's export, as many threads",
        network_peers.onnx_runtime,
        is_first=True,
        package="ONNX Runtime",
    ),
}
# Usual differences of float32 results; larger ones are shown in the table.
EXACT: Final = 1e-3
# Calls of each library to find the fastest.
SCREENED: Final = 3


@dataclass(slots=True)
class Baseline:
    """The dense model by one library.

    Attributes:
        name: a key of `LIBRARIES`.
        reason: why the baseline was not timed beside the sparse model, "" if timed.
        beside: medians of slower libraries, by title.
        largest_error: the largest difference of outputs from torch's; `None` for outputs of other shapes.
        timing: times of the turns.
    """

    name: str
    reason: str = ""
    beside: dict[str, float] = field(default_factory=dict)
    largest_error: float | None = 0.0
    timing: Timing = field(default_factory=Timing)

    def to_dict(self) -> dict[str, Any]:
        """The baseline as plain data."""
        return {
            "name": self.name,
            "setting": LIBRARIES[self.name].setting,
            "reason": self.reason,
            "median_ms": self.timing.median_ms if self.timing.runs_ms else None,
            "runs_ms": self.timing.runs_ms,
            "largest_error": self.largest_error,
            "slower_ms": self.beside,
        }

    @property
    def is_equal(self) -> bool:
        """Whether results equal torch's up to the usual differences of float32."""
        is_exact = LIBRARIES[self.name].is_exact
        return is_exact and self.largest_error is not None and self.largest_error <= EXACT

    def row(self, sparse: Timing) -> list[str]:
        """Row of the table: time and speedup of the sparse model over the baseline, or the reason for no time."""
        library = LIBRARIES[self.name]
        if not self.timing.runs_ms:
            return [library.title, "", "", self.reason]
        told = f"{agreement(self.timing, sparse)}; {library.setting}"
        told += "".join(f"; {title} {milliseconds(ms)}" for title, ms in self.beside.items())
        if self.largest_error is None:
            told += "; its results have other shapes"
        elif not self.is_equal:
            told += f"; differs by {self.largest_error:.1e}"
        return [library.title, milliseconds(self.timing.median_ms), "", told]


@dataclass(frozen=True, slots=True)
class Baselines:
    """The baselines of a run: the requested ones, or for `None` the fastest among torch and `is_first` libraries."""

    wanted: tuple[str, ...] | None = ()

    @property
    def are_wanted(self) -> bool:
        """Whether any baseline is to be timed."""
        return self.wanted != ()

    def made(
        self, model: nn.Module, inputs: Sequence[Tensor], expected: Any
    ) -> tuple[list[Baseline], list[Call]]:
        """The baselines, runnable ones first, and the calls of the runnable ones.

        Args:
            model: the dense model.
            inputs: arguments of each call.
            expected: the model's result in torch.
        """
        names = self.wanted
        if names is None:
            names = tuple(name for name, one in LIBRARIES.items() if one.is_first and is_installed(one))
        found = [made(name, model, inputs, expected) for name in names]
        if self.wanted is None:
            return fastest(found, as_it_is(model, inputs))
        runs = [(one, call) for one, call in found if call is not None]
        missing = [one for one, call in found if call is None]
        return [*(one for one, _ in runs), *missing], [call for _, call in runs]


def parsed(asked: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Baselines named by a text or a sequence; `None` if not given.

    >>> parsed("torch, inductor"), parsed("none"), parsed(None)
    (('torch', 'inductor'), (), None)

    Raises:
        SparsifyError: a name is unknown.
    """
    if asked is None:
        return None
    given = asked.split(",") if isinstance(asked, str) else asked
    names = tuple(dict.fromkeys(name.strip().lower() for name in given if name.strip()))
    if names == ("none",):
        return ()
    if names == ("all",):
        return tuple(LIBRARIES)
    for name in names:
        if name not in LIBRARIES:
            near = get_close_matches(name, LIBRARIES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(LIBRARIES)}, or all, or none"
            raise SparsifyError(f"no baseline {name!r}", hint)
    return names


def is_installed(library: Library) -> bool:
    """Whether a library can be loaded."""
    return not library.package or not installed.reason(library.package)


def made(
    name: str, model: nn.Module, inputs: Sequence[Tensor], expected: Any
) -> tuple[Baseline, Call | None]:
    """A baseline and a call, `None` if the library is missing or fails."""
    library, baseline = LIBRARIES[name], Baseline(name)
    if not current().quiet and sys.stderr.isatty():
        print(f"baseline {library.title}: made ready", file=sys.stderr, flush=True)
    try:
        call = library.make(model, inputs)
        if call is None:
            baseline.reason = installed.reason(library.package) or "does not load"
            return baseline, None
        found, baseline.timing.first_ms = measure.once(call)
    except Exception as error:  # of whatever kind the library raises
        text = (str(error).strip().splitlines() or [""])[0]
        baseline.reason = f"does not run this model: {type(error).__name__}: {text}"
        return baseline, None
    baseline.largest_error = largest_difference(expected, found)
    return baseline, call


def fastest(found: Sequence[tuple[Baseline, Call | None]], plain: Call) -> tuple[list[Baseline], list[Call]]:
    """The fastest baseline, or no call if plain torch is faster; times of slower libraries are noted."""
    runs = [(one, call) for one, call in found if call is not None]
    if not runs:
        return [], []
    timings = measure.interleave(
        plain, *(call for _, call in runs), seconds=0.0, least=SCREENED, most=SCREENED, is_warm=True
    )
    medians = [timing.median_ms for timing in timings[1:]]
    place = min(range(len(runs)), key=medians.__getitem__)
    times = {LIBRARIES[one.name].title: ms for (one, _), ms in zip(runs, medians, strict=True)}
    if timings[0].median_ms <= medians[place]:
        told = ", ".join(f"{title} {milliseconds(ms)}" for title, ms in times.items())
        here = milliseconds(timings[0].median_ms)
        return [Baseline("torch", f"the fastest of those tried: {here}, {told}")], []
    best, call = runs[place]
    times.pop(LIBRARIES[best.name].title)
    best.beside = times
    return [best], [call]


def largest_difference(expected: Any, found: Any) -> float | None:
    """The largest absolute difference between the entries of two results; `None` if shapes differ.

    Equal infinities, and NaN in both results, count as equal; an infinity or NaN in only one result gives infinity.
    """
    ours, theirs = (
        [torch.as_tensor(leaf) for leaf in pytree.tree_leaves(tree) if hasattr(leaf, "shape")]
        for tree in (expected, found)
    )
    if [tuple(one.shape) for one in ours] != [tuple(one.shape) for one in theirs]:
        return None
    errors = [_apart(a, b) for a, b in zip(ours, theirs, strict=True) if a.numel()]
    return max(errors, default=0.0)


def _apart(a: Tensor, b: Tensor) -> float:
    """The largest difference of the entries of two tensors of one shape."""
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    is_same = (a == b) | (a.isnan() & b.isnan())
    return float((a - b).abs().nan_to_num(math.inf).masked_fill(is_same, 0.0).max())
