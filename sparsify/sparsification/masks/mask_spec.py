"""Attention patterns without lengths, as in recipes and graphs.

In: `MaskSpec.of("bigbird", {"block": 64})`. Out: `spec.mask(1024, 1024)`, memoized.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from sparsify.storage.tensor import SparseTensor

# Maximum number of memoized masks.
REMEMBERED = 16
FILE: Final = "from_file"
# The modes of a mask with heads.
HEADED: Final = 3


class Stamp(NamedTuple):
    """Path of a file, with its modification time and size, changed by each write."""

    path: str
    modified_ns: int
    size: int

    @staticmethod
    def of(path: str) -> "Stamp | None":
        """The stamp of a file, None for a missing file."""
        try:
            status = Path(path).stat()
        except OSError:
            return None
        return Stamp(str(Path(path).resolve()), status.st_mtime_ns, status.st_size)


@dataclass(frozen=True, slots=True)
class MaskSpec:
    """A pattern without lengths.

    Attributes:
        kind: a kind in recipes, `bigbird`.
        arguments: keyword arguments, sorted by name.
        stamp: stamp of the file of `from_file` when the rule was read.
    """

    kind: str
    arguments: tuple[tuple[str, Any], ...]
    stamp: Stamp | None = None

    def __str__(self) -> str:
        shown = [f"{name.rstrip('_')}={value}" for name, value in self.arguments]
        return f"{self.kind}({', '.join(shown)})"

    @property
    def is_whole(self) -> bool:
        """Whether each stored block is kept as a whole, so no truth values have to be read."""
        keywords = dict(self.arguments)
        return self.is_weighted or (self.kind == "bigbird" and not keywords.get("causal", False))

    @property
    def is_weighted(self) -> bool:
        """Whether the mask holds a bias added to scores, in place of truth values."""
        return self.kind == "block_sparse"

    @property
    def heads(self) -> int | None:
        """The number of heads with separate masks; None for one mask of all."""
        if self.kind == FILE:
            shape = self.example().shape
            return shape[0] if len(shape) == HEADED else None
        count: int | None = dict(self.arguments).get("heads")
        return count

    @staticmethod
    def of(kind: str, arguments: Mapping[str, Any]) -> "MaskSpec":
        """The pattern with the given keyword arguments."""
        hashable = {name: tuple(v) if isinstance(v, list) else v for name, v in arguments.items()}
        stamp = Stamp.of(str(hashable.get("path", ""))) if kind == FILE else None
        return MaskSpec(kind, tuple(sorted(hashable.items())), stamp)

    @property
    def may_be_causal(self) -> bool:
        """Whether a causal variant of the pattern exists."""
        from sparsify.sparsification.masks import patterns

        return self.kind == "causal" or "causal" in signature(patterns.KINDS[self.kind]).parameters

    @property
    def is_causal(self) -> bool:
        """Whether all keys behind the query are masked."""
        return self.kind == "causal" or bool(dict(self.arguments).get("causal", False))

    def causal(self) -> "MaskSpec":
        """The causal variant of the pattern."""
        if self.kind == "causal":
            return self
        return MaskSpec(
            self.kind, tuple(sorted({**dict(self.arguments), "causal": True}.items())), self.stamp
        )

    def example(self) -> SparseTensor:
        """A small mask of the pattern: for one token, or enough for the arguments; the whole mask of a file."""
        if self.kind == FILE:
            return _mask(self, None, None)
        tokens = dict(self.arguments).get("global_")
        length = 1 + max(tokens, default=0) if isinstance(tokens, tuple) else 1
        return self.mask(length, length)

    def mask(self, rows: int, columns: int) -> SparseTensor:
        """The pattern for numbers of queries and keys; memoized."""
        return _mask(self, rows, columns)


@lru_cache(maxsize=REMEMBERED)
def _mask(spec: MaskSpec, rows: int | None, columns: int | None) -> SparseTensor:
    """The pattern, memoized; without lengths the whole mask of a file."""
    from sparsify.sparsification.masks import patterns

    with torch.inference_mode(False):  # memoized masks are used in any mode
        keywords = dict(spec.arguments)
        if spec.stamp is not None:
            keywords["path"] = spec.stamp.path
        return patterns.KINDS[spec.kind](rows=rows, columns=columns, **keywords)
