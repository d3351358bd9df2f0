"""ResNet-50 with pruned convolutions, as `sparsify.apply` runs it, against torch's convolutions, which are oneDNN's.

In: `resnet(80, 1, place)`. Out: a `Case` whose result is checked against float64. torch runs the pruned model
unmodified, and with its normalisations folded into the weights, for contiguous and channels-last images.
"""

import copy

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import sparsify
from sparsify.bench.harness import Case, Contender, Target
from sparsify.bench.place import Place
from sparsify.models.registry import find
from sparsify.passes.rules.prune import prune
from sparsify.recipe import load
from sparsify.runtime.buffers import POOL

BLOCKS, CHANNELS, IMAGE = (3, 4, 6, 3), 64, 224
TORCH = ("torch", "torch, folded", "torch, folded, channels last")
# Relative error of sums over more than fifty layers.
TOLERANCE = 1e-4


def resnet(zeros: int, batch: int, place: Place, *, asked: float | None = None) -> Case:
    """All convolutions but the first with `zeros` per cent of zeros; the target ratio is of whole passes."""
    image = max(32, round(IMAGE * place.scale))
    sizes = {
        "blocks": tuple(max(1, round(count * place.scale)) for count in BLOCKS),
        "channels": max(8, round(CHANNELS * place.scale)),
        "image": image,
    }
    recipe = load("resnet50", sparsity=zeros / 100)
    model = prune(find("resnet50").make(sizes), recipe).eval().requires_grad_(False)
    x = torch.randn(batch, 3, image, image, generator=torch.Generator().manual_seed(0))
    case = Case(
        f"resnet50-{batch}-{zeros}",
        f"{batch} images of {image} x {image}",
        "generated",
        [],
        [],
        lambda: copy.deepcopy(model).double()(x.double()),
        tolerance=TOLERANCE,
    )
    sparse = case.prepare("pack and build", lambda: sparsify.apply(model, recipe, x, verify=False))
    case.prepare("first call", lambda: sparse(x))
    own, last = folded(model), folded(model)
    last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    rows = x.to(memory_format=torch.channels_last)
    calls = (lambda: model(x), lambda: own(x), lambda: last(rows))
    case.contenders += [
        Contender("sparsify", lambda: sparse(x), baseline=False),
        *(Contender(name, call) for name, call in zip(TORCH, calls, strict=True)),
        Contender("sparsify fresh", lambda: sparse(x), baseline=False, before=POOL.clear),
    ]
    case.targets += [
        Target("sparsify", TORCH[:1], asked, "torch"),
        Target("sparsify", TORCH, None, "best of torch"),
        Target("sparsify fresh", TORCH[:1], None, "fresh"),
    ]
    return case


def folded(model: nn.Module) -> nn.Module:
    """Copy of the model with each normalisation folded into the convolution before it."""
    copied = copy.deepcopy(model)
    for part in copied.modules():
        if isinstance(part, nn.Sequential):
            for place in range(len(part) - 1):
                layer, norm = part[place], part[place + 1]
                if isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                    part[place], part[place + 1] = fuse_conv_bn_eval(layer, norm), nn.Identity()
    return copied
