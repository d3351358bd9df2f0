"""Sparsifiers by name, each with its rule of kept entries.

In: `sparsifiers.ScalarFraction(0.9)(weight, "csr")`. Out: a `SparseTensor` with a tenth of the entries.

| sparsifier | keeps | passes | memory | kind |
|---|---|---|---|---|
| `KeepAll()` | all entries | 1 | O(1) | streaming |
| `RandomFraction(0.9, seed=0)` | each entry with probability 0.1, by its coordinates | 1 | O(1) | streaming |
| `ScalarThreshold(0.1)` | entries of magnitude 0.1 and more | 1 | O(1) | streaming |
| `Where("value > t", t=0.1)` | entries satisfying a condition | 1 | O(1) | streaming |
| `PerBlockFraction(2, 4)` | two of every four neighbours, n:m; n:m:g with `group` | 2 | O(b) | blocking |
| `TopK(8)` | the eight largest of each row; of all with `dim=None`, materializing | 2 | O(b) | blocking |
| `ScalarFraction(0.9)` | the largest tenth | 2 | O(nnz) | materializing |
| `BlockFraction(0.9, (4, 4))` | the largest tenth of the blocks | 2 | O(nnz) | materializing |
| `SameFormat(reference)` | the stored entries of a reference | 1 | O(1) | materializing |
| `Movement(0.9)` | the tenth moving least towards 0 | 2 | O(nnz) | materializing |

Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, table 1.
"""

from sparsify.compiler.plan.prepare.sparsified import Condition
from sparsify.sparsification.rules.blocking import PerBlockFraction, TopK
from sparsify.sparsification.rules.materializing import BlockFraction, Movement, SameFormat, ScalarFraction
from sparsify.sparsification.rules.sparsifier import Sparsifier, Streaming
from sparsify.sparsification.rules.streaming import KeepAll, RandomFraction, ScalarThreshold, Where

__all__ = [
    "BlockFraction",
    "Condition",
    "KeepAll",
    "Movement",
    "PerBlockFraction",
    "RandomFraction",
    "SameFormat",
    "ScalarFraction",
    "ScalarThreshold",
    "Sparsifier",
    "Streaming",
    "TopK",
    "Where",
]
