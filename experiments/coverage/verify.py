"""A model with patterns in its attention and zeros in its linear layers, against dense torch in float64.

In: `verify(SUBJECTS["BERT (transformers)"])`. Out: what was found in it, and the largest errors of outputs and of
gradients.
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import sparsify
from experiments.coverage.reference import masked_attention, own_attention
from experiments.coverage.subjects import GIVEN, Inputs, Subject
from sparsify.passes.decide.pattern_regions import UNDER
from sparsify.passes.lift.experts.mixture import MIXTURE
from sparsify.passes.module.sparse_module import SparseModule

SPARSITY: Final = 0.5
# Modules whose weights with two modes are those of linear layers; Conv1D is GPT-2's.
LINEAR: Final = ("Linear", "NonDynamicallyQuantizableLinear", "MultiheadAttention", "Conv1D")
# Of float32 against float64, relative to the largest entry: a few hundred roundings of 6e-8 each.
LIMIT: Final = 2e-5
# What programs call adjacencies, bags and batches.
GIVEN_NAMES: Final = frozenset("AX")


@dataclass(frozen=True)
class Coverage:
    """Counts of what runs in kernels, and errors, of a model.

    Attributes:
        attention: how many of its calls of attention are kernels, and how many there are.
        linear: how many weights of linear layers are in kernels, and how many there are.
        given: how many products with matrices that are given sparse are kernels, and how many there are: with
            adjacencies, bags and batches.
        gates: how many mixtures of experts are kernels that compute the chosen ones alone, and how many there are.
        tier: how it was captured: 0 with parts in a form of ours, by the libraries' own registries; 1 by `torch.export`
            alone.
        graphs: how many captured graphs all shapes needed.
        outputs: the largest error of an output over all shapes, relative to the largest entry of that output.
        gradients: the largest error of a parameter's gradient, relative to the largest entry of all of them.
    """

    attention: tuple[int, int]
    linear: tuple[int, int]
    given: tuple[int, int]
    gates: tuple[int, int]
    tier: int
    graphs: int
    outputs: float
    gradients: float

    @property
    def is_whole(self) -> bool:
        """Whether all was found, in one graph for all shapes, with the right results."""
        found, total = zip(self.attention, self.linear, self.given, self.gates, strict=True)
        return found == total and self.graphs == 1 and max(self.outputs, self.gradients) < LIMIT


def recipe(subject: Subject) -> dict[str, Any]:
    """A pattern for attention, half of the weights of linear layers zero, what is given sparse, and gates."""
    attention = {"targets": ["op:scaled_dot_product_attention"], "mask": dict(subject.mask or {})}
    given = {"targets": [subject.given], "source": "given", "format": "csr"}
    linear = {
        "targets": ["param:*weight"],
        "types": list(LINEAR),
        "role": "weight",
        "prune": {"method": "magnitude", "sparsity": SPARSITY},
        "ignore": [f"param:{name}" for name in subject.dense],
        "optional": True,  # some have none
        "format": "csr",
    }
    gates = {"targets": ["op:experts"], "role": "gate", "source": "computed"}
    asked = (linear, True), (attention, subject.mask), (given, subject.given), (gates, subject.gates)
    rules = [rule for rule, is_asked in asked if is_asked]
    return {"schema": 1, "name": "coverage", "sparsify": rules}


def verify(subject: Subject) -> Coverage:
    """The coverage of a model, with its largest errors over calls of several shapes.

    Raises:
        SparsifyError: something would stay dense.
    """
    torch.manual_seed(0)
    model = subject.make().eval()
    sparse = sparsify.apply(
        model,
        recipe(subject),
        subject.inputs(*subject.shapes[0]),
        strict=True,
        trainable=True,
        dynamic=subject.dynamic,
    )
    dense = copy.deepcopy(model).double()
    dense.load_state_dict(sparse.state_dict())
    if subject.widen is not None:
        subject.widen(dense)
    errors, calls = [], 0
    for shape in subject.shapes:
        *both, calls = compare(sparse, dense, subject.mask, subject.inputs(*shape), sinks=subject.sinks)
        errors.append(both)
    pruned, *others = (len(rule.matched) for rule in sparse.report.rules)
    attentions = sum(any(note.startswith(UNDER) for note in r.notes) for r in sparse.report.regions)
    assert subject.mask is None or others[0] == attentions, "strict leaves nothing dense"
    # A kernel may read several adjacencies, and what is known of one may have two forms.
    read = [name.rstrip("0123456789") for region in sparse.report.regions for name in region.formats]
    given = min(subject.given_count, sum(name in GIVEN_NAMES for name in read))
    gates = sum(MIXTURE in region.notes for region in sparse.report.regions)
    return Coverage(
        attention=(attentions, calls),
        linear=(pruned, len(linear_weights(model)) - len(subject.dense)),
        given=(given, subject.given_count),
        gates=(gates, subject.gates),
        tier=min(0 if variant.captured.is_lifted else 1 for variant in sparse.variants),
        graphs=len(sparse.variants),
        outputs=max(output for output, _ in errors),
        gradients=max(gradient for _, gradient in errors),
    )


def linear_weights(model: nn.Module) -> list[str]:
    """The names of the weights of linear layers."""
    return [
        f"{name}.{own}"
        for name, module in model.named_modules()
        if type(module).__name__ in LINEAR
        for own, weight in module.named_parameters(recurse=False)
        if own.endswith("weight") and weight.dim() == 2
    ]


def compare(
    sparse: SparseModule,
    dense: nn.Module,
    mask: Mapping[str, Any] | None,
    inputs: Inputs,
    *,
    sinks: bool = False,
) -> tuple[float, float, int]:
    """The largest relative errors of outputs and gradients for one call, and how often it computes attention."""
    found = sparse(**inputs)
    reference: AbstractContextManager[list[Any]] = nullcontext([])
    if mask is not None:
        reference = own_attention(dense) if mask == GIVEN else masked_attention(mask, sinks=sinks)
    with reference as calls:
        expected = dense(**{name: as_float64(value) for name, value in inputs.items()})
    assert type(found) is type(expected), f"{type(found).__name__} in place of {type(expected).__name__}"
    have, want = (numbers(result) for result in (found, expected))
    outputs = max(
        distance(one, other) / float(other.detach().abs().max())
        for one, other in zip(have, want, strict=True)
    )
    mine, theirs = gradients(have, sparse), gradients(want, dense)
    missing = theirs.keys() - mine.keys()
    assert not missing, f"no gradients of {missing}"
    for name in mine.keys() - theirs.keys():  # of experts that no token chose
        theirs[name] = torch.zeros_like(mine[name], dtype=torch.float64)
    for name in linear_weights(dense):
        theirs[name] *= dense.get_parameter(name) != 0  # zeros of a pattern have no gradients
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    return outputs, max(distance(mine[name], theirs[name]) for name in theirs) / largest, len(calls)


def as_float64(value: Any) -> Any:
    """A tensor of floating point numbers in float64, written out; other values as they are."""
    if isinstance(value, sparsify.SparseTensor):
        value = value.to_dense()
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def numbers(result: Any) -> list[Tensor]:
    """The tensors of floating point numbers in a result, the keys and values of caches among them."""
    leaves = [part for leaf in pytree.tree_leaves(result) for part in parts_of(leaf)]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def parts_of(leaf: Any) -> list[Any]:
    """The keys and values of a cache of transformers, layer by layer; another leaf by itself."""
    if hasattr(leaf, "self_attention_cache"):
        return parts_of(leaf.self_attention_cache) + parts_of(leaf.cross_attention_cache)
    layers = getattr(leaf, "layers", None)
    return [leaf] if layers is None else [part for layer in layers for part in (layer.keys, layer.values)]


def distance(found: Tensor, expected: Tensor) -> float:
    """The largest difference of two entries; NaN where one is."""
    assert found.shape == expected.shape, f"{list(found.shape)} in place of {list(expected.shape)}"
    return float((found.detach().double() - expected.detach()).abs().max())


def gradients(outputs: Sequence[Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The gradients of a sum of all outputs with random weights, by the names of the parameters that have some."""
    draws = torch.Generator().manual_seed(1)
    seeds = [torch.randn(output.shape, generator=draws).to(output.dtype) for output in outputs]
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(outputs, list(parameters.values()), seeds, allow_unused=True)
    return {name: gradient for name, gradient in zip(parameters, found, strict=True) if gradient is not None}
