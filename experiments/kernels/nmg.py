"""Weights pruned n:m:g, and unstructured weights of equal retained magnitude, on one thread.

In: `nmg(2, 4, place, torch_ratio=1.7)`. Out: a `Case` whose results are checked against float64; the baseline of both
weights is torch's dense product.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

import sparsify
from sparsify.bench.harness import Case, Contender, Target
from sparsify.bench.linear import COLUMNS, OUTPUTS, RECIPE
from sparsify.bench.place import Place
from sparsify.sparsification.rules.grouped import grouped_mask
from sparsify.sparsification.rules.largest import largest

ROWS, GROUP = 1024, 16


@contextmanager
def one_thread() -> Iterator[None]:
    """Context in which kernels and torch use one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def nmg(keep: int, of: int, place: Place, *, torch_ratio: float) -> Case:
    """`Y[t,n] = X[t,k] * W[n,k] + b[n]` with W pruned in both ways; both have the target ratio.

    Args:
        keep, of: n and m of the pattern.
        place: data root and scale of the sizes.
        torch_ratio: target ratio against torch's dense product.
    """
    columns, outputs = (max(32, round(size * place.scale) // 32 * 32) for size in (COLUMNS, OUTPUTS))
    rows, group = max(1, round(ROWS * place.scale)), max(1, round(GROUP * place.scale))
    torch.manual_seed(0)
    layer = nn.Linear(columns, outputs).eval().requires_grad_(False)
    nn.init.normal_(layer.weight)
    x, bias, weight = torch.randn(rows, columns), layer.bias.detach(), layer.weight.detach().clone()
    mask = grouped_mask(weight, keep, of, group)
    alike = as_much(weight, mask)
    share = float((weight.abs() * mask).sum() / weight.abs().sum())
    case = Case(
        f"nmg-{100 - 100 * keep // of}",
        f"{columns} -> {outputs}, {rows} rows, {keep}:{of}:{group}, {share:.3f} of the magnitude, "
        f"unstructured {float(alike.float().mean()):.3f} of the entries",
        "generated",
        [],
        [],
        lambda: (x.double() @ (weight * mask).double().T) + bias.double(),
    )
    for name, kept in (("n:m:g", mask), ("unstructured", alike)):
        layer.weight.copy_(weight * kept)
        sparse = case.prepare(f"pack {name}", lambda: sparsify.apply(layer, RECIPE, x, verify=False))
        call = partial(sparse, x)
        case.prepare(f"first call {name}", call)
        is_checked = kept is mask  # the other weight has another product
        if not is_checked:
            torch.testing.assert_close(call(), layer(x), rtol=1e-4, atol=1e-4)
        case.contenders.append(Contender(name, call, baseline=False, is_checked=is_checked))
        case.targets.append(Target(name, ("torch",), torch_ratio, name))
    dense = weight * mask
    case.contenders.append(Contender("torch", lambda: nn.functional.linear(x, dense, bias)))
    return case


def as_much(weight: Tensor, mask: Tensor) -> Tensor:
    """Mask of the fewest largest entries with at least the magnitude retained by `mask`."""
    held = weight.abs().flatten().double().sort(descending=True).values.cumsum(0)
    wanted = (weight.abs() * mask).double().sum()
    count = min(int(torch.searchsorted(held, wanted)) + 1, weight.numel())
    return largest(weight.abs(), count / weight.numel())
