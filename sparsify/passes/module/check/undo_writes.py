"""Rollback of the writes of a failed call, so that the source model can repeat the call.

In: the modules of a model. Out: `before = buffers.noted()`, and after a failed call `before.restore()`. Copies of
buffers are reused across calls; a copy is renewed where the version of its buffer has changed. Statistics of
normalisations change without a version: small buffers of modules in training are copied before each call.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

# Statistics of normalisations have as many entries as a layer has channels.
MOST_CHANNELS: Final = 1 << 16
# A buffer, its version and its values.
Copy = tuple[Tensor, int, Tensor]


class Buffers:
    """The buffers of modules, with a copy of each.

    Args:
        parts: the modules.
    """

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        self.parts = [part for part in parts if "_buffers" in vars(part)]
        self.copies: dict[int, Copy] = {}

    def noted(self) -> "BuffersBefore":
        """The state of the buffers before a call."""
        stores: list[tuple[nn.Module, dict[str, Any]]] = []
        copies: dict[int, Copy] = {}
        with torch.no_grad():
            for part in self.parts:
                if part._buffers:
                    stores.append((part, dict(part._buffers)))
                    for buffer in part._buffers.values():
                        if buffer is not None:
                            copies[id(buffer)] = self.copied(buffer, part.training)
        self.copies = copies
        return BuffersBefore(stores, [*copies.values()])

    def copied(self, buffer: Tensor, is_training: bool) -> Copy:
        """A buffer with its values; an earlier copy is reused unless the buffer may have changed since."""
        earlier = self.copies.get(id(buffer))
        number = version(buffer)
        is_silent = is_training and buffer.numel() <= MOST_CHANNELS
        if earlier is not None and earlier[0] is buffer and earlier[1] == number >= 0 and not is_silent:
            return earlier
        return buffer, number, buffer.detach().clone()


@dataclass(frozen=True, slots=True)
class BuffersBefore:
    """The state of buffers before a call.

    Attributes:
        stores: modules with their buffers before the call.
        copies: each buffer with its values.
    """

    stores: Sequence[tuple[nn.Module, Mapping[str, Any]]]
    copies: Sequence[Copy]

    def replaced(self) -> list[tuple[nn.Module, Mapping[str, Any]]]:
        """The modules whose buffers were replaced since, with their earlier buffers."""
        return [(part, before) for part, before in self.stores if not has_buffers(part, before)]

    def restore(self) -> None:
        """Restores the buffers of all modules, and the buffers' values."""
        for part, before in self.replaced():
            part._buffers.clear()
            part._buffers.update(before)
        with torch.no_grad():
            for buffer, _, value in self.copies:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


def has_buffers(part: nn.Module, expected: Mapping[str, Any]) -> bool:
    """Whether a module has exactly the known buffers."""
    store = part._buffers
    return store.keys() == expected.keys() and all(store[name] is buffer for name, buffer in expected.items())


def versions(tensors: Iterable[Any]) -> list[int]:
    """The number of times each tensor was written into."""
    return [version(tensor) for tensor in tensors]


def version(value: Any) -> int:
    """The number of writes into a tensor; -1 for tensors without a version counter and for other values."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else -1
