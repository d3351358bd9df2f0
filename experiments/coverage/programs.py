"""`python -m experiments.coverage.programs [NAME ...]`: small models of sparse tensors, and their kernels.

In: prefixes of names. Out: a table in Markdown with regions, kernels, the error against float64 and the time relative
to the dense model; exit status 1 if an operator with a sparse operand stays dense.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor, nn

import sparsify
from sparsify import options

NODES: Final = 1000
WIDTH: Final = 32
HEAD: Final = ("| model | regions | kernels | error | time by dense |", "|---|---|---|---|---|")


class Formula(nn.Module):
    """A model without parameters: a function of a sparse tensor `a` and dense tensors."""

    def __init__(self, formula: Callable[..., Tensor]) -> None:
        super().__init__()
        self.formula = formula

    def forward(self, a: Tensor, x: Tensor) -> Tensor:
        """Value of the formula."""
        return self.formula(a, x)


def propagated(a: Tensor, x: Tensor) -> Tensor:
    """Graph convolution step over a symmetrically normalized adjacency with self-loops."""
    a = a + torch.eye(a.shape[0], dtype=a.dtype)
    d = a.sum(1).rsqrt()
    return (d[:, None] * a * d) @ x


FORMULAS: Final[dict[str, Callable[..., Tensor]]] = {
    "sampled product": lambda a, x: a * (x @ x.T),
    "convolution with loops": propagated,
    "laplacian": lambda a, x: (torch.diag(a.sum(1)) - a) @ x,
    "smoothness": lambda a, x: torch.trace(x.T @ (torch.diag(a.sum(1)) - a) @ x),
    "centred": lambda a, x: (a - a.mean(1, keepdim=True)) @ x,
    "masked softmax": lambda a, x: torch.softmax((x @ x.T).masked_fill(a == 0, float("-inf")), -1) @ x,
    "largest neighbour": lambda a, x: torch.where((a != 0)[..., None], x[None, :, :4], -torch.inf).amax(1),
    "pooled": lambda a, x: x.T @ a @ x,
    "both directions": lambda a, x: (a + a.T) @ x,
    "distances": lambda a, x: torch.exp(-torch.cdist(x, x)).mul(a) @ x,
}


@dataclass(frozen=True)
class Row:
    """Regions, kernels, error and time of a model.

    Attributes:
        error: largest error against the dense model in float64, relative to the largest value.
        ratio: time of a call relative to the dense model.
        is_whole: whether kernels read every sparse operand.
    """

    regions: int
    kernels: int
    error: float
    ratio: float
    is_whole: bool


def measure(formula: Callable[..., Tensor], nodes: int = NODES) -> Row:
    """Row of a formula over a random graph of `nodes` nodes with about eight neighbours each."""
    draw = torch.Generator().manual_seed(0)
    a = torch.rand(nodes, nodes, generator=draw) * (torch.rand(nodes, nodes, generator=draw) < 8 / nodes)
    a.fill_diagonal_(1)
    x = torch.randn(nodes, WIDTH, generator=draw)
    model = Formula(formula).eval()
    rule = {"targets": ["input:a"], "source": "given", "format": "csr", "role": "adjacency"}
    recipe: dict[str, Any] = {"schema": 1, "name": "formula", "sparsify": [rule]}
    sparse = sparsify.apply(model, recipe, (a, x), trainable=False, verify=False)
    with torch.no_grad():
        exact = model(a.double(), x.double())
        error = float((sparse(a, x).double() - exact).abs().max() / exact.abs().max())
        ratio = seconds(lambda: sparse(a, x)) / seconds(lambda: model(a, x))
    regions = sparse.report.to_dict()["regions"]
    kernels = sum(len(str(region["kernel"]).split("+")) for region in regions)
    return Row(len(regions), kernels, error, ratio, bool(regions) and not sparse.report.dense)


def seconds(call: Callable[[], Any], repeats: int = 9) -> float:
    """Median time of a call."""
    times = []
    for _ in range(repeats):
        started = perf_counter()
        call()
        times.append(perf_counter() - started)
    return median(times)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m experiments.coverage.programs", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginnings of names; all when not given")
    asked = parser.parse_args(argv)
    is_whole = True
    print(*HEAD, sep="\n")
    for name, formula in FORMULAS.items():
        if asked.names and not name.startswith(tuple(asked.names)):
            continue
        with options.override(tune_seconds=0):
            row = measure(formula)
        is_whole = is_whole and row.is_whole
        cells = (name, row.regions, row.kernels, f"{row.error:.0e}", f"{row.ratio:.2f}")
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
