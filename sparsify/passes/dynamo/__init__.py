"""The backend of `torch.compile`.

In: the graphs that Dynamo captures. Out: sparse models of them. Read `torch_compile.py`; `pieces.py` runs a model that
no graph holds whole by the same graphs.
"""

from sparsify.passes.dynamo.torch_compile import backend

__all__ = ["backend"]
