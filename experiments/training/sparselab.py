"""SparseLab's linear layer (padded CSR on the CPU), if installed.

In: a linear layer with zeros. Out: SparseLab's layer with the same pattern, weights and bias, or `None`.
Installed separately: `pip install --no-deps --target DIR sparselab==0.2.2`, and DIR in PYTHONPATH.
"""

from importlib import import_module
from typing import Any, Final

import numpy as np
import torch
from torch import nn

NAME: Final = "SparseLab"


def layer(linear: nn.Linear) -> Any:
    """SparseLab's layer, `None` if the package is missing."""
    try:
        package = import_module("sparselab")
    except ImportError:
        return None
    made = package.SparseLinear(linear.in_features, linear.out_features, sparsity=0.5)
    made._csr = package.PaddedCSR.from_dense(linear.weight.detach())
    made._values = nn.Parameter(torch.from_numpy(np.asarray(made._csr.values)))
    made.bias = nn.Parameter(linear.bias.detach().clone())
    return made.train()
