"""Variants of a model: graphs for one mode and input structure each, and the lookup of calls.

In: a captured graph after all passes, `captures.add(like, variant)`. Out: `variant.fits(shapes)`, and `variant.run`
after compilation; `captures.fitting(like, shapes)` for calls of a mode and structure; for repeated kinds of calls the
variant by argument keys, found by `CallIndex` without flattening the call.
"""

import copy
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from sparsify.compiler.ir.memo import REMEMBERED
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.capture.calls import SPARSE_LAYOUTS, Call, CallShape
from sparsify.passes.capture.captured import Captured
from sparsify.passes.capture.shell import Modes, ModulePairs
from sparsify.passes.emit.mask_gradients import is_kept_sparse, is_sparse
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import is_mutating, overwritten
from sparsify.passes.operands.content_memo import SparseInputs
from sparsify.report import Report
from sparsify.runtime.peak import Peak
from sparsify.storage.own_memory import PLAIN
from sparsify.storage.tensor import SparseTensor

if TYPE_CHECKING:
    from sparsify.passes.module.check.operator_graph import OperatorGraph


@dataclass
class Variant:
    """One graph of a model: for one mode and one structure of inputs.

    Attributes:
        is_plain: whether the graph returns the model's output itself; otherwise the leaves of its output class.
        run: compiled graph, a function of the module and its inputs.
        eager: function of the inputs, for real tensors.
        code: source text of `run`.
        masked: graph of the model with the recipe's attention patterns, and the draws of kernels that drop edge
            weights; None without either.
        written: positions of inputs that the compiled graph overwrites.
        contiguous: positions of inputs that the compiled graph requires to be contiguous.
        operators: torch's operators in place of kernels, for calls where they are faster; None without a choice.
        direct: `eager` if it returns the model's output for all fitting calls, and no region caches operands.
        general: later variant that may hold for the same calls, compared at the next one; None without.
    """

    captured: Captured
    report: Report
    regions: list[RegionCall]
    is_plain: bool
    run: Callable[..., Any] | None = None
    eager: Callable[..., Any] | None = None
    code: str = ""
    fitting: set[Any] = field(default_factory=set)
    masked: fx.Graph | None = None
    written: list[int] = field(default_factory=list)
    contiguous: list[int] = field(default_factory=list)
    operators: "OperatorGraph | None" = None
    direct: Callable[..., Any] | None = None
    general: "Variant | None" = None

    def copied(self) -> "Variant":
        """A copy for another module: a copied graph, not compiled yet."""
        captured = copy.copy(self.captured)
        captured.ones = dict(captured.ones)
        captured.graph = fx.Graph()
        captured.graph.output(captured.graph.graph_copy(self.captured.graph, {}))
        report = copy.deepcopy(self.report)
        operators = None if self.operators is None else self.operators.copied()
        return Variant(captured, report, self.regions, self.is_plain, masked=self.masked, operators=operators)

    def masked_result(self, source: nn.Module, tensors: Sequence[torch.Tensor]) -> Any:
        """The dense model's result with the patterns of rules and the draws of kernels."""
        assert self.masked is not None, "only graphs with patterns or draws of kernels ask for this"
        names = {str(node.target) for node in self.masked.find_nodes(op="get_attr")}
        parameters = {name: self.captured.tensor(source, name) for name in names}
        result = fx.GraphModule(parameters, self.masked)(*tensors)
        return pytree.tree_unflatten(result, self.captured.output)

    def fits(self, shapes: tuple[Any, ...]) -> bool:
        """`admits`, remembered."""
        if shapes in self.fitting:
            return True
        if not self.admits(shapes):
            return False
        if len(self.fitting) >= REMEMBERED:
            self.fitting.clear()
        self.fitting.add(shapes)
        return True

    def admits(self, shapes: tuple[Any, ...]) -> bool:
        """Whether tensors of some shapes fit the captured extents."""
        sizes: dict[str, int] = {}
        ones: list[str] = []
        for shape, extents in zip(shapes, self.captured.extents, strict=True):
            for size, extent in zip(shape, extents, strict=True):
                if isinstance(extent, int):
                    if size != extent:
                        return False
                    continue
                if size < 2:  # 0 and 1 are special to export
                    if size < 1 or not self.captured.ones:
                        return False
                    ones.append(extent)
                if sizes.setdefault(extent, size) != size:
                    return False
        if ones and not self.captured.holds_for_ones(ones, sizes):
            return False
        return self.captured.holds is None or self.captured.holds(sizes)

    def writes(self) -> bool:
        """Whether a node of the graph overwrites a tensor, possibly one of the call."""
        return any(is_mutating(node) for node in self.captured.graph.nodes)

    def written_inputs(self) -> list[int]:
        """The positions of inputs that the graph overwrites."""
        places = self.captured.graph.find_nodes(op="placeholder")
        written = overwritten(self.captured.graph)
        return [position for position, node in enumerate(places) if node in written]

    def input_names(self) -> list[str]:
        """The names of the graph's tensor inputs, as in the model's forward."""
        places = self.captured.graph.find_nodes(op="placeholder")
        return [str(info(node).input_name or node.target) for node in places]

    @property
    def takes_any(self) -> bool:
        """Whether tensors with fitting shapes may have any strides and share memory."""
        return not self.written and not self.contiguous

    def takes(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether tensors with fitting shapes have the memory layout that the graph assumes."""
        return self.takes_any or (self.is_laid_out(tensors) and not self.mixes(tensors))

    def is_laid_out(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the tensors that the graph requires to be contiguous are."""
        return all(tensors[position].is_contiguous() for position in self.contiguous)

    def mixes(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether an overwritten input of a call shares memory with another input."""
        memory = [tensor.untyped_storage().data_ptr() for tensor in tensors]
        return any(memory.count(memory[position]) > 1 for position in self.written)

    def pruned(self) -> set[str]:
        """The names of weights stored without zeros, whose zeros get no gradient."""
        weights = self.captured.graph.find_nodes(op="get_attr")
        return {str(node.target) for node in weights if is_sparse(info(node).mark) and is_kept_sparse(node)}

    def varying(self) -> int:
        """The number of variable extents of the input tensors."""
        return sum(not isinstance(extent, int) for extents in self.captured.extents for extent in extents)

    def timed(self, run: Callable[[], Any], repeats: int, most_seconds: float = inf) -> None:
        """Writes the median time of every region over runs into the report, and the memory of the last.

        Args:
            run: function that computes the variant.
            repeats: number of runs; fewer if they take longer than `most_seconds`.
        """
        for region in self.regions:
            region.times_us = []
        try:
            begun = time.perf_counter()
            with torch.no_grad():
                for _ in range(repeats - 1):
                    if time.perf_counter() - begun > most_seconds:
                        break
                    run()
                with Peak() as peak:
                    run()
            self.report.peak_bytes = peak.bytes
        finally:
            taken = {region.name: region.times_us or [] for region in self.regions}
            for region in self.regions:
                region.times_us = None
        for entry in self.report.regions:
            if times := sorted(taken.get(entry.name, [])):
                entry.measured_us = times[len(times) // 2]


def pruned_among(
    parameters: Sequence[torch.Tensor], variants: Iterable[Variant], model: nn.Module
) -> set[int]:
    """The positions of the parameters that a variant stores without zeros."""
    names = {name for variant in variants for name in variant.pruned()}
    named_parameters = model.named_parameters(remove_duplicate=False)
    pruned_ids = {id(weight) for name, weight in named_parameters if name in names}
    return {position for position, weight in enumerate(parameters) if id(weight) in pruned_ids}


def return_plainly(output: pytree.TreeSpec, graphs: Iterable[fx.Graph]) -> bool:
    """Makes graphs return the model's output instead of its leaves, if its containers are plain."""
    kinds = {part.type for part in parts_of(output)} - {None}
    if not kinds <= {tuple, list, dict}:
        return False
    for graph in graphs:
        node = graph.output_node()
        node.args = (pytree.tree_unflatten(list(node.args[0]), output),)  # type: ignore[arg-type]
    return True


def parts_of(spec: pytree.TreeSpec) -> Iterator[pytree.TreeSpec]:
    """A tree and all of its subtrees."""
    yield spec
    for child in spec.children():
        yield from parts_of(child)


# Key of calls that may share a graph: modes, and the structure of the arguments.
Likeness = tuple[Modes, CallShape]


@dataclass
class Captures:
    """Variants in the order of capture, and refused calls.

    Attributes:
        entries: variants with the calls they hold for; variants of equal calls differ in extents.
        refused: reasons why calls, and all equal ones, are not captured.
        varying: names of integers with several values so far: symbols of later graphs.
        pieces: runner of refused calls in pieces.
        piecewise: reports of refused calls that run in pieces.
        standing: mirrors of the source model that run all other refused calls, by modes.
        module_pairs: module pairs of the source model and the sparse model.
    """

    entries: list[tuple[Likeness, Variant]] = field(default_factory=list)
    refused: dict[Likeness, str] = field(default_factory=dict)
    varying: set[str] = field(default_factory=set)
    pieces: Any = None
    piecewise: dict[Likeness, Report] = field(default_factory=dict)
    standing: dict[Modes, Any] = field(default_factory=dict)
    module_pairs: ModulePairs | None = None

    def __len__(self) -> int:
        """The number of times a model was captured, or refused to be."""
        return len(self.entries) + len(self.refused)

    def __iter__(self) -> Iterator[Variant]:
        return (variant for _, variant in self.entries)

    def add(self, like: Likeness, variant: Variant) -> None:
        """A further variant."""
        self.entries.append((like, variant))

    def have_varied(self, shape: CallShape) -> bool:
        """Whether a call is new and differs from an earlier one in integers alone, which vary from now on."""
        shapes = [other for _, other in (*(like for like, _ in self.entries), *self.refused)]
        if shape in shapes:
            return False
        varied = next(filter(None, map(shape.integers_unlike, shapes)), set[str]())
        self.varying |= varied
        return bool(varied)

    def constants(self) -> dict[str, Tensor]:
        """The tensors created by captures, by their names in the sparse model."""
        return {name: constant for variant in self for name, constant in variant.captured.constants.items()}

    def forget(self) -> None:
        """No captures any more, as if none had been made."""
        self.entries.clear()
        self.refused.clear()
        self.piecewise.clear()
        self.standing.clear()
        self.pieces = self.module_pairs = None

    def alike(self, like: Likeness) -> list[Variant]:
        """The variants for calls of a kind, in the order of capture."""
        return [variant for other, variant in self.entries if other == like]

    def fitting(self, like: Likeness, shapes: tuple[Any, ...]) -> Variant | None:
        """The first variant for calls of a kind with tensors of some shapes."""
        return next((variant for variant in self.alike(like) if variant.fits(shapes)), None)

    def shown(self, modes: Modes) -> Variant | None:
        """The most general variant of a mode: the most variable extents, and no dependence on earlier calls."""
        ranked = [
            ((not shape.has_past, variant.varying()), variant)
            for (mode, shape), variant in self.entries
            if mode == modes
        ]
        return max(ranked, key=lambda pair: pair[0], default=(None, None))[1]

    def may_write(self, modes: Modes) -> bool:
        """Whether calls in a mode may overwrite their arguments; true before the first capture."""
        variants = [variant for (mode, _), variant in self.entries if mode == modes]
        return not variants or self.has_refused(modes) or any(variant.writes() for variant in variants)

    def has_refused(self, modes: Modes) -> bool:
        """Whether a call in a mode could not be captured."""
        return any(mode == modes for mode, _ in self.refused)

    def report_in(self, modes: Modes) -> Report | None:
        """The report of the first calls in a mode that run in pieces."""
        return next((report for (mode, _), report in self.piecewise.items() if mode == modes), None)

    def leave_pieces(self, modes: Modes) -> None:
        """The source model runs refused calls in a mode from now on."""
        self.piecewise = {like: report for like, report in self.piecewise.items() if like[0] != modes}

    def traced(self, modes: Modes, key: Any, shapes: tuple[Any, ...]) -> Variant | None:
        """The first variant for calls with the structure `key`, with tensors of some shapes; nothing is memoized."""
        for (mode, shape), variant in self.entries:
            if variant.captured.is_granted:  # a failed assertion would end the call of a trace
                continue
            if mode == modes and shape.key == key and variant.admits(shapes):
                return variant
        return None

    def are_refused(self, modes: Modes, key: Any) -> bool:
        """Whether calls with the structure `key` could not be captured."""
        return any(mode == modes and shape.key == key for mode, shape in self.refused)


MOST: Final = 64
TRAINING: Final = operator.attrgetter("training")
CONSTANTS: Final = frozenset({bool, int, str, type(None)})
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Latest:
    """A call of dense tensors in main memory: modes of the modules; class, dtype and shape of each tensor; variant."""

    modes: list[bool]
    tensors: tuple[tuple[Any, torch.dtype, torch.Size], ...]
    variant: Variant


class CallIndex:
    """The variants of recent kinds of calls by argument keys, and the refused kinds.

    Arguments are tensors in main memory, sparse matrices, and constants whose equality implies the same value; every
    other call is flattened each time. Sizes are no part of a key: each variant checks its extents.

    Args:
        modules: modules whose modes are part of the key.
        matrices: function that returns the parts of sparse matrices.
    """

    def __init__(self, modules: Sequence[nn.Module], matrices: SparseInputs) -> None:
        self.modules, self.matrices = tuple(modules), matrices
        self.variants: dict[Key, tuple[Variant, ...]] = {}
        self.refused: dict[Key, Modes | None] = {}
        self.latest: Latest | None = None

    def clear(self) -> None:
        """Forgets all calls."""
        self.latest = None
        self.variants.clear()
        self.refused.clear()

    def refuse(self, key: Key, pieces: Modes | None) -> None:
        """Records that uncaptured calls with a key run in the source model, or in its pieces in a mode."""
        if len(self.refused) >= MOST:
            self.refused.clear()
        self.refused[key] = pieces

    def read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Key, list[torch.Tensor]] | None:
        """The key of a call and the tensors of its graph, `None` for arguments without a key."""
        key: list[Any] = list(map(TRAINING, self.modules))
        if kwargs:
            key.append(tuple(kwargs))
            args = (*args, *kwargs.values())
        tensors: list[torch.Tensor] = []
        for arg in args:
            kind = type(arg)
            if kind is SparseTensor:
                parts = self.matrices(arg)
                key += kind, parts[2].dtype, arg.dim()
                tensors += parts
            elif kind in PLAIN and arg.is_cpu:
                key += arg.dtype, arg.layout, arg.dim()
                if arg.layout in SPARSE_LAYOUTS:
                    tensors += self.matrices(arg)
                else:
                    tensors.append(arg)
            elif kind in CONSTANTS:
                key += kind, arg
            else:
                return None
        return tuple(key), tensors

    def find(self, key: Key, tensors: Sequence[torch.Tensor]) -> Variant | None:
        """The first variant for calls with a key that fits the sizes of the tensors."""
        shapes = tuple([tensor.shape for tensor in tensors])
        for variant in self.variants.get(key, ()):
            if variant.fits(shapes):
                return variant
        return None

    def repeated(self, args: Sequence[Any]) -> Variant | None:
        """The variant of the latest call, if these are dense tensors in main memory of the same dtypes and sizes.

        A third of the time of `read` and `find`, which matters to small layers.
        """
        latest = self.latest
        if latest is None or len(args) != len(latest.tensors):
            return None
        for arg, (kind, dtype, shape) in zip(args, latest.tensors):
            if type(arg) is not kind or arg.shape != shape or arg.dtype is not dtype:
                return None
            if arg.layout is not torch.strided or not arg.is_cpu:
                return None
        return latest.variant if list(map(TRAINING, self.modules)) == latest.modes else None

    def note(self, key: Key, args: Sequence[Any], variant: Variant) -> None:
        """Records the latest call with its key, if all arguments are dense tensors."""
        if all(type(arg) in PLAIN and arg.layout is torch.strided for arg in args):
            tensors = tuple([(type(arg), arg.dtype, arg.shape) for arg in args])
            self.latest = Latest(list(key[: len(self.modules)]), tensors, variant)

    def remember(
        self,
        key: Key,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        call: Call,
        variants: Sequence[Variant],
    ) -> None:
        """Records the variants of calls whose leaves are their arguments in order, unless layouts need a check.

        Variants that may be replaced at their next call are not recorded.
        """
        if call.shape.sizes() or any(variant.general is not None for variant in variants):
            return
        arguments = (*args, *kwargs.values())
        is_flat = len(arguments) == len(call.values) and all(map(operator.is_, arguments, call.values))
        if is_flat and all(variant.takes_any for variant in variants):
            if len(self.variants) >= MOST:
                self.variants.clear()
            self.variants[key] = tuple(variants)
