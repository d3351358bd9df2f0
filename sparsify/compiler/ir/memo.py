"""Bounded memos of objects for calls, by the facts that determine each object.

In: `remember(memory, key, kernel)`. Out: `recall(memory, key)` is the kernel, until the memo is full.
"""

from contextlib import suppress
from typing import Any, Final

REMEMBERED: Final = 4096


def recall(memory: dict[Any, Any], key: tuple[Any, ...]) -> Any:
    """The memoized value, `None` without one."""
    try:
        return memory.get(key)
    except TypeError:  # symbolic extents of a traced graph are not hashable: a hash would add a guard
        return None


def remember(memory: dict[Any, Any], key: Any, value: Any) -> None:
    """Memoizes a value, unless its key holds symbols; a full memo is cleared."""
    if len(memory) >= REMEMBERED:
        memory.clear()
    with suppress(TypeError):
        memory[key] = value
