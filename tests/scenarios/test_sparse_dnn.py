"""The sparse network of the Graph Challenge, 30 layers of 1,024 neurons, to its known categories.

Source: Kepner et al., Sparse Deep Neural Network Graph Challenge, 2019.
"""

from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch

import sparsify

LAYERS = 30
BIAS, MOST = 0.3, 32
# Zeros in the values of a layer are dropped before the next one.
LAYER = "Z[i,k] = min(max(Y[i,j] * W[j,k] - b, 0), c)"


@pytest.fixture(scope="module")
def folder(data_root: Path) -> Path:
    """The folder of the network."""
    found = data_root / "sparse_dnn"
    if not found.is_dir():
        pytest.skip(f"the sparse network is not here: {found} is missing")
    return found


def without_zeros(tensor: sparsify.SparseTensor, form: str) -> sparsify.SparseTensor:
    """Sparse tensor of the nonzero entries."""
    kept = tensor.values() != 0
    return sparsify.tensor((tensor.coordinates()[:, kept], tensor.values()[kept], tensor.shape), form)


def read(path: Path, form: str) -> sparsify.SparseTensor:
    """A matrix market file as a tensor of float32."""
    return sparsify.tensor(scipy.io.mmread(path).tocsr().astype(np.float32), form)


@pytest.mark.sampled(2)
@pytest.mark.model
@pytest.mark.parametrize("form", ["csr", "coo"])
def test_categories_are_exact(folder, form):
    Y = read(folder / "sparse-images-1024_subset.mtx.gz", form)
    categories = scipy.io.mmread(folder / "neuron1024-l120-categories_subset.mtx.gz").toarray().ravel() != 0
    assert (Y.nnz, categories.sum()) == (122713, 19)
    for number in range(1, LAYERS + 1):
        W = read(folder / f"n1024-l{number}.mtx.gz", form)
        Y = without_zeros(sparsify.evaluate(LAYER, format=form, Y=Y, W=W, b=BIAS, c=MOST), form)
    assert Y.nnz == 19456
    sums = sparsify.einsum("ij->i", Y)
    sums = sums.to_dense() if isinstance(sums, sparsify.SparseTensor) else sums
    torch.testing.assert_close(sums > 0, torch.from_numpy(categories))
