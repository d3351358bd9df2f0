"""The model of a document: modules with mapped tensors, executable graphs, prebuilt kernels.

In: a document of `described`, the arrays of its file and its kernels. Out: a `ServedModule`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sparsify.compiler.kernel.stored_kernels import Stored
from sparsify.options import Options
from sparsify.passes.call.region_call import RegionCall, find
from sparsify.passes.call.region_operator import is_call
from sparsify.passes.capture.draft import ApplyRequest
from sparsify.passes.functional.layouts import contiguous_inputs
from sparsify.passes.graph.node_info import set_info
from sparsify.passes.module.check.operator_graph import OperatorGraph
from sparsify.passes.module.variants.run_eager import Running, compiled, run_by
from sparsify.passes.module.variants.variant import Variant
from sparsify.passes.module.weights.packed_weights import Weights
from sparsify.passes.region.sparse_operand import SCALES
from sparsify.passes.served import weights
from sparsify.passes.served.kinds import decoded_captured, decoded_shape, decoded_signature
from sparsify.passes.served.regions import Reader
from sparsify.passes.served.served_module import Frozen, ServedModule, frozen_class
from sparsify.passes.served.values import decoded
from sparsify.report import Report
from sparsify.storage.tensor import SparseTensor


def restored(
    document: Mapping[str, Any],
    array: Callable[[str], Tensor],
    stored: Stored,
    asked: ApplyRequest,
    options: Options,
    folder: Path,
) -> ServedModule:
    """The model of a document.

    Args:
        document: document made by `described`.
        array: function from names to arrays.
        stored: kernels of the folder.
        asked: arguments of the original `apply`.
        options: options of kernels.
        folder: path of the folder.

    Raises:
        SparsifyError, KeyError, TypeError, ValueError: a document of another version, or arrays that do not fit.
    """
    tensors = dict(weights.together(array, document["tensors"], is_trusted=True))
    source = _source(document, tensors)
    held = {name: decoded(how) for name, how in document["held"].items()}
    module = ServedModule(source, asked, Weights(source, True, packed_forms=held), folder)
    reader = Reader(document, stored, options, module._notices)
    module._captures.varying |= set(document["varying"])
    evaluation = (False,) * (1 + len(document["modules"]))
    for data in document["variants"]:
        constants = {name: tensors[name] for name in data["constants"]}
        for name, constant in constants.items():
            module.register_buffer(name, constant, persistent=False)
        variant = _variant(module, data, constants, reader)
        module.met.append(data["examples"])
        module._captures.add((evaluation, variant.captured.shape), variant)
    for wanted, shape, dtypes in document.get("autocast", ()):
        module._autocast.dtypes_by_kind[decoded(wanted), evaluation, decoded_shape(shape)] = decoded(dtypes)
    module.show(module.variants[0])
    return module


def _source(document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Frozen:
    """The modules of a model with their tensors."""
    signature = decoded_signature(document["signature"])
    source = frozen_class(str(document["model"]), signature)()
    known: dict[str, nn.Module] = {"": source}
    for path, first in document["modules"]:
        owner, _, name = path.rpartition(".")
        part = known[path] = known[first] if first != path else nn.Module()
        known[owner]._modules[name] = part
    one: dict[int, nn.Parameter] = {}  # tied weights are one parameter
    parameters = {
        name: one.setdefault(id(tensors[name]), _parameter(tensors[name])) for name in document["parameters"]
    }
    for name in parameters:
        owner, _, last = name.rpartition(".")
        known[owner]._parameters[last] = parameters[name]
    for name in document["buffers"]:
        owner, _, last = name.rpartition(".")
        known[owner].register_buffer(last, tensors[name], persistent=name not in document["temporary"])
    source.eval()
    return source


def _parameter(tensor: Tensor) -> nn.Parameter:
    """A tensor as a parameter without gradients; not copied."""
    if type(tensor) is Tensor:
        return nn.Parameter(tensor, requires_grad=False)
    # `nn.Parameter` detaches tensors of subclasses, which imports torch modules for a second.
    found: Any = tensor
    found._is_param = True
    return found  # type: ignore[no-any-return]


def _variant(
    module: ServedModule, data: Mapping[str, Any], constants: Mapping[str, Tensor], reader: Reader
) -> Variant:
    """A graph of a model, ready to run."""
    graph = reader.graph(data["graph"])
    regions = []
    for node in graph.nodes:
        if is_call(node) and isinstance(call := find(node.args[0]), RegionCall):
            set_info(node, call=call)
            regions.append(call)
    captured = decoded_captured(data, graph, constants)
    report = Report(**{name: decoded(value) for name, value in data["report"].items()})
    variant = Variant(captured, report, regions, data["plain"])
    scratch = compiled(graph)
    variant.run, variant.code = type(scratch).forward, scratch._code
    variant.written, variant.contiguous = variant.written_inputs(), contiguous_inputs(graph)
    variant.eager = _runner(module, data["run"], variant.run, reader)
    if data["operators"] is not None:
        variant.operators = _operators(module, data["operators"], reader)
    elif data["plain"] and not captured.is_granted and not regions:
        variant.direct = variant.eager
    return variant


def _runner(
    module: ServedModule, data: Mapping[str, Any], otherwise: Callable[..., Any], reader: Reader
) -> Callable[..., Any]:
    """The function of the inputs of a graph."""
    running = Running(reader.graph(data["nodes"]), data["read"], data["writes"])
    return run_by(running, module, otherwise)


def _operators(module: ServedModule, data: Mapping[str, Any], reader: Reader) -> OperatorGraph:
    """The graph of torch's operators, with the calls for which it runs."""
    graph = reader.graph(data["graph"])
    found = OperatorGraph(graph, data["edges"])
    found.most, found.is_for_known = data["most"], data["known"]
    found.run = _runner(module, data["run"], type(compiled(graph)).forward, reader)
    return found


def dense_state(document: Mapping[str, Any], array: Callable[[str], Tensor]) -> dict[str, Tensor]:
    """The state of a document's model for its source class: dense tensors by name."""
    tensors = dict(weights.together(array, document["tensors"], is_trusted=False))
    held = {name: decoded(how) for name, how in document["held"].items()}
    scales = {f"{name}{SCALES}" for name, how in held.items() if how.spec.has_scales}
    kept = [*document["parameters"], *(n for n in document["buffers"] if n not in document["temporary"])]
    state: dict[str, Tensor] = {}
    for name in kept:
        value = tensors[name]
        if name in scales:
            continue
        if name in held:
            value = held[name].unpack(value, tensors.get(f"{name}{SCALES}")).detach()
        elif isinstance(value, SparseTensor):
            value = value.to_dense()
        state[name] = value
    return state
