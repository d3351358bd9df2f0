"""Training of sparse weights: masks, gradients of several processes, and files.

In: modules with `nn.Parameter(SparseTensor)`, or dense parameters with zeros, and their optimizers. Out: the same
objects under new masks; gradients summed over processes; safetensors files of values and coordinates.
Read `set_mask.py`, `dense_gradients.py`, `pruner.py`, then `all_reduce.py`,
`data_parallel.py` and `file.py`.
"""

from sparsify.training.all_reduce import all_reduce_gradients, broadcast_parameters
from sparsify.training.callbacks import lightning_callback, trainer_callback
from sparsify.training.data_parallel import data_parallel, distributed_data_parallel
from sparsify.training.file import load_file, save_file
from sparsify.training.set_mask import mask_of, set_mask, set_pattern

__all__ = [
    "all_reduce_gradients",
    "broadcast_parameters",
    "data_parallel",
    "distributed_data_parallel",
    "lightning_callback",
    "load_file",
    "mask_of",
    "save_file",
    "set_mask",
    "set_pattern",
    "trainer_callback",
]
