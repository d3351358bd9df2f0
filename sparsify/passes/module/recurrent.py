"""Recurrent layers with sparse weights, captured step by step.

In: `lstm(%x, (%h, %c), [%w_ih, %w_hh, ..])` of an `nn.LSTM` with weights selected by a rule, for 6 time steps.
Out: `%g = linear(%x, %w_ih)` of all steps at once, and for each step `add(linear(%h, %w_hh), %g[t])`, the gates and the
next state.

torch's operator hides its products from the passes. The number of steps is fixed in the graph: sequences of another
length are captured anew. A layer keeps torch's operator, with an entry in the report, where its input is a packed
sequence, where a sequence has more than `MOST_STEPS` steps, where no kernel computes a product of its weights, and
where torch's operator is faster, which takes less time than the sum of its products and has no dispatch between steps.

Source: Hochreiter and Schmidhuber, Long short-term memory, 1997; Cho et al., Learning phrase representations using RNN
encoder-decoder, 2014, with the reset gate after the product as in cuDNN and torch.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from sparsify.errors import CaptureError
from sparsify.passes.call.bind import extract
from sparsify.passes.call.region_operator import is_call
from sparsify.passes.capture.draft import ApplyRequest, Draft, Mark
from sparsify.passes.choose.autotune import Candidate, Winner, compare
from sparsify.passes.choose.estimate import UNKNOWN_ROWS, example
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import (
    RECURRENT,
    is_mutating,
    is_random,
    known_size,
    operator_name,
    scope,
)
from sparsify.passes.rules.prunable import selected
from sparsify.report import Report
from sparsify.report_text import fold


@dataclass(frozen=True, slots=True)
class Called:
    """A call of torch's recurrent operator during capture.

    Attributes:
        function: the operator.
        arguments: factory per argument for a similar argument of a draft: parameters, tensors of the same shape.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, function: Callable[..., Any], arguments: Sequence[Any], names: Mapping[int, str]) -> "Called":
        """A call without its tensors; `names` maps the identity of parameters to names."""

        def maker(value: Any) -> Callable[[Draft], Any]:
            if not isinstance(value, Tensor):
                return lambda draft: value
            if (name := names.get(id(value))) is not None:
                return lambda draft: draft.model.get_parameter(name).detach()
            extents = [known_size(size, UNKNOWN_ROWS) or UNKNOWN_ROWS for size in value.shape]
            dtype = value.dtype
            return lambda draft: torch.randn(extents, generator=torch.Generator().manual_seed(0)).to(dtype)

        return cls(function, pytree.tree_map(maker, tuple(arguments)))

    def anew(self, draft: Draft) -> Callable[[], Any]:
        """The call repeated with new tensors like the example's."""
        return partial(self.function, *pytree.tree_map(lambda make: make(draft), self.arguments))


def timed_steps(draft: Draft, layer: str, calls: Sequence[Called]) -> Winner | None:
    """The times of steps and operators for the example; `None` if untimed: no seconds, training, random draws.

    Args:
        draft: draft after all passes.
        layer: name of the module.
        calls: calls of torch's operators in the layer.
    """
    nodes = [n for n in draft.graph.nodes if n.op == "call_function" and scope(n).partition("@")[0] == layer]
    is_timed = draft.options.tune_seconds > 0 and not draft.is_trainable and bool(nodes)
    if not is_timed or any(is_mutating(node) or is_random(node) for node in nodes):
        return None
    steps, theirs = steps_of(draft, nodes), [call.anew(draft) for call in calls]

    def dense() -> None:
        for call in theirs:
            call()

    both = [Candidate("steps", steps), Candidate("torch", dense)]
    return compare("recurrent layer", both, draft.options.tune_seconds)


def described_times(winner: Winner) -> str:
    """The text of the measured times."""
    return f"timed {winner.us:.0f} us step by step, torch's {winner.us_of('torch'):.0f}{winner.disturbed}"


def steps_of(draft: Draft, nodes: Sequence[fx.Node]) -> Callable[[], Any]:
    """The nodes of a layer as a call with tensors like the example's."""
    inside = set(nodes)
    outputs = [node for node in nodes if not set(node.users) <= inside and operator_name(node) != "sym_size"]
    inputs = list(
        dict.fromkeys(read for node in nodes for read in node.all_input_nodes if read not in inside)
    )
    module = extract(draft.graph, inputs, [*outputs])
    return partial(module.forward, *[example(draft, node) for node in inputs])


# Maximum number of time steps of a graph, over all layers and directions. Export takes 0.1 to 0.2 seconds for each.
MOST_STEPS: Final = 256
MATRIX: Final = 2
State = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """The parameters of one layer in one direction.

    Attributes:
        input, hidden: [gates * hidden, features] and [gates * hidden, outputs].
        input_bias, hidden_bias: [gates * hidden], or None.
        projection: of the hidden state of an LSTM, [outputs, hidden], or None.
    """

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None = None
    hidden_bias: Tensor | None = None
    projection: Tensor | None = None

    def project_input(self, x: Tensor) -> Tensor:
        """The product of inputs [rows, features] with the input weight."""
        return functional.linear(x, self.input, self.input_bias)

    def project_hidden(self, h: Tensor) -> Tensor:
        """The product of hidden states [batch, outputs] with the hidden weight."""
        return functional.linear(h, self.hidden, self.hidden_bias)


Step = Callable[[Tensor, State, Weights], State]


def lstm_step(x: Tensor, state: State, weights: Weights) -> State:
    """The next hidden and cell state of an LSTM.

    Args:
        x: product of the step's input, [batch, 4 * hidden].
        state: hidden and cell state, [batch, outputs] and [batch, hidden].
        weights: parameters of the layer.
    """
    h, c = state
    i, f, g, o = (weights.project_hidden(h) + x).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (h if weights.projection is None else functional.linear(h, weights.projection)), c


def gru_step(x: Tensor, state: State, weights: Weights) -> State:
    """The next hidden state of a GRU; arguments as in `lstm_step`, with 3 gates."""
    (h,) = state
    x_r, x_z, x_n = x.chunk(3, 1)
    h_r, h_z, h_n = weights.project_hidden(h).chunk(3, 1)
    r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
    n = (x_n + r * h_n).tanh()
    return ((h - n) * z + n,)


def tanh_step(x: Tensor, state: State, weights: Weights) -> State:
    """The next hidden state of an RNN with tanh; arguments as in `lstm_step`, with 1 gate."""
    return ((weights.project_hidden(state[0]) + x).tanh(),)


def relu_step(x: Tensor, state: State, weights: Weights) -> State:
    """The next hidden state of an RNN with relu; arguments as in `lstm_step`, with 1 gate."""
    return ((weights.project_hidden(state[0]) + x).relu(),)


LAYERS: Final[Mapping[Any, Step]] = {
    torch.lstm: lstm_step,
    torch.gru: gru_step,
    torch.rnn_tanh: tanh_step,
    torch.rnn_relu: relu_step,
}
CELLS: Final[Mapping[Any, Step]] = {
    torch.lstm_cell: lstm_step,
    torch.gru_cell: gru_step,
    torch.rnn_tanh_cell: tanh_step,
    torch.rnn_relu_cell: relu_step,
}
# Number of arguments of a layer's operator; the variant for packed sequences has `batch_sizes` as its second, and no
# `batch_first`.
ARGUMENTS: Final = 9
PACKING: Final = (torch._VF._pack_padded_sequence, torch._VF._pad_packed_sequence)
PACKED: Final = (
    "packed sequences are not captured: the number of texts differs between time steps; give padded ones"
)


def run_cell(step: Step, x: Tensor, hx: Any, *parameters: Tensor | None) -> Any:
    """The next state of a cell, in the form returned by `torch.lstm_cell` and similar operators."""
    weights = Weights(*parameters)  # type: ignore[arg-type]
    is_pair = isinstance(hx, tuple | list)
    state = step(weights.project_input(x), tuple(hx) if is_pair else (hx,), weights)
    return state if is_pair else state[0]


def run_layer(
    step: Step,
    x: Tensor,
    hx: Any,
    parameters: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """The outputs and last states of a recurrent layer, in the form returned by `torch.lstm`.

    Args:
        step: function that computes the next state.
        x: [steps, batch, features], or with `batch_first` [batch, steps, features].
        hx: initial states, [layers * directions, batch, outputs] each.
        parameters: parameters of all layers and directions in the order of `nn.LSTM`.
        has_biases, layers, dropout, training, bidirectional, batch_first: as in `nn.LSTM`.
    """
    initial = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
    directions = 2 if bidirectional else 1
    weights = list(weights_of(parameters, layers * directions, has_biases))
    x = x.transpose(0, 1) if batch_first else x
    last: list[State] = []
    for layer in range(layers):
        if layer and training and dropout:
            x = functional.dropout(x, dropout)
        by_direction = []
        for direction in range(directions):
            at = layer * directions + direction
            outputs, state = run_direction(
                step, x, tuple(part[at] for part in initial), weights[at], is_reversed=direction == 1
            )
            by_direction.append(outputs)
            last.append(state)
        x = torch.cat(by_direction, -1) if bidirectional else by_direction[0]
    states = [torch.stack(parts) for parts in zip(*last, strict=True)]
    return (x.transpose(0, 1) if batch_first else x, *states)


def weights_of(parameters: Sequence[Tensor], number: int, has_biases: bool) -> Iterator[Weights]:
    """The parameters of each layer, where a bidirectional layer counts as two."""
    each = len(parameters) // number
    for start in range(0, len(parameters), each):
        group = parameters[start : start + each]
        biases = group[2:4] if has_biases else (None, None)
        rest = group[4:] if has_biases else group[2:]
        yield Weights(*group[:2], *biases, *rest)


def run_direction(
    step: Step, x: Tensor, state: State, weights: Weights, *, is_reversed: bool
) -> tuple[Tensor, State]:
    """The outputs [steps, batch, outputs] and the last state of one layer in one direction."""
    steps = int(x.shape[0])
    projected = weights.project_input(x.flatten(0, 1)).unflatten(0, (steps, x.shape[1]))
    outputs = []
    for at in reversed(range(steps)) if is_reversed else range(steps):
        state = step(projected[at], state, weights)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if is_reversed else outputs), state


class StepByStep(TorchFunctionMode):
    """Computes recurrent layers with selected weights by operators of single time steps.

    Args:
        model: the captured model.
        names: names of the selected parameters.
        whole: layers that keep torch's operators, with reasons.

    Attributes:
        captured: operator calls of each layer computed step by step, by the name of its module.
        whole: layers with selected weights that keep torch's operators, with reasons.
        steps_left: number of further time steps that may be captured.
        has_packed: whether the model packed sequences.
    """

    def __init__(self, model: nn.Module, names: frozenset[str], reasons: Mapping[str, str]) -> None:
        super().__init__()
        self.model, self.names = model, names
        self.captured: dict[str, list[Called]] = {}
        self.whole_reasons = dict(reasons)
        self.names_by_identity: dict[int, str] = {}
        self.steps_left, self.has_packed = MOST_STEPS, False

    def __enter__(self) -> "StepByStep":
        # An export replaces parameters by other tensors before it runs the model.
        named = self.model.named_parameters(remove_duplicate=False)
        self.names_by_identity = {id(parameter): name for name, parameter in reversed(list(named))}
        self.captured, self.steps_left, self.has_packed = {}, MOST_STEPS, False
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.has_packed |= func in PACKING
        if func not in LAYERS and func not in CELLS:
            return func(*args, **kwargs)
        layer = self.layer_of(func, args)
        if layer is None or layer in self.whole_reasons:
            return func(*args, **kwargs)
        if reason := refusal(func, args, kwargs, self.steps_left):
            self.whole_reasons[layer] = reason
            return func(*args, **kwargs)
        self.steps_left -= steps_of_call(func, args)
        self.captured.setdefault(layer, []).append(Called.of(func, args, self.names_by_identity))
        return run_layer(LAYERS[func], *args) if func in LAYERS else run_cell(CELLS[func], *args)

    def layer_of(self, func: Any, args: Sequence[Any]) -> str | None:
        """The module of the selected weights among an operator's arguments; None without selected weights."""
        parameters = (
            args[2:] if func in CELLS else (p for arg in args[2:4] if isinstance(arg, list) for p in arg)
        )
        names = (self.names_by_identity.get(id(parameter)) for parameter in parameters)
        weight = next((name for name in names if name in self.names), None)
        return None if weight is None else weight.rpartition(".")[0]


def refusal(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], steps_left: int) -> str:
    """The reason why a recurrent operator is not computed step by step, "" otherwise."""
    if kwargs:
        return f"{func.__name__} has keyword arguments"
    if func in CELLS:
        return ""
    if len(args) != ARGUMENTS or isinstance(args[3], list | tuple):
        return PACKED
    if steps_of_call(func, args) > steps_left:
        return (
            f"a graph holds {MOST_STEPS} time steps at most, those of all layers and directions counted, and captures "
            "each of them"
        )
    return ""


def steps_of_call(func: Any, args: Sequence[Any]) -> Any:
    """The time steps of an operator, over all layers and directions; 0 for a cell, a step of its model's loop."""
    if func in CELLS:
        return 0
    x, layers, bidirectional, batch_first = args[0], args[4], args[7], args[8]
    return x.shape[1 if batch_first else 0] * layers * (2 if bidirectional else 1)


def selected_weights(model: nn.Module, request: ApplyRequest) -> frozenset[str]:
    """The matrices among the parameters made sparse by rules, under all of their names."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    names = set[str]()
    for position, rule in enumerate(request.recipe.rules):
        passed = request.pruning.passed.get(position, {})
        names |= {name for name in selected(model, rule) if name not in passed}
    return frozenset(name for name in names if parameters[name].dim() == MATRIX)


def settle(make: Callable[[StepByStep], Draft], model: nn.Module, request: ApplyRequest) -> Draft:
    """The draft with recurrent layers step by step where kernels compute products of their weights.

    Args:
        make: function that captures the model within a mode and runs all passes.
        model: the source model.
        request: settings of `apply`.

    Raises:
        CaptureError: with `strict`, a layer cannot be captured step by step.
    """
    names = selected_weights(model, request)
    mode = StepByStep(model, names, {})
    try:
        draft = make(mode)
        lost = reasons_left(draft, mode.captured)
        lost |= slower(draft, mode.captured, lost)
    except CaptureError as error:
        if names and (mode.has_packed or PACKED in mode.whole_reasons.values()):
            raise CaptureError(f"{PACKED}; {error}") from error
        if not mode.captured:
            raise
        lost = dict.fromkeys(mode.captured, f"it cannot be captured step by step: {error}")
    if lost:
        mode = StepByStep(model, names, mode.whole_reasons | lost)
        draft = make(mode)
    draft.captured.whole_layers = dict(mode.whole_reasons)
    report_whole(draft, mode.whole_reasons, refused=mode.whole_reasons.keys() - lost.keys())
    if mode.captured or mode.whole_reasons or mode.has_packed:
        draft.unchanged = None
    return draft


def reasons_left(draft: Draft, layers: Iterable[str]) -> dict[str, str]:
    """The layers no kernel computes a product of, with reasons."""
    read = [leaf for node in draft.graph.nodes if is_call(node) for leaf in node.all_input_nodes]
    sparse = {str(leaf.target).rpartition(".")[0] for leaf in read if is_marked(leaf)}
    reasons_of = {}
    for layer in layers:
        if layer not in sparse:
            reasons = (entry.reason for entry in draft.report.dense if entry.scope.partition("@")[0] == layer)
            reasons_of[layer] = next(reasons, "no kernel computes its products")
    return reasons_of


def slower(draft: Draft, captured: Mapping[str, Sequence[Called]], lost: Collection[str]) -> dict[str, str]:
    """The layers for which torch's operators are faster, with reasons, except layers lost already."""
    reasons = {}
    for layer, calls in captured.items():
        outcome = timed_layer(draft, layer, calls) if layer not in lost else None
        if outcome is not None and outcome.name:
            reasons[layer] = f"torch's {calls[0].function.__name__} is faster: {described_times(outcome)}"
        elif outcome is not None:
            entry = next(
                (e for e in draft.report.regions if layer in (s.partition("@")[0] for s in e.scopes)), None
            )
            notes = [] if entry is None else entry.notes
            notes.append(f"{layer or draft.report.model}: {described_times(outcome)}")
    return reasons


def timed_layer(draft: Draft, layer: str, calls: Sequence[Called]) -> Winner | None:
    """Times of steps and torch's operators; None for modules with more than a layer.

    None as well if the recipe makes the choice.
    """
    module, options = draft.model.get_submodule(layer), draft.recipe.compile
    weights = [n for n in draft.graph.find_nodes(op="get_attr") if str(n.target).rpartition(".")[0] == layer]
    is_free = all(mark.format == "auto" for n in weights if (mark := info(n).mark) is not None)
    if not is_free or options.memory == "compact" or not options.allows("torch"):
        return None
    return timed_steps(draft, layer, calls) if isinstance(module, nn.RNNBase | nn.RNNCellBase) else None


def report_whole(draft: Draft, reasons: Mapping[str, str], refused: Collection[str]) -> None:
    """Reports the recurrent operators of a graph that read sparse weights, with one warning.

    Args:
        draft: draft after all passes.
        reasons: reason why a layer is not captured step by step, by layer.
        refused: layers with a reason other than speed.

    Raises:
        CaptureError: with `strict`, a layer is refused.
    """
    layers = dict[str, str]()
    for node in draft.graph.nodes:
        if operator_name(node) in RECURRENT and any(is_marked(leaf) for leaf in node.all_input_nodes):
            layer = scope(node)
            reason = reasons.get(layer.partition("@")[0], "none of its matrices is selected by a rule")
            draft.report.left_dense(node.name, operator_name(node), layer, reason)
            layers[layer] = reason
            if draft.is_strict and layer in refused:
                raise CaptureError(f"{layer or draft.report.model} stays dense: {reason}")
    for reason in dict.fromkeys(layers.values()):
        names = fold([layer or draft.report.model for layer, why in layers.items() if why == reason])
        draft.report.warnings.append(f"the recurrent layers {', '.join(names)} stay dense: {reason}")


def is_marked(node: fx.Node) -> bool:
    """Whether a node is a parameter made sparse by a rule."""
    return node.op == "get_attr" and isinstance(info(node).mark, Mark)


def report_refused(report: Report, model: nn.Module, request: ApplyRequest, reason: str) -> None:
    """Reports the recurrent layers with selected weights in a model that cannot be captured."""
    layers = {name.rpartition(".")[0] for name in selected_weights(model, request)}
    for name, module in model.named_modules():
        if name in layers and isinstance(module, nn.RNNBase | nn.RNNCellBase):
            report.left_dense(name or report.model, type(module).__name__, name, reason)
