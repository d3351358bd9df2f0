"""Sliding-window attention of one head, against torch's masked attention and compiled FlexAttention.

In: `attention(2048, 64, place)`. Out: a `Case` with a result checked against float64.
"""

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import sparsify
from sparsify.bench.harness import Case
from sparsify.bench.place import Place
from sparsify.bench.products import ENTRY, ITEM, against, row, scaled
from sparsify.bench.roofline import Work
from sparsify.runner.peers.installed import Call

CHANNELS = 64


def attention(tokens: int, reach: int, place: Place) -> Case:
    """`softmax(M * (Q K^T)) V`; M keeps `reach` tokens on each side."""
    tokens = scaled(tokens, place) // 32 * 32
    at = torch.arange(tokens)
    kept = (at[:, None] - at).abs() <= reach
    Q, K, V = torch.randn(3, tokens, CHANNELS, generator=torch.Generator().manual_seed(0)).unbind()
    size, nnz = ITEM * CHANNELS * tokens, int(kept.sum())
    case = row(
        f"attention-{tokens}-{reach}",
        f"{tokens} tokens, {CHANNELS} channels, {nnz} scores",
        lambda: masked(Q.double(), K.double(), V.double(), kept),
        Work(4.0 * nnz * CHANNELS, 4 * size + ENTRY * nnz, 2.0 * ITEM * CHANNELS * nnz, 2 * size),
    )
    M = case.prepare("mask to SparseTensor", lambda: sparsify.tensor(kept.float() / CHANNELS**0.5, "csr"))

    def ours() -> Tensor:
        weights = torch.softmax(sparsify.einsum("ij,ik,jk->ij", M, Q, K), 1)
        found: Tensor = sparsify.einsum("ij,jk->ik", weights, V)
        return found

    theirs = {"SDPA with mask": lambda: masked(Q, K, V, kept), "FlexAttention": flex(case, Q, K, V, reach)}
    return against(case, ours, theirs)


def masked(Q: Tensor, K: Tensor, V: Tensor, kept: Tensor) -> Tensor:
    """torch's attention with a mask of all scores."""
    return scaled_dot_product_attention(Q[None, None], K[None, None], V[None, None], attn_mask=kept)[0, 0]


def flex(case: Case, Q: Tensor, K: Tensor, V: Tensor, reach: int) -> Call | None:
    """torch's FlexAttention, compiled for the mask; `None` if not available or not compilable."""
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    except ImportError:
        return None

    def near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query - key).abs() <= reach

    def build() -> Any:
        blocks = create_block_mask(near, None, None, len(Q), len(Q), device="cpu", BLOCK_SIZE=64)
        compiled = torch.compile(flex_attention, dynamic=False)
        heads = Q[None, None], K[None, None], V[None, None]
        compiled(*heads, block_mask=blocks)
        return lambda: compiled(*heads, block_mask=blocks)[0, 0]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of torch's compiler about itself
            made: Call = case.prepare("FlexAttention compiles", build)
    except (RuntimeError, NotImplementedError):
        return None
    return made
