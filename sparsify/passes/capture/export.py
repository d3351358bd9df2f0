"""A model as one fx graph, by `torch.export`, with shapes and module scopes in `node.meta`.

In: `GCN(...)`, `(x, edge_index)`. Out: placeholders `x`, `edge_index`; `get_attr` nodes under the model's
own parameter names; one ATen node per operator, in canonical form.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from operator import index
from typing import Any

import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from sparsify.errors import CaptureError, ShapeError
from sparsify.passes.capture import autograd_functions, calls, data_sizes, sparse_inputs
from sparsify.passes.capture.captured import Captured, Dynamic
from sparsify.passes.capture.guards import granted
from sparsify.passes.capture.inline_blocks import inline_blocks
from sparsify.passes.capture.libraries import (
    torch_encoder,
    torch_geometric,
    torch_geometric_data,
    transformers_bigbird,
    transformers_cache,
    transformers_experts,
)
from sparsify.passes.capture.operator_trace import trace_of
from sparsify.passes.capture.sparse_parts import sparse_parts
from sparsify.passes.functional.functionalize import functionalize
from sparsify.passes.graph.canonicalize import canonicalize
from sparsify.passes.graph.node_info import set_info
from sparsify.runtime import confined
from sparsify.storage.own_memory import has_memory, is_on_device, without_memory

PREFIX = "model."
# Silenced loggers of fixed extents, which the report lists, too.
LOGS = (
    "torch.fx.experimental.symbolic_shapes",
    "torch._subclasses.fake_tensor",
    "torch._export.non_strict_utils",
)
LAYOUTS = {str(layout): layout for layout in calls.SPARSE_LAYOUTS} | {"sparsify": torch.sparse_csr}


class ReachedError(Exception):
    """A captured mirror computes with tensors of the original model, reached by the model's code."""


class Watch(TorchFunctionMode):
    """Raises `ReachedError` where an operator reads one of the known tensors.

    Args:
        tensors: tensors that exports replace by fake tensors.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.identities = {id(tensor) for tensor in tensors}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in pytree.tree_leaves((args, kwargs)):
            if id(value) in self.identities:
                raise ReachedError
        return func(*args, **(kwargs or {}))


class Flat(nn.Module):
    """The model as a function of a flat list of tensors.

    Calls `record` with the tree of its output, `record_dense` with the operators that take sparse inputs as dense
    tensors.
    """

    def __init__(
        self,
        model: nn.Module,
        call: calls.Call,
        record: Callable[[pytree.TreeSpec], None],
        watch: AbstractContextManager[Any],
        within: AbstractContextManager[Any],
        record_dense: Callable[[str], None],
    ) -> None:
        super().__init__()
        self.model = model
        self.call = call
        self.record = record  # export undoes assignments to attributes
        self.watch = watch
        self.within = within
        self.record_dense = record_dense

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        """The leaves of the model's output."""
        with sparse_inputs.capturing(self.record_dense), sparse_inputs.Contiguous(), self.watch, self.within:
            with torch_geometric_data.capturing.entered():
                bound = self.call.rebuild(tensors, matrix_of)
            graphs = torch_geometric_data.graphs_in(bound)
            args, kwargs = calls.arguments_of(bound, calls.signature(self.model))
            leaves, output = pytree.tree_flatten(transformers_cache.shown(self.model(*args, **kwargs)))
        torch_geometric_data.require_unchanged(graphs)
        self.record(output)
        return leaves


def matrix_of(
    leaf: calls.Leaf, rows: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, extent: torch.Tensor
) -> sparse_inputs.CapturedSparse:
    """The captured tensor of a sparse input's four parts; rows are linear indices over all modes but the last."""
    *leading, last = extent.shape[:-1]
    between: list[torch.Tensor] = []
    for size in leading[:0:-1]:
        between.insert(0, rows % size)
        rows = rows // size
    return sparse_inputs.CapturedSparse.build(
        rows, columns, values, (*leading, last), LAYOUTS[leaf.detail[0]],
        is_sorted=not between, between=tuple(between),
    )  # fmt: skip


def capture(
    model: nn.Module,
    call: calls.Call,
    dynamic: Dynamic = None,
    *,
    masks: bool = False,
    gates: bool = False,
    without: Collection[str] = (),
    shared_constants: Mapping[str, torch.Tensor] | None = None,
    trains: bool | None = None,
    is_mirror: bool = False,
    within: AbstractContextManager[Any] | None = None,
) -> Captured:
    """The graph of `model` for calls like `call`.

    Args:
        model: any module; its training mode is captured.
        call: example inputs flattened by `calls.flatten`.
        dynamic: None for all input dimensions if export allows, `()` for none, or a mapping of input names to
            dimensions, `{"x": (0,)}`.
        masks: whether attention with a built-in pattern is captured without the pattern, by `transformers_bigbird`.
        gates: whether experts of transformers are captured as einsums over all experts, by `transformers_experts`.
        without: names of experts excluded from `gates`.
        shared_constants: constants of other captures of the same module, by name; equal constants are shared.
        trains: whether gradients are wanted; `None` follows the mode of the model.
        is_mirror: whether `model` is a mirror, whose original other threads run.
        within: context entered whenever the model runs, for adapters that intercept torch's functions.

    Raises:
        ReachedError: the mirror computes with tensors of the original.
        CaptureError: export fails, or no graph can hold the model or a tensor.
    """
    require_readable(model, call)
    outputs, written_out, names = list[pytree.TreeSpec](), list[str](), call.shape.tensor_names()
    watch = Watch((*model.parameters(), *model.buffers())) if is_mirror else nullcontext()
    flat = Flat(model, call, outputs.append, watch, within or nullcontext(), written_out.append)
    tensors = tuple(example_tensors(call))
    shown = transformers_bigbird.shown(model) if masks else nullcontext()
    functions = autograd_functions.inlined(has_gradients=model.training if trains is None else trains)
    with functions, shown, transformers_experts.spelled_out(model, without) if gates else nullcontext():
        spec = dimensions(names, tensors, dynamic)
        program, is_granted = first_export(flat, tensors, specs_of(call, spec, retry=dynamic is None))
    assert outputs, "export runs the model"
    graph, constants = inner_graph(program, names, first_names(model), shared_constants or {})
    extents, holds = [extents_of(node) for node in graph.find_nodes(op="placeholder")], granted(graph)
    become_canonical(graph, is_granted)
    return Captured(
        graph=graph,
        shape=call.shape,
        output=outputs[-1],
        training=model.training,
        extents=extents,
        specialised=fixed_dimensions(names, extents, spec),
        constants=constants,
        written_out=tuple(dict.fromkeys(written_out)),
        is_lifted=is_lifted(model, call, masks=masks, gates=gates),
        holds=holds,
        is_granted=is_granted,
        trace=None if is_granted else trace_of(graph, holds, extents),
    )


def become_canonical(graph: fx.Graph, is_granted: bool) -> None:
    """Makes a graph pure and canonical; `is_granted`: its assertions are about data-dependent sizes."""
    functionalize(graph)
    canonicalize(graph)
    if is_granted:
        data_sizes.name_assertions(graph)


def require_readable(model: nn.Module, call: calls.Call) -> None:
    """Raises for a tensor of a model or a call without own main memory, and for an unreadable argument.

    A graph would treat the example's contents as constant for all calls.
    """
    inputs = ((leaf.name, value) for leaf, value in zip(call.shape.leaves, call.values, strict=True))
    for name, tensor in (*model.named_parameters(), *model.named_buffers(), *inputs):
        if not isinstance(tensor, torch.Tensor) or calls.is_ours(tensor):
            continue
        if has_memory(tensor) or is_on_device(tensor):
            continue
        raise CaptureError(f"{name} {without_memory(tensor)}")
    for leaf in call.shape.leaves:
        if not leaf.is_told:
            raise CaptureError(
                f"{leaf.name} is of class {leaf.detail[0].__name__}, which pickle cannot read, so calls with other "
                "contents are not told apart; give tensors, numbers or objects that can be pickled"
            )


def is_lifted(model: nn.Module, call: calls.Call, *, masks: bool, gates: bool) -> bool:
    """Whether a capture shows patterns, experts or sparse matrices in a form of ours."""
    if any(leaf.kind == "sparse" for leaf in call.shape.leaves):
        return True
    parts = list(model.modules())
    has_pattern = masks and any(transformers_bigbird.own_pattern(part) is not None for part in parts)
    return has_pattern or (gates and any(map(transformers_experts.is_shown, parts)))


def example_tensors(call: calls.Call) -> list[torch.Tensor]:
    """The example tensors for export: plain strided ones, with the parts of sparse inputs."""
    return [
        tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in call.tensors(sparse_parts)
    ]


def dimensions(
    names: list[str], tensors: Sequence[torch.Tensor], dynamic: Dynamic
) -> list[dict[int, Any] | None]:
    """The variable dimensions of each tensor."""
    if dynamic is None:
        return [{mode: Dim.AUTO for mode, extent in enumerate(tensor.shape) if extent} for tensor in tensors]
    if not dynamic:
        return [None for _ in tensors]
    if not isinstance(dynamic, Mapping):
        raise CaptureError(
            f"dynamic is None, () or a mapping of input names to dimensions, found {dynamic!r}"
        )
    unknown = [name for name in dynamic if name not in names]
    if unknown:
        raise CaptureError(f"dynamic names {unknown[0]!r}; the inputs are {', '.join(names)}")
    return [
        named_dimensions(name, dynamic.get(name), tensor.dim())
        for name, tensor in zip(names, tensors, strict=True)
    ]


def named_dimensions(name: str, spec: Any, rank: int) -> dict[int, Any] | None:
    """The variable dimensions of an input with `rank` modes, given as `(0, 1)` or as `{0: Dim(...)}`.

    Raises:
        ShapeError: the specification has another form, or the input lacks a mode.
    """
    if spec is None:
        return None
    try:
        by_mode = {index(mode): dimension for mode, dimension in mapped(spec).items()}
    except TypeError:
        raise ShapeError(
            f"dynamic has {spec!r} for {name}; give the modes that vary as (0, 1) or as {{0: Dim(...)}}"
        ) from None
    beyond = [mode for mode in by_mode if not -rank <= mode < rank]
    if beyond:
        has = f"modes 0 to {rank - 1}" if rank else "none"
        raise ShapeError(f"dynamic has mode {beyond[0]} for {name}; that input has {has}")
    return {mode % rank: dimension for mode, dimension in by_mode.items()}


def mapped(spec: Any) -> Mapping[Any, Any]:
    """The dimensions of `(0, 1)`, each `Dim.AUTO`; a mapping is returned unchanged."""
    return spec if isinstance(spec, Mapping) else dict.fromkeys(spec, Dim.AUTO)


def specs_of(call: calls.Call, spec: list[dict[int, Any] | None], *, retry: bool) -> list[Any]:
    """Variable dimensions in the order of attempts: all, then none for integers, with `retry` none at all."""
    sizes, names = call.shape.sizes(), call.shape.tensor_names()
    attempts: list[Any] = [spec]
    if sizes:
        attempts.append([None if name in sizes else one for name, one in zip(names, spec, strict=True)])
    return [*attempts, [None] * len(names)] if retry else attempts


def first_export(
    flat: Flat, tensors: tuple[torch.Tensor, ...], specs: Sequence[Any]
) -> tuple[ExportedProgram, bool]:
    """The program with the first accepted dimensions, and whether data-dependent sizes are assumed.

    Raises:
        CaptureError: export accepts none; reports the last error.
    """
    failure: Exception = CaptureError("nothing to export")
    ways: list[Callable[[], AbstractContextManager[None]]] = [nullcontext]
    ways += [partial(data_sizes.taken_for_granted, number) for number in data_sizes.NUMBERS]
    for spec in specs:
        for way in ways if any(spec) else ways[:1]:
            try:
                return export(flat, tensors, spec, way()), way is not nullcontext
            except (CaptureError, ReachedError):
                raise
            except Exception as error:  # export raises many unrelated classes
                failure = error
            if not data_sizes.is_undecided(failure):
                break
    first = str(failure).strip().splitlines()[0] if str(failure).strip() else type(failure).__name__
    raise CaptureError(f"torch.export cannot capture {type(flat.model).__name__}: {first}") from failure


def export(
    flat: Flat, tensors: tuple[torch.Tensor, ...], spec: Any, granting: AbstractContextManager[None]
) -> ExportedProgram:
    """The exported program, within a context that answers questions about data-dependent sizes.

    Raises:
        Exception: of many unrelated classes.
    """
    from torch._dynamo import config as dynamo_config  # loads graph compilers

    from sparsify.passes.capture.confined_export import confined_export

    with (
        confined.silenced(LOGS),
        confined_export(),
        # Operators rarely recur with equal symbolic shapes: cached results cost more time than they save.
        dynamo_config.patch(fake_tensor_cache_enabled=False),
        torch_geometric.without_choice(),
        torch_encoder.unasked(),
        torch_geometric.chosen_by_data(),
        granting,
    ):
        return torch.export.export(flat, tensors, dynamic_shapes=(tuple(spec),), strict=False)


def first_names(model: nn.Module) -> dict[str, str]:
    """The first name of each parameter's or buffer's tensor, by each of its names."""
    first: dict[int, str] = {}
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors}


def inner_graph(
    program: ExportedProgram,
    names: list[str],
    first: dict[str, str],
    shared_constants: Mapping[str, torch.Tensor],
) -> tuple[fx.Graph, dict[str, torch.Tensor]]:
    """The graph with parameters as attributes under the model's names, and the tensors created by capture."""
    signature = program.graph_signature
    effects = [spec.kind.name for spec in signature.output_specs if spec.kind is not OutputKind.USER_OUTPUT]
    if effects:
        raise CaptureError(
            f"the model has effects that a graph cannot hold: {', '.join(sorted(set(effects)))}"
        )
    graph = fx.Graph()
    graph.output(graph.graph_copy(program.graph, {}))  # owned by no module yet: attributes are not looked up
    inline_blocks(graph, program.graph_module)
    constants: dict[str, torch.Tensor] = {}
    inputs = iter(names)
    placeholders = graph.find_nodes(op="placeholder")
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            rename(node, next(inputs))
            continue
        target = str(spec.target)
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            name = first[target.removeprefix(PREFIX)]
        else:
            constant = program.constants[target]
            name = constant_name(
                f"_captured_{target.replace('.', '_')}", constant, {**shared_constants, **constants}, first
            )
            constants[name] = shared_constants.get(name, constant)
        set_info(node, is_parameter=spec.kind is InputKind.PARAMETER)
        become_attribute(node, name)
    for node in graph.nodes:
        strip_prefix(node)
    return graph, constants


def constant_name(
    name: str, constant: torch.Tensor, constants: Mapping[str, torch.Tensor], taken: Collection[str]
) -> str:
    """`name`, or `name_1` and so on if the name is taken, or known for a different constant."""
    names = (f"{name}_{number}" if number else name for number in count())
    free = (candidate for candidate in names if candidate not in taken)
    return next(
        candidate
        for candidate in free
        if candidate not in constants or is_same(constants[candidate], constant)
    )


def is_same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors have equal bytes in equal order: `-0.0` differs from `0.0`, NaN equals NaN."""
    if left is right:
        return True
    if not type(left) is type(right) is torch.Tensor or left.dtype != right.dtype or left.requires_grad:
        return False
    if not left.layout == right.layout == torch.strided or right.requires_grad or left.shape != right.shape:
        return False
    first, second = (tensor.reshape(-1).view(torch.uint8) for tensor in (left, right))
    return left.stride() == right.stride() and torch.equal(first, second)


def rename(node: fx.Node, name: str) -> None:
    """Renames a placeholder to the user-visible name."""
    set_info(node, input_name=name)
    node.target = node.name = node.graph._graph_namespace.create_name(name.replace(".", "_"), None)


def become_attribute(node: fx.Node, name: str) -> None:
    """Replaces a placeholder by an attribute of the module; tied parameters share one."""
    attribute = next((other for other in node.graph.find_nodes(op="get_attr") if other.target == name), None)
    if attribute is None:
        with node.graph.inserting_before(node):
            attribute = node.graph.create_node("get_attr", name, name=name.replace(".", "_"))
        attribute.meta = dict(node.meta)
    node.replace_all_uses_with(attribute)
    node.graph.erase_node(node)


def strip_prefix(node: fx.Node) -> None:
    """Strips the wrapper from module scopes."""
    stack = node.meta.get("nn_module_stack")
    if stack:
        inner = {
            key: (path.removeprefix("model").removeprefix("."), kind) for key, (path, kind) in stack.items()
        }
        node.meta["nn_module_stack"] = dict(list(inner.items())[1:])


def extents_of(node: fx.Node) -> tuple[int | str, ...]:
    """The extents of a placeholder: numbers, and symbols by name."""
    value = node.meta.get("val")
    return tuple(number_or_symbol(extent) for extent in getattr(value, "shape", ()))


def number_or_symbol(extent: Any) -> int | str:
    """A fixed extent as a number, a dynamic one by the name of its symbol."""
    if isinstance(extent, int):
        return extent
    text = str(extent)
    return int(text) if text.isdigit() else text


def fixed_dimensions(names: list[str], extents: list[tuple[int | str, ...]], specs: Any) -> list[str]:
    """The dimensions intended as variable but fixed, as `x[1] = 1433`."""
    return [
        f"{name}[{mode}] = {shape[mode]}"
        for name, shape, spec in zip(names, extents, specs, strict=True)
        for mode in sorted(spec or {})
        if isinstance(shape[mode], int)
    ]
