"""Figure 2: a forward pass of one encoder layer of BERT-base over sparsities, structures of zeros and formats.

In: a `Setting`. Out: the figure: sparsify as `apply` chooses and in each format, torch's layers, oneDNN's.
Sizes as in section 4: 8 texts of 128 tokens, a random fraction of the entries of all linear layers, biases dense.
"""

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

import sparsify
from sparsify import options
from sparsify.bench.harness import Case, Contender
from sparsify.bench.linear import linears, prepacked
from sparsify.errors import SparsifyError

from ..reproduce.figure import OURS, Figure, Outcome, Row, Setting, timed
from .structures import BLOCK, PERCENT, STRUCTURES, Structure, stored_as, zeros

BATCH, TOKENS = 8, 128
HIDDEN, HEADS, INTERMEDIATE = 768, 12, 3072
DENSE, ONEDNN, CSR, COO, BSR = "torch dense", "oneDNN dense", "torch CSR", "torch COO", "torch BSR"
AUTO_SECONDS: Final = 0.25  # for candidates of a region when quick
PANELS: Final = "j/128: dense, i: dense, j%128: compressed(crd=int8)"
QUICK: Final = (("unstructured", 75), ("unstructured", 90), ("n:m:g", 90), ("blocked", 90))
SHARE: Final = "zeros, %"


class Stored(nn.Module):
    """A linear layer with its weight in one of torch's sparse layouts."""

    def __init__(self, layer: nn.Linear, layout: torch.layout) -> None:
        super().__init__()
        blocks = (BLOCK, BLOCK) if layout == torch.sparse_bsr else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls its sparse layouts a beta
            self.stored = layer.weight.detach().to_sparse(layout=layout, blocksize=blocks)
        self.bias = layer.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [..., outputs]."""
        product = (self.stored @ x.flatten(0, -2).T).T + self.bias
        return product.reshape(*x.shape[:-1], -1)


def encoder_layer() -> nn.Module:
    """One encoder layer of transformers' BERT with random weights.

    Raises:
        SparsifyError: transformers is not installed.
    """
    try:
        from transformers import BertConfig
        from transformers.models.bert.modeling_bert import BertLayer
    except ImportError as error:
        raise SparsifyError(
            "the layer is that of transformers, which is not installed", "pip install 'sparsify-fx[text]'"
        ) from error
    sizes = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "intermediate_size": INTERMEDIATE}
    config = BertConfig(**sizes, attn_implementation="sdpa")
    made: nn.Module = BertLayer(config).eval().requires_grad_(False)
    return made


def sparse(model: nn.Module, x: Tensor, format: str | None, setting: Setting) -> Any:
    """Sparse layer by `apply`, with weights in `format` or in the format chosen by `apply`."""
    rule: dict[str, Any] = {"targets": ["param:*.weight"], "types": ["Linear"], "source": "given"}
    rule |= {"role": "weight"} | ({} if format is None else {"format": format})
    seconds = options.current().tune_seconds
    with options.override(tune_seconds=min(seconds, AUTO_SECONDS) if setting.quick else seconds):
        made = sparsify.apply(model, {"schema": 1, "name": "sten", "sparsify": [rule]}, (x,))
        made(x)
    return made


def by_torch(model: nn.Module, layout: torch.layout) -> nn.Module:
    """Copy of the layer with torch's sparse products."""
    copied = copy.deepcopy(model)
    for name, layer in linears(copied).items():
        owner, _, own = name.rpartition(".")
        setattr(copied.get_submodule(owner), own, Stored(layer, layout))
    return copied


def hidden(model: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    """Hidden states [batch, tokens, hidden]; some versions return a tuple with the states first."""
    with torch.no_grad():
        found = model(x)
    states: Tensor = found[0] if isinstance(found, tuple) else found
    return states


def chosen(report: Any) -> str:
    """Most frequent formats of the weights, with their counts."""
    counts = Counter(text for region in report.regions for text in region.formats.values())
    return "; ".join(f"{text} ({count})" for text, count in counts.most_common(2)) or "dense"


def measure(structure: Structure, percent: int, setting: Setting) -> Outcome:
    """Times at one sparsity."""
    model = encoder_layer()
    for at, layer in enumerate(linears(model).values()):
        outputs, inputs = layer.weight.shape
        layer.weight *= zeros(structure, percent, (outputs, inputs), setting.seed + at)
    x = torch.rand(BATCH, TOKENS, HIDDEN, generator=torch.Generator().manual_seed(setting.seed))
    auto = sparse(model, x, None, setting)
    models: dict[str, Callable[[Tensor], Any]] = {OURS: auto}
    formats = {name_of(structure): stored_as(structure, percent), "sparsify panels": PANELS}
    if setting.quick:
        formats = {name: text for name, text in formats.items() if text == "csr"}
    models |= {name: sparse(model, x, format, setting) for name, format in formats.items()}
    models |= {DENSE: model, CSR: by_torch(model, torch.sparse_csr)}
    if torch.backends.mkldnn.is_available():
        models[ONEDNN] = prepacked(model, BATCH * TOKENS)
    if structure == "blocked":
        models[BSR] = by_torch(model, torch.sparse_bsr)
    if structure == "unstructured" and not setting.quick:
        models[COO] = by_torch(model, torch.sparse_coo)
    case = Case(f"{structure} {percent} %", f"{BATCH} x {TOKENS} tokens", "generated", [], [])
    wide: Any = copy.deepcopy(model).double()
    case.expected = lambda: hidden(wide, x.double())
    case.contenders += [
        Contender(who, partial(hidden, made, x), baseline=not who.startswith(OURS))
        for who, made in models.items()
    ]
    stored = [layer.weight for layer in linears(model).values()]
    share = 1 - sum(int(w.count_nonzero()) for w in stored) / sum(w.numel() for w in stored)
    return Outcome(timed(case, setting), {}, {SHARE: 100 * share, "format": chosen(auto.report)})


def name_of(structure: Structure) -> str:
    """Name of sparsify's contender in the format of a structure."""
    return {"unstructured": "sparsify csr", "n:m:g": "sparsify n:m", "blocked": "sparsify bcsr"}[structure]


def rows(setting: Setting) -> Sequence[Row]:
    """Each structure at each sparsity; a subset when quick."""
    every = tuple((structure, percent) for structure in STRUCTURES for percent in PERCENT)
    seconds = 20.0 if setting.quick else 60.0
    return [
        Row(f"{structure} {percent} %", "generated", partial(measure, structure, percent), (), seconds)
        for structure, percent in (QUICK if setting.quick else every)
    ]


ASKED: Final = (
    "its format is given by a recipe; `apply` times candidates one layer at a time, and whole passes differ"
)
FIGURE = Figure(
    "figure2",
    "one encoder layer of BERT-base",
    rows,
    CSR,
    "n:m up to 54x of torch COO and 3x of torch CSR; as fast as dense or faster from 60 % zeros on (Intel i7-4770).",
    facts=(SHARE, "format"),
    why={
        DENSE: "few zeros: a sparse product reads a coordinate with each value, a dense one does not",
        ONEDNN: "few zeros: its packed dense product runs near the machine's peak",
        BSR: "blocks leave a dense product each, and torch hands these to MKL",
        **dict.fromkeys(("sparsify csr", "sparsify panels", "sparsify n:m", "sparsify bcsr"), ASKED),
    },
    kind="lines",
    across=SHARE,
    panels=lambda row: row.split()[0],
)
