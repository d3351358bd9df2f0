"""The encoder of a text model, BERT.

In: tokens [batch, seq]. Out: hidden states [batch, seq, hidden], and one vector for each text.

Source: Devlin, Chang, Lee and Toutanova, BERT: Pre-training of deep bidirectional transformers, 2019.
"""

from torch import nn
from transformers import BertConfig, BertModel


def bert(
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    intermediate: int = 3072,
    vocabulary: int = 30522,
    positions: int = 512,
    checkpoint: str = "",
) -> nn.Module:
    """BERT-base with random weights, or with the weights of a folder in transformers' format.

    Args:
        layers, hidden, heads, intermediate, vocabulary, positions: sizes; those of the checkpoint take precedence.
        checkpoint: a folder with config.json and model.safetensors.
    """
    if checkpoint:
        found: nn.Module = BertModel.from_pretrained(checkpoint, local_files_only=True)
        return found.float()  # transformers keeps the dtype of the file
    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=intermediate,
        vocab_size=vocabulary,
        max_position_embeddings=positions,
    )
    made: nn.Module = BertModel(config)
    return made
