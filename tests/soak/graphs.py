"""Random models: sparse ones must compute what the dense ones do, at the sizes they were applied to and at others.

In: `python -m tests.soak.graphs --first 0 --count 100 --seconds 60`. Out: a line for each seed that failed, and a line
of JSON with the counts.
"""

import argparse
import json
import random
import sys
import time
import warnings
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

import sparsify
from sparsify.errors import CaptureError

WIDTHS: Final = (1, 3, 8, 17, 32)
ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "gelu": nn.functional.gelu,
    "none": lambda x: x,
    "softmax": lambda x: torch.softmax(x, -1),
    "square": lambda x: x * x,
}
STEPS: Final = ("linear", "residual", "aggregate", "norm", "join", "in place", "scale", "sum")


class Random(nn.Module):
    """A model of `x` [nodes, width] and `edges` [2, n] that is drawn from a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.width = width = draw.choice(WIDTHS)
        self.plan: list[tuple[str, str]] = []
        self.layers = nn.ModuleList()
        for _ in range(draw.randint(1, 6)):
            step, out = draw.choice(STEPS), width
            if step in ("linear", "aggregate"):
                out = draw.choice(WIDTHS)
            layer = nn.LayerNorm(width) if step == "norm" else nn.Linear(width, out, bias=draw.random() < 0.7)
            self.layers.append(layer)
            self.plan.append((step, draw.choice(list(ACTIVATIONS))))
            width = 2 * width if step == "join" else out

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for layer, (step, activation) in zip(self.layers, self.plan, strict=True):
            before, x = x, layer(x)
            if step == "residual":
                x = x + before
            elif step == "aggregate":
                x = torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]])
            elif step == "join":
                x = torch.cat([x, before], -1)
            elif step == "in place":
                x = x.clone().add_(before).mul_(0.5)
            elif step == "scale":
                x = x * before.abs().amax(-1, keepdim=True)
            elif step == "sum":
                x = x - x.sum(0, keepdim=True) / x.shape[0]
            x = ACTIVATIONS[activation](x)
        return x


def inputs(seed: int, nodes: int, width: int) -> tuple[Tensor, Tensor]:
    """Features and edges of a random graph."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, width, generator=generator)
    return x, torch.randint(nodes, (2, 3 * nodes), generator=generator)


def check(seed: int) -> str:
    """`agreed` or `refused`; raises for results that differ."""
    draw = random.Random(-seed - 1)
    torch.manual_seed(seed)
    model = Random(seed).train(draw.random() < 0.3)
    rule = {"targets": ["param:*.weight"], "types": ["Linear"], "optional": True}
    rule["prune"] = {"method": "magnitude", "sparsity": draw.choice([0.0, 0.5, 0.9, 1.0])}
    rule["format"] = draw.choice(["auto", "csr", "dense, compressed(crd=int16)", "bcsr(4, 4)"])
    rules = [rule, {"targets": ["op:message_passing"], "format": "csr", "optional": True}]
    recipe = {"schema": 1, "name": f"seed {seed}", "sparsify": rules}
    x, edges = inputs(seed, draw.randint(2, 40), model.width)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dense parts
        try:
            sparse = sparsify.apply(model, recipe, (x, edges))
        except CaptureError:
            return "refused"
        for nodes in (x.shape[0], 1, 2, draw.randint(3, 90)):
            call = inputs(seed + nodes, nodes, model.width)
            kept = [tensor.clone() for tensor in call]
            torch.testing.assert_close(sparse(*call), sparse.original(*call), rtol=1e-3, atol=1e-4)
            assert all(map(torch.equal, kept, call)), "inputs were written"
    return "agreed"


def main() -> int:
    """Runs the command; 1 when a seed failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    counts, start = {"agreed": 0, "refused": 0, "failed": 0}, time.monotonic()
    for seed in range(given.first, given.first + given.count):
        if time.monotonic() - start > given.seconds:
            break
        try:
            counts[check(seed)] += 1
        except Exception as error:
            counts["failed"] += 1
            first = str(error).strip().splitlines()[:1]
            print(f"python -m tests.soak.graphs --first {seed} --count 1  # {type(error).__name__}: {first}")
    print(json.dumps(counts))
    return int(counts["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
