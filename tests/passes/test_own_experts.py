"""Experts of transformers' models: captured, computed where they are chosen, and left as they were."""

import copy

import pytest
import torch

import sparsify
from sparsify.options import override

RULE = {"targets": ["op:experts"], "role": "gate", "source": "computed"}
SIZES = {
    "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "num_experts_per_tok": 2, "use_cache": False,
}  # fmt: skip
MORE = {
    "Mixtral": {"num_local_experts": 5},
    "Qwen3Moe": {"num_experts": 5, "moe_intermediate_size": 20, "head_dim": 8, "decoder_sparse_step": 1},
    "Olmoe": {"num_experts": 5},
}


RECIPE = {"schema": 1, "name": "experts", "sparsify": [RULE]}


@pytest.mark.model
@pytest.mark.parametrize("name", MORE)
def test_models(name):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **MORE[name])
    model = getattr(transformers, f"{name}Model")(config)
    wide = copy.deepcopy(model).double()
    wide.config._experts_implementation = "eager"
    before = config._experts_implementation
    with override(compiler_flags=("-O1",)):
        sparse = sparsify.apply(model, RECIPE, torch.randint(50, (2, 9)))
        assert [region.notes for region in sparse.report.regions] == [["mixture of experts"]] * 2
        for shape in ((2, 9), (3, 14)):
            ids = torch.randint(50, shape)
            expected, found = wide(ids).last_hidden_state, sparse(ids).last_hidden_state
            torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
            gradient = torch.randn_like(expected)
            theirs = torch.autograd.grad(expected, list(wide.parameters()), gradient)
            mine = torch.autograd.grad(found, list(model.parameters()), gradient.float())
            for own, other in zip(mine, theirs, strict=True):
                # Sums over all tokens of products of weights as large as the largest one.
                torch.testing.assert_close(
                    own.double(), other, rtol=1e-3, atol=1e-4 * float(other.abs().max())
                )
    assert config._experts_implementation == before
