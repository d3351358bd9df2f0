"""The backend of `torch.compile`.

In: the graphs captured by Dynamo. Out: sparse models of the graphs. Read `torch_compile.py`; `pieces.py` runs a model
that no single graph holds, by the same graphs.
"""

from sparsify.passes.dynamo.torch_compile import backend

__all__ = ["backend"]
