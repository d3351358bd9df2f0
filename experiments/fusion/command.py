"""`python -m experiments.fusion [--rows attention ...] [--out bench.json] [--quick]`: measures, prints, writes.

In: names of rows, or beginnings of names. Out: one table on standard output and, with `--out`, JSON.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from experiments.foundation import command
from experiments.fusion import graph_attention, layers
from experiments.fusion.attention import backward, blocked, dropped, one_head, sliding
from experiments.fusion.bert import bert, bigbird
from experiments.fusion.experts import experts, step
from experiments.fusion.memory import peak
from sparsify.bench.harness import Clock
from sparsify.bench.place import Place
from sparsify.bench.table import CLOCKS, measured

# Target ratios against compiled FlexAttention and against the mask, by tokens and block.
BLOCKED: Final[Mapping[tuple[int, int], tuple[float | None, float | None]]] = {
    (1024, 16): (2.4, 9.0),
    (2048, 32): (1.8, 9.0),
    (4096, 64): (1.3, 7.0),
    (4096, 16): (2.2, 30.0),
    (1024, 64): (None, 2.0),
}
CASES: Final[Mapping[str, command.Make]] = {
    f"attention-{tokens}-{block}": partial(
        blocked, tokens, block, flex_ratio=flex_ratio, sdpa_ratio=sdpa_ratio
    )
    for (tokens, block), (flex_ratio, sdpa_ratio) in BLOCKED.items()
} | {
    "attention-window-4096-64": partial(sliding, 4096, 64, sdpa_ratio=10.0),
    "attention-one-head-1024-16": partial(one_head, 1024, 16),
    **{
        f"attention-backward-{tokens}-{block}": partial(backward, tokens, block, sdpa_ratio=5.0)
        for tokens, block in BLOCKED
    },
    **{
        f"attention-dropout-{tokens}-{block}": partial(dropped, tokens, block, sdpa_ratio=5.0)
        for tokens, block in BLOCKED
    },
    **{f"experts-{count}": partial(experts, count, ratio=1.3) for count in (8, 16, 64)},
    **{f"experts-step-{count}": partial(step, count, ratio=1.0) for count in (8, 64)},
    **{
        f"bert-{tokens}": partial(bert, tokens, sdpa_ratio=ratio)
        for tokens, ratio in ((1024, 1.3), (4096, 3.0))
    },
    **{f"bigbird-{tokens}": partial(bigbird, tokens) for tokens in (1024, 4096)},
    "gatconv-arxiv": partial(graph_attention.layer, "arxiv", "GATConv", pyg_ratio=10.0),
    "gatv2conv-arxiv": partial(graph_attention.layer, "arxiv", "GATv2Conv"),
    "transformerconv-arxiv": partial(graph_attention.layer, "arxiv", "TransformerConv"),
    **{f"autoencoder-{features}": partial(layers.autoencoder, features) for features in (784, 3072, 4096)},
    **{f"bags-{mode}": partial(layers.bags, mode) for mode in ("sum", "mean", "max")},
    **{f"bags-{mode}-step": partial(layers.bags, mode, is_step=True) for mode in ("sum", "max")},
    **{
        f"{kind.lower()}-step-arxiv": partial(graph_attention.step, "arxiv", kind)
        for kind in ("GATConv", "GATv2Conv", "TransformerConv")
    },
}
MEMORY: Final = {"attention-memory-16384-64": partial(peak, 16384, 64)}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; exit status 0, or 2 if no row matches."""
    return command.main(argv, run_row, (*CASES, *MEMORY), "fusion")


def run_row(name: str, place: Place, *, quick: bool = False, clock: Clock = CLOCKS[False]) -> dict[str, Any]:
    """Measurements of one row as plain data."""
    if name in MEMORY:
        return MEMORY[name](place, quick, clock)
    return measured(CASES[name](place), quick, clock)
