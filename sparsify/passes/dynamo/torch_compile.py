"""The backend of `torch.compile`: graphs captured by Dynamo, made sparse by a recipe.

In: `torch.compile(model, backend="sparsify", options={"recipe": "gcn"})`. Out: the same model, with each graph as a
`SparseModule`, compiled further by an inner backend.

This backend captures models piece by piece if `torch.export` cannot capture them, or their calls differ: a graph break
cuts a region in two, so breaks are reported. Parameters are identified by their names in the model, and shared with the
model.
"""

import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.fx import traceback

from sparsify import recipe as recipes
from sparsify.errors import CaptureError, SparsifyError
from sparsify.passes.capture.draft import ApplyRequest
from sparsify.passes.dynamo.source_model import ROOT, Origin, member_name, origin_of, source_of
from sparsify.passes.dynamo.torch_fused_layers import SPELLED
from sparsify.passes.module.prune_and_capture import applied
from sparsify.passes.operands.content_memo import Key, key_of, sampled
from sparsify.recipe import Recipe
from sparsify.recipe.suggestion import nearest
from sparsify.report import Report
from sparsify.storage.own_memory import PLAIN
from sparsify.warn import warn


def packed_or_copied(members: Mapping[str, Tensor], module: nn.Module) -> list[str]:
    """The names of members that a module has packed or copied, and does not read directly."""
    tensors = dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers()])
    return [name for name, value in members.items() if not is_alias(tensors.get(name), value)]


def is_alias(one: Tensor | None, other: Tensor) -> bool:
    """Whether two tensors have the same address and shape."""
    if one is None or type(one) not in PLAIN or type(other) not in PLAIN:
        return one is other
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape


@dataclass(frozen=True, slots=True)
class Made:
    """A graph made for some parameters.

    Attributes:
        state: constant numbers, and the parameters' identities, with versions of frozen ones.
        members: the parameters.
        places, packed: positions of packed parameters, and their content when packed: the graph does not read them
            again.
        run: graph compiled by the inner backend.
    """

    state: Any
    members: list[Tensor]
    places: tuple[int, ...]
    packed: Key
    run: Callable[..., Any]

    def is_packed_of(self, members: Sequence[Tensor]) -> bool:
        """Whether the packed parameters still have their packed entries, after any kind of write."""
        return not self.places or key_of([members[at] for at in self.places], read=sampled) == self.packed


# Maximum number of models recorded as already seen.
MODELS: Final = 16
_models: list[Any] = []


def is_cut(graph: fx.GraphModule) -> bool:
    """Whether a break, and not the end of the model, ended a graph."""
    reason = getattr(graph, "compile_subgraph_reason", None)
    return reason is not None and bool(reason.graph_break)


def report_break(graph: fx.GraphModule) -> None:
    """Warns of a graph break."""
    if is_cut(graph):
        reason: Any = graph.compile_subgraph_reason
        first = str(reason.reason).strip().splitlines()[0]
        warn(f"torch.compile cut the graph, and with it what sparsify could fuse: {first}")


def is_whole(graph: fx.GraphModule, options: Any) -> bool:
    """Whether a graph is a whole model: the first graph of one `torch.compile`, and without a break.

    Args:
        graph: Dynamo's graph.
        options: options of `torch.compile`, one object for all graphs of a model; models that share the object count as
            one.
    """
    is_first = all(other is not options for other in _models)
    if is_first:
        _models.append(options)
        del _models[:-MODELS]
    return is_first and not is_cut(graph)


def report_rules(report: Report) -> None:
    """Warns of rules without a match in the graph of a whole model."""
    missing = [entry.rule for entry in report.rules if not entry.matched and not entry.note]
    if missing:
        warn(
            f"{', '.join(missing)} of the recipe {report.recipe} matched nothing in the graph of torch.compile: what "
            "was to be sparse stays dense; sparsify.apply says what there is"
        )


OPTIONS: Final = ("recipe", "inner", "trainable", "strict", "verify")
INNER: Final = "inductor"
# Maximum number of parameter sets with a memoized graph.
REMEMBERED: Final = 4
# Maximum number of values of a constant number, such as `eps`, with a captured graph: with gradients and without, as
# many graphs as are memoized.
MOST_NUMBERS: Final = 2
# Operators of a tensor and a number that also accept a tensor in place of the number.
ARITHMETIC: Final = frozenset(
    (
        *(operator.add, operator.sub, operator.mul, operator.truediv),
        *(torch.add, torch.sub, torch.mul, torch.div, "add", "sub", "mul", "div"),
    )
)
REAL: Final = (torch.float32, torch.float64)
SIZE: Final = re.compile(r"^(.*)\.size\(\)\[(\d+)\]$")


def backend(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **rest: Any,
) -> Callable[..., Any]:
    """The function that Dynamo calls with each graph of a model.

    Args:
        graph: graph with parameters and inputs as placeholders.
        example_inputs: values of the placeholders.
        options: options of `torch.compile`: `recipe` (a path, a name, a mapping or a `Recipe`); `inner`, the backend of
            the dense rest, "inductor" by default, "eager" for none; `trainable`, `strict`, `verify` as in `apply`.

    Raises:
        SparsifyError: no recipe, or an unknown option.
        RecipeError: the recipe is wrong.
    """
    settings = {**(options or {}), **rest}
    for name in settings:
        if name not in OPTIONS:
            raise SparsifyError(
                f"the backend sparsify has no option {name!r}{nearest(name, OPTIONS)}",
                f"it has {', '.join(OPTIONS)}",
            )
    if "recipe" not in settings:
        raise SparsifyError(
            "the backend sparsify needs a recipe",
            'torch.compile(model, backend="sparsify", options={"recipe": "gcn"})',
        )
    # A rule's targets may be in another graph of the model.
    recipe = recipes.load(settings.pop("recipe")).with_optional_rules()
    report_break(graph)
    return Compiled(
        graph, example_inputs, recipe, settings.pop("inner", INNER), settings, is_whole(graph, options)
    )


class Compiled:
    """A graph of Dynamo, made sparse for the parameters of its calls.

    Nothing is captured before the first call: Dynamo would take the guards of the inner capture for its own.

    Args:
        graph, example_inputs: arguments of the backend.
        recipe: recipe with optional rules.
        inner: backend for the sparse graph.
        how: arguments of `apply`.
        is_whole: whether the graph is a whole model, in which each rule has to match.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        example_inputs: Sequence[Any],
        recipe: Recipe,
        inner: str,
        how: Mapping[str, Any],
        is_whole: bool = False,
    ) -> None:
        self.graph, self.recipe, self.inner, self.how = graph, recipe, inner, dict(how)
        self.is_whole = is_whole
        placeholders = graph.graph.find_nodes(op="placeholder")
        names = [member_name(source_of(node)) for node in placeholders]
        self.members = {at: name for at, name in enumerate(names) if name}
        self.origin = origin_of([source_of(placeholders[at]) for at in self.members])
        self.inputs = [
            at
            for at, value in enumerate(example_inputs)
            if isinstance(value, Tensor) and at not in self.members
        ]
        numbers = [at for at in self.inputs if is_number(placeholders[at], example_inputs[at])]
        self.numbers = {
            at: source_of(placeholders[at]) for at in numbers if number_dtype(placeholders[at]) is None
        }
        self.inputs = [at for at in self.inputs if at not in self.numbers]
        self.inputs += integers(placeholders, example_inputs, [*self.inputs, *self.members])
        self.captured: set[tuple[float, ...]] = set()
        self.dense: Callable[..., Any] | None = None
        self.runs: list[Made] = []

    def __call__(self, *values: Any) -> Any:
        """The results of the graph."""
        return self.runner(values)(*values)

    def runner(self, values: Sequence[Any]) -> Callable[..., Any]:
        """The sparse graph with the parameters among `values`, made anew for new or changed frozen parameters."""
        members = [values[at] for at in self.members]
        trainable = self.is_trainable(members)
        numbers = tuple([float(values[at]) for at in self.numbers])
        state = (trainable, numbers, self.versions(members, trainable), [*map(id, members)])
        for earlier in self.runs:
            if earlier.state == state and earlier.is_packed_of(members):
                return earlier.run
        if numbers not in self.captured and len(self.captured) >= MOST_NUMBERS:
            return self.uncaptured()
        self.captured.add(numbers)
        run, packed = self.chosen_run(values, trainable)
        places = [at for at, name in enumerate(self.members.values()) if name in packed]
        new = Made(state, members, tuple(places), key_of([members[at] for at in places], read=sampled), run)
        self.runs = [new, *self.runs[: REMEMBERED - 1]]
        return run

    def versions(self, members: Sequence[Tensor], trainable: bool) -> list[int]:
        """The versions of the parameters in a graph's key: frozen ones may be packed."""
        return [0 if trainable else member._version for member in members]

    def uncaptured(self) -> Callable[..., Any]:
        """The dense graph, for numbers beyond the limit of captures.

        Raises:
            CaptureError: with `strict`, or where pruning makes the dense graph another function.
        """
        if self.dense is None:
            error = CaptureError(
                f"{', '.join(self.numbers.values())} had more than {MOST_NUMBERS} values, a capture each",
                "give a tensor of no modes in its place, or one number",
            )
            if self.how.get("strict") or any(rule.prune is not None for rule in self.recipe.rules):
                raise error
            warn(f"{error}; this graph stays dense")
            self.dense = self.compiled(self.graph)
        return self.dense

    def is_trainable(self, members: Sequence[Tensor]) -> bool:
        """Whether parameters get gradients in a call."""
        trainable: bool | None = self.how.get("trainable")
        if trainable is not None:
            return trainable
        return torch.is_grad_enabled() and any(member.requires_grad for member in members)

    def chosen_run(
        self, values: Sequence[Any], trainable: bool
    ) -> tuple[Callable[..., Any], Collection[str]]:
        """The graph for some parameters compiled by the inner backend, and the names of packed parameters.

        Sparse, or unchanged if the graph cannot be captured.
        """
        members = {name: values[at] for at, name in self.members.items()}
        if trainable and any(rule.prune is not None for rule in self.recipe.rules):
            raise SparsifyError(
                "pruned weights cannot be trained through torch.compile: gradients would not reach the model's own",
                "apply the recipe with sparsify.apply and compile the result, or call the model under torch.no_grad()",
            )
        example = tuple([values[at] for at in self.inputs])
        if not any(isinstance(value, Tensor) for value in example):
            return self.compiled(self.graph), ()
        try:
            numbers = {at: float(values[at]) for at in self.numbers}
            part = part_of(self.graph.graph, members, self.inputs, numbers, self.origin).eval()
            module = applied(part, ApplyRequest(self.recipe, **{**self.how, "trainable": trainable}), example)
        except CaptureError as error:
            if self.how.get("strict"):
                raise
            warn(f"{error}; this graph stays dense")
            return self.compiled(self.graph), ()
        if self.is_whole:
            report_rules(module.report)
            self.is_whole = False
        run = self.compiled(module)
        return lambda *values: run(*[values[at] for at in self.inputs]), packed_or_copied(members, module)

    def compiled(self, module: nn.Module) -> Callable[..., Any]:
        """The module by the inner backend."""
        if self.inner == "eager":
            return module
        optimized: Callable[..., Any] = torch.compile(module, backend=self.inner)
        return optimized


class Part(nn.Module):
    """A graph of Dynamo as a module: parameters under the model's names, inputs as arguments.

    Traces of the module know the model's module of each node.
    """

    def forward(self, *inputs: Tensor | int) -> Any:
        """The results of the graph."""
        with traceback.preserve_node_meta():
            return fx.Interpreter(self, graph=self.__dict__["_graph"]).run(*inputs)


def is_number(node: fx.Node, value: Tensor) -> bool:
    """Whether a placeholder is a number passed by Dynamo as a tensor: with `dynamic`, `norm.eps`."""
    return value.dtype == torch.float64 and value.dim() == 0 and is_item(node)


def is_item(node: fx.Node) -> bool:
    """Whether a graph reads nothing of a placeholder but its single entry, as a number."""
    are_items = [user.op == "call_method" and user.target == "item" for user in node.users]
    return bool(are_items) and all(are_items)


def number_dtype(node: fx.Node) -> torch.dtype | None:
    """The common dtype of the tensors in arithmetic with a number, which may then be a variable tensor.

    None for a constant of an operator, or if a tensor of the dtype would be rounded differently.
    """
    dtypes = set()
    if not is_item(node):
        return None
    for user in (user for item in node.users for user in item.users):
        others = [arg for arg in user.args if not (isinstance(arg, fx.Node) and arg in node.users)]
        value = others[0].meta.get("example_value") if others and isinstance(others[0], fx.Node) else None
        if user.target not in ARITHMETIC or user.kwargs or len(others) != 1:
            return None
        if not isinstance(value, Tensor) or not value.dim():
            return None
        dtypes.add(value.dtype)
    return dtypes.pop() if len(dtypes) == 1 and dtypes <= set(REAL) else None


def integers(placeholders: Sequence[fx.Node], values: Sequence[Any], positions: Collection[int]) -> list[int]:
    """The positions of integer placeholders other than extents of inputs, such as a node count with `dynamic`.

    Args:
        placeholders: placeholders of a Dynamo graph.
        values: an example of each.
        positions: positions of its inputs and parameters.
    """
    sources = {source_of(placeholders[at]) for at in positions}
    result = []
    for at, (node, value) in enumerate(zip(placeholders, values, strict=True)):
        size = SIZE.match(source_of(node))
        is_integer = isinstance(value, int | torch.SymInt) and not isinstance(value, bool)
        if is_integer and node.users and not (size and size[1] in sources):
            result.append(at)
    return result


def part_of(
    graph: fx.Graph,
    members: Mapping[str, Tensor],
    inputs: Sequence[int],
    numbers: Mapping[int, float],
    origin: Origin,
) -> Part:
    """The module of a graph.

    Args:
        graph: graph with parameters, inputs, numbers and sizes as placeholders.
        members: parameters and buffers by qualified name.
        inputs: positions of the input placeholders.
        numbers: placeholders that are numbers, by position; constants of the module.
        origin: model that owns the parameters.
    """
    rebuilt_graph = rebuilt(graph, inputs, numbers)
    names = [str(node.target) for node in rebuilt_graph.find_nodes(op="placeholder")]
    arguments = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *names)]

    def forward(self: Part, *inputs: Tensor | int) -> Any:
        return Part.forward(self, *inputs)

    forward.__signature__ = Signature(arguments)  # type: ignore[attr-defined]
    part: Part = type(origin.name, (Part,), {"forward": forward})()
    part.__dict__["_graph"] = rebuilt_graph
    for name, value in members.items():
        for alias in origin.names.get(name, [name]):
            put(part, alias, value, origin)
    for node in graph.find_nodes(op="get_attr"):  # the bodies of checkpoints and other blocks
        setattr(part, str(node.target), getattr(graph.owning_module, str(node.target)))
    return part


def put(module: nn.Module, name: str, value: Tensor, origin: Origin) -> None:
    """Registers a parameter or buffer under a qualified name, in modules created on the path."""
    *path, attribute = name.split(".")
    for depth, step in enumerate(path, 1):
        if step not in module._modules:
            module.add_module(step, origin.module(".".join(path[:depth])))
        child = module._modules[step]
        assert child is not None, "modules are added, never None"
        module = child
    if isinstance(value, nn.Parameter):
        module.register_parameter(attribute, value)
    else:
        module.register_buffer(attribute, value)


def rebuilt(graph: fx.Graph, inputs: Sequence[int], numbers: Mapping[int, float]) -> fx.Graph:
    """The graph with attributes for parameters, sizes of inputs for numbers, and scopes from the model on."""
    result = fx.Graph()
    placeholders = graph.find_nodes(op="placeholder")
    copies: dict[fx.Node, Any] = {
        item: value for at, value in numbers.items() for item in (placeholders[at], *placeholders[at].users)
    }
    sources = {source_of(placeholders[at]): placeholders[at] for at in inputs}
    for at in inputs:
        node = placeholders[at]
        copies[node] = result.placeholder(input_name(source_of(node)) or node.name)
    for at in inputs:
        if (dtype := number_dtype(placeholders[at])) is not None:
            number = result.call_method("to", (copies[placeholders[at]], dtype))
            copies |= dict.fromkeys(placeholders[at].users, number)
    for node in placeholders:
        if node in copies or not node.users:  # strides of inputs are rarely used placeholders
            continue
        source = source_of(node)
        size = SIZE.match(source)
        if size and size[1] in sources:
            copies[node] = result.call_method("size", (copies[sources[size[1]]], int(size[2])))
        elif name := member_name(source):
            copies[node] = result.create_node("get_attr", name)
        else:
            raise CaptureError(f"{source or node.name} is neither a tensor nor the size of one")
    for node in graph.nodes:
        if node not in copies and node.op != "placeholder":
            copies[node] = result.node_copy(node, copies.__getitem__)
            copies[node].target = SPELLED.get(node.target, node.target)
            copies[node].meta["nn_module_stack"] = scopes(node)
    return result


def input_name(source: str) -> str:
    """The name of an input in the model, "" for anything but a plain argument."""
    match = re.fullmatch(r"L\['(\w+)'\]", source)
    return match[1] if match else ""


def scopes(node: fx.Node) -> dict[str, tuple[str, Any]]:
    """The modules of a node, under the names expected by the capture: of a model inside a module."""
    stack = node.meta.get("nn_module_stack") or {}
    inner = {key: (f"model{ROOT.sub('', path)}", kind) for key, (path, kind) in stack.items()}
    return {"": ("", "Flat"), "root": ("model", "Part"), **inner}
