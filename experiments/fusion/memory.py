"""Memory of attention over long texts, forward and backward, relative to the memory of operands and results.

In: `peak(16384, 64, place, quick, clock)`. Out: a row with the live bytes at the peak of a call, in percent of the
operands, the results and the scores of one row of blocks. All scores of 16,384 tokens and 12 heads would take 12 GiB.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

import sparsify
from experiments.fusion.attention import CHANNELS, HEADS, TEXT
from sparsify import patterns
from sparsify.bench.harness import Clock
from sparsify.bench.place import Place
from sparsify.bench.products import ITEM, scaled
from sparsify.bench.suites import limit
from sparsify.runner.measure import peak_once
from sparsify.runtime.buffers import POOL

# Maximum live bytes at the peak, relative to operands, results and the scores of one row of blocks.
ASKED: Final = 1.3
LENGTHS: Final = (1, 2)


def peak(tokens: int, block: int, place: Place, quick: bool, clock: Clock) -> dict[str, Any]:
    """Live bytes at the peak of a call, forward and backward, and their growth with the number of stored blocks."""
    tokens = scaled(tokens, place) // (2 * block) * 2 * block
    parts = {length: _parts(tokens // length, block) for length in LENGTHS}
    (forward, backward, stored), (half_forward, half_backward, half_stored) = parts.values()
    growth = stored / half_stored
    return {
        "name": f"attention-memory-{tokens}-{block}",
        "kind": "limits",
        "work": f"{HEADS} heads, {tokens} tokens, {CHANNELS} channels, {stored} blocks",
        "data": "generated",
        "unit": "%",
        "contenders": [],
        "targets": [
            limit("forward, of Q, K, V, Y and a row of blocks", forward[0] / forward[1], ASKED),
            limit(
                "backward, of Q, K, V, Y, their gradients and a row of blocks",
                backward[0] / backward[1],
                ASKED,
            ),
            limit(
                "forward, a block, of that of half the tokens", forward[0] / half_forward[0] / growth, ASKED
            ),
            limit(
                "backward, a block, of that of half the tokens",
                backward[0] / half_backward[0] / growth,
                ASKED,
            ),
        ],
    }


def _parts(tokens: int, block: int) -> tuple[tuple[int, int], tuple[int, int], int]:
    """(Peak, minimum) live bytes of a call and of its gradients, and the number of stored blocks."""
    M = patterns.bigbird(tokens, block=block)
    leaves = torch.randn(3, HEADS, tokens, CHANNELS, generator=torch.Generator().manual_seed(0)).unbind()
    Q, K, V = (leaf.clone() for leaf in leaves)
    del leaves
    size = ITEM * Q.numel()
    row_of_blocks = ITEM * block * tokens

    def call() -> Tensor:
        found: Tensor = sparsify.evaluate(TEXT, "Y", M=M, Q=Q, K=K, V=V)
        return found

    call()  # one-time preparation and persistent buffers
    forward = 3 * size + _raised(call), 4 * size + row_of_blocks
    operands = [operand.requires_grad_() for operand in (Q, K, V)]
    result = call()
    seed = torch.ones_like(result)

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(result, operands, seed, retain_graph=True)

    gradients()
    backward = 5 * size + _raised(gradients), 8 * size + row_of_blocks
    return forward, backward, M.nnz // block**2


def _raised(call: Callable[[], Any]) -> int:
    """Increase of the process's memory by a call: minimum of three, each with an empty buffer pool."""
    found = []
    for _ in range(3):
        POOL.clear()
        found.append(peak_once(call) or 0)
    return min(found)
