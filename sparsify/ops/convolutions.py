"""Convolutions with sparse kernels: `conv1d`, `conv2d`, `conv3d`.

In: `torch.nn.functional.conv2d(x, weight, bias, stride=2, padding=1)`, weight a `SparseTensor` [out, in, 3, 3]. Out:
`Y[n,o,h,w] = sum(X[n,c,2*h+r-1,2*w+s-1] * W[o,c,r,s]) + b[o]`, over the stored entries of the weight alone.
"""

from collections.abc import Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor

from sparsify.compiler.evaluate import evaluate
from sparsify.errors import ShapeError
from sparsify.ops.register.fallback import is_dense
from sparsify.ops.register.table import operator, refuse
from sparsify.storage.tensor import SparseTensor

PLACES, TAPS = "hwd", "rst"
"""Index variables of the results of a convolution, and of its kernel."""


@operator(torch.conv1d)
def conv1d(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`torch.nn.functional.conv1d`."""
    return _convolution(1, input, weight, *args, **kwargs)


@operator(torch.conv2d)
def conv2d(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`torch.nn.functional.conv2d`."""
    return _convolution(2, input, weight, *args, **kwargs)


@operator(torch.conv3d)
def conv3d(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`torch.nn.functional.conv3d`."""
    return _convolution(3, input, weight, *args, **kwargs)


def _convolution(
    rank: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """A convolution over the last `rank` modes, of a batch or of one sample."""
    if not is_dense(input) or not isinstance(weight, SparseTensor):
        raise refuse("a convolution of a sparse input", "a dense input and a sparse weight")
    if weight.fill != 0:
        raise refuse(f"a convolution with the fill {weight.fill}", "a weight with the fill 0")
    if input.dim() == rank + 1:
        arguments = (weight, bias, stride, padding, dilation, groups)
        return _convolution(rank, input.unsqueeze(0), *arguments).squeeze(0)
    _require_fit(rank, input, weight, bias, groups)
    strides, dilations = _numbers("stride", stride, rank, 1), _numbers("dilation", dilation, rank, 1)
    before, after = _paddings(padding, strides, dilations, weight.shape[2:])
    sizes = [
        (extent + low + high - spacing * (taps - 1) - 1) // step + 1
        for extent, low, high, spacing, taps, step in zip(
            input.shape[2:], before, after, dilations, weight.shape[2:], strides, strict=True
        )
    ]
    if min(sizes) < 1:
        raise ShapeError(
            f"a convolution of an input {list(input.shape)} with a kernel {list(weight.shape)}: the kernel is larger"
        )
    places, taps = PLACES[:rank], TAPS[:rank]
    windows = [
        f"{step}*{at}+{spacing}*{tap}-{low}"
        for at, tap, step, spacing, low in zip(places, taps, strides, dilations, before, strict=True)
    ]
    at, window, tap = ",".join(places), ",".join(windows), ",".join(taps)
    extents = dict(zip(places, sizes, strict=True))
    outputs = weight.shape[0] // groups
    group, channel, output = "", "c", "o"
    if groups > 1:
        group, channel, output = "g,", f"{weight.shape[1]}*g+c", f"{outputs}*g+o"
        extents |= {"g": groups, "o": outputs}
    program = f"Y[n,{group}o,{at}] = sum(c,{tap}, X[n,{channel},{window}] * W[{output},c,{tap}])"
    operands: dict[str, Any] = {"X": input, "W": weight}
    if bias is not None:
        program += f" + b[{output}]"
        operands["b"] = bias
    result: Tensor = evaluate(program, sizes=extents, format="dense", **operands)
    return result.reshape(input.shape[0], weight.shape[0], *sizes)


def _require_fit(rank: int, input: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> None:
    """Raises for incompatible shapes of a convolution."""
    fits = (
        groups > 0 and input.dim() == weight.dim() == rank + 2 and input.shape[1] == weight.shape[1] * groups
    )
    if not fits or weight.shape[0] % groups or (bias is not None and bias.shape != weight.shape[:1]):
        bias_of = "" if bias is None else f", a bias {list(bias.shape)}"
        raise ShapeError(
            f"conv{rank}d of an input {list(input.shape)}, a weight {list(weight.shape)}{bias_of} in {groups} groups; "
            "an input [batch, groups * c, ...], a weight [groups * o, c, ...]"
        )


def _numbers(name: str, value: Any, rank: int, least: int) -> list[int]:
    """A number for each mode.

    Raises:
        ShapeError: something else, another count of numbers, or a number below `least`.
    """
    several = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    try:
        numbers = [index(n) for n in several if not isinstance(n, bool)]
    except TypeError:
        numbers = []
    if len(numbers) != len(several) or len(numbers) not in (1, rank) or min(numbers) < least:
        raise ShapeError(f"{name}={value!r} of conv{rank}d", f"one integer or {rank}, each {least} or more")
    return numbers * (rank if len(numbers) == 1 else 1)


def _paddings(
    padding: Any, strides: Sequence[int], dilations: Sequence[int], taps: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The zeros before and behind each mode; `same` puts the odd one behind, as in torch."""
    if padding == "valid":
        padding = 0
    if padding != "same":
        if isinstance(padding, str):
            raise ShapeError(f"padding={padding!r} of conv{len(taps)}d", "'same', 'valid' or integers")
        numbers = _numbers("padding", padding, len(taps), 0)
        return numbers, numbers
    if any(step != 1 for step in strides):
        raise refuse("padding='same' of a convolution with strides", "numbers as padding")
    total = [spacing * (n - 1) for spacing, n in zip(dilations, taps, strict=True)]
    return [n // 2 for n in total], [n - n // 2 for n in total]
