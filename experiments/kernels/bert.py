"""The encoder of BERT-base with pruned linear layers, as `sparsify.apply` runs it, against torch and oneDNN.

In: `bert(Weight(90), place)`. Out: a `Case` whose result is checked against float64; attention and norms are torch's in
all contenders.
"""

import copy

import torch
from torch import Tensor, nn

import sparsify
from sparsify.bench.harness import Case, Contender, Target
from sparsify.bench.linear import Weight, linears, prepacked
from sparsify.bench.place import Place
from sparsify.runtime.buffers import POOL

BATCH, TOKENS = 8, 128
LAYERS, HIDDEN, HEADS = 12, 768, 12
RECIPE = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [{"targets": ["param:*.weight"], "types": ["Linear"], "role": "weight", "source": "given"}],
}


class Encoder(nn.Module):
    """Encoder layers of BERT without embeddings: hidden states in, hidden states out."""

    def __init__(self, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
        self.encoder = BertModel(BertConfig(**sizes, intermediate_size=4 * hidden)).encoder

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states [batch, tokens, hidden]."""
        found: Tensor = self.encoder(x).last_hidden_state
        return found


def bert(
    weight: Weight, place: Place, *, torch_ratio: float | None = None, onednn_ratio: float | None = None
) -> Case:
    """All linear layers of the encoder with the zeros of `weight`; target ratios are of whole passes."""
    layers, heads = max(1, round(LAYERS * place.scale)), max(1, round(HEADS * place.scale))
    hidden, tokens = HIDDEN // HEADS * heads, max(16, round(TOKENS * place.scale))
    torch.manual_seed(0)
    model = Encoder(layers, hidden, heads).eval().requires_grad_(False)
    for layer in linears(model).values():
        layer.weight *= weight.mask(*layer.weight.shape)
    x = torch.randn(BATCH, tokens, hidden)
    case = Case(
        f"bert-{weight}",
        f"{layers} layers of {hidden}, {BATCH} x {tokens} tokens",
        "generated",
        [],
        [],
        lambda: copy.deepcopy(model).double()(x.double()),
    )
    sparse = case.prepare("pack and build", lambda: sparsify.apply(model, RECIPE, x, verify=False))
    case.prepare("first call", lambda: sparse(x))
    case.contenders += [
        Contender("sparsify", lambda: sparse(x), baseline=False),
        Contender("torch", lambda: model(x)),
    ]
    case.targets.append(Target("sparsify", ("torch",), torch_ratio, "torch"))
    if torch.backends.mkldnn.is_available():
        packed = case.prepare("oneDNN packs", lambda: prepacked(model, BATCH * tokens))
        case.contenders.append(Contender("oneDNN", lambda: packed(x)))
        case.targets.append(Target("sparsify", ("oneDNN",), onednn_ratio, "oneDNN"))
    case.contenders.append(
        Contender("sparsify fresh", case.contenders[0].call, baseline=False, before=POOL.clear)
    )
    case.targets.append(Target("sparsify fresh", ("torch",), None, "fresh"))
    return case
