"""Sparse models in the tools of transformers, which read the model's signature, attributes and methods."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

import sparsify

transformers = pytest.importorskip("transformers")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "three"]
RULE = {
    "targets": ["param:*.weight"],
    "types": ["Linear"],
    "prune": {"method": "magnitude", "sparsity": 0.8},
}
IDS = torch.tensor([[2, 5, 6, 7, 3]])


@pytest.fixture(scope="module")
def sparse() -> Any:
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=len(WORDS),
        max_position_embeddings=16,
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    return sparsify.apply(model, {"schema": 1, "name": "pruned", "sparsify": [RULE]}, {"input_ids": IDS})


def test_attributes(sparse: Any) -> None:
    assert "attention_mask" in inspect.signature(sparse.forward).parameters
    assert sparse.config.vocab_size == len(WORDS)
    assert (sparse.device, sparse.dtype) == (torch.device("cpu"), torch.float32)
    assert sparse.get_input_embeddings() is sparse.bert.embeddings.word_embeddings
    assert sparse.num_parameters() == sum(parameter.numel() for parameter in sparse.parameters())


def test_pipelines(sparse: Any, tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS))
    tokenizer = transformers.BertTokenizerFast(str(vocabulary))
    run = transformers.pipeline("text-classification", model=sparse, tokenizer=tokenizer, device="cpu")
    scores = {found["label"]: found["score"] for found in run("one two three", top_k=None)}
    wanted = sparse.original(IDS).logits.softmax(-1)[0]
    assert scores == pytest.approx({f"LABEL_{k}": float(p.detach()) for k, p in enumerate(wanted)}, abs=1e-5)


def test_saved_weights_are_those_that_run(sparse: Any, tmp_path: Path) -> None:
    sparse.save_pretrained(tmp_path)
    loaded = transformers.BertForSequenceClassification.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(loaded(IDS).logits, sparse(IDS).logits, rtol=1e-4, atol=1e-5)
    assert loaded.bert.pooler.dense.weight.count_nonzero() == round(0.2 * 16 * 16)
    assert isinstance(sparse.bert.pooler.dense.weight, sparsify.SparseTensor)
