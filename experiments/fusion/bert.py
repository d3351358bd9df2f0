"""Whole models of BERT's size with BigBird's attention pattern, one text a pass, against the models of transformers.

In: `bert(4096, place)`. Out: a `Case` whose results are checked against float64. BERT with the pattern, as in
`sparsify run bert --sparse-attn bigbird --seq-len 4096`, is compared with BERT with full attention and with
transformers' BigBird; `bigbird(4096, place)` runs transformers' BigBird, pattern and weights unchanged, in kernels.
"""

import copy
from typing import Any, Final

import torch
from torch import Tensor, nn

import sparsify
from sparsify import patterns
from sparsify.bench.harness import Case, Contender, Target
from sparsify.bench.place import Place
from sparsify.runner.attention import DENSE, OPERATOR
from sparsify.runner.peers.installed import Call

LAYERS, HIDDEN, HEADS = 12, 768, 12
VOCABULARY: Final = 30522
# Block size of transformers' BigBird (with three random blocks); texts below 12 blocks have full attention.
BLOCK: Final = 64
LEAST_BLOCKS: Final = 12
# Relative to the largest entry: twelve layers sum in another order.
TOLERANCE: Final = 3e-5
THEIRS: Final = "transformers' BigBird"


def bert(tokens: int, place: Place, *, sdpa_ratio: float | None = None) -> Case:
    """BERT under BigBird's pattern, against BERT with torch's full attention and against transformers' BigBird."""
    from transformers import BertConfig, BertModel

    sizes, block, text = _sizes(tokens, place)
    torch.manual_seed(0)
    model = BertModel(BertConfig(**sizes)).eval()
    mask = {"kind": "bigbird", "block": block}

    def expected() -> Tensor:
        """Result of the model in float64, with attention masked by the pattern."""
        kept = patterns.bigbird(text.shape[1], block=block).to_dense()
        found: Tensor = _result(copy.deepcopy(model).double(), text, attention_mask=kept[None, None])()
        return found

    case = _case(f"bert-{tokens}", text, sizes, expected)
    sparse = case.prepare("apply", lambda: _applied(model, mask, text))
    theirs = _result(_bigbird(sizes, block), text)
    case.contenders += [
        Contender("sparsify", _result(sparse, text), baseline=False),
        Contender("SDPA", _result(model, text), is_checked=False),  # attends to all
        Contender(THEIRS, theirs, is_checked=False),  # has other weights
    ]
    case.targets = [
        Target("sparsify", ("SDPA",), sdpa_ratio, "SDPA"),
        Target("sparsify", (THEIRS,), 3.0, THEIRS),
    ]
    return case


def bigbird(tokens: int, place: Place) -> Case:
    """Kernels for the pattern of transformers' BigBird, against the unmodified model: equal results."""
    sizes, block, text = _sizes(tokens, place)
    torch.manual_seed(0)
    model = _bigbird(sizes, block)
    case = _case(f"bigbird-{tokens}", text, sizes, lambda: _result(copy.deepcopy(model).double(), text)())
    sparse = case.prepare("apply", lambda: _applied(model, {"kind": "given"}, text))
    case.contenders += [
        Contender("sparsify", _result(sparse, text), baseline=False),
        Contender(THEIRS, _result(model, text)),
    ]
    case.targets = [Target("sparsify", (THEIRS,), None, THEIRS)]
    return case


def _sizes(tokens: int, place: Place) -> tuple[dict[str, int], int, Tensor]:
    """Sizes of a model, block size of the pattern, and a text of tokens [1, tokens]."""
    layers, heads = max(1, round(LAYERS * place.scale)), max(1, round(HEADS * place.scale))
    block = max(2, round(BLOCK * place.scale))
    count = max(round(tokens * place.scale) // block, LEAST_BLOCKS) * block
    hidden = HIDDEN // HEADS * heads
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": count,
    }
    drawn = torch.randint(0, VOCABULARY, (1, count), generator=torch.Generator().manual_seed(0))
    return sizes, block, drawn


def _case(name: str, text: Tensor, sizes: dict[str, int], expected: Call) -> Case:
    """A case without contenders."""
    layers, hidden = sizes["num_hidden_layers"], sizes["hidden_size"]
    work = f"{layers} layers of {hidden}, 1 x {text.shape[1]} tokens"
    return Case(name, work, "generated", [], [], expected, TOLERANCE)


def _bigbird(sizes: dict[str, int], block: int) -> nn.Module:
    """BigBird of transformers with given sizes."""
    from transformers import BigBirdConfig, BigBirdModel

    config = BigBirdConfig(**sizes, attention_type="block_sparse", block_size=block, num_random_blocks=3)
    found: nn.Module = BigBirdModel(config).eval()
    return found


def _applied(model: nn.Module, mask: dict[str, Any], text: Tensor) -> nn.Module:
    """Sparse model with a pattern in its attention, by the recipe of `--sparse-attn`."""
    rules = [DENSE, {"id": "attention", "targets": [OPERATOR], "mask": mask}]
    recipe = {"schema": 1, "name": "attention", "sparsify": rules}
    return sparsify.apply(model, recipe, text, trainable=False, verify=False)


def _result(model: nn.Module, text: Tensor, **masks: Tensor) -> Call:
    """Call of a model under `no_grad`; hidden states [1, tokens, hidden]."""

    def call() -> Tensor:
        with torch.no_grad():
            found: Tensor = model(text, **masks).last_hidden_state
        return found

    return call
