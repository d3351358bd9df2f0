"""A small language model over characters.

In: tokens [batch, seq], one for each byte of a text. Out: logits [batch, seq, vocabulary] of the next byte.
Source: Radford and others, Language models are unsupervised multitask learners, 2019; normalisation precedes
attention and the two linear layers of a block (pre-norm), and the embedding is the last layer's weight (tied).
"""

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Standard deviation of fresh weights.
SPREAD = 0.02


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.joint = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Mixed states [batch, seq, hidden] of states x [batch, seq, hidden]."""
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.joint(x).chunk(3, dim=2)
        )
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """`x + attention(norm(x))`, then `x + down(gelu(up(norm(x))))`."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.before_ffn = nn.LayerNorm(hidden)
        self.ffn = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """States [batch, seq, hidden] of states x [batch, seq, hidden]."""
        x = x + self.dropout(self.attention(self.before_attention(x)))
        found: Tensor = x + self.dropout(self.ffn(self.before_ffn(x)))
        return found


class GPT(nn.Module):
    """Embeddings of tokens and positions, blocks, and a classifier over the vocabulary.

    Args:
        layers: number of blocks.
        hidden: channels of a token; the inner layer of a block has four times as many.
        heads: attention heads; a divisor of `hidden`.
        context: maximum number of tokens of a text.
        vocabulary: number of distinct tokens; 256 for bytes.
        dropout: dropout probability of the residual branches in training.
    """

    def __init__(
        self,
        layers: int = 6,
        hidden: int = 384,
        heads: int = 6,
        context: int = 256,
        vocabulary: int = 256,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if hidden % heads:
            raise ValueError(f"{heads} heads do not divide {hidden} channels")
        self.config = SimpleNamespace(vocab_size=vocabulary, max_position_embeddings=context)
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(context, hidden)
        blocks = [Block(hidden, heads, dropout) for _ in range(layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(hidden)
        self.apply(draw)
        for block in blocks:  # keeps the deviation of the residual sum independent of the number of layers
            for last in (block.attention.out.weight, block.ffn.get_parameter("2.weight")):
                nn.init.normal_(last, std=SPREAD / (2 * layers) ** 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, seq, vocabulary] of tokens [batch, seq]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


def draw(module: nn.Module) -> None:
    """Initializes a layer with random weights; biases are 0."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=SPREAD)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def gpt_40m(
    layers: int = 8,
    hidden: int = 640,
    heads: int = 10,
    context: int = 256,
    vocabulary: int = 256,
    dropout: float = 0.0,
) -> GPT:
    """A GPT with 40 million parameters."""
    return GPT(layers, hidden, heads, context, vocabulary, dropout)
