"""A sparse model without its source class: the graphs captured before saving, and nothing else.

In: the parts of a folder assembled by `restored`. Out: a `SparseModule` for the saved kinds of calls; other calls,
training and conversions raise explanatory errors. Nothing is captured, pruned, timed or compiled.
"""

import time
from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from itertools import chain
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from sparsify.errors import CaptureError, DataError
from sparsify.passes.capture import calls
from sparsify.passes.capture.draft import ApplyRequest
from sparsify.passes.capture.shell import modes
from sparsify.passes.module import prepare
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.passes.module.variants.variant import Variant
from sparsify.passes.module.weights.packed_weights import Weights
from sparsify.passes.served.examples import examples
from sparsify.storage.tensor import SparseTensor

# Address of a tensor's values, shape, and number of writes.
Stamp = tuple[int, torch.Size, int]
REMEDY: Final = (
    "call the sparse model that way once before sparsify.save(..., kernels=True), or load with the model, "
    "sparsify.load(folder, model)"
)


class Frozen(nn.Module):
    """The modules and tensors of a model without its code."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raises: the model has no code.

        Raises:
            CaptureError: always.
        """
        if torch.is_autocast_enabled("cpu"):
            raise CaptureError(
                f"{type(self).__name__} was loaded without its class, and the dtypes of results under autocast are "
                "those of a call of its code",
                "call the sparse model that way under torch.autocast once before sparsify.save(..., kernels=True), or "
                "load with the model, sparsify.load(folder, model)",
            )
        raise CaptureError(
            f"{type(self).__name__} was loaded without its class, and has no code to run", REMEDY
        )


def frozen_class(name: str, signature: Signature) -> type[Frozen]:
    """The class of a model saved under a name, with a forward of the saved signature."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return Frozen.forward(self, *args, **kwargs)

    own = Parameter("self", Parameter.POSITIONAL_ONLY)
    others = list(signature.parameters.values())
    forward.__signature__ = None if "self" in signature.parameters else Signature([own, *others])  # type: ignore[attr-defined]
    kind = type(name if name.isidentifier() else "Model", (Frozen,), {"forward": forward})
    kind.__module__ = __name__
    return kind


class ServedModule(SparseModule):
    """A sparse model made by `sparsify.load` from a folder with kernels, without the model's class.

    The model is frozen and in evaluation mode. Calls of the saved kinds and sizes run as before; all others raise
    `CaptureError`, which names the known kinds. Copies and pickles load the folder again, so that all processes share
    the mapped weights; `DataError` if the model was changed or the folder holds another model.

    Attributes:
        folder: path of the folder.
        digest: digest of the folder's contents when loaded.
        loaded: stamps of tensors when loaded, by name.
        met: call shapes before saving, per graph.
    """

    def __init__(self, model: nn.Module, asked: ApplyRequest, weights: Weights, folder: Path) -> None:
        super().__init__(model, asked, weights)
        self.__dict__["folder"], self.__dict__["met"] = folder, []
        self.remember("")

    def train(self, mode: bool = True) -> "ServedModule":
        """Raises for training: the model has no code to capture.

        Raises:
            CaptureError: `mode` is True.
        """
        if mode:
            raise CaptureError(
                "this model was loaded without its class: it is frozen, and does not train",
                "sparsify.load(folder, model) gives one that does",
            )
        super().train(False)
        return self

    def variant_for(self, call: calls.Call, tensors: list[torch.Tensor]) -> Variant | None:
        """The graph for a call.

        Raises:
            CaptureError: no graph fits; the text names the existing kinds.
        """
        shapes = tuple(tensor.shape for tensor in tensors)
        found = self._captures.fitting((modes(self), call.shape), shapes)
        if found is None:
            raise CaptureError(
                f"{type(self._source).__name__} has no graph for {asked_for(call, shapes)}; {self._known(call)}",
                REMEDY,
            )
        return found

    def _known(self, call: calls.Call) -> str:
        """The text of the existing kinds of calls, for a call of no known kind."""
        kinds = [
            f"({described_kind(shape, variant.captured.extents)})"
            for (_, shape), variant in self._captures.entries
        ]
        told = "graphs are for " + " and ".join(dict.fromkeys(kinds))
        varying = [extents for variant in self.variants for extents in variant.captured.extents]
        found = dict.fromkeys(extent for extents in varying for extent in extents if isinstance(extent, str))
        if found:
            told += f", where {', '.join(found)} are 2 or more"
            ones = [sorted(names) for variant in self.variants for names in variant.captured.ones]
            told += "".join(f", or {', '.join(names)} 1" for names in ones)
            told += ", and 1 is of a kind of its own" if not ones else ""
        given, taken = call.shape.names, [shape.names for (_, shape), _ in self._captures.entries]
        if given not in taken and any(set(names) < set(given) for names in taken):
            told += "; an argument that is given is of another kind than one left out, also where it is the default"
        return told

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """Raises: the source model's code is unavailable.

        Raises:
            CaptureError: always.
        """
        raise CaptureError(
            f"{type(self._source).__name__} was loaded without its class: there is no graph for this call, whose "
            "tensors lie in memory or have contents for which the model's own code would run",
            "contiguous tensors that share no memory, or sparsify.load(folder, model)",
        )

    def example_calls(self) -> list[tuple[list[Any], dict[str, Any]]]:
        """Positional and keyword arguments of calls similar to the model's calls before saving.

        Entries are random, integers within the range of the example; calls with caches or sparse inputs are left out.
        """
        found: list[tuple[list[Any], dict[str, Any]]] = []
        for variant, met in zip(self.variants, self.met, strict=True):
            given = examples(variant.captured.shape, met)
            found += [calls.arguments_of(bound, self._signature) for bound in given]
        return found

    def prepare(self, kinds: Sequence[Mapping[str, Any]]) -> list[prepare.Prepared]:
        """Runs a call of each kind, to load the pages of weights and to meet the sizes in kernels.

        Raises:
            CaptureError: no graph for a kind.
        """
        found = []
        for number, kind in enumerate(kinds):
            name, call, mode = prepare.checked(self, number, kind)
            if any(mode):
                self.train()
            started = time.perf_counter()
            tensors = call.tensors(self._matrices)
            variant = self.variant_for(call, tensors)
            assert variant is not None, "calls without a graph are errors"
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                self.finish(variant, prepare.copies(tensors))
            found.append(prepare.Prepared(name, False, time.perf_counter() - started))
        return found

    def _apply(self, fn: Any, recurse: bool = True) -> "ServedModule":
        like = torch.empty(0)
        made = fn(like)
        if made.device != like.device or made.dtype != like.dtype:
            raise CaptureError(
                f"this model was loaded without its class: its kernels and graphs are for its own dtypes and the CPU, "
                f"not for {made.dtype} on {made.device}",
                "convert the model, apply the recipe and save it again",
            )
        super()._apply(fn, recurse)
        return self

    def remember(self, digest: str) -> None:
        """Records the digest of the folder and the stamps of the model's tensors, for `__reduce__`."""
        self.__dict__["digest"], self.__dict__["loaded"] = digest, self._stamps()
        self.__dict__["mapped"] = [*self.parameters(), *self.buffers()]  # keeps their addresses from reuse

    def _stamps(self) -> dict[str, Stamp]:
        """Stamp of each tensor by name, for the detection of replaced and overwritten tensors."""
        both = chain(
            self.named_parameters(remove_duplicate=False), self.named_buffers(remove_duplicate=False)
        )
        # Attributes of sparse tensors are read without the table of torch's functions on them.
        with torch._C.DisableTorchFunctionSubclass():
            return {name: stamp(tensor) for name, tensor in both}

    def __reduce__(self) -> Any:
        now = self._stamps()
        if changed := {name for name in now.keys() | self.loaded if now.get(name) != self.loaded.get(name)}:
            raise DataError(
                f"{min(changed)} was changed after the model was loaded from {self.folder}, and a copy or pickle of "
                "it is the path of its folder, without the change",
                f"sparsify.load({str(self.folder)!r}), and make the change there too",
            )
        return reloaded, (str(self.folder), self.digest)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ServedModule":
        make, given = self.__reduce__()
        found: ServedModule = make(*given)
        memo[id(self)] = found
        return found


def stamp(tensor: torch.Tensor) -> Stamp:
    """A key that changes with the memory of a tensor or with writes (not counted in inference mode)."""
    values = tensor._vals if isinstance(tensor, SparseTensor) else tensor
    return values.data_ptr(), tensor.shape, 0 if values.is_inference() else values._version


def reloaded(folder: str, digest: str) -> ServedModule:
    """The model in a folder, for copies and other processes.

    Raises:
        DataError: another model was saved in the folder since.
    """
    from sparsify import load

    found = load(folder)
    if not isinstance(found, ServedModule) or found.digest != digest:
        raise DataError(
            f"{folder} holds another model than when this one was loaded, and copies and pickles load the folder",
            "save into a folder of its own, and load the model that is wanted",
        )
    return found


def asked_for(call: calls.Call, shapes: Sequence[torch.Size]) -> str:
    """The text of a call: names, dtypes and shapes of tensors, and constants."""
    sizes = iter(shapes)
    found = []
    for leaf in call.shape.leaves:
        if leaf.kind == "constant":
            found.append(f"{leaf.name}={leaf.detail[1]}")
        elif leaf.kind == "tensor":
            found.append(f"{leaf.name}: {leaf.detail[1]} {list(next(sizes))}".replace("torch.", ""))
        elif leaf.kind == "size":
            found.append(f"{leaf.name}={next(sizes)[0]}")
        else:
            found.append(f"{leaf.name}: sparse {list([next(sizes) for _ in calls.PARTS][-1][:-1])}")
    return f"a call with ({', '.join(found)})"


def described_kind(shape: calls.CallShape, extents: Sequence[Sequence[int | str]]) -> str:
    """The text of a kind of calls: variable extents, 2 or more, by name."""
    sizes = iter(extents)
    found = []
    for leaf in shape.leaves:
        if leaf.kind == "constant":
            found.append(f"{leaf.name}={leaf.detail[1]}")
        elif leaf.kind == "tensor":
            shown = ", ".join(map(str, next(sizes)))
            found.append(f"{leaf.name}: {leaf.detail[1]} [{shown}]".replace("torch.", ""))
        elif leaf.kind == "size":
            found.append(f"{leaf.name}={next(sizes)[0]}")
        else:
            shown = ", ".join(map(str, [next(sizes) for _ in calls.PARTS][-1][:-1]))
            found.append(f"{leaf.name}: sparse [{shown}]")
    return ", ".join(found)
