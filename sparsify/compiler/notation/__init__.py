"""Concrete index notation: loops with an order, temporaries with a scope, no storage yet."""

from sparsify.compiler.notation import printer  # noqa: F401  registers the texts of nodes
