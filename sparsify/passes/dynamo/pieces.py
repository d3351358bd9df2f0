"""The pieces of a model that no single graph holds: Dynamo's graphs, each captured as a whole model.

In: a sparse model whose source model prints between two layers. Out: `compilers(module)`, whose `compiled(model)` runs
the code of the model with a `SparseModule` in place of each graph that has regions and is faster with kernels.
"""

import functools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, fx, nn
from torch._dynamo import config as dynamo
from torch._dynamo import guards
from torch._dynamo.eval_frame import _optimize
from torch._dynamo.types import ConvertFrameReturn

from sparsify import options as settings
from sparsify.errors import CaptureError, RecipeError, SparsifyError
from sparsify.passes.capture import calls
from sparsify.passes.dynamo.torch_compile import Compiled, is_cut, packed_or_copied, part_of
from sparsify.passes.module.check.operator_graph import seconds
from sparsify.passes.module.piecewise import PieceKey
from sparsify.passes.module.prune_and_capture import Source, sparse_module
from sparsify.progress import working
from sparsify.report import PieceEntry, Report
from sparsify.runtime import confined
from sparsify.storage.own_memory import runs_natively

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

TURNS: Final = 5
NOISE: Final = 1.05
# Budget of captures in seconds; later pieces run the model's own operators.
CAPTURING_S: Final = 30.0
# Time limit of a search for pieces, after which the source model runs.
FINDING_S: Final = 60.0
MESSAGES: Final = frozenset(("op:message_passing",))
# Substrings of the names of functions that sum over edges, or make sparse tensors.
SCATTERS: Final = (
    "index_add",
    "index_put",
    "index_reduce",
    "scatter",
    "setitem",
    "segment",
    "bag",
    "sparse",
    "spmm",
)
# Lists of more numbers are no part of a piece.
MOST_NUMBERS: Final = 256
# An option of later versions of torch.
OWN_CACHE: Final = "isolate_recompiles"
# Operators with data-dependent result sizes are part of pieces in the first attempt, between pieces in the second.
WITH_DATA_SIZES: Final = (True, False)
# Code objects by which torch calls a module: their callees are frames of the model.
MODULE_CALLS: Final = frozenset((nn.Module._call_impl.__code__, nn.Module._wrapped_call_impl.__code__))
# Dynamo's function that times the guards of compiled code, for its log.
GUARD_TIMER: Final = "profile_guard_manager"
# Loggers of graph breaks, and of model errors in a trace.
LOGGERS: Final = ("torch._dynamo", "torch._subclasses.fake_tensor")


def compilers(module: "SparseModule") -> Iterator["PieceCompiler"]:
    """The compilers that cut a model into pieces, fewest pieces or a folder's first; equal pieces are captured once."""
    chosen: dict[Any, Chosen] = {}
    clock = Clock()
    known = module._request.known_pieces
    order = WITH_DATA_SIZES if known is None or known.has_data_sizes else WITH_DATA_SIZES[::-1]
    for has_data_sizes in order:
        yield PieceCompiler(module, has_data_sizes, chosen, clock)


class Clock:
    """The time of the search for a model's pieces, over all compilers.

    Attributes:
        capturing: seconds spent in captures of pieces.
        until: end of the present search; None outside of a search.
    """

    def __init__(self) -> None:
        self.capturing = 0.0
        self.until: float | None = None
        self.left = FINDING_S

    @contextmanager
    def finding(self) -> Iterator[None]:
        """The context of a search."""
        start = time.monotonic()
        self.until = start + self.left
        try:
            yield
        finally:
            self.left -= time.monotonic() - start
            self.until = None

    def require_time(self) -> None:
        """Raises where a search takes too long.

        Raises:
            CaptureError: the time limit has passed.
        """
        if self.until is not None and time.monotonic() > self.until:
            raise CaptureError(f"its pieces are not all found in {FINDING_S:.0f} s")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A piece in its executable form.

    Attributes:
        entry: row of the report.
        run: function of the piece's values.
        packed, versions: names of the packed parameters, and their versions when packed.
        report: report of its kernels, None for a piece without kernels.
        module: the piece as a sparse model, None for a piece without kernels.
        key: the graph; None for a graph with bodies, which no text holds.
        is_stored: whether the piece is one of a folder.
    """

    entry: PieceEntry
    run: Callable[..., Any]
    packed: Sequence[str] = ()
    versions: Sequence[int] = ()
    report: Report | None = None
    module: "SparseModule | None" = None
    key: PieceKey | None = None
    is_stored: bool = False


class PieceCompiler:
    """`torch.compile` with the pieces of a model.

    Args:
        module: the sparse model.
        has_data_sizes: whether operators such as `x[mask]` are part of pieces.
        chosen: captured pieces by key.
        clock: time of the search.
    """

    def __init__(
        self, module: "SparseModule", has_data_sizes: bool, chosen: "dict[Any, Chosen]", clock: Clock
    ) -> None:
        request = module._request
        self.request = replace(
            request,
            recipe=request.recipe.with_optional_rules(),
            dynamic=None if request.dynamic is None else (),
            inplace=False,
            pieces=None,
            known_pieces=None,
            is_quiet=True,
        )
        self.roundings, self.known = module._weights.roundings, request.known_pieces
        self.has_data_sizes, self.trainable = has_data_sizes, False
        self.pieces: list[Piece] = []
        self.current, self.all_keys = dict[Any, None](), dict[Any, None]()
        self.choices, self.clock = chosen, clock
        # One context for all mirrors of the model, with a cache separate from other models of the class.
        own_cache = {OWN_CACHE: True} if OWN_CACHE in signature(_optimize).parameters else {}
        context: Any = torch._dynamo.optimize(self.piece, dynamic=request.dynamic is None, **own_cache)
        self.long: set[CodeType] = set()
        context.callback = FrameFilter(context.callback, self.long)
        self.context = context

    def finding(self) -> AbstractContextManager[None]:
        """A context that searches for pieces: `reports` covers pieces found or met since its start."""
        self.current.clear()
        return self.clock.finding()

    def looking(self) -> AbstractContextManager[Any]:
        """The context for a call of the unmodified model, before its pieces are found."""
        return LongLists(self.long)

    def piece(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """The function that Dynamo calls with each graph."""
        self.clock.require_time()
        new = Piece(graph, example_inputs, self)
        self.pieces.append(new)
        return new

    def compiled(self, model: nn.Module) -> Callable[..., Any]:
        """The model with pieces in kernels."""
        optimized: Callable[..., Any] = self.context(model)
        return optimized

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """A context in which Dynamo cuts the model into the compiler's pieces."""
        with SILENCED, dynamo.patch(capture_dynamic_output_shape_ops=self.has_data_sizes):
            yield

    def count(self) -> int:
        """The number of graphs found by Dynamo so far."""
        return len(self.pieces)

    def storable(self) -> list[tuple[PieceKey, Chosen]]:
        """The pieces of all calls without trained weights, with the key of each graph."""
        pieces = [self.choices[key] for key in self.all_keys]
        return [(one.key, one) for one in pieces if one.key is not None and not one.key.trainable]

    def are_stored(self) -> bool:
        """Whether all pieces of the present search are those of a folder, which were timed before."""
        return bool(self.current) and all(self.choices[key].is_stored for key in self.current)

    def reports(self) -> list[tuple[PieceEntry, Report | None]]:
        """The entry of each piece, with the report of its kernels if the piece has regions."""
        pieces = [self.choices[key] for key in self.current or self.all_keys]
        return [(replace(one.entry, name=f"piece {n}"), one.report) for n, one in enumerate(pieces, 1)]


class FrameFilter:
    """Dynamo's callback for frames, which skips frames of some functions.

    The functions themselves are not marked: another `torch.compile` traces them.

    Args:
        callback: Dynamo's callback.
        codes: code objects of the skipped functions; may grow.
    """

    def __init__(self, callback: Any, codes: set[CodeType]) -> None:
        functools.update_wrapper(self, callback)  # copies the attributes by which Dynamo finds its cache
        self.callback, self.codes = callback, codes

    def __call__(self, frame: Any, *rest: Any) -> Any:
        """The traced code of a frame, none for a skipped frame."""
        if frame.f_code in self.codes:
            return ConvertFrameReturn(apply_to_code=False)
        with untimed_guards():
            return self.callback(frame, *rest)


def untimed_guards() -> AbstractContextManager[None]:
    """A context in which Dynamo does not time its guards: a timing flushes the caches of the CPU first, 30 ms."""
    if not hasattr(guards, GUARD_TIMER):
        return nullcontext()
    return confined.substituted(guards, GUARD_TIMER, lambda *_: 0.0)


class SilencedLogs:
    """A context in which torch logs no graph breaks; one instance is shared by all threads.

    Log levels set below warnings are kept.
    """

    def __init__(self) -> None:
        self.lock, self.inside = threading.Lock(), 0
        self.levels: list[tuple[logging.Logger, int]] = []

    def __enter__(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside > 1:
                return
            loggers = [
                log for log in map(logging.getLogger, LOGGERS) if log.getEffectiveLevel() >= logging.WARNING
            ]
            self.levels = [(log, log.level) for log in loggers]
            for log in loggers:
                log.setLevel(logging.CRITICAL + 1)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                for log, level in self.levels:
                    log.setLevel(level)


SILENCED: Final = SilencedLogs()


class LongLists:
    """A context that finds functions of a model with long lists of numbers; no piece contains them.

    Dynamo would trace each of the numbers, and retrace for other numbers: `torch.tensor(random.sample(range(n), k))`.
    Under a profiler that Python cannot restore, as `cProfile`, the search is disabled.

    Args:
        codes: receives the code objects of the functions found.
    """

    def __init__(self, codes: set[CodeType]) -> None:
        self.codes = codes

    def __enter__(self) -> None:
        self.before, self.outside = sys.getprofile(), sys._getframe(1)
        if self.before is None or callable(self.before):
            sys.setprofile(self.look)

    def __exit__(self, *_: object) -> None:
        if self.before is None or callable(self.before):
            sys.setprofile(self.before)
        del self.outside

    def look(self, frame: FrameType, event: str, value: Any) -> None:
        """Called by Python with each call and return."""
        if event == "return" and is_long(value):
            self.note(frame.f_back)
        elif (
            event == "c_return" and getattr(value, "__name__", "") == "tolist" and size(value) > MOST_NUMBERS
        ):
            self.note(frame)

    def note(self, frame: FrameType | None) -> None:
        """Records the function of a frame if called, directly or not, by a module of the model."""
        if frame is None or frame.f_code in MODULE_CALLS:
            return
        above = frame.f_back
        while above is not None and above is not self.outside:
            if above.f_code in MODULE_CALLS:
                self.codes.add(frame.f_code)
                return
            above = above.f_back


def size(method: Any) -> int:
    """The number of entries of a bound method's tensor or array."""
    owner = getattr(method, "__self__", None)
    return owner.numel() if isinstance(owner, Tensor) else int(getattr(owner, "size", 0))


def is_long(value: Any) -> bool:
    """Whether a value is a long list of numbers."""
    return type(value) in (list, tuple) and len(value) > MOST_NUMBERS and isinstance(value[0], int | float)


class Piece(Compiled):
    """A Dynamo graph in a model that runs in pieces; its weights have the zeros of the recipe already."""

    def __init__(self, graph: fx.GraphModule, example_inputs: Sequence[Any], owner: PieceCompiler) -> None:
        super().__init__(graph, example_inputs, owner.request.recipe, "eager", {})
        self.owner = owner

    def is_trainable(self, members: Sequence[Tensor]) -> bool:
        """Whether sparse parameters get gradients in a call."""
        return self.owner.trainable

    def versions(self, members: Sequence[Tensor], trainable: bool) -> list[int]:
        """The versions of packed weights; other parameters are read in each call."""
        places = sorted({at for run in self.runs for at in run.places})
        return [members[at]._version for at in places]

    def uncaptured(self) -> Callable[..., Any]:
        """The dense graph."""
        return self.graph

    def chosen_run(self, values: Sequence[Any], trainable: bool) -> tuple[Callable[..., Any], Sequence[str]]:
        """The graph for some parameters, sparse if faster, and the names of the packed parameters."""
        members = {name: values[at] for at, name in self.members.items()}
        key, choices = self.key(members, values, trainable), self.owner.choices
        choice = choices.get(key)
        if choice is None or [*choice.versions] != [members[name]._version for name in choice.packed]:
            name = f"piece {len(choices) + 1}"
            is_new, piece_key = choice is None, self.piece_key(members, values, trainable)
            choice = self.stored(piece_key, members) if is_new and piece_key is not None else None
            if choice is None:
                choice = replace(self.chosen(values, trainable, name), key=piece_key)
            choices[key] = choice
        self.owner.current[key] = self.owner.all_keys[key] = None
        return self.graph if choice.report is None else choice.run, choice.packed

    def key(self, members: Mapping[str, Tensor], values: Sequence[Any], trainable: bool) -> Any:
        """A key equal for graphs with the same function of the same parameters."""
        graph = self.graph.graph
        has_bodies = bool(graph.find_nodes(op="get_attr"))
        numbers = tuple([float(values[at]) for at in self.numbers])
        identities = tuple([(name, id(member)) for name, member in members.items()])
        return (id(graph) if has_bodies else str(graph), tuple(self.inputs), identities, numbers, trainable)

    def piece_key(
        self, members: Mapping[str, Tensor], values: Sequence[Any], trainable: bool
    ) -> PieceKey | None:
        """The key of the graph in a folder; None for a graph with bodies."""
        graph = self.graph.graph
        if graph.find_nodes(op="get_attr"):
            return None
        numbers = tuple([float(values[at]) for at in self.numbers])
        return PieceKey(str(graph), tuple(self.inputs), tuple(members), numbers, trainable)

    def stored(self, key: PieceKey, members: Mapping[str, Tensor]) -> Chosen | None:
        """The piece of a folder with equal weights; None if there is none."""
        owner = self.owner
        found = None
        if owner.known is not None:
            request = replace(owner.request, trainable=key.trainable)
            found = owner.known.find(key, members, request)
        if found is None:
            return None
        entry, module = found
        if module is None:
            return Chosen(entry, self.graph, key=key, is_stored=True)
        # Constants in a folder are computed from any member; a write to one asks for a capture.
        packed = list(members) if module._captures.constants() else packed_or_copied(members, module)
        versions = [members[name]._version for name in packed]
        run = self.kernels(module)
        return Chosen(entry, run, packed, versions, module.report, module, key, is_stored=True)

    def kernels(self, module: "SparseModule") -> Callable[..., Any]:
        """The function of the piece's values by kernels; for a kind of call without a graph in a folder by the piece's
        own operators, with one warning.
        """

        def run(*args: Any) -> Any:
            try:
                return module(*[args[at] for at in self.inputs])
            except CaptureError as error:
                module._notices.warn(f"a piece runs by its own operators: {error}")
                return self.graph(*args)

        return run

    def chosen(self, values: Sequence[Any], trainable: bool, name: str) -> Chosen:
        """The executable form of the piece: the model's own operators after a failed capture."""
        entry = PieceEntry(name, operators(self.graph.graph), 0, reason_of(self.graph))
        if not self.may_be_sparse(values):
            return Chosen(entry, self.graph)
        clock, start = self.owner.clock, time.monotonic()
        clock.require_time()
        if clock.capturing > CAPTURING_S:
            entry.note = f"not captured: earlier pieces took {clock.capturing:.0f} s"
            return Chosen(entry, self.graph)
        try:
            with working(name):
                return self.sparse(values, trainable, entry)
        except RecipeError:
            raise
        except (SparsifyError, RuntimeError, TypeError, ValueError) as error:
            entry.note = str(error).strip().splitlines()[0]
            return Chosen(entry, self.graph)
        finally:
            clock.capturing += time.monotonic() - start

    def may_be_sparse(self, values: Sequence[Any]) -> bool:
        """Whether a rule may match in the piece: message-passing rules need a scatter or a sparse value."""
        rules = self.owner.request.recipe.rules
        if any(rule.prune is not None or not MESSAGES.issuperset(rule.targets) for rule in rules):
            return True
        if any(isinstance(value, Tensor) and calls.is_sparse(value) for value in values):
            return True
        nodes = self.graph.graph.nodes
        return any(node.op == "get_attr" or scatters(node) for node in nodes)

    def sparse(self, values: Sequence[Any], trainable: bool, entry: PieceEntry) -> Chosen:
        """The piece in kernels if it has regions and is faster with kernels.

        Raises:
            SparsifyError: the piece cannot be captured.
        """
        dense = Chosen(entry, self.graph)
        copies = [without_alias(value) for value in values]
        example = tuple([copies[at] for at in self.inputs])
        if not any(isinstance(value, Tensor) for value in example):
            return dense
        members = {name: values[at] for at, name in self.members.items()}
        numbers = {at: float(values[at]) for at in self.numbers}
        part = part_of(self.graph.graph, members, self.inputs, numbers, self.origin).eval()
        call = calls.flatten(calls.signature(part), example, {})
        request = replace(self.owner.request, trainable=trainable)
        module = sparse_module(Source(part, part, call, self.owner.roundings), request)
        regions = len(module.report.regions)
        if not regions:
            return dense

        def run(*args: Any) -> Any:
            return module(*[args[at] for at in self.inputs])

        if entry_note := self.is_slower(run, values, trainable):
            entry.note = entry_note
            return dense
        entry.regions = regions
        packed = packed_or_copied(members, module)
        versions = [members[name]._version for name in packed]
        return Chosen(entry, run, packed, versions, module.report, module)

    def is_slower(self, run: Callable[..., Any], values: Sequence[Any], trainable: bool) -> str:
        """The times of a piece that is slower in kernels, with gradients if trained; "" otherwise."""
        tensors = [value for value in values if isinstance(value, Tensor)]
        if settings.current().tune_seconds <= 0 or not runs_natively(tensors):
            return ""
        members = {id(values[at]) for at in self.members}
        args = [value if id(value) in members else without_alias(value) for value in values]
        trains = trainable and torch.is_grad_enabled()
        leaves = (
            [value for value in args if isinstance(value, Tensor) and value.requires_grad] if trains else []
        )
        with torch.random.fork_rng(devices=[]):
            ways = (lambda: self.graph(*args), lambda: run(*args))
            taken = [[seconds(way, leaves) for way in ways] for _ in range(TURNS + 1)][1:]
        source, kernel_time = (min(times) for times in zip(*taken, strict=True))
        return (
            f"{1e3 * source:.3g} ms, {1e3 * kernel_time:.3g} in kernels"
            if kernel_time > NOISE * source
            else ""
        )


def scatters(node: fx.Node) -> bool:
    """Whether a call of a function may sum over edges, by the name of the function."""
    target = node.target
    name = target if isinstance(target, str) else f"{getattr(target, '__name__', '')} {target}"
    return node.op.startswith("call") and any(part in name for part in SCATTERS)


def without_alias(value: Any) -> Any:
    """A copy of a tensor without autograd history; other values are unchanged."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def operators(graph: fx.Graph) -> int:
    """The number of computing nodes of a graph."""
    return sum(node.op not in ("placeholder", "get_attr", "output") for node in graph.nodes)


def reason_of(graph: fx.GraphModule) -> str:
    """The reason why a graph ends before the model does, with the source line; "" for a complete graph."""
    if not is_cut(graph):
        return ""
    reason: Any = graph.compile_subgraph_reason
    text = str(reason.reason).strip().splitlines()[0]
    frames = list(reason.user_stack or ())
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: {text}" if frames else text
