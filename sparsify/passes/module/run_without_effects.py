"""Calls without effects on a sparse model: of its graphs, and of its source model.

In: a `SparseModule`, a variant and inputs. Out: what the variant computes; buffers of the model stay as they are.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils import _pytree as pytree

from sparsify import options as settings
from sparsify.passes.capture import calls
from sparsify.passes.capture.libraries import transformers_cache
from sparsify.passes.capture.shell import fill_shell
from sparsify.passes.graph.operators import updates_statistics
from sparsify.passes.module.run_eager import eager
from sparsify.passes.module.variant import Variant

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule


def runner(module: "SparseModule", variant: Variant) -> Callable[..., Any]:
    """The function that runs a variant without effects on the buffers of the model."""
    assert variant.eager is not None and variant.run is not None, "captures compile graphs"
    if not variant.writes() and not any(map(updates_statistics, variant.captured.graph.nodes)):
        return variant.eager
    apart = nn.Module()
    fill_shell(apart, module)
    copies = {id(buffer): buffer.detach().clone() for buffer in apart.buffers()}
    for part in apart.modules():
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else copies[id(buffer)]
    return eager(variant.captured.graph, apart, variant.run, recycled=settings.current().recycle)


def run_call(source: nn.Module, module: "SparseModule", call: calls.Call) -> Any:
    """The result of a model for a call."""
    values = [transformers_cache.fresh(value) for value in call.values]
    args, kwargs = calls.arguments_of(pytree.tree_unflatten(values, call.spec), module._signature)
    return calls.run_source(source, args, kwargs)
