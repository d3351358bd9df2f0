"""Products with sparsified results of operators: kernels that skip zeros, if timed faster.

In: the region of `Y[i,k] = sum(j, A[i,j] * W[k,j]) + b[k]`, A a result sparsified by a rule.
Out: the region, with both times for the example as a note; or no region, with the times in the report.

The example determines the number of kept entries: the operand is computed from the graph, and built anew in each turn,
as in calls.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler.kernel.prepare import build_all
from sparsify.errors import SparsifyError
from sparsify.passes.call.bind import extract
from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.choose.left_dense import choose_dense
from sparsify.passes.choose.site import scratch_site
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import operator_name, scope, tensor_value
from sparsify.passes.region.region import Region
from sparsify.report import Choice

# Number of interleaved turns, and share of torch's time by which a kernel must be faster.
TURNS: Final = 8
GAIN: Final = 0.05
STORED: Final = "its entries that a sparsifier drops are zeros of a dense tensor"


def skip_zeros(draft: Draft) -> Draft:
    """The draft without regions that read sparsified results and are slower than torch's operators."""
    values: dict[fx.Node, Any] = {}
    sparse_regions = []
    for region in draft.regions:
        if not any(is_activation(matrix.dense) for matrix in region.matrices):
            sparse_regions.append(region)
            continue
        if draft.options.tune_seconds == 0:
            choose_dense(
                draft, region, region.shown, "a kernel that skips zeros is not timed: no seconds for it"
            )
            continue
        try:
            kernel_us, dense_us = timed(draft, region, values)
        except (SparsifyError, RuntimeError) as error:
            choose_dense(draft, region, region.shown, f"not timed: {error}".splitlines()[0])
            continue
        shares = ", ".join(f"{share:.3g}" for share in densities(region, values))
        text = f"{kernel_us:.0f} us, torch's operators {dense_us:.0f}, at density {shares} of the example"
        if kernel_us < (1 - GAIN) * dense_us:
            region.notes.append(f"skips zeros, timed {text}")
            sparse_regions.append(region)
        else:
            choose_dense(draft, region, region.shown, f"a kernel that skips zeros is no faster: {text}")
    draft.regions = sparse_regions
    list_dense(draft)
    return draft


def is_activation(node: fx.Node | None) -> bool:
    """Whether a node is a result sparsified by a rule."""
    mark = None if node is None else info(node).mark
    return isinstance(mark, Mark) and mark.outputs is not None and not mark.derived


def list_dense(draft: Draft) -> None:
    """Lists the sparsified results read by no region: dense tensors with zeros."""
    read = {matrix.dense for region in draft.regions for matrix in region.matrices}
    for node in draft.graph.nodes:
        if is_activation(node):
            shown = info(node).shown or node
            if node not in read:
                draft.report.left_dense(shown.name, operator_name(shown), scope(shown), Choice(STORED))
            set_info(node, is_listed_dense=True)


def densities(region: Region, values: dict[fx.Node, Any]) -> list[float]:
    """The densities of the sparsified results read by a region, for the example."""
    results = [values[matrix.dense] for matrix in region.matrices if matrix.dense in values]
    return [float(torch.count_nonzero(value)) / max(1, value.numel()) for value in results]


def timed(draft: Draft, region: Region, values: dict[fx.Node, Any]) -> tuple[float, float]:
    """Interleaved times of a region and of its nodes for the example, in us; in training with gradients.

    Raises:
        SparsifyError: no kernel, or an example without values.
    """
    site = scratch_site(draft, region)
    build_all([(site.call.kernel, site.sizes)])
    arguments = [value_of(draft, node, values) for node in site.arguments]
    step = with_gradients(arguments) if draft.is_trainable else call_alone(arguments)
    ways: tuple[Callable[..., Any], ...] = (site.call, site.call.dense)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS):
        for way, taken in zip(ways, times, strict=True):
            started = time.perf_counter()
            step(way)
            taken.append((time.perf_counter() - started) * 1e6)
    return median(times[0][1:]), median(times[1][1:])


def call_alone(arguments: Sequence[Any]) -> Callable[[Callable[..., Any]], None]:
    """A function without arguments that calls another one with fixed arguments."""

    def step(way: Callable[..., Any]) -> None:
        with torch.no_grad():
            way(*arguments)

    return step


def with_gradients(arguments: Sequence[Any]) -> Callable[[Callable[..., Any]], None]:
    """A step that runs a function and computes the gradients of all arguments."""
    leaves = [value.detach() if isinstance(value, torch.Tensor) else value for value in arguments]
    targets = [v.requires_grad_() for v in leaves if isinstance(v, torch.Tensor) and v.is_floating_point()]

    def step(way: Callable[..., Any]) -> None:
        with torch.enable_grad():
            result = way(*leaves)
            results = list(result) if isinstance(result, tuple | list) else [result]
            torch.autograd.grad(results, targets, [torch.ones_like(r) for r in results], allow_unused=True)

    return step


def value_of(draft: Draft, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """The value of a node for the example.

    Raises:
        SparsifyError: an input without an example.
    """
    if node not in values:
        value = draft.known_tensor(node) if tensor_value(node) is not None else None
        if value is None:
            leaves = [n for n in draft.graph.nodes if n.op in ("placeholder", "get_attr")]
            tensors = [draft.known_tensor(leaf) for leaf in leaves]
            pairs = [(leaf, t) for leaf, t in zip(leaves, tensors, strict=True) if t is not None]
            module = extract(draft.graph, [leaf for leaf, _ in pairs], [node])
            if len(module.graph.find_nodes(op="placeholder")) != len(pairs):
                raise SparsifyError("the example has no such inputs")
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                (value,) = module(*[t for _, t in pairs])
        values[node] = value
    return values[node]
