"""Patterns without their lengths, as recipes and graphs have them.

In: `MaskSpec.of("bigbird", {"block": 64})`. Out: `spec.mask(1024, 1024)`, remembered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from typing import Any, Final

import torch

from sparsify.sparsification import patterns
from sparsify.storage.tensor import SparseTensor

# Masks of so many kinds and lengths are kept.
REMEMBERED = 16
FILE: Final = "from_file"
# The modes of a mask with heads.
HEADED: Final = 3


@dataclass(frozen=True, slots=True)
class MaskSpec:
    """A pattern without its lengths.

    Attributes:
        kind: a kind of recipes, `bigbird`.
        arguments: its keyword arguments, sorted by name.
    """

    kind: str
    arguments: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        shown = [f"{name.rstrip('_')}={value}" for name, value in self.arguments]
        return f"{self.kind}({', '.join(shown)})"

    @property
    def is_whole(self) -> bool:
        """Whether each block that is stored is kept as a whole, so that no truth values have to be read."""
        given = dict(self.arguments)
        return self.is_weighted or (self.kind == "bigbird" and not given.get("causal", False))

    @property
    def is_weighted(self) -> bool:
        """Whether the mask holds what is added to scores, in place of truth values."""
        return self.kind == "block_sparse"

    @property
    def heads(self) -> int | None:
        """How many heads have a mask each; None for one mask of all."""
        if self.kind == FILE:
            shape = self.example().shape
            return shape[0] if len(shape) == HEADED else None
        found: int | None = dict(self.arguments).get("heads")
        return found

    @staticmethod
    def of(kind: str, arguments: Mapping[str, Any]) -> "MaskSpec":
        """The pattern with these keyword arguments."""
        hashable = {name: tuple(v) if isinstance(v, list) else v for name, v in arguments.items()}
        return MaskSpec(kind, tuple(sorted(hashable.items())))

    @property
    def may_be_causal(self) -> bool:
        """Whether there is such a pattern for keys that are not behind the query."""
        return self.kind == "causal" or "causal" in signature(patterns.KINDS[self.kind]).parameters

    def causal(self) -> "MaskSpec":
        """The same for keys that are not behind the query."""
        if self.kind == "causal":
            return self
        return MaskSpec.of(self.kind, {**dict(self.arguments), "causal": True})

    def example(self) -> SparseTensor:
        """A mask of the pattern: for one token, or as many as the arguments name; that of a file as it is."""
        if self.kind == FILE:
            return _mask(self, None, None)
        tokens = dict(self.arguments).get("global_")
        length = 1 + max(tokens, default=0) if isinstance(tokens, tuple) else 1
        return self.mask(length, length)

    def mask(self, rows: int, columns: int) -> SparseTensor:
        """The pattern for so many queries and keys; equal ones are one object."""
        return _mask(self, rows, columns)


@lru_cache(maxsize=REMEMBERED)
def _mask(spec: MaskSpec, rows: int | None, columns: int | None) -> SparseTensor:
    """The pattern, from memory where it was made before; without lengths that of a file as it is."""
    with torch.inference_mode(False):  # what is remembered may be asked for in any mode later
        return patterns.KINDS[spec.kind](rows=rows, columns=columns, **dict(spec.arguments))
