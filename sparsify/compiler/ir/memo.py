"""Memories of what was made for calls, by what it depends on.

In: `remember(memory, key, kernel)`. Out: `recall(memory, key)` is the kernel, until the memory is full.
"""

from contextlib import suppress
from typing import Any, Final

REMEMBERED: Final = 4096


def recall(memory: dict[Any, Any], key: tuple[Any, ...]) -> Any:
    """The value that was kept, `None` without one."""
    try:
        return memory.get(key)
    except TypeError:  # extents that are symbols of a traced graph, which it guards, have no hash
        return None


def remember(memory: dict[Any, Any], key: Any, value: Any) -> None:
    """Keeps a value, unless its key holds symbols; a full memory starts anew."""
    if len(memory) >= REMEMBERED:
        memory.clear()
    with suppress(TypeError):
        memory[key] = value
