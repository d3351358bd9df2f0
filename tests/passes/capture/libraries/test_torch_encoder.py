"""Encoders of torch that look at the entries of their masks."""

import copy

import pytest
import torch
from torch import nn

import sparsify
from sparsify.passes.capture.libraries import torch_encoder

WIDTH = 16
PATTERN = {
    "schema": 1,
    "name": "masked",
    "sparsify": [
        {
            "targets": ["op:scaled_dot_product_attention"],
            "mask": {"kind": "sliding_window", "before": 4, "block": 4},
        }
    ],
}
PRUNED = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [
        {
            "targets": ["param:*linear*.weight"],
            "role": "weight",
            "prune": {"method": "magnitude", "sparsity": 0.9},
        }
    ],
}


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 24, dropout=0.0, batch_first=True), 1)


def causal(length: int) -> torch.Tensor:
    return nn.Transformer.generate_square_subsequent_mask(length)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_graph_is_for_masks_with_any_entries(is_causal):
    model = encoder().eval()
    masks = [causal(20) if is_causal else torch.randn(20, 20)]
    sparse = sparsify.apply(model, PATTERN, (torch.randn(2, 20, WIDTH), masks[0]), strict=True)
    i, j = torch.arange(25)[:, None], torch.arange(25)[None]
    x, outside = torch.randn(2, 25, WIDTH), (i - j).abs() > 4
    for mask in (causal(25), torch.randn(25, 25)):
        wanted = copy.deepcopy(model).double()(x.double(), mask.masked_fill(outside, -torch.inf).double())
        torch.testing.assert_close(sparse(x, mask), wanted.float(), rtol=1e-4, atol=1e-5)
    assert len(sparse.variants) == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_texts_that_torch_would_pack_are_compared_unpacked():
    model, x = encoder().eval(), torch.randn(2, 20, WIDTH)
    padding = torch.arange(20) >= torch.tensor([20, 12])[:, None]
    with torch.no_grad():
        sparse = sparsify.apply(model, PRUNED, {"src": x, "src_key_padding_mask": padding}, strict=True)
        assert not sparse.original(x, src_key_padding_mask=padding)[padding].any(), "torch packs these"
        with torch_encoder.unpacked_texts():
            wanted = sparse.original(x, src_key_padding_mask=padding)
        torch.testing.assert_close(sparse(x, src_key_padding_mask=padding), wanted, rtol=1e-4, atol=1e-5)
    assert wanted[padding].any()
    assert torch.backends.mha.get_fastpath_enabled()
