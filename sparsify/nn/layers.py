"""Layers of torch with sparse weights, with torch's semantics, names and arguments.

In: `Linear(768, 3072, format="csr", sparsity=0.9)`, or `Linear.from_dense(layer, ScalarFraction(0.9))`. Out: a
`torch.nn.Linear` with an `nn.Parameter` of a `SparseTensor` as weight.
"""

import copy
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from sparsify.errors import SparsifierError, public
from sparsify.nn.weight import random_mask, require_exact, stored_inside, weight_format
from sparsify.sparsification.apply import sparsify
from sparsify.sparsification.rules.materializing import SameFormat
from sparsify.sparsification.rules.sparsifier import of_entries
from sparsify.sparsification.rules.streaming import require_seed
from sparsify.storage.format import Format
from sparsify.storage.tensor import SparseTensor


class SparseWeight(nn.Module):
    """Base of layers with a sparse `weight`; subclasses derive from a layer of torch, too."""

    dense_layer: ClassVar[type[nn.Module]]
    weight: Any

    @classmethod
    @public
    def from_dense(cls, layer: nn.Module, sparsifier: Any, format: Format | str = "csr") -> Self:
        """A copy of a dense layer with a sparse weight: the entries kept by a sparsifier.

        Args:
            layer: layer of torch's class of the same name; left unchanged.
            sparsifier: sparsifier from `sparsify.sparsifiers`, or a user's own.
            format: format of the weight.

        Raises:
            SparsifierError: a layer of another class, or an embedding with lookups that change the table.
            FormatError: a format with stored entries beyond the kept ones (padding would be trained).
            FormatError, ShapeError: as `sparsify.sparsify`.

        >>> from sparsify.sparsification.sparsifiers import ScalarFraction
        >>> Linear.from_dense(nn.Linear(4, 4), ScalarFraction(0.75)).weight.nnz
        4
        """
        if type(layer) is not cls.dense_layer:
            raise SparsifierError(
                f"sparsify.nn.{cls.__name__}.from_dense of a {type(layer).__name__}",
                f"a torch.nn.{cls.dense_layer.__name__}; sparsify.apply(model, recipe) is for whole models",
            )
        if getattr(layer, "max_norm", None) is not None or getattr(layer, "scale_grad_by_freq", False):
            raise SparsifierError(
                "an embedding with max_norm or scale_grad_by_freq as a sparse layer", "a layer without them"
            )
        weight = layer.get_parameter("weight")
        sparse_weight = sparsify(weight.detach(), sparsifier, weight_format(format, weight.dim()))
        assert isinstance(sparse_weight, SparseTensor), "the format is one of sparse tensors"
        if int(sparse_weight.values().count_nonzero()) < stored_inside(
            sparse_weight.pattern
        ):  # zeros are kept or padding
            coordinate_weight = sparsify(weight.detach(), sparsifier, "coo")
            assert isinstance(coordinate_weight, SparseTensor), "coo is a format of sparse tensors"
            require_exact(sparse_weight.pattern, coordinate_weight.nnz)
        result = copy.deepcopy(layer)
        result.__class__ = cls  # attributes are the same as in torch's layer
        result.weight = nn.Parameter(sparse_weight, requires_grad=weight.requires_grad)
        assert isinstance(result, cls), "the copy has the class that was just set"
        return result

    def reset_parameters(self) -> None:
        """Draws new values as torch's layer does, and keeps the entries."""
        weight = self._parameters.get("weight")
        if not isinstance(weight, SparseTensor):
            super().reset_parameters()  # type: ignore[misc]
            return
        self.weight = nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype, device=weight.device))
        try:
            super().reset_parameters()
            drawn = SameFormat(weight.detach())(self.weight.detach())
        finally:
            self.weight = weight
        with torch.no_grad():
            weight.copy_(drawn)

    def extra_repr(self) -> str:
        """Torch's summary, the format and the share of zeros."""
        weight = self.weight
        if not isinstance(weight, SparseTensor):
            return super().extra_repr()
        density = stored_inside(weight.pattern) / max(1, weight.numel())
        return f"{super().extra_repr()}, format={str(weight.format)!r}, sparsity={1 - density:.3g}"

    def make_sparse(self, format: Format | str, sparsity: float | None, seed: int | None) -> None:
        """Replaces the newly initialized dense weight by its entries at random coordinates."""
        dense: Tensor = self.weight.detach()
        stored = weight_format(format, dense.dim())
        drawn = int(torch.randint(2**31, ())) if seed is None else require_seed(type(self).__name__, seed)
        at = random_mask(dense.shape, stored, sparsity, drawn).nonzero().T
        sparse_weight = of_entries(at, dense[tuple(at)], dense.shape, stored)
        require_exact(sparse_weight.pattern, at.shape[1])
        self.weight = nn.Parameter(sparse_weight)


class Linear(SparseWeight, nn.Linear):
    """`torch.nn.Linear` with a sparse weight [out_features, in_features].

    Args:
        in_features, out_features, bias, device, dtype: as in torch.
        format: format of the weight; blocks and groups n:m restrict the coordinates of entries.
        sparsity: the exact share of zeros; implied by formats with groups.
        seed: seed of the coordinates, by default drawn from torch's generator. Values are initialized as in torch.

    Raises:
        SparsifierError: a missing or invalid share of zeros, or a contradiction to the groups of the format; a seed
            not an integer.
        FormatError: a format of another number of modes, a dense format, or a padded one, as `dia` and `ell`.
        ShapeError: blocks or groups that do not divide the weight.

    Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, section 2.1.

    >>> layer = Linear(768, 3072, format="csr", sparsity=0.9)
    >>> layer.weight.nnz, layer(torch.ones(2, 768)).shape
    (235930, torch.Size([2, 3072]))
    """

    dense_layer = nn.Linear

    @public
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        format: Format | str = "csr",
        sparsity: float | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.make_sparse(format, sparsity, seed)


class Conv2d(SparseWeight, nn.Conv2d):
    """`torch.nn.Conv2d` with a sparse kernel [out_channels, in_channels / groups, height, width].

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype: as
            torch's.
        format: of four modes, or `csr`: a row for each output channel.
        sparsity, seed: as in `Linear`.

    Raises:
        SparsifierError, FormatError, ShapeError: as in `Linear`.

    >>> layer = Conv2d(16, 32, 3, padding=1, format="csr", sparsity=0.75)
    >>> layer.weight.nnz, layer(torch.ones(2, 16, 8, 8)).shape
    (1152, torch.Size([2, 32, 8, 8]))
    """

    dense_layer = nn.Conv2d

    @public
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Any = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        format: Format | str = "csr",
        sparsity: float | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )
        self.make_sparse(format, sparsity, seed)


class Embedding(SparseWeight, nn.Embedding):
    """`torch.nn.Embedding` with a sparse table [num_embeddings, embedding_dim].

    Args:
        num_embeddings, embedding_dim, padding_idx, device, dtype: as torch's.
        format, sparsity, seed: as in `Linear`.

    Raises:
        SparsifierError, FormatError, ShapeError: as in `Linear`.

    >>> layer = Embedding(1000, 64, format="csr", sparsity=0.9)
    >>> layer.weight.nnz, layer(torch.tensor([[1, 5, 7]])).shape
    (6400, torch.Size([1, 3, 64]))
    """

    dense_layer = nn.Embedding

    @public
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        format: Format | str = "csr",
        sparsity: float | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, device=device, dtype=dtype)
        self.make_sparse(format, sparsity, seed)

    @classmethod
    @public
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Self:
        """Refused: a dense table does not determine the entries to keep; `from_dense` takes a sparsifier.

        Raises:
            SparsifierError: always.
        """
        raise SparsifierError(
            "sparsify.nn.Embedding.from_pretrained of a table without a sparsifier",
            "Embedding.from_dense(torch.nn.Embedding.from_pretrained(table), sparsifier)",
        )
