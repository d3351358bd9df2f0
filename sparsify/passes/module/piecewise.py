"""Calls that no graph holds, run in pieces: the graphs that Dynamo finds between graph breaks.

In: a `SparseModule` with a model that prints, or calls `tensor.item()`. Out: `pieces.run(module, mode, args, kwargs)`,
the code of the source model with its pieces in kernels; a report row for each piece, with the reason of the break.
Higher layers inject the compiler that finds pieces, as `ApplyRequest.pieces`. The source model runs where Dynamo fails,
where each call has other pieces, and where pieces are slower.
"""

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import torch
from torch import nn
from torch.utils import _pytree as pytree

from sparsify import options as settings
from sparsify.errors import CaptureError, RecipeError, VerificationError
from sparsify.passes.capture import calls
from sparsify.passes.capture.draft import kept_buffers
from sparsify.passes.capture.shell import Modes, ModulePairs, is_lent, modes, share_tensors
from sparsify.passes.module.check.operator_graph import seconds
from sparsify.passes.module.check.silent_prints import SILENT
from sparsify.passes.module.check.undo_writes import Buffers, versions
from sparsify.passes.module.check.verify import (
    Exact,
    compare_gradients,
    gradients,
    pairs,
    precision,
    require_close,
    rounding_error,
    trained_tensors,
)
from sparsify.passes.module.weights.sparse_parameters import as_dense
from sparsify.passes.rules.mark import rule_error
from sparsify.progress import stage
from sparsify.report import PieceEntry, Report
from sparsify.storage.own_memory import runs_natively
from sparsify.storage.subclass.trained_masks import entries

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

TURNS: Final = 5
# Ratios of times below the limit are noise.
NOISE: Final = 1.05


class PieceKey(NamedTuple):
    """A graph of Dynamo, equal in all processes.

    Attributes:
        text: text of the graph.
        inputs: positions of the inputs among the placeholders.
        members: names of the parameters and buffers.
        numbers: values of numbers that are constants.
        trainable: whether sparse parameters get gradients.
    """

    text: str
    inputs: tuple[int, ...]
    members: tuple[str, ...]
    numbers: tuple[float, ...]
    trainable: bool


class Compiler(Protocol):
    """A compiler that cuts the code of a model into pieces.

    Attributes:
        trainable: whether sparse parameters of the next call get gradients.
        has_data_sizes: whether operators such as `x[mask]` are part of pieces.
    """

    trainable: bool
    has_data_sizes: bool

    def finding(self) -> AbstractContextManager[Any]:
        """A context that searches for pieces: `reports` covers pieces found or met since its start."""

    def compiled(self, model: nn.Module) -> Callable[..., Any]:
        """The model with pieces in kernels, which are compiled at their first call."""

    def looking(self) -> AbstractContextManager[Any]:
        """The context for a call of the unmodified model, before its pieces are found."""

    def compiling(self) -> AbstractContextManager[Any]:
        """The context in which calls find their pieces."""

    def count(self) -> int:
        """The number of graphs found so far."""

    def are_stored(self) -> bool:
        """Whether all pieces of the present search are those of a folder, which were timed before."""

    def storable(self) -> list[tuple[PieceKey, Any]]:
        """The pieces of all calls without trained weights, with keys that are equal in all processes."""

    def reports(self) -> list[tuple[PieceEntry, Report | None]]:
        """The entry of each piece, with the report of its kernels if the piece has regions."""


class KeptMirror:
    """A mirror of the source model, reused across calls while the source model has the same parts.

    Args:
        module: the sparse model.
        mode: mode of the mirror.
        compiler: compiler of the mirror's pieces, None to run the mirror eagerly.
    """

    def __init__(self, module: "SparseModule", mode: Modes, compiler: Compiler | None) -> None:
        self.source = module._source
        self.mirror = module._weights.mirror(mode, is_isolated=False, to_dense=as_dense)
        model = self.mirror.model
        self.run: Callable[..., Any] = model if compiler is None else compiler.compiled(model)
        self.parts = [part for part, _, _ in self.mirror.pairs]
        self.copies = [copy for _, copy, _ in self.mirror.pairs]
        self.buffers = Buffers(self.copies)
        self.note()

    def note(self) -> None:
        """Records the present attributes of both models as equal."""
        self.mirror.pairs = [(part, copy, dict(vars(copy))) for part, copy, _ in self.mirror.pairs]
        self.part_attributes, self.copy_attributes = attributes(self.parts), attributes(self.copies)

    def is_current(self, source: nn.Module) -> bool:
        """Whether the source model still has the recorded attributes, parameters and modules."""
        return source is self.source and are_same(attributes(self.parts), self.part_attributes)

    def hand_on(self) -> None:
        """Copies the attributes set by a call to the source model."""
        if not are_same(attributes(self.copies), self.copy_attributes):
            self.mirror.write_back()
            self.note()

    def take_back(self) -> None:
        """Discards the attributes set by a call, which the source model never gets."""
        for _, copy, before in self.mirror.pairs:
            attributes_now = vars(copy)
            if attributes_now.keys() != before.keys() or not are_same(
                [attributes_now[name] for name in before], [*before.values()]
            ):
                attributes_now.clear()
                attributes_now.update(before)


def run_uncaptured(module: "SparseModule", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The source model's result for an uncaptured call, by a kept mirror where modes differ.

    No mirror of packed weights is kept: it would hold dense copies.
    """
    weights, source, captures = module._weights, module._source, module._captures
    pairs = captures.module_pairs
    if pairs is None or not pairs.are_current(source):
        pairs = captures.module_pairs = ModulePairs(source, module)
    if weights.packed_forms or weights.trained or pairs.are_lent():
        return module._run_source(args, kwargs)
    if not weights.is_own and pairs.are_in_same_modes():
        result = calls.run_source(source, args, kwargs)
    else:
        current_modes = modes(module)
        standing = captures.standing.get(current_modes)
        if standing is None or not standing.is_current(source):
            with weights.lock:
                standing = captures.standing[current_modes] = KeptMirror(module, current_modes, None)
        try:
            result = calls.run_source(standing.run, args, kwargs)
        finally:
            standing.hand_on()
    if pairs.are_lent():  # the model has replaced a buffer, as `self.count = self.count + 1` does
        share_tensors(module, source)
    return result


def attributes(modules: Sequence[nn.Module]) -> list[Any]:
    """The attributes, parameters and children of modules, in order."""
    result: list[Any] = []
    for module in modules:
        attributes_of = vars(module)
        result += attributes_of.values()
        result += attributes_of["_parameters"].values()
        result += attributes_of["_modules"].values()
    return result


def are_same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two sequences hold the same objects."""
    return len(left) == len(right) and all(map(operator.is_, left, right))


class Pieces:
    """The pieces of a model, for all kinds of calls that run in pieces.

    Args:
        compiler: compiler of the pieces.

    Attributes:
        standing: mirror that runs the code, by modes.
    """

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.standing: dict[Modes, KeptMirror] = {}

    def run(self, module: "SparseModule", mode: Modes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call; the source model's where a caller lends the model other tensors.

        Where the compiler fails, the source model makes the call, from buffers restored to their earlier state.

        Raises:
            CaptureError: the failed call has written into parameters or arguments.
        """
        source = module._source
        if is_lent(source, module):
            return module._run_source(args, kwargs)
        standing = self.standing.get(mode)
        if standing is None or not standing.is_current(source):
            with module._weights.lock:
                standing = self.standing[mode] = KeptMirror(module, mode, self.compiler)
        self.compiler.trainable = module._request.is_trainable(mode[0])
        drawn, before = torch.get_rng_state(), standing.buffers.noted()
        written_values = [*source.parameters(), *pytree.tree_leaves((args, kwargs))]
        numbers = versions(written_values)
        try:
            with self.compiler.compiling():
                result = calls.run_source(standing.run, args, kwargs)
        except Exception as error:  # of the model, or of the compiler, which re-raises errors of its code
            failure = error
        except BaseException:
            standing.hand_on()
            raise
        else:
            standing.hand_on()
            if before.replaced():
                share_tensors(module, source)
            return result
        standing.take_back()
        before.restore()
        torch.set_rng_state(drawn)
        if versions(written_values) != numbers:
            self.leave(module, mode)
            raise CaptureError(
                f"torch.compile fails in a call that has written into parameters or arguments: {first_line(failure)}",
                "make the call once more, from what they were before: the source model runs from now on",
            ) from failure
        result = module._run_source(args, kwargs)
        if before.replaced():
            share_tensors(module, source)
        self.leave(module, mode)
        module._notices.warn(
            f"torch.compile fails for a call: {first_line(failure)}; the source model runs from now on"
        )
        return result

    def leave(self, module: "SparseModule", mode: Modes) -> None:
        """The source model runs calls in a mode from now on."""
        module._captures.leave_pieces(mode)
        module._call_index.clear()


def piecewise(module: "SparseModule", call: calls.Call, mode: Modes, why: str) -> Report | str:
    """The report of the pieces that compute calls like `call`, or the reason for none, "" if disabled.

    Args:
        why: reason why the model cannot be captured whole.
    """
    request = module._request
    if request.pieces is None or request.has_masks:
        return ""
    refusals = []
    pieces = module._captures.pieces
    for compiler in request.pieces(module) if pieces is None else [pieces.compiler]:
        try:
            with compiler.finding(), SILENT:
                largest = tried(module, compiler, call, mode)
        except RecipeError:
            raise
        except Exception as error:  # the compiler may raise any exception: the source model ran
            refusals.append(first_line(error))
            continue
        report = report_of(module, compiler, why)
        require_matches(module, report)
        report.largest_error = largest
        module._captures.pieces = pieces or Pieces(compiler)
        return report
    return "; ".join(dict.fromkeys(refusals))


def tried(module: "SparseModule", compiler: Compiler, call: calls.Call, mode: Modes) -> float | None:
    """The largest difference of the pieces from the source model for a call; None if not compared.

    Raises:
        Exception: raised by the compiler.
        CaptureError: no piece has a region, pieces differ from call to call, or the source model is faster.
        VerificationError: the results differ.
    """
    stage("finding the pieces that torch.compile captures")
    request, largest = module._request, None
    compiler.trainable = request.is_trainable(mode[0])
    trains = compiler.trainable and torch.is_grad_enabled()
    parameters = trained_tensors(module, call) if trains else []
    mirror = module._weights.mirror(mode, module, to_dense=as_dense)
    pieces, signature = compiler.compiled(mirror.model), module._signature

    def densely() -> Any:
        return calls.run_call(mirror.model, signature, calls.copied(call))

    def by_pieces() -> Any:
        with compiler.compiling():
            return calls.run_call(pieces, signature, calls.copied(call))

    with kept_buffers(module._source), torch.random.fork_rng(devices=[]):
        with torch.no_grad(), compiler.looking():
            densely()
        seconds(by_pieces, parameters)
        if not any(entry.regions for entry, _ in compiler.reports()):
            notes = "".join(f"; {entry.name}: {entry.note}" for entry, _ in compiler.reports() if entry.note)
            raise CaptureError(
                f"none of the {compiler.count()} pieces that torch.compile finds has a region{notes}"
            )
        if request.verify:
            largest = difference(module, call, mode, (densely, by_pieces), parameters)
        count = compiler.count()
        seconds(by_pieces, parameters)
        if compiler.count() > count:
            raise CaptureError("torch.compile finds other pieces in each call")
        tensors = [*module._source.parameters(), *call.tensors(module._matrices)]
        is_timed = settings.current().tune_seconds > 0 and not compiler.are_stored()
        if is_timed and runs_natively(tensors):
            ways = (densely, by_pieces)
            taken = [[seconds(way, parameters) for way in ways] for _ in range(TURNS + 1)][1:]
            source, in_kernels = (min(times) for times in zip(*taken, strict=True))
            if in_kernels > NOISE * source:
                raise CaptureError(
                    f"they take {1e3 * in_kernels:.3g} ms, the source model {1e3 * source:.3g} ms"
                )
    return largest


def difference(
    module: "SparseModule",
    call: calls.Call,
    mode: Modes,
    runs: tuple[Callable[[], Any], Callable[[], Any]],
    parameters: list[torch.Tensor],
) -> float | None:
    """The largest difference of results and gradients; None for models that draw random numbers.

    Runs without the modes of `verify.compare`, under which Dynamo compiles nothing.

    Args:
        module, call, mode: the compared model and call.
        runs: dense model and model in pieces.
        parameters: tensors whose gradients are compared.

    Raises:
        VerificationError: a difference is beyond the limits, and rounding does not explain it.
    """
    dense, sparse = runs
    torch.manual_seed(0)
    state = torch.get_rng_state()
    with torch.set_grad_enabled(bool(parameters)):
        expected = dense()
        if not torch.equal(state, torch.get_rng_state()):
            return None
        actual = sparse()
    sparse_gradients = gradients(actual, parameters) if parameters else ()
    usual = gradients(expected, parameters) if parameters else ()
    try:
        return largest_difference(module, (expected, actual), (usual, sparse_gradients), parameters)
    except VerificationError as error:
        if module._request.pruning.taken:
            raise
        # Gradients removed by a normalisation are cancelling sums: nothing but rounding errors.
        try:
            exact, limits = Exact(module, call, mode), module._request.recipe.verify
            with torch.set_grad_enabled(bool(parameters)):
                results = (actual, expected, exact())
            largest = rounding_error(*results, (), limits)
            if parameters:
                results = sparse(), dense(), exact()
                largest = max(largest, rounding_error(*results, exact.tensors, limits, parameters))
            return largest
        except Exception:  # model code without float64 support may raise anything
            raise error from None


def largest_difference(
    module: "SparseModule",
    results: tuple[Any, Any],
    pulled: tuple[Sequence[torch.Tensor | None], Sequence[torch.Tensor | None]],
    parameters: Sequence[torch.Tensor],
) -> float:
    """The largest difference between two results, and between their gradients.

    Raises:
        VerificationError: a difference is beyond the limits.
    """
    expected, actual = results
    limits = module._request.recipe.verify
    if parameters:  # sums of more terms
        limits = limits.model_copy(update={"rtol": 10 * limits.rtol, "atol": 10 * limits.atol})
    coarsest = max(map(precision, [*module._source.parameters(), *pytree.tree_leaves(expected)]), default=0.0)
    largest = 0.0
    for name, want, have in pairs(expected, actual):
        largest = max(largest, require_close(f"output{name}", want, have, limits, coarsest))
    if not parameters:
        return largest
    pruned = pruned_places(module, parameters)
    dense_gradients = [
        gradient if gradient is None or at not in pruned else gradient * entries(parameters[at])
        for at, gradient in enumerate(pulled[0])
    ]
    return max(largest, compare_gradients(dense_gradients, pulled[1], limits, coarsest))


def pruned_places(module: "SparseModule", parameters: Sequence[torch.Tensor]) -> set[int]:
    """The positions of parameters whose zeros get no gradient."""
    names = {name for weights in module._request.pruning.taken.values() for name in weights}
    parameter_ids = {
        id(p) for name, p in module._source.named_parameters(remove_duplicate=False) if name in names
    }
    return {at for at, parameter in enumerate(parameters) if id(parameter) in parameter_ids}


def report_of(module: "SparseModule", compiler: Compiler, why: str) -> Report:
    """The report of a model in pieces; a rule matches if it matches in any piece."""
    report = module._request.report(type(module._source).__name__)
    report.warnings.append(why)
    for entry, piece_report in compiler.reports():
        report.pieces.append(entry)
        if piece_report is None:
            continue
        report.regions += [
            replace(region, name=f"{entry.name}.{region.name}") for region in piece_report.regions
        ]
        report.dense += [replace(dense, node=f"{entry.name}.{dense.node}") for dense in piece_report.dense]
        report.conversions += piece_report.conversions
        report.warnings += [text for text in piece_report.warnings if text not in report.warnings]
        for at, rule in enumerate(piece_report.rules):
            if at == len(report.rules):
                report.rules.append(replace(rule, matched=list(rule.matched)))
            else:
                entry_of = report.rules[at]
                entry_of.matched += [name for name in rule.matched if name not in entry_of.matched]
    return report


def require_matches(module: "SparseModule", report: Report) -> None:
    """Raises where a rule matches nothing in the pieces of a model.

    Raises:
        RecipeError: names a rule without a match in any piece.
    """
    recipe = module._request.recipe
    for rule, entry in zip(recipe.rules, report.rules, strict=True):
        if not (rule.optional or entry.matched or entry.note):
            targets = ", ".join(map(repr, rule.targets))
            raise rule_error(
                recipe,
                rule,
                f"{entry.rule} matches nothing: {targets} in the pieces of {report.model} that torch.compile finds; "
                "`optional: true` lets it match nothing",
            )


def first_line(error: Exception) -> str:
    """The first line of an error's text; a compiler's wrapper is replaced by the wrapped error."""
    error = getattr(error, "inner_exception", error)
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
