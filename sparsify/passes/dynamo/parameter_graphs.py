"""Which graph of Dynamo's was made for the parameters of a call.

In: the parameters of a call, and `Made` for those of an earlier one. Out: whether its graph computes with the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn

from sparsify.passes.operands.content_memo import Key, key_of, sampled

PLAIN: Final = (Tensor, nn.Parameter)


def is_same(known: Sequence[Any], state: Sequence[Any]) -> bool:
    """Whether two states have the same tensors, and the same versions of them."""
    for old, new in zip(known, state, strict=False):
        if isinstance(old, tuple) != isinstance(new, tuple):
            return False
        if isinstance(old, tuple):
            if old[0] is not new[0] or old[1] != new[1]:
                return False
        elif old is not new:
            return False
    return True


def copied(members: Mapping[str, Tensor], module: nn.Module) -> list[str]:
    """The names of those members that a module has packed or copied, and does not read itself."""
    found = dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers()])
    return [name for name, value in members.items() if not is_alias(found.get(name), value)]


def is_alias(one: Tensor | None, other: Tensor) -> bool:
    """Whether two tensors are the same memory."""
    if one is None or type(one) not in PLAIN or type(other) not in PLAIN:
        return one is other
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape


@dataclass(frozen=True, slots=True)
class Made:
    """A graph that was made for some parameters.

    Attributes:
        how: whether they are trained, and the numbers that are constants.
        state: the parameters, frozen ones with their versions.
        places, packed: which of them the graph has packed, and their content then: the graph does not read them again.
        run: the graph by the inner backend.
    """

    how: Any
    state: list[Any]
    places: tuple[int, ...]
    packed: Key
    run: Callable[..., Any]

    def is_packed_of(self, members: Sequence[Tensor]) -> bool:
        """Whether the packed parameters have the entries that they had, however they were written."""
        return not self.places or key_of([members[at] for at in self.places], read=sampled) == self.packed
