"""Einsum programs: the IR of whole tensor expressions, and the passes before loops exist."""

from sparsify.compiler.einsum.text import printer  # noqa: F401  registers the texts of nodes
