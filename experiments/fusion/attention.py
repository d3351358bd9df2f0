"""Attention over a pattern of blocks or of single scores, against torch's with a mask and compiled FlexAttention.

In: `blocked(1024, 16, place)`. Out: a `Case` whose result is checked against float64.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import sparsify
from sparsify import patterns
from sparsify.bench.harness import Case, Target, plain
from sparsify.bench.place import Place
from sparsify.bench.products import ITEM, against, row, scaled
from sparsify.bench.roofline import Work
from sparsify.passes.graph.draws import SEEDS, is_kept, kept_factor, threshold
from sparsify.runner.peers.installed import Call
from sparsify.storage.tensor import SparseTensor

HEADS: Final = 12
CHANNELS: Final = 64
# Block sizes of FlexAttention's masks (empty blocks are skipped); the baseline is the fastest size.
FLEX_BLOCKS: Final = (64, 16)
TEXT: Final = """
S[h,i,j] = where(stored(M[i,j]), 0.125 * sum(k, Q[h,i,k] * K[h,j,k]), -inf)
m[h,i] max= S[h,i,j]
P[h,i,j] = exp(S[h,i,j] - where(m[h,i] == -inf, 0, m[h,i]))
d[h,i] += P[h,i,j]
Y[h,i,l] += P[h,i,j] * V[h,j,l] / where(d[h,i] == 0, 1, d[h,i])
"""

DROPPED: Final = 0.1
DRAWN: Final = "uniform(seed[h], i, j)"
DROP: Final = f"""
F[h,i,j] = where(stored(S[h,i,j]), where({DRAWN} < {threshold(DROPPED)!r}, 0, {kept_factor(DROPPED)!r}), 0)
D[h,i,j] = P[h,i,j] * F[h,i,j]"""


def blocked(
    tokens: int, block: int, place: Place, flex_ratio: float | None = None, sdpa_ratio: float | None = None
) -> Case:
    """Attention of all heads over BigBird's blocks."""
    tokens = scaled(tokens, place) // block * block
    kept = patterns.bigbird(tokens, block=block).to_dense()
    case, ours, Q, K, V = _case(f"attention-{tokens}-{block}", kept, f"bcsr({block},{block})", HEADS)
    theirs: dict[str, Call | None] = {"SDPA with mask": lambda: _sdpa(Q, K, V, kept)}
    for size in FLEX_BLOCKS:
        theirs[f"FlexAttention {size}"] = _flex(case, Q, K, V, kept, size)
    return _asked(against(case, ours, theirs), flex_ratio, sdpa_ratio)


def backward(tokens: int, block: int, place: Place, sdpa_ratio: float | None = None) -> Case:
    """Gradients of queries, keys and values over BigBird's blocks, from a random output gradient."""
    tokens = scaled(tokens, place) // block * block
    kept = patterns.bigbird(tokens, block=block).to_dense()
    forward, ours, Q, K, V = _case(
        f"attention-backward-{tokens}-{block}", kept, f"bcsr({block},{block})", HEADS
    )
    operands = (Q, K, V)
    given = torch.randn(Q.shape, generator=torch.Generator().manual_seed(1))

    def gradients(result: Tensor, leaves: Sequence[Tensor], seed: Tensor) -> Callable[[], tuple[Tensor, ...]]:
        return lambda: torch.autograd.grad(result, leaves, seed, retain_graph=True)

    def expected() -> Tensor:
        """Gradients in float64, head by head: torch's backward stores all scores of its heads."""
        wide = [operand.detach().double().requires_grad_() for operand in operands]
        heads = zip(*(leaf.unbind() for leaf in wide), given.double(), strict=True)
        for query, key, value, seed in heads:
            _sdpa(query, key, value, kept).backward(seed)
        return plain(tuple(leaf.grad for leaf in wide))

    for operand in operands:
        operand.requires_grad_()
    work = forward.least
    # Recomputed scores, score gradients, and gradients of three operands: five products instead of two.
    least = (
        None if work is None else replace(work, operations=2.5 * work.operations, streamed=2 * work.streamed)
    )
    case = replace(forward, expected=expected, least=least)
    theirs = {"SDPA's backward with mask": gradients(_sdpa(Q, K, V, kept), operands, given)}
    case = against(case, gradients(ours(), operands, given), theirs)
    case.targets = [Target("sparsify", tuple(theirs), sdpa_ratio, "SDPA with mask")]
    return case


def dropped(tokens: int, block: int, place: Place, sdpa_ratio: float | None = None) -> Case:
    """Forward and backward step with 10 % attention dropout; only sparsify's result has a reference (known seeds)."""
    tokens = scaled(tokens, place) // block * block
    kept = patterns.bigbird(tokens, block=block).to_dense()
    forward, plainly, *operands = _case(
        f"attention-dropout-{tokens}-{block}", kept, f"bcsr({block},{block})", HEADS
    )
    seeds = torch.randint(SEEDS, (HEADS,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    M = sparsify.tensor(kept.float(), f"bcsr({block},{block})")
    text = TEXT.replace("Y[h,i,l] += P", f"{DROP}\nY[h,i,l] += D")
    given = torch.randn(operands[0].shape, generator=torch.Generator().manual_seed(2))

    def step(attend: Callable[..., Tensor], leaves: Sequence[Tensor], seed: Tensor) -> Call:
        return lambda: torch.autograd.grad(attend(*leaves), leaves, seed)

    def ours(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        found: Tensor = sparsify.evaluate(text, "Y", M=M, Q=Q, K=K, V=V, seed=seeds)
        return found

    def torchs(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        return scaled_dot_product_attention(Q[None], K[None], V[None], kept, DROPPED, scale=0.125)[0]

    def expected() -> Tensor:
        """Gradients in float64, head by head: torch's backward stores all scores of its heads."""
        wide = [operand.detach().double().requires_grad_() for operand in operands]
        for Q, K, V, seed, gradient in zip(*(leaf.unbind() for leaf in wide), seeds, given, strict=True):
            scores = (0.125 * Q @ K.T).masked_fill(~kept.bool(), -torch.inf)
            left = is_kept(seed, scores.shape, DROPPED) / (1 - DROPPED)
            (torch.softmax(scores, -1) * left @ V).backward(gradient.double())
        return plain(tuple(leaf.grad for leaf in wide))

    for operand in operands:
        operand.requires_grad_()
    theirs = {"without dropout": lambda *_: plainly(), "SDPA with mask and dropout": torchs}
    case = replace(forward, expected=expected, least=None)
    against(
        case,
        step(ours, operands, given),
        {name: step(call, operands, given) for name, call in theirs.items()},
    )
    case.contenders = [replace(one, is_checked=not one.baseline) for one in case.contenders]
    case.targets = [
        Target("sparsify", (name,), ratio, name)
        for name, ratio in zip(theirs, (1 / 1.3, sdpa_ratio), strict=True)
    ]
    return case


def sliding(tokens: int, reach: int, place: Place, sdpa_ratio: float | None = None) -> Case:
    """Attention of all heads over a sliding window of single scores."""
    tokens = scaled(tokens, place)
    kept = patterns.sliding_window(tokens, before=reach).to_dense()
    case, ours, Q, K, V = _case(f"attention-window-{tokens}-{reach}", kept, "csr", HEADS)
    return _asked(against(case, ours, {"SDPA with mask": lambda: _sdpa(Q, K, V, kept)}), None, sdpa_ratio)


def one_head(tokens: int, block: int, place: Place) -> Case:
    """One head over blocks, with all threads and with one thread."""
    tokens = scaled(tokens, place) // block * block
    kept = patterns.bigbird(tokens, block=block).to_dense()
    case, ours, *_ = _case(f"attention-one-head-{tokens}-{block}", kept, f"bcsr({block},{block})", 1)

    def alone() -> Tensor:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            found: Tensor = ours()
            return found
        finally:
            torch.set_num_threads(threads)

    case = against(case, ours, {"one thread": alone})
    case.targets = [Target("sparsify", ("one thread",), 1.7, "one thread")]
    return case


def _case(name: str, kept: Tensor, form: str, heads: int) -> tuple[Case, Call, Tensor, Tensor, Tensor]:
    """Case of attention, sparsify's call, queries, keys and values."""
    tokens, nnz = len(kept), int(kept.sum())
    shape = (3, heads, tokens, CHANNELS) if heads > 1 else (3, tokens, CHANNELS)
    Q, K, V = torch.randn(shape, generator=torch.Generator().manual_seed(0)).unbind()
    text = TEXT if heads > 1 else TEXT.replace("h,", "")
    size = ITEM * heads * CHANNELS * tokens
    case = row(
        name,
        f"{heads} heads, {tokens} tokens, {CHANNELS} channels, {nnz / tokens**2:.0%} of the scores",
        lambda: _sdpa(Q.double(), K.double(), V.double(), kept),
        Work(4.0 * heads * nnz * CHANNELS, 4 * size, 2.0 * ITEM * heads * tokens * CHANNELS, 2 * size),
    )
    M: SparseTensor = case.prepare("mask to SparseTensor", lambda: sparsify.tensor(kept.float(), form))
    return case, lambda: sparsify.evaluate(text, "Y", M=M, Q=Q, K=K, V=V), Q, K, V


def _sdpa(Q: Tensor, K: Tensor, V: Tensor, kept: Tensor) -> Tensor:
    """Attention of torch with a mask over all scores."""
    Q, K, V = (part.reshape(1, -1, *part.shape[-2:]) for part in (Q, K, V))
    found: Tensor = scaled_dot_product_attention(Q, K, V, attn_mask=kept, scale=0.125)[0]
    return found if len(found) > 1 else found[0]


def _flex(case: Case, Q: Tensor, K: Tensor, V: Tensor, kept: Tensor, size: int) -> Call | None:
    """Compiled FlexAttention for a mask; `None` if torch lacks FlexAttention or fails to compile it."""
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    except ImportError:
        return None

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return kept[query, key]

    def build() -> Any:
        blocks = create_block_mask(allowed, None, None, len(kept), len(kept), device="cpu", BLOCK_SIZE=size)
        compiled = torch.compile(flex_attention, dynamic=False)
        heads = Q[None], K[None], V[None]
        compiled(*heads, block_mask=blocks, scale=0.125)
        return lambda: compiled(*heads, block_mask=blocks, scale=0.125)[0]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of torch's compiler
            made: Call = case.prepare(f"FlexAttention {size} compiles", build)
    except (RuntimeError, NotImplementedError):
        return None
    return made


def _asked(case: Case, flex_ratio: float | None, sdpa_ratio: float | None) -> Case:
    """Case with target ratios: against the fastest FlexAttention and against SDPA with a mask."""
    names = [contender.name for contender in case.contenders if contender.baseline]
    flex = tuple(name for name in names if name.startswith("Flex"))
    case.targets = [Target("sparsify", ("SDPA with mask",), sdpa_ratio, "SDPA with mask")]
    if flex:
        case.targets.append(Target("sparsify", flex, flex_ratio, "FlexAttention"))
    return case
