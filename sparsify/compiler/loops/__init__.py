"""Loop IR: imperative loops over typed scalars, vectors and arrays, as executed by the kernel."""

from sparsify.compiler.loops import printer  # noqa: F401  registers the texts of nodes
