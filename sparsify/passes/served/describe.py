"""A captured model as a document: its modules and tensors by name, graphs, regions, kernels and reports.

In: a captured `SparseModule` in evaluation. Out: `Described(document, arrays, files)`: plain data for a JSON file,
arrays for a safetensors file, and the shared objects stored next to them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sparsify.compiler.cpp.toolchain import levels
from sparsify.compiler.cpp.toolchain.fingerprint import code_digest
from sparsify.compiler.kernel.stored_kernels import Collected
from sparsify.errors import DataError
from sparsify.passes.module.check.operator_graph import OperatorGraph
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.passes.module.variants.run_eager import Running, running
from sparsify.passes.module.variants.variant import Variant
from sparsify.passes.served import weights
from sparsify.passes.served.examples import encoded_examples
from sparsify.passes.served.kinds import encoded_captured, encoded_shape, encoded_signature
from sparsify.passes.served.regions import Writer
from sparsify.passes.served.values import encoded
from sparsify.report import Report
from sparsify.runtime.locks import CAPTURES

WITHOUT = "or save without kernels=True, and load with the model"


@dataclass(frozen=True)
class Described:
    """A model in files.

    Attributes:
        document: plain data.
        facts: facts about kernels: levels, and the CPU and compiler of their build.
        arrays: arrays by name.
        files: shared objects of kernels, by content-based name.
    """

    document: dict[str, Any]
    facts: dict[str, Any]
    arrays: dict[str, Tensor]
    files: dict[str, Path]


def described(module: SparseModule, target: Sequence[str]) -> Described:
    """The document of a model, its arrays, and its kernels for levels of CPUs.

    Raises:
        DataError: the model trains, was not captured, or has computations that no file holds.
        CompilerError: kernels cannot be built for a level.
    """
    with CAPTURES, module._weights.lock:
        variants = served_variants(module)
        collected = Collected(tuple(target))
        writer = Writer(collected)
        graphs = [_variant(module, variant, writer) for variant in variants]
        source = module._source
        parameters = dict(source.named_parameters(remove_duplicate=False))
        buffers = dict(source.named_buffers(remove_duplicate=False))
        constants = module._captures.constants()
        arrays, tensors = weights.apart({**parameters, **buffers, **constants})
        held = {name: encoded(how) for name, how in module._weights.packed_forms.items()}
    document = {
        "model": type(source).__name__,
        "signature": encoded_signature(module._signature),
        "modules": _modules(source),
        "parameters": list(parameters),
        "buffers": list(buffers),
        "temporary": [name for name in buffers if _is_temporary(source, name)],
        "tensors": tensors,
        "held": held,
        "varying": sorted(module._captures.varying),
        "variants": graphs,
        "autocast": _autocast(module),
        "threads": module._request.recipe.compile.threads,
        "structures": writer.structures,
        "kernels": writer.kernels,
        "calls": writer.calls,
        "support": collected.support(),
    }
    facts = {"levels": list(target), "instructions": levels.own_sets(), "code": code_digest()}
    return Described(document, facts, arrays, collected.files)


def served_variants(module: SparseModule) -> list[Variant]:
    """The graphs of a model that a folder can hold: those in evaluation.

    Raises:
        DataError: no graph was captured, or the model trains.
    """
    if module.training:
        raise DataError(
            "a model in training is not served", f"model.eval(), then one call of each kind, {WITHOUT}"
        )
    known = module._captures.entries
    found = [variant for (mode, _), variant in known if not any(mode)]
    refused = [why for (mode, _), why in module._captures.refused.items() if not any(mode)]
    if refused:
        raise DataError(
            f"calls of this model run code of the model, which no file holds: {refused[0]}",
            f"change the model so that torch.export captures it, {WITHOUT}: sparsify.load(folder, model)",
        )
    if not found:
        raise DataError(
            "no call of this model was captured in evaluation, and kernels are those of captured calls",
            "call it once for each kind of call and size of batch that will be served, or "
            "sparse.prepare(kinds=[{'inputs': (x,)}]), then save",
        )
    return found


def _autocast(module: SparseModule) -> list[list[Any]]:
    """The dtypes of results under autocast by kind of call in evaluation, for the kinds that were called there."""
    return [
        [encoded(wanted), encoded_shape(shape), encoded(dtypes)]
        for wanted, mode, shape, dtypes in module._autocast.kinds()
        if not any(mode)
    ]


def _modules(source: nn.Module) -> list[list[str]]:
    """The paths of all modules, each with the first path of the same module."""
    first: dict[int, str] = {}
    return [
        [path, first.setdefault(id(part), path)]
        for path, part in source.named_modules(remove_duplicate=False)
        if path
    ]


def _is_temporary(source: nn.Module, name: str) -> bool:
    """Whether a buffer is excluded from the state of its model."""
    owner, _, last = name.rpartition(".")
    return last in source.get_submodule(owner)._non_persistent_buffers_set


def _variant(module: SparseModule, variant: Variant, writer: Writer) -> dict[str, Any]:
    """A graph of a model as data."""
    operators = variant.operators
    return {
        **encoded_captured(variant.captured),
        "graph": writer.graph(variant.captured.graph),
        "run": _running(running(variant.captured.graph, module), writer),
        "plain": variant.is_plain,
        "constants": list(variant.captured.constants),
        "operators": None if operators is None else _operators(module, operators, writer),
        "examples": encoded_examples(module, variant),
        "report": _report(variant.report),
    }


def _running(found: Running, writer: Writer) -> dict[str, Any]:
    """A graph in its executable form as data."""
    return {"nodes": writer.graph(found.graph), "read": dict(found.read), "writes": found.writes}


def _operators(module: SparseModule, operators: OperatorGraph, writer: Writer) -> dict[str, Any]:
    """The graph of torch's operators as data, with the calls for which it runs."""
    return {
        "graph": writer.graph(operators.graph),
        "run": _running(running(operators.graph, module), writer),
        "edges": list(operators.edges),
        "most": operators.most,
        "known": operators.is_for_known,
    }


def _report(report: Report) -> Mapping[str, Any]:
    """A report as data."""
    return {
        field.name: encoded(getattr(report, field.name)) for field in fields(report) if field.name != "origin"
    }
