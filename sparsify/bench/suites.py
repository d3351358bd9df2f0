"""The suites of `sparsify bench`: rows of contenders and baselines.

In: the name of a suite. Out: rows by name, each a function that makes the `Case` or measures by itself.
"""

import copy
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch import nn

import sparsify
from sparsify.bench import small
from sparsify.bench.attention import attention
from sparsify.bench.harness import Case, Clock
from sparsify.bench.linear import RECIPE, Weight, linear, linears, packed_work, prepacked
from sparsify.bench.place import Place
from sparsify.bench.products import added, against, row, scaled, sddmm, spgemm, spmm, spmv
from sparsify.bench.table import measured
from sparsify.runner.measure import peak_bytes
from sparsify.runner.peers.network_peers import network

Make = Callable[[Place], Case]
Row = Callable[[Place, bool, Clock], dict[str, Any]]
WEIGHTS: Final = {"targets": ["param:*.weight"], "role": "weight", "source": "given"}
# Tokens of a text.
TOKENS: Final = 128
MLP: Final = {**RECIPE, "sparsify": [WEIGHTS]}


def timed(make: Make) -> Row:
    """A row: the contenders of a case, run in turns."""

    def run(place: Place, quick: bool, clock: Clock) -> dict[str, Any]:
        return measured(make(place), quick, clock)

    return run


def mlp(zeros: int, rows: int, place: Place) -> Case:
    """Four linear layers with ReLU, pruned at random, against the dense model of torch and of other runtimes."""
    sizes = [scaled(size, place) // 32 * 32 for size in (768, 3072, 768, 3072, 768)]
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for columns, outputs in itertools.pairwise(sizes):
        one = nn.Linear(columns, outputs)
        one.weight.data *= Weight(zeros).mask(outputs, columns)
        layers += [one, nn.ReLU()]
    model = nn.Sequential(*layers[:-1]).eval().requires_grad_(False)
    weights = [layer.weight for layer in linears(model).values()]
    x = torch.randn(rows, sizes[0])
    case = row(
        f"mlp-{zeros}{'' if rows > 1 else '-1-row'}",
        f"{' -> '.join(map(str, sizes))}, {rows} rows, {zeros} % zeros",
        lambda: copy.deepcopy(model).double()(x.double()),
        packed_work(sum(int(w.count_nonzero()) for w in weights), rows, sum(sizes) + sum(sizes[1:-1])),
    )
    sparse = case.prepare("pack and build", lambda: sparsify.apply(model, MLP, x, verify=False))
    theirs: dict[str, Any] = {"torch": lambda: model(x), "oneDNN": None}
    if torch.backends.mkldnn.is_available():
        packed = case.prepare("oneDNN packs", lambda: prepacked(model, rows))
        theirs["oneDNN"] = lambda: packed(x)
    theirs |= case.prepare("peers compile", lambda: network(model, x))
    return against(case, lambda: sparse(x), theirs)


def encoder(zeros: int, texts: int, place: Place) -> Case:
    """A transformer encoder layer with randomly pruned linear layers, against the dense layer of other runtimes."""
    heads, width = 12, scaled(64, place) // 8 * 8 * 12
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", batch_first=True)
    model.eval().requires_grad_(False)
    names = [*(f"{name}.weight" for name in linears(model)), "self_attn.in_proj_weight"]
    pruned = [model.get_parameter(name) for name in names]
    for weight in pruned:
        weight.mul_(Weight(zeros).mask(*weight.shape))
    recipe = {**RECIPE, "sparsify": [{**WEIGHTS, "targets": [f"param:{name}" for name in names]}]}
    x = torch.randn(texts, TOKENS, width)
    rows, products = texts * TOKENS, sum(sum(weight.shape) for weight in pruned)
    case = row(
        f"encoder-{zeros}{'' if texts > 1 else '-1-text'}",
        f"{texts} x {TOKENS} tokens, {heads} heads of {width // heads}, {zeros} % zeros",
        lambda: copy.deepcopy(model).double()(x.double()),
        packed_work(sum(int(w.count_nonzero()) for w in pruned), rows, products),
    )
    sparse = case.prepare("pack and build", lambda: sparsify.apply(model, recipe, x, verify=False))
    theirs = case.prepare("peers compile", lambda: {"torch": lambda: model(x), **network(model, x)})
    return against(case, lambda: sparse(x), theirs)


def packed_bytes(zeros: int, place: Place, quick: bool, clock: Clock) -> dict[str, Any]:
    """The bytes of a packed weight and the memory of a call, against values with 16-bit coordinates and dense."""
    case = linear(Weight(zeros), 128, place)
    outputs, columns = (scaled(size, place) // 32 * 32 for size in (3072, 768))
    torch.manual_seed(0)
    layer = nn.Linear(columns, outputs).eval().requires_grad_(False)
    layer.weight *= Weight(zeros).mask(outputs, columns)
    recipe = {**RECIPE, "compile": {"memory": "compact"}}
    sparse = sparsify.apply(layer, recipe, torch.randn(128, columns), verify=False)
    x = torch.randn(128, columns)
    sparse(x)
    entries = sparse.report.conversions
    least = int(layer.weight.count_nonzero()) * 6
    ours = entries[0].bytes_after if entries else layer.weight.nbytes
    peak = peak_bytes(lambda: sparse(x)) or 0
    return {
        "name": f"weight-{zeros}",
        "kind": "limits",
        "work": case.work,
        "data": "generated",
        "unit": "%",
        "contenders": [],
        "targets": [
            limit("bytes of values and 16-bit coordinates", ours / least, 1.15),
            limit("bytes of the dense weight", ours / layer.weight.nbytes, 1.0),
            limit("peak of a call, of input and result", peak / (4 * 128 * (columns + outputs)), 3.0),
        ],
    }


def limit(label: str, reached: float, asked: float) -> dict[str, Any]:
    """An upper limit in percent."""
    return {"label": label, "asked": 100 * asked, "reached": 100 * reached, "met": reached <= asked}


SUITES: Final[Mapping[str, Mapping[str, Row]]] = {
    "kernels": {
        **{
            f"spmm-{rows}-{stored}-{columns}": timed(partial(spmm, rows, stored, columns))
            for rows, stored, columns in ((2708, 5, 128), (20_000, 7, 32), (100_000, 20, 32))
        },
        "sddmm-20000-20-64": timed(partial(sddmm, 20_000, 20, 64)),
        "spmv-100000-20": timed(partial(spmv, 100_000, 20)),
        "spgemm-20000-10": timed(partial(spgemm, 20_000, 10)),
        "add-100000-20": timed(partial(added, 100_000, 20)),
    },
    "layers": {
        **{
            f"linear-{rows}-{weight}": timed(partial(linear, weight, rows))
            for rows in (1, 128)
            for weight in (Weight(50), Weight(90), Weight(50, of=4), Weight(80, (4, 1)))
        },
        "attention-2048-64": timed(partial(attention, 2048, 64)),
    },
    "models": {
        **{f"mlp-{zeros}": timed(partial(mlp, zeros, 128)) for zeros in (60, 90)},
        **{f"encoder-{zeros}": timed(partial(encoder, zeros, 8)) for zeros in (60, 90)},
        "encoder-90-1-text": timed(partial(encoder, 90, 1)),
    },
    "small": {
        "spmm-10-2-4": timed(partial(spmm, 10, 2, 4)),
        "spmv-10-2": timed(partial(spmv, 10, 2)),
        "spgemm-10-2": timed(partial(spgemm, 10, 2)),
        "add-10-2": timed(partial(added, 10, 2)),
        "sddmm-10-2-4": timed(partial(sddmm, 10, 2, 4)),
        "gcn-10": timed(partial(small.graph, 10)),
        "small-linear-1-90": timed(small.layer),
        "mlp-90-1-row": timed(partial(mlp, 90, 1)),
        "spmm-10-empty": timed(partial(small.empty_product, 10, 4)),
        "spmm-1000-empty": timed(partial(small.empty_product, 1000, 4)),
        "spgemm-10-empty": timed(partial(small.empty_product, 10, 0)),
        "spmm-no-rows": timed(small.no_rows),
    },
    "memory": {f"weight-{zeros}": partial(packed_bytes, zeros) for zeros in (50, 90)},
}
