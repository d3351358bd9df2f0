"""The graph of a sharded model for calls of one kind, and the comparison between processes before each call.

In: the changes in a call of this process. Out: `together(...)`, the changes in any process; after a change, all
processes compare contents, and none waits for the others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from sparsify.errors import DataError, ProcessError
from sparsify.runtime.failures import named
from sparsify.scale import gradients, processes

# Kinds of changes in a call; the processes act on the greatest one.
SAME, CONTENTS, NEW, FAILED = range(4)
SAMPLES: Final = 4096


@dataclass
class Variant:
    """The graph over local rows for calls of one kind.

    Attributes:
        graph: takes the tensors of a call in order, and returns a list.
        output: tree of the outputs.
        number: number of the graph, equal in all processes, to compare calls.
        reads: parameters and buffers of the model in the graph, by name, with shape and dtype.
        alike: positions of replicated tensors, by name.
        unsure: positions of tensors with equally many rows in each process, distinguishable by contents alone.
        replicated: positions of replicated outputs.
        plan: plan of the exchanges, as numbered by `halo.register`.
        digests: digests of contents in the last call, by name.
    """

    graph: nn.Module
    output: pytree.TreeSpec
    number: int
    reads: Mapping[str, tuple[torch.Size, torch.dtype]]
    alike: dict[str, int]
    unsure: dict[str, int]
    replicated: tuple[int, ...]
    plan: int
    digests: dict[str, int] = field(default_factory=dict)

    def __call__(self, source: nn.Module, tensors: list[Tensor], count: int) -> Any:
        """The outputs for a call of a model in `count` processes.

        Gradients of replicated tensors are summed over processes, and a replicated result counts once.
        """
        places = list(self.alike.values())
        read = [attribute(source, name) for name in self.reads]
        together = gradients.shared([*read, *(tensors[place] for place in places)], self.plan)
        given = list(tensors)
        for place, tensor in zip(places, together[len(read) :], strict=True):
            given[place] = tensor
        named_tensors = dict(zip(self.reads, together, strict=False))
        found = list(functional_call(self.graph, named_tensors, tuple(given), tie_weights=False))
        for place in self.replicated:
            if isinstance(found[place], Tensor):
                found[place] = gradients.alike(found[place], count)
        return pytree.tree_unflatten(found, self.output)

    def contents(self, tensors: list[Tensor]) -> dict[str, int]:
        """Digests of replicated tensors, and of a sample of possibly replicated ones."""
        found = {name: digest(tensors[place]) for name, place in self.alike.items()}
        return found | {name: digest(_some(tensors[place])) for name, place in self.unsure.items()}

    def fits(self, source: nn.Module) -> bool:
        """Whether parameters and buffers of a model have the shapes and dtypes of the captured graph."""
        for name, like in self.reads.items():
            try:
                tensor = attribute(source, name)
            except AttributeError:
                return False
            if not isinstance(tensor, Tensor) or (tensor.shape, tensor.dtype) != like:
                return False
        return True

    def require_alike(self, tensors: list[Tensor]) -> None:
        """Compares new contents of replicated tensors; called by all processes together.

        Raises:
            DataError: the contents of replicated tensors differ, or the contents of rows do not.
        """
        mine = self.contents(tensors)
        told = processes.agree("a call", mine)
        require_equal(({name: other.get(name) for name in self.alike} for other in told), "")
        doubtful = [name for name in self.unsure if len({other.get(name) for other in told}) == 1]
        if doubtful and len(told) > 1:
            full = processes.agree("a call", [digest(tensors[self.unsure[name]]) for name in doubtful])
            for name, *others in zip(doubtful, *full, strict=True):
                if len(set(others)) == 1:
                    raise ambiguous(name)
        self.digests = {name: value for name, value in mine.items() if name not in doubtful}


def together(change: int, number: int, count: int, group: Any = None) -> int:
    """The greatest change of all processes, by one small message; also a change if processes call different graphs.

    Args:
        change: kind of change in this process.
        number: number of the called graph, -1 without one.
        count: number of processes.
        group: group of processes; None for all.

    Raises:
        ProcessError: another process cannot begin the call.
    """
    if count == 1:
        return change
    most = torch.tensor([change, number, -number])
    with named("a call", group):
        dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    found, last, first = (int(value) for value in most.tolist())
    if found == FAILED and change != FAILED:
        raise ProcessError("another process could not begin this call", "see its output for the reason")
    return found if last == -first else max(found, NEW)


def require_equal(told: Iterable[Mapping[str, int | None]], what: str) -> None:
    """Raises if replicated contents differ between processes.

    Args:
        told: digests by name, of each process.
        what: prefix of the names in messages.
    """
    first, *others = told
    for other in others:
        for name in {**first, **other}:
            if first.get(name) != other.get(name):
                raise DataError(
                    f"{what}{name} is not the same in all processes",
                    "give all of them the same, or rows of parts",
                )


def ambiguous(name: str) -> DataError:
    """The error for a tensor with the size of every part and the same contents in all processes."""
    return DataError(
        f"{name} has a row for each row of every part, and is the same in all processes: it may be rows of parts or "
        "one tensor that all of them have",
        f"rows: set part.data.{name.partition('.')[0]} to it first; otherwise make it a buffer of the model",
    )


def digest(tensor: Tensor) -> int:
    """A number of the contents, equal in all processes."""
    found = crc32(f"{tensor.dtype} {list(tensor.shape)}".encode())
    if tensor.numel():
        found = crc32(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes(), found)
    return found


def _some(tensor: Tensor) -> Tensor:
    """A sample of entries at equal distances."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, len(flat) // SAMPLES)]


def attribute(root: nn.Module, name: str) -> Tensor:
    """The tensor under a qualified name."""
    owner, _, last = name.rpartition(".")
    found: Tensor = getattr(root.get_submodule(owner), last)
    return found


def attach(root: nn.Module, name: str, tensor: Tensor) -> None:
    """Sets a tensor as an attribute under a qualified name, replacing another one."""
    *path, last = name.split(".")
    for step in path:
        if not hasattr(root, step):
            root.add_module(step, nn.Module())
        root = getattr(root, step)
    for store in (root._parameters, root._buffers):
        store.pop(last, None)
    if isinstance(tensor, nn.Parameter):
        root.register_parameter(last, tensor)
    else:
        root.register_buffer(last, tensor)
