"""Training of sparse weights: their masks, the gradients of several processes, and files.

In: modules with `nn.Parameter(SparseTensor)`, or dense parameters with zeros, and their optimizers. Out: the same
objects under new masks; gradients summed over processes; safetensors files of values and coordinates.
Read `set_mask.py` first.
"""

from sparsify.training.set_mask import mask_of, set_mask

__all__ = ["mask_of", "set_mask"]
