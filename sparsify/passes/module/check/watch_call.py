"""A call of a model, operator by operator: the time of each, and the sparse operands of regions.

In: a `Variant`, the tensors of a call. Out: `watched(...)`, with a span for each operator. Each operator is timed by
itself, so the whole takes longer than a call.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import fx, nn
from torch.profiler import ProfilerActivity, profile, record_function

from sparsify.page.contents import Span
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.call.region_operator import is_call
from sparsify.passes.capture.shell import with_copied_buffers
from sparsify.passes.graph.node_info import call_of
from sparsify.passes.graph.operators import operator_name, scope
from sparsify.passes.module.variants.variant import Variant
from sparsify.passes.operands.content_memo import reading_once

# Number of runs; the fastest is shown.
RUNS: Final = 5
# How long two models are timed in turns.
SECONDS: Final = 2.0

Call = Callable[[], Any]


@dataclass
class Watched:
    """Observations of a call: its spans, and the program operands of each region by region name."""

    spans: list[Span] = field(default_factory=list)
    operands: dict[str, list[Any]] = field(default_factory=dict)


class Watcher(fx.Interpreter):
    """Runs a graph node by node and keeps how long each takes."""

    def __init__(self, root: nn.Module, graph: fx.Graph, *, keeps_operands: bool = False) -> None:
        super().__init__(root, graph=graph)
        self.record = Watched()
        self.keeps_operands = keeps_operands

    def run_node(self, n: fx.Node) -> Any:
        """The result of a node; operators are timed."""
        if n.op != "call_function":
            return super().run_node(n)
        region = call_of(n) if is_call(n) else None
        if region is not None and self.keeps_operands and region.library is None:
            args, _ = self.fetch_args_kwargs_from_env(n)
            self.record.operands[region.name] = list(region.made(args[1:]) or ())
        name = region.name if region is not None else operator_name(n)
        with record_function(f"{name}: {region.program.statements[0]}" if region is not None else name):
            started = time.perf_counter_ns()
            result = super().run_node(n)
            ended = time.perf_counter_ns()
        region_name = region.name if region is not None else ""
        self.record.spans.append(Span(name, started / 1e3, (ended - started) / 1e3, scope(n), region_name))
        return result


def watched(module: nn.Module, variant: Variant, tensors: Sequence[torch.Tensor]) -> Watched:
    """The fastest of several runs of a call, each with copies of the tensors that the call writes in place."""
    graph, runs = variant.captured.graph, []
    first = Watcher(with_copied_buffers(module), graph, keeps_operands=True)
    _run(first, variant, tensors)
    for _ in range(RUNS):
        one = Watcher(with_copied_buffers(module), graph)
        _run(one, variant, tensors)
        runs.append(one.record.spans)
    return Watched(
        _from_zero(min(runs, key=lambda spans: sum(span.us for span in spans))), first.record.operands
    )


def _run(watcher: Watcher, variant: Variant, tensors: Sequence[torch.Tensor]) -> None:
    """One run; the state of the random generator is restored."""
    written = set(variant.written)
    inputs = [tensor.clone() if at in written else tensor for at, tensor in enumerate(tensors)]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        reading_once(watcher.run, inputs)


def _from_zero(spans: Sequence[Span]) -> list[Span]:
    """Spans shifted so that the first begins at 0."""
    start = min((span.start_us for span in spans), default=0.0)
    return [Span(s.name, s.start_us - start, s.us, s.where, s.region) for s in spans]


def traced(module: nn.Module, variant: Variant, tensors: Sequence[torch.Tensor]) -> profile:
    """The profile of a warm call, with the names of regions and operators around torch's events."""
    _run(Watcher(with_copied_buffers(module), variant.captured.graph), variant, tensors)
    watcher = Watcher(with_copied_buffers(module), variant.captured.graph)
    events = profile(activities=[ProfilerActivity.CPU], acc_events=True)
    with events:
        _run(watcher, variant, tensors)
    return events


def labelled(regions: Mapping[str, RegionCall], run: Call) -> profile:
    """The profile of a warm call, with names and programs around the events of regions."""
    events = profile(activities=[ProfilerActivity.CPU], acc_events=True)
    try:
        for name, region in regions.items():
            region.label = f"{name}: {region.program.statements[0]}"
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            run()
            with events:
                run()
    finally:
        for region in regions.values():
            region.label = ""
    return events


def module_spans(model: nn.Module, run: Callable[[], Any]) -> tuple[list[Span], dict[str, float]]:
    """The spans of innermost modules in the fastest of several runs, and each module's milliseconds.

    Args:
        model: the dense model.
        run: function that calls the model.
    """
    best: list[Span] = []
    with hooked(model) as events:
        for _ in range(RUNS + 1):
            events.clear()
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                run()
            total = sum(span.us for span in events if span.where == "")
            if not best or total < sum(span.us for span in best if span.where == ""):
                best = list(events)
    times: dict[str, float] = {}
    for span in best:
        times[span.where] = times.get(span.where, 0.0) + span.us / 1e3
    leaves = {name for name, part in model.named_modules() if not any(True for _ in part.children())}
    return _from_zero([span for span in best if span.where in leaves]), times


def in_turns(first: Call, second: Call) -> tuple[Any, Any, list[tuple[float, float]]]:
    """The results of two calls, and interleaved timings in us: at least five, more within two seconds."""
    times: list[tuple[float, float]] = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        drawn = torch.get_rng_state()
        expected = first()
        torch.set_rng_state(drawn)
        actual = second()
        end = time.perf_counter() + SECONDS
        while len(times) < RUNS or time.perf_counter() < end:
            times.append((_us(first), _us(second)))
    return expected, actual, times


def _us(call: Call) -> float:
    """The microseconds of a call."""
    started = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - started) / 1e3


@contextmanager
def hooked(model: nn.Module) -> Iterator[list[Span]]:
    """A context in which each call of a module adds a span to the list."""
    events: list[Span] = []
    started: list[float] = []

    def begin(*_: Any) -> None:
        started.append(time.perf_counter_ns() / 1e3)

    def end(name: str, kind: str, *_: Any) -> None:
        began = started.pop()
        events.append(Span(kind, began, time.perf_counter_ns() / 1e3 - began, name))

    hooks = []
    for name, part in model.named_modules():
        hooks.append(part.register_forward_pre_hook(begin))
        hooks.append(part.register_forward_hook(partial(end, name, type(part).__name__)))
    try:
        yield events
    finally:
        for hook in hooks:
            hook.remove()


def arguments_of(inputs: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Positional and named arguments of a call, of a tensor, a sequence or a mapping."""
    if isinstance(inputs, Mapping):
        return (), inputs
    return (tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)), {}
