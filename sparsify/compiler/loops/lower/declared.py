"""Tensors of a program for iteration lattices, by their declarations.

In: declarations by name. Out: dtypes, fills, and the tensor with the pattern of an access.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from sparsify.compiler.einsum.infer.dtype import declared_kind
from sparsify.compiler.einsum.infer.shared_pattern import root_access
from sparsify.compiler.einsum.nodes import Access, Declaration
from sparsify.compiler.ir.dtypes import Kind, held


@dataclass(frozen=True)
class DeclaredTensors:
    """Facts about tensors for lattices; an undeclared tensor has a pattern of its own and the fill 0."""

    declarations: Mapping[str, Declaration]

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        """The dtypes of the tensors."""
        return {name: declared_kind(declared) for name, declared in self.declarations.items()}

    def fill_of(self, access: Access) -> float | int | bool:
        """The value of unstored entries."""
        found = self.declarations.get(access.tensor)
        return 0.0 if found is None else held(found.fill, found.dtype)

    def root_of(self, access: Access) -> Access:
        """The access to the tensor with the shared pattern; the access itself for a separate pattern."""
        found = self.declarations.get(access.tensor)
        root = None if found is None else self.declarations.get(found.pattern_of or "")
        if found is None or root is None:
            return access
        return self.root_of(root_access(found, root, access))
