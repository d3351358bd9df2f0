"""A vision transformer.

In: images [batch, 3, image, image]. Out: logits [batch, classes].

Source: Dosovitskiy and others, An image is worth 16x16 words, 2021.
"""

from torch import nn
from transformers import ViTConfig, ViTForImageClassification


def vit(
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    intermediate: int = 3072,
    image: int = 224,
    patch: int = 16,
    classes: int = 1000,
    checkpoint: str = "",
) -> nn.Module:
    """ViT-B/16 with random weights, or with the weights of a folder in transformers' format.

    Args:
        layers, hidden, heads, intermediate, image, patch, classes: sizes; those of the checkpoint take precedence.
        checkpoint: a folder with config.json and model.safetensors.
    """
    if checkpoint:
        found: nn.Module = ViTForImageClassification.from_pretrained(checkpoint, local_files_only=True)
        return found.float()  # transformers keeps the dtype of the file
    config = ViTConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=intermediate,
        image_size=image,
        patch_size=patch,
        num_labels=classes,
    )
    made: nn.Module = ViTForImageClassification(config)
    return made
