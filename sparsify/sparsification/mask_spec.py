"""Patterns without their lengths, as recipes and graphs have them.

In: `MaskSpec.of("bigbird", {"block": 64})`. Out: `spec.mask(1024, 1024)`, remembered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from sparsify.sparsification import patterns
from sparsify.storage.tensor import SparseTensor

# Masks of so many kinds and lengths are kept.
REMEMBERED = 16
FILE: Final = "from_file"
# The modes of a mask with heads.
HEADED: Final = 3


class Stamp(NamedTuple):
    """Path of a file, and its state, which changes with each write."""

    path: str
    modified_ns: int
    size: int

    @staticmethod
    def of(path: str) -> "Stamp | None":
        """The stamp of a file, None where there is none."""
        try:
            found = Path(path).stat()
        except OSError:
            return None
        return Stamp(str(Path(path).resolve()), found.st_mtime_ns, found.st_size)


@dataclass(frozen=True, slots=True)
class MaskSpec:
    """A pattern without its lengths.

    Attributes:
        kind: a kind of recipes, `bigbird`.
        arguments: its keyword arguments, sorted by name.
        stamp: of the file of `from_file`, as it was when the rule was read.
    """

    kind: str
    arguments: tuple[tuple[str, Any], ...]
    stamp: Stamp | None = None

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
        """The number of heads that have a mask each; None for one mask of all."""
        if self.kind == FILE:
            shape = self.example().shape
            return shape[0] if len(shape) == HEADED else None
        found: int | None = dict(self.arguments).get("heads")
        return found

    @staticmethod
    def of(kind: str, arguments: Mapping[str, Any]) -> "MaskSpec":
        """The pattern with these keyword arguments."""
        hashable = {name: tuple(v) if isinstance(v, list) else v for name, v in arguments.items()}
        stamp = Stamp.of(str(hashable.get("path", ""))) if kind == FILE else None
        return MaskSpec(kind, tuple(sorted(hashable.items())), stamp)

    @property
    def may_be_causal(self) -> bool:
        """Whether there is such a pattern for keys that are not behind the query."""
        return self.kind == "causal" or "causal" in signature(patterns.KINDS[self.kind]).parameters

    @property
    def is_causal(self) -> bool:
        """Whether no key behind the query is kept."""
        return self.kind == "causal" or bool(dict(self.arguments).get("causal", False))

    def causal(self) -> "MaskSpec":
        """The same for keys that are not behind the query."""
        if self.kind == "causal":
            return self
        return MaskSpec(
            self.kind, tuple(sorted({**dict(self.arguments), "causal": True}.items())), self.stamp
        )

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
        given = dict(spec.arguments)
        if spec.stamp is not None:
            given["path"] = spec.stamp.path
        return patterns.KINDS[spec.kind](rows=rows, columns=columns, **given)
