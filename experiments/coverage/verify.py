"""A model with patterns in its attention and zeros in its linear layers, against dense torch in float64.

In: `verify(SUBJECTS["BERT (transformers)"])`. Out: counts of operations in kernels, and the largest errors of outputs
and gradients.
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
# Types of linear modules (weights with two modes); Conv1D is GPT-2's.
LINEAR: Final = ("Linear", "NonDynamicallyQuantizableLinear", "MultiheadAttention", "Conv1D")
# Of float32 against float64, relative to the largest entry: a few hundred roundings of 6e-8 each.
LIMIT: Final = 2e-5
# Names of adjacencies, bags and batches in einsum programs.
GIVEN_NAMES: Final = frozenset("AX")


@dataclass(frozen=True)
class Coverage:
    """Counts of operations in kernels, and errors, of a model.

    Attributes:
        attention: number of attention calls in kernels, and number of all attention calls.
        linear: number of linear weights in kernels, and number of all linear weights.
        given: number of products with given sparse matrices (adjacencies, bags, batches) in kernels, and number of all.
        gates: number of mixtures of experts with kernels for the chosen experts only, and number of all mixtures.
        tier: kind of capture: 0 with parts replaced by adapters, through the libraries' own registries; 1 by
            `torch.export` alone.
        graphs: number of captured graphs over all shapes.
        outputs: largest error of an output over all shapes, relative to the largest entry of that output.
        gradients: largest error of a parameter's gradient, relative to the largest entry of all gradients.
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
        """Whether all operations run in kernels, in one graph for all shapes, with errors below the limit."""
        found, total = zip(self.attention, self.linear, self.given, self.gates, strict=True)
        return found == total and self.graphs == 1 and max(self.outputs, self.gradients) < LIMIT


def recipe(subject: Subject) -> dict[str, Any]:
    """Recipe of a subject: attention pattern, linear weights half zero, given matrices, and gates."""
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
    """Coverage of a model, with the largest errors over calls of several shapes.

    Raises:
        SparsifyError: an operation would stay dense.
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
    # A kernel may read several adjacencies, and one adjacency may be stored in two forms.
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
    """Names of the weights of linear layers."""
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
    """Largest relative errors of outputs and gradients of one call, and the number of attention calls."""
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
    """Floating point tensor as a dense float64 tensor; other values unchanged."""
    if isinstance(value, sparsify.SparseTensor):
        value = value.to_dense()
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def numbers(result: Any) -> list[Tensor]:
    """Floating point tensors of a result, with the keys and values of caches."""
    leaves = [part for leaf in pytree.tree_leaves(result) for part in parts_of(leaf)]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def parts_of(leaf: Any) -> list[Any]:
    """Keys and values of a KV cache of transformers, layer by layer; any other leaf unchanged."""
    if hasattr(leaf, "self_attention_cache"):
        return parts_of(leaf.self_attention_cache) + parts_of(leaf.cross_attention_cache)
    layers = getattr(leaf, "layers", None)
    return [leaf] if layers is None else [part for layer in layers for part in (layer.keys, layer.values)]


def distance(found: Tensor, expected: Tensor) -> float:
    """Largest absolute difference of two tensors; NaN if an entry is NaN."""
    assert found.shape == expected.shape, f"{list(found.shape)} in place of {list(expected.shape)}"
    return float((found.detach().double() - expected.detach()).abs().max())


def gradients(outputs: Sequence[Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Gradients of a randomly weighted sum of all outputs, by parameter; parameters without gradient are absent."""
    draws = torch.Generator().manual_seed(1)
    seeds = [torch.randn(output.shape, generator=draws).to(output.dtype) for output in outputs]
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(outputs, list(parameters.values()), seeds, allow_unused=True)
    return {name: gradient for name, gradient in zip(parameters, found, strict=True) if gradient is not None}
