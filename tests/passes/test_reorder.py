"""Orders of nodes: the same results by fewer permutations, gradients, other graphs, traces, and errors."""



from sparsify.compiler.einsum.parser import parse  # noqa: F401
