"""One call of a pruned network, as `sparsify.apply` runs it, against the runtimes that are installed.

In: `encoder(80, 8, place)`. Out: a `Case`. All contenders have the same weights, zeros included, and every result is
checked against float64. The other runtimes multiply zeros like other values, but for "OpenVINO sparse", which keeps
weights compressed.
"""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

import sparsify
from experiments.kernels.bert import HEADS, HIDDEN, TOKENS, Encoder
from sparsify.bench.harness import Case, Contender, Target
from sparsify.bench.place import Place
from sparsify.models.registry import find
from sparsify.passes.rules.prune import prune
from sparsify.recipe import load
from sparsify.runner.peers import baselines, network_peers

Call = Callable[[], Any]
Maker = Callable[[nn.Module, tuple[Tensor, ...]], Call | None]
# Largest differences from float64, relative to the largest value, by dtype of weights and activations.
TOLERANCES: Final[Mapping[str, float]] = {"float32": 1e-4, "bfloat16": 5e-2, "int8": 1e-1}
# OpenVINO's own default is bfloat16 on CPUs with instructions for it.
NARROW: Final = {"INFERENCE_PRECISION_HINT": "bf16"}


def encoder(
    zeros: int,
    batch: int,
    place: Place,
    *,
    layers: int = 4,
    dtype: str = "float32",
    openvino: float | None = None,
    onnx_runtime: float | None = None,
) -> Case:
    """Encoder layers of BERT-base over `batch` texts of 128 tokens, `zeros` per cent of the linear weights zero.

    Args:
        layers: encoder layers; DistilBERT has six.
        dtype: "float32"; "bfloat16" for weights and activations; "int8" for stored weights, against peers with
            int8 activations, too.
        openvino: required ratio against OpenVINO of the same precision.
        onnx_runtime: required ratio against ONNX Runtime in float32.
    """
    layers, heads = max(1, round(layers * place.scale)), max(1, round(HEADS * place.scale))
    hidden, tokens = HIDDEN // HEADS * heads, max(16, round(TOKENS * place.scale))
    torch.manual_seed(0)
    model: nn.Module = Encoder(layers, hidden, heads).eval().requires_grad_(False)
    if zeros:
        model = prune(model, load(_pruning(zeros)))
    case = network(
        "encoder",
        f"{layers} layers of {hidden}, {batch} x {tokens} tokens",
        model,
        _given("Linear", "int8" if dtype == "int8" else "same"),
        torch.randn(batch, tokens, hidden),
        dtype,
    )
    peer = "OpenVINO int8" if dtype == "int8" else "OpenVINO"
    return _against(case, {peer: openvino, "ONNX Runtime": onnx_runtime})


def residual(
    name: str,
    zeros: int,
    batch: int,
    place: Place,
    *,
    openvino: float | None = None,
    inductor: float | None = None,
    **sizes: Any,
) -> Case:
    """A residual network of the registry, `resnet50` or `resnet20`, on `batch` images.

    Args:
        openvino: required ratio against OpenVINO in float32.
        inductor: required ratio against `torch.compile` with frozen weights.
        sizes: arguments of the network, as `blocks=9`.
    """
    if place.scale < 1:
        sizes |= {"image": 32, "channels": 8} | ({"blocks": (1, 1, 1, 1)} if name == "resnet50" else {})
    model = prune(find(name).make(sizes), load(name, sparsity=zeros / 100)).eval().requires_grad_(False)
    side = sizes.get("image", 224 if name == "resnet50" else 32)
    x = torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0))
    case = network(name, f"{batch} images of {side} x {side}", model, _given("Conv2d", "same"), x, "float32")
    if inductor is not None:
        call = case.prepare("inductor", lambda: network_peers.inductor(model, (x,)))
        case.contenders.append(Contender("inductor", call))
    return _against(case, {"OpenVINO": openvino, "inductor": inductor})


def network(name: str, work: str, model: nn.Module, recipe: Any, x: Tensor, dtype: str) -> Case:
    """Contenders for a call of `model` on `x`: ours, torch, oneDNN, OpenVINO and ONNX Runtime.

    Args:
        name: name of the row.
        work: sizes, for the reader.
        model: the network with its zeros, in float32.
        recipe: recipe of our contender, which prunes nothing.
        x: the argument, in float32.
        dtype: a key of `TOLERANCES`.
    """
    exact = copy.deepcopy(model).double()
    case = Case(name, work, "generated", [], [], lambda: exact(x.double()), tolerance=TOLERANCES[dtype])
    own, given = (copy.deepcopy(model).bfloat16(), x.bfloat16()) if dtype == "bfloat16" else (model, x)
    sparse = case.prepare("apply", lambda: sparsify.apply(own, recipe, given, trainable=False, verify=False))
    ours = baselines.without_gradients(sparse, (given,))
    case.contenders.append(Contender("sparsify", ours, baseline=False))
    case.contenders.append(Contender("torch", baselines.without_gradients(own, (given,))))
    for peer, make in _peers(dtype).items():
        call = case.prepare(peer, partial(make, model, (x,)))
        if call is None:
            case.missing.append(peer)
        else:
            case.contenders.append(Contender(peer, call))
    return case


def _peers(dtype: str) -> dict[str, Maker]:
    """Makers of calls of other runtimes at the precision of `dtype`, by names of contenders."""
    precision = {} if dtype == "float32" else NARROW
    found: dict[str, Maker] = {
        "OpenVINO": lambda model, inputs: _array(network_peers.openvino(model, inputs, precision)),
        "OpenVINO sparse": lambda model, inputs: _array(
            network_peers.openvino(model, inputs, {**precision, **network_peers.SPARSE_WEIGHTS})
        ),
    }
    if dtype == "int8":
        found["OpenVINO int8"] = lambda model, inputs: _array(network_peers.openvino_int8(model, inputs))
    if dtype == "float32":
        found["ONNX Runtime"] = lambda model, inputs: _array(network_peers.onnx_runtime(model, inputs))
        found["oneDNN"] = baselines.onednn
    return found


def _array(call: Call | None) -> Call | None:
    """A call that returns the first of the arrays that a runtime returns."""
    return None if call is None else lambda: call()[0]


def _against(case: Case, asked: Mapping[str, float | None]) -> Case:
    """The case with a target against each contender of another project, with the required ratio, if any."""
    case.targets += [
        Target("sparsify", (one.name,), asked.get(one.name), one.name)
        for one in case.contenders
        if one.baseline
    ]
    return case


def _pruning(zeros: int) -> dict[str, Any]:
    """The recipe that prunes linear layers to `zeros` per cent of zeros."""
    rule = {"targets": ["param:*.weight"], "types": ["Linear"], "role": "weight"}
    prune = {"method": "magnitude", "sparsity": zeros / 100}
    return {"schema": 1, "name": "pruned", "sparsify": [{**rule, "prune": prune}]}


def _given(kind: str, dtype: str) -> dict[str, Any]:
    """The recipe of layers of one type with their zeros as given, with values stored in `dtype`."""
    rule = {"targets": ["param:*.weight"], "types": [kind], "role": "weight", "source": "given"}
    return {"schema": 1, "name": "served", "sparsify": [{**rule, "dtype": dtype}]}
