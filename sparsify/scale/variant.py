"""The graph of a sharded model for calls of one kind, and what the processes compare before each call.

In: what is new in a call of this process. Out: `together(...)`, what is new in any of them; where anything is, all
processes compare contents and none waits for the others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from sparsify.errors import DataError, ProcessError
from sparsify.scale import processes
from sparsify.scale.failures import named

# What is new in a call; the greatest of all processes is what they do together.
SAME, CONTENTS, NEW, FAILED = range(4)
SAMPLES: Final = 4096


@dataclass
class Variant:
    """The graph over local rows for calls of one kind.

    Attributes:
        graph: takes the tensors of a call in order.
        output: the tree of its outputs.
        number: the same in all processes, so that they see whether they call the same graph.
        reads: the names of the model's parameters and buffers in the graph.
        alike: places of the tensors that all processes have, by name.
        unsure: places of those with as many rows in each process, so that contents alone tell them from the others.
        digests: of contents in the last call, by name.
    """

    graph: fx.GraphModule
    output: pytree.TreeSpec
    number: int
    reads: tuple[str, ...]
    alike: dict[str, int]
    unsure: dict[str, int]
    digests: dict[str, int] = field(default_factory=dict)

    def contents(self, tensors: list[Tensor]) -> dict[str, int]:
        """Digests of what all processes have, and of some entries of what they may have."""
        found = {name: digest(tensors[place]) for name, place in self.alike.items()}
        return found | {name: digest(_some(tensors[place])) for name, place in self.unsure.items()}

    def fits(self, source: nn.Module) -> bool:
        """Whether parameters and buffers of a model are as large as those that the graph was made for; reads them."""
        for name in self.reads:
            owner, _, last = name.rpartition(".")
            try:
                new, old = getattr(source.get_submodule(owner), last), _attribute(self.graph, name)
            except AttributeError:
                return False
            if new is old:
                continue
            if not isinstance(new, Tensor) or (new.shape, new.dtype) != (old.shape, old.dtype):
                return False
            attach(self.graph, name, new)
        return True

    def require_alike(self, tensors: list[Tensor]) -> None:
        """Compares new contents of what all processes have; all of them bring such a call together.

        Raises:
            DataError: the contents differ, or those of rows do not.
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
    """The greatest change of all processes, one small message; new, too, where they call different graphs.

    Args:
        change: what is new in this process.
        number: of the graph that it calls, -1 without one.
        count: of processes.
        group: of processes; None for all of them.

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
    """Raises where what all processes have is not the same in all of them.

    Args:
        told: digests by name, of each process.
        what: the names name.
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
    """The error for a tensor that has the size of every part and the same contents in all processes."""
    return DataError(
        f"{name} has a row for each row of every part, and is the same in all processes: it may be rows of parts or "
        "one tensor that all of them have",
        f"rows: set part.data.{name.partition('.')[0]} to it first; otherwise make it a buffer of the model",
    )


def digest(tensor: Tensor) -> int:
    """A number of the contents that is the same in all processes."""
    found = crc32(f"{tensor.dtype} {list(tensor.shape)}".encode())
    if tensor.numel():
        found = crc32(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes(), found)
    return found


def _some(tensor: Tensor) -> Tensor:
    """Entries at equal distances."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, len(flat) // SAMPLES)]


def _attribute(root: nn.Module, name: str) -> Tensor:
    """The tensor under a qualified name."""
    owner, _, last = name.rpartition(".")
    found: Tensor = getattr(root.get_submodule(owner), last)
    return found


def attach(root: nn.Module, name: str, tensor: Tensor) -> None:
    """Makes a tensor an attribute under a qualified name, in place of another one."""
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
