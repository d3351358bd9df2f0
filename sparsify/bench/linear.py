"""Linear layers with pruned weights, as `sparsify.apply` runs them, against dense products of torch and oneDNN.

In: `linear(Weight(90), 1024, place)`. Out: a `Case` with a result checked against float64.
"""

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

import sparsify
from sparsify.bench import peers
from sparsify.bench.harness import Case, Contender, Target
from sparsify.bench.place import Place
from sparsify.bench.roofline import Work
from sparsify.compiler.ir import dtypes
from sparsify.runtime.buffers import POOL
from sparsify.sparsification.rules.rounding import rounded

COLUMNS, OUTPUTS = 768, 3072
# Required ratio for square blocks against torch's BSR product.
BSR_RATIO = 2.5
RULES = [{"targets": ["param:weight"], "role": "weight", "source": "given"}]
RECIPE = {"schema": 1, "name": "pruned", "sparsify": RULES}


@dataclass(frozen=True, slots=True)
class Weight:
    """The zeros of a weight.

    Attributes:
        zeros: percent of zeros.
        block: rows and columns of a block of zeros.
        of: size of groups of neighbours in a row, each with `zeros` percent of zeros; 0 for unstructured zeros.
        dtype: dtype of stored values, `same` for the weight's dtype.
    """

    zeros: int
    block: tuple[int, int] = (1, 1)
    of: int = 0
    dtype: str = "same"

    def __str__(self) -> str:
        kind = (
            f"{self.block[0]}x{self.block[1]}-"
            if self.block != (1, 1)
            else f"of{self.of}-"
            if self.of
            else ""
        )
        return f"{kind}{self.zeros}{'' if self.dtype == 'same' else f'-{self.dtype}'}"

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe for a layer with zeros of this kind."""
        rules = [{**rule, "dtype": self.dtype} for rule in RULES]
        return {**RECIPE, "sparsify": rules}

    def mask(self, outputs: int, columns: int) -> torch.Tensor:
        """Mask [outputs, columns] of the nonzeros of the weight."""
        height, width = self.block
        drawn = torch.rand(outputs // height, columns // width, generator=torch.Generator().manual_seed(0))
        if self.of:
            order = drawn.view(outputs, -1, self.of).argsort(-1).argsort(-1)
            return (order >= self.of * self.zeros // 100).view(outputs, columns)
        kept = drawn >= self.zeros / 100
        return kept.repeat_interleave(height, 0).repeat_interleave(width, 1)


def linear(
    weight: Weight,
    rows: int,
    place: Place,
    *,
    torch_ratio: float | None = None,
    onednn_ratio: float | None = None,
) -> Case:
    """`Y[t,n] = X[t,k] * W[n,k] + b[n]` with the ratios asked."""
    columns, outputs = (max(32, round(size * place.scale) // 32 * 32) for size in (COLUMNS, OUTPUTS))
    name, rows = f"linear-{rows}-{weight}", max(1, round(rows * place.scale))
    torch.manual_seed(0)
    layer = nn.Linear(columns, outputs).eval().requires_grad_(False)
    layer.weight *= weight.mask(outputs, columns)
    if weight.dtype != "same":
        layer.weight.copy_(rounded(layer.weight, weight.dtype))
    x = torch.randn(rows, columns)
    stored = int(layer.weight.count_nonzero())
    case = Case(
        name,
        f"{columns} -> {outputs}, {rows} rows, {stored} entries",
        "generated",
        [],
        [],
        lambda: torch.nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double()),
        least=packed_work(stored, rows, columns + outputs, value_bytes(weight.dtype)),
    )
    sparse = case.prepare("pack and build", lambda: sparsify.apply(layer, weight.recipe, x, verify=False))
    case.prepare("first call", lambda: sparse(x))
    left, right, bias = x, layer.weight.detach(), layer.bias.detach()
    case.contenders += [
        Contender("sparsify", lambda: sparse(x), baseline=False),
        Contender("torch", lambda: torch.nn.functional.linear(left, right, bias)),
    ]
    case.targets.append(Target("sparsify", ("torch",), torch_ratio, "torch"))
    if torch.backends.mkldnn.is_available():
        packed = case.prepare("oneDNN packs", lambda: torch.ops.mkldnn._reorder_linear_weight(right, rows))
        onednn = torch.ops.mkldnn._linear_pointwise
        case.contenders.append(Contender("oneDNN", lambda: onednn(left, packed, bias, "none", [], "")))
        case.targets.append(Target("sparsify", ("oneDNN",), onednn_ratio, "oneDNN"))
    if weight.dtype == "bfloat16":
        halves = [tensor.bfloat16() for tensor in (left, right, bias)]
        narrow = partial(torch.nn.functional.linear, *halves)
        case.contenders.append(Contender("torch bfloat16", narrow, is_checked=False))  # rounds its result
        case.targets.append(Target("sparsify", ("torch bfloat16",), None, "torch bfloat16"))
    csr = right.to_sparse_csr()
    case.contenders.append(Contender("torch CSR", lambda: (csr @ left.T).T + bias))
    case.targets.append(Target("sparsify", ("torch CSR",), None, "torch CSR"))
    add_sparselab(case, layer, left)
    if weight.block[1] > 1:
        bsr = right.to_sparse_bsr(weight.block)
        case.contenders.append(Contender("torch BSR", lambda: (bsr @ left.T).T + bias))
        case.targets.append(Target("sparsify", ("torch BSR",), BSR_RATIO, "torch BSR"))
    call = case.contenders[0].call
    case.contenders.append(Contender("sparsify fresh", call, baseline=False, before=POOL.clear))
    theirs = tuple(contender.name for contender in case.contenders if contender.baseline)
    case.targets.append(Target("sparsify fresh", theirs, None, "fresh"))
    return case


def add_sparselab(case: Case, layer: nn.Linear, x: torch.Tensor) -> None:
    """Adds SparseLab's layer with the same weight as a contender, if installed."""
    made = peers.sparse_linear(layer)
    if made is None:
        case.missing.append("SparseLab")
        return
    case.contenders.append(Contender("SparseLab", lambda: made(x)))
    case.targets.append(Target("sparsify", ("SparseLab",), None, "SparseLab"))


def packed_work(stored: int, rows: int, extents: int, item_bytes: int = 4) -> Work:
    """The least memory traffic of layers: values with 16-bit coordinates, inputs and results of `extents` columns."""
    return Work(2.0 * stored * rows, (item_bytes + 2.0) * stored + 4.0 * rows * extents)


def value_bytes(dtype: str) -> int:
    """The bytes of a stored value of a float32 weight."""
    return 4 if dtype == "same" else dtypes.BYTES[dtype]


class Prepacked(nn.Module):
    """A linear layer with a weight prepacked by oneDNN for a number of rows."""

    def __init__(self, layer: nn.Linear, rows: int) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
        self.bias = layer.bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., outputs]."""
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return found


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}


def prepacked(model: nn.Module, rows: int) -> nn.Module:
    """A copy of the model with linear layers prepacked by oneDNN."""
    copied = copy.deepcopy(model)
    for name, layer in linears(copied).items():
        owner, _, own = name.rpartition(".")
        setattr(copied.get_submodule(owner), own, Prepacked(layer, rows))
    return copied
