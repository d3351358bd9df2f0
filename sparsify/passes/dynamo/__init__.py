"""The backend of `torch.compile`.

In: the graphs that Dynamo captures. Out: sparse models of them. Read `torch_compile.py`.
"""

from sparsify.passes.dynamo.torch_compile import backend

__all__ = ["backend"]
