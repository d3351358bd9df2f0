"""Weights in narrow dtypes: rounded to 16-bit floats, or to whole numbers with a scale for each row.

In: a weight [outputs, columns], or [outputs, channels, ...] of a convolution, of float32 and `"int8"`. Out: the nearest
weight of the same dtype with rows of whole numbers from -127 to 127 times a scale, the largest of each row 127.

A scale has 17 significant bits, so its products with the whole numbers are exact in float32: rounding is
idempotent, and the dense form represents the narrow form exactly.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from sparsify.errors import DtypeError

# Significant bits of a scale; together with the factor they fit the significand of a float32.
SCALE_BITS: Final = 17
LARGEST: Final = 127
# Products with smaller scales would be denormal numbers.
LEAST_SCALE: Final = 2.0**-120


@dataclass(frozen=True, slots=True)
class Moved:
    """Rounding error of a weight.

    Attributes:
        dtype: dtype of the stored values.
        largest: largest difference of an entry.
        relative: norm of the difference relative to the norm of the weight.
    """

    dtype: str
    largest: float
    relative: float


def moved(weight: Tensor, rounded_weight: Tensor, dtype: str) -> Moved:
    """Distance of the rounded weight from the original."""
    difference = (rounded_weight - weight).double()
    largest = float(difference.abs().max()) if weight.numel() else 0.0
    norm = float(weight.double().norm())
    return Moved(dtype, largest, float(difference.norm()) / norm if norm else 0.0)


def rounded(weight: Tensor, dtype: str) -> Tensor:
    """The nearest weight representable in `dtype`, in the dtype of the weight.

    Raises:
        DtypeError: entries not representable in `dtype`.

    >>> rounded(torch.tensor([[1.0, 0.3, 0.0]]), "int8").mul(127).round().tolist()
    [[127.0, 38.0, 0.0]]
    """
    request = f"values of {dtype} for a weight"
    if dtype == "int8":
        if weight.dtype.itemsize < torch.float32.itemsize:
            raise DtypeError(
                f"{request} of {weight.dtype}, which holds too few digits of their products with scales",
                "bfloat16 or float16, or a model in float32",
            )
        if not bool(weight.isfinite().all()):
            raise DtypeError(f"{request} that is not finite", "bfloat16, which holds infinities and NaN")
        return widened(narrowed(weight, torch.int8), scales(weight), weight.dtype)
    result = narrowed(weight, getattr(torch, dtype)).to(weight.dtype)
    if bool((result.isinf() & ~weight.isinf()).any()):
        largest = float(weight[~weight.isinf()].abs().max())
        most = torch.finfo(getattr(torch, dtype)).max
        raise DtypeError(
            f"{request} with entries as large as {largest:.3g}", f"{dtype} holds up to {most:.3g}"
        )
    return result


def narrowed(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The stored values of a weight; for int8 divided by the scales."""
    if dtype is not torch.int8:
        return weight.to(dtype)
    scale = scales(weight)
    scaled = (weight.to(scale.dtype) / along_rows(scale, weight)).round()
    return scaled.clamp(-LARGEST, LARGEST).to(torch.int8)


def widened(values: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The weight from stored values [rows, ...], with a scale for each row or none."""
    return values.to(dtype) if scale is None else (values * along_rows(scale, values)).to(dtype)


def along_rows(scale: Tensor, weight: Tensor) -> Tensor:
    """Scales [rows] with as many modes as the weight."""
    return scale.view(-1, *[1] * (weight.dim() - 1))


def scale_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the scales of a weight."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def scales(weight: Tensor) -> Tensor:
    """The scale of each row of whole numbers [rows]."""
    kind = scale_dtype(weight.dtype)
    rows = weight.flatten(1)
    if not rows.shape[1]:
        return torch.full(weight.shape[:1], LEAST_SCALE, dtype=kind)
    mantissa, exponent = torch.frexp(rows.abs().amax(1).to(kind) / LARGEST)
    short = torch.ldexp((mantissa * 2.0**SCALE_BITS).round(), exponent - SCALE_BITS)
    return short.clamp_min(LEAST_SCALE)
