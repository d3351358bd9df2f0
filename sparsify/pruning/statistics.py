"""Second moments of the inputs of weights: X^T X or its diagonal, over all products of a model with the weight.

In: a model, weights by name, a call. Out: for each weight the ranges of rows read by products, with the gram matrix
of the inputs: `{"0.weight": {Part(0, 8): Moment(total=[4, 4], count=128)}}`.

Products are intercepted below autograd: `nn.Linear`, `x @ w.T`, `einsum` and convolutions are handled alike. The rows
of X for a convolution are patches of images.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._python_dispatch import TorchDispatchMode

from sparsify.errors import DataError

Kind = Literal["none", "norm", "gram"]
PATCH_BYTES: Final = 64 << 20
PRODUCTS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("mm", "mv", "bmm"), 0),
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), 1),
}


@dataclass(frozen=True, slots=True)
class Part:
    """The rows `start:stop` of a weight as a matrix [outputs, inputs].

    Attributes:
        start, stop: rows.
        is_transposed: whether the weight is stored [inputs, outputs].
    """

    start: int
    stop: int
    is_transposed: bool = False


@dataclass(frozen=True)
class Product:
    """A product with a weight as operand.

    Attributes:
        name: name of the weight.
        part: rows of the weight read by the product.
        source: tensor with the data of X.
        rows: generator of X, [tokens, inputs], in chunks.
        window: patch parameters of a convolution.
    """

    name: str
    part: Part
    source: Tensor
    rows: Callable[[], Iterator[Tensor]]
    window: tuple[Any, ...] = ()

    @property
    def input_key(self) -> tuple[Any, ...]:
        """Key of X: equal for products with the same X, as long as the source is alive."""
        source = self.source
        if source.is_inference() or source.layout is not torch.strided:
            return (object(),)
        return source.data_ptr(), source.shape, source.stride(), source._version, self.window


@dataclass
class Moment:
    """`total[i, j] = sum(t, X[t, i] * X[t, j])`, or its diagonal.

    Attributes:
        total: [inputs, inputs] or [inputs].
        count: rows of X.
    """

    total: Tensor
    count: int

    @property
    def squares(self) -> Tensor:
        """`sum(t, X[t, i] ** 2)`, [inputs]."""
        return self.total if self.total.dim() == 1 else self.total.diagonal()


class Reader(TorchDispatchMode):
    """Dispatch mode that reports each product with one of some weights to a callback.

    Args:
        weights: weights by name, without aliases.
        take: callback, called with each product before its execution.
    """

    def __init__(self, weights: Mapping[str, Tensor], take: Callable[[Product], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.take = take
        self.stored: dict[int, list[tuple[str, Tensor]]] = {}
        for name, weight in weights.items():
            self.stored.setdefault(weight.untyped_storage().data_ptr(), []).append((name, weight.detach()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for product in self.products(func.overloadpacket.__name__.strip("_"), args):
            self.take(product)
        return func(*args, **(kwargs or {}))

    def products(self, operator: str, args: tuple[Any, ...]) -> Iterator[Product]:
        """The reads of weights in a call of an operator."""
        if operator == "convolution" and not args[6]:
            yield from self.filters(args)
        elif operator in PRODUCTS:
            left, right = args[PRODUCTS[operator] : PRODUCTS[operator] + 2]
            if right.dim() == 1:
                right = right[:, None]
            for view, source in ((right.mT, left), (left, right.mT)):
                if (location := self.located(view)) is not None:
                    yield Product(
                        *location,
                        source,
                        lambda x=source: iter([x.reshape(-1, x.shape[-1])]),  # type: ignore[misc]
                    )

    def located(self, view: Tensor) -> tuple[str, Part] | None:
        """Name and rows of the weight behind a view [outputs, inputs]; a broadcast batch counts as one matrix."""
        if view.layout is not torch.strided or view.dim() not in (2, 3):
            return None
        if view.dim() == 3:
            if view.shape[0] != 1 and view.stride(0) != 0:
                return None
            view = view[0]
        for name, weight in self.stored.get(view.untyped_storage().data_ptr(), ()):
            if weight.dim() == 2 and weight.dtype == view.dtype and (part := part_of(view, weight)):
                return name, part
        return None

    def filters(self, args: tuple[Any, ...]) -> Iterator[Product]:
        """The reads of the weight of a convolution, one for each group of channels."""
        images, weight, _, stride, padding, dilation, _, _, groups = args
        for name, stored in self.stored.get(weight.untyped_storage().data_ptr(), ()):
            if stored.shape != weight.shape or stored.data_ptr() != weight.data_ptr():
                continue
            outputs, channels = weight.shape[0] // groups, weight.shape[1]
            for group in range(groups):
                source = images[..., group * channels : (group + 1) * channels, *[slice(None)] * len(stride)]

                def rows(source: Tensor = source) -> Iterator[Tensor]:
                    return patches(source, weight.shape[2:], stride, padding, dilation)

                window = tuple(map(tuple, (weight.shape[2:], stride, padding, dilation)))
                yield Product(name, Part(group * outputs, (group + 1) * outputs), source, rows, window)


def part_of(view: Tensor, weight: Tensor) -> Part | None:
    """`view[o, i] = weight[start + o, i]` or `weight[i, start + o]`; None for other views."""
    for is_transposed, matrix in ((False, weight), (True, weight.t())):
        pairs = zip(view.shape, view.stride(), matrix.stride(), strict=True)
        if view.shape[1] != matrix.shape[1] or any(n > 1 and stride != other for n, stride, other in pairs):
            continue
        start, rest = divmod(
            int(view.storage_offset()) - int(matrix.storage_offset()), max(1, matrix.stride(0))
        )
        if start >= 0 and not rest and start + view.shape[0] <= matrix.shape[0]:
            return Part(start, start + view.shape[0], is_transposed)
    return None


def patches(images: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Iterator[Tensor]:
    """Patches (im2col) of images [batch, channels, ...] under filters: [patches, channels * entries of a filter]."""
    images = images if images.dim() == len(kernel) + 2 else images[None]
    windows = pad(images, [side for size in reversed(padding) for side in (size, size)])
    for mode, (size, step, gap) in enumerate(zip(kernel, stride, dilation, strict=True)):
        windows = windows.unfold(mode + 2, (size - 1) * gap + 1, step)[..., ::gap]
    modes = len(kernel)
    order = (0, *range(2, 2 + modes), 1, *range(2 + modes, 2 + 2 * modes))
    inputs = images.shape[1] * torch.Size(kernel).numel()
    each = max(1, windows[0].numel() * windows.element_size())
    for chunk in windows.permute(order).split(max(1, PATCH_BYTES // each)):
        yield chunk.reshape(-1, inputs)


class Moments:
    """Sums of second moments for some weights.

    Args:
        kinds: by name of the weight.

    Attributes:
        of: by name and part.
    """

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self.kinds = kinds
        self.of: dict[str, dict[Part, Moment]] = {}
        self.last: tuple[tuple[Any, ...], Tensor, Tensor, int] | None = None

    def add(self, product: Product) -> None:
        """Adds the rows of X of a product.

        Raises:
            DataError: the rows are not finite.
        """
        kind = self.kinds[product.name]
        if kind == "none":
            return
        key = (*product.input_key, kind)
        if self.last is None or self.last[0] != key:
            # The source is kept alive: no other tensor can reuse the address.
            self.last = (key, product.source, *summed(product, kind))
        _, _, total, count = self.last
        parts = self.of.setdefault(product.name, {})
        if product.part in parts:
            parts[product.part].total += total
            parts[product.part].count += count
        else:
            parts[product.part] = Moment(total.clone(), count)


def summed(product: Product, kind: Kind) -> tuple[Tensor, int]:
    """The second moments of the rows of X of one product, and the number of rows."""
    total, count = None, 0
    for rows in product.rows():
        dense = rows.to_dense() if rows.layout is not torch.strided else rows
        wide = dense.to(torch.promote_types(rows.dtype, torch.float32))
        moments = wide.t() @ wide if kind == "gram" else wide.square().sum(0)
        total, count = moments if total is None else total + moments, count + len(wide)
    assert total is not None, "products have rows"
    if not total.isfinite().all():
        raise DataError(
            f"the calibration data gives inputs of {product.name} that are NaN, infinite or too large to square",
            "data for which the model gives finite results",
        )
    return total, count


def relative_error(before: Tensor, after: Tensor, gram: Tensor) -> float:
    """`||X before^T - X after^T|| / ||X before^T||` by the gram matrix of X; 0 for a zero denominator.

    >>> relative_error(torch.tensor([[2.0, 1.0]]), torch.tensor([[2.0, 0.0]]), torch.eye(2))
    0.4472135954999579
    """
    wide, full = gram.double(), before.detach().double()
    change = full - after.detach().double()
    lost, all_of_it = ((m @ wide * m).sum().clamp(min=0) for m in (change, full))
    return float((lost / all_of_it).sqrt()) if all_of_it > 0 else 0.0
