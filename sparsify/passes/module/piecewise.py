"""Calls of a sparse model that no graph holds, by pieces: the graphs that Dynamo finds between breaks.

In: a `SparseModule` whose model prints, or asks for `tensor.item()`. Out: `pieces.run(module, mode, args, kwargs)`, the
code of the source model with its pieces in kernels; a row of the report for each piece, with the reason of the break.

The rooms above know what finds the pieces, as `Asked.pieces`. The source model runs where Dynamo fails, where each call
has other pieces, and where pieces take longer.
"""

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch import nn
from torch.utils import _pytree as pytree

from sparsify import options as settings
from sparsify.errors import CaptureError, RecipeError, VerificationError
from sparsify.passes.capture import calls
from sparsify.passes.capture.draft import kept_buffers
from sparsify.passes.capture.shell import Modes, ModulePairs, is_lent, modes, share_again
from sparsify.passes.module.operator_graph import seconds
from sparsify.passes.module.silent_prints import SILENT
from sparsify.passes.module.sparse_parameters import as_dense
from sparsify.passes.module.undo_writes import Buffers, versions
from sparsify.passes.module.verify import (
    Exact,
    compare_gradients,
    gradients,
    pairs,
    precision,
    require_close,
    rounding_error,
    trained_tensors,
)
from sparsify.passes.rules.mark import rule_error
from sparsify.progress import stage
from sparsify.report import PieceEntry, Report
from sparsify.storage.own_memory import runs_natively
from sparsify.storage.trained_masks import entries

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

TURNS: Final = 5
# So much of the time of the source model is noise.
NOISE: Final = 1.05


class Compiler(Protocol):
    """A compiler that cuts the code of a model into pieces.

    Attributes:
        trainable: whether sparse parameters of the next call get gradients.
    """

    trainable: bool

    def finding(self) -> AbstractContextManager[Any]:
        """The context of a search for pieces: reports are of those that are found or met from here on."""

    def compiled(self, model: nn.Module) -> Callable[..., Any]:
        """The model with pieces in kernels, which are made when they are called first."""

    def looking(self) -> AbstractContextManager[Any]:
        """The context for a call of the model as it is, before its pieces are found."""

    def compiling(self) -> AbstractContextManager[Any]:
        """The context in which calls find their pieces."""

    def count(self) -> int:
        """The number of graphs that were found so far."""

    def reports(self) -> list[tuple[PieceEntry, Report | None]]:
        """The entry of each piece, with the report of its kernels where it has regions."""


class KeptMirror:
    """A mirror of the source model, kept over calls while the source has the same parts.

    Args:
        module: the sparse model.
        mode: of the mirror.
        compiler: of its pieces, None where it runs as it is.
    """

    def __init__(self, module: "SparseModule", mode: Modes, compiler: Compiler | None) -> None:
        self.source = module._source
        self.mirror = module._weights.mirror(mode, is_isolated=False, made=as_dense)
        model = self.mirror.model
        self.run: Callable[..., Any] = model if compiler is None else compiler.compiled(model)
        self.parts = [part for part, _, _ in self.mirror.pairs]
        self.copies = [copy for _, copy, _ in self.mirror.pairs]
        self.buffers = Buffers(self.copies)
        self.note()

    def note(self) -> None:
        """Takes the attributes that both have now for the same."""
        self.mirror.pairs = [(part, copy, dict(vars(copy))) for part, copy, _ in self.mirror.pairs]
        self.known, self.known_copies = attributes(self.parts), attributes(self.copies)

    def is_current(self, source: nn.Module) -> bool:
        """Whether the source model has the attributes, parameters and modules that it had."""
        return source is self.source and are_same(attributes(self.parts), self.known)

    def hand_on(self) -> None:
        """Gives the source model the attributes that a call has set."""
        if not are_same(attributes(self.copies), self.known_copies):
            self.mirror.write_back()
            self.note()

    def take_back(self) -> None:
        """Forgets the attributes that a call has set: the source model never gets them."""
        for _, copy, known in self.mirror.pairs:
            own = vars(copy)
            if own.keys() != known.keys() or not are_same([own[name] for name in known], [*known.values()]):
                own.clear()
                own.update(known)


def run_whole(module: "SparseModule", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The source model's result for a call that was not captured, by a mirror that stays where modes differ.

    None stays of weights that are packed: it would hold them densely.
    """
    weights, source, captures = module._weights, module._source, module._captures
    beside = captures.beside
    if beside is None or not beside.are_current(source):
        beside = captures.beside = ModulePairs(source, module)
    if weights.held or weights.trained or beside.are_lent():
        return module._run_source(args, kwargs)
    if not weights.is_own and beside.are_in_same_modes():
        result = calls.run_source(source, args, kwargs)
    else:
        wanted = modes(module)
        standing = captures.standing.get(wanted)
        if standing is None or not standing.is_current(source):
            with weights.lock:
                standing = captures.standing[wanted] = KeptMirror(module, wanted, None)
        try:
            result = calls.run_source(standing.run, args, kwargs)
        finally:
            standing.hand_on()
    if beside.are_lent():  # the model has replaced a buffer, as `self.count = self.count + 1` does
        share_again(module, source)
    return result


def attributes(modules: Sequence[nn.Module]) -> list[Any]:
    """The attributes, parameters and children of modules, in order."""
    found: list[Any] = []
    for module in modules:
        own = vars(module)
        found += own.values()
        found += own["_parameters"].values()
        found += own["_modules"].values()
    return found


def are_same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two sequences hold the same objects."""
    return len(left) == len(right) and all(map(operator.is_, left, right))


class Pieces:
    """The pieces of a model, for all kinds of calls that run by them.

    Args:
        compiler: of the pieces.

    Attributes:
        standing: by modes the mirror whose code runs.
    """

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.standing: dict[Modes, KeptMirror] = {}

    def run(self, module: "SparseModule", mode: Modes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call; the source model's where a caller lends the model other tensors.

        Where the compiler fails, the source model makes the call, from buffers as they were before.

        Raises:
            CaptureError: the call that failed has written into parameters or arguments.
        """
        source = module._source
        if is_lent(source, module):
            return module._run_source(args, kwargs)
        standing = self.standing.get(mode)
        if standing is None or not standing.is_current(source):
            with module._weights.lock:
                standing = self.standing[mode] = KeptMirror(module, mode, self.compiler)
        self.compiler.trainable = module._asked.is_trainable(mode[0])
        drawn, before = torch.get_rng_state(), standing.buffers.noted()
        kept = [*source.parameters(), *pytree.tree_leaves((args, kwargs))]
        numbers = versions(kept)
        try:
            with self.compiler.compiling():
                result = calls.run_source(standing.run, args, kwargs)
        except Exception as error:  # of the model, or of the compiler, which raises what its code does
            failure = error
        except BaseException:
            standing.hand_on()
            raise
        else:
            standing.hand_on()
            if before.replaced():
                share_again(module, source)
            return result
        standing.take_back()
        before.restore()
        torch.set_rng_state(drawn)
        if versions(kept) != numbers:
            self.leave(module, mode)
            raise CaptureError(
                f"torch.compile fails in a call that has written into parameters or arguments: {first_line(failure)}",
                "make the call once more, from what they were before: the source model runs from now on",
            ) from failure
        result = module._run_source(args, kwargs)
        if before.replaced():
            share_again(module, source)
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
    """The report of the pieces that compute calls like `call` from now on; why there are none otherwise, "" unsought.

    Args:
        why: the model cannot be captured whole.
    """
    asked = module._asked
    if asked.pieces is None or asked.has_masks:
        return ""
    refusals = []
    known = module._captures.pieces
    for compiler in asked.pieces(module) if known is None else [known.compiler]:
        try:
            with compiler.finding(), SILENT:
                largest = tried(module, compiler, call, mode)
        except RecipeError:
            raise
        except Exception as error:  # whatever the compiler raises: the source model ran
            refusals.append(first_line(error))
            continue
        report = report_of(module, compiler, why)
        require_matches(module, report)
        report.largest_error = largest
        module._captures.pieces = known or Pieces(compiler)
        return report
    return "; ".join(dict.fromkeys(refusals))


def tried(module: "SparseModule", compiler: Compiler, call: calls.Call, mode: Modes) -> float | None:
    """The largest difference of the pieces from the source model for a call; None where they are not compared.

    Raises:
        Exception: what the compiler raises.
        CaptureError: no piece has a region, pieces differ from call to call, or the source model is faster.
        VerificationError: the results differ.
    """
    stage("finding the pieces that torch.compile captures")
    asked, largest = module._asked, None
    compiler.trainable = asked.is_trainable(mode[0])
    trains = compiler.trainable and torch.is_grad_enabled()
    parameters = trained_tensors(module, call) if trains else []
    apart = module._weights.mirror(mode, module, made=as_dense)
    pieces, signature = compiler.compiled(apart.model), module._signature

    def densely() -> Any:
        return calls.run_call(apart.model, signature, calls.copied(call))

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
        if asked.verify:
            largest = difference(module, call, mode, (densely, by_pieces), parameters)
        count = compiler.count()
        seconds(by_pieces, parameters)
        if compiler.count() > count:
            raise CaptureError("torch.compile finds other pieces in each call")
        tensors = [*module._source.parameters(), *call.tensors(module._matrices)]
        if settings.current().tune_seconds > 0 and runs_natively(tensors):
            ways = (densely, by_pieces)
            taken = [[seconds(way, parameters) for way in ways] for _ in range(TURNS + 1)][1:]
            source, own = (min(times) for times in zip(*taken, strict=True))
            if own > NOISE * source:
                raise CaptureError(f"they take {1e3 * own:.3g} ms, the source model {1e3 * source:.3g} ms")
    return largest


def difference(
    module: "SparseModule",
    call: calls.Call,
    mode: Modes,
    runs: tuple[Callable[[], Any], Callable[[], Any]],
    parameters: list[torch.Tensor],
) -> float | None:
    """The largest difference of results and gradients; None for a model that draws numbers, which are not repeated.

    Without the modes of `verify.compare`, in which Dynamo has nothing compiled.

    Args:
        module, call, mode: what is compared.
        runs: the dense model and the one in pieces.
        parameters: whose gradients are compared, too.

    Raises:
        VerificationError: a difference is beyond the limits, and is not one of rounding.
    """
    dense, sparse = runs
    torch.manual_seed(0)
    state = torch.get_rng_state()
    with torch.set_grad_enabled(bool(parameters)):
        expected = dense()
        if not torch.equal(state, torch.get_rng_state()):
            return None
        found = sparse()
    own = gradients(found, parameters) if parameters else ()
    usual = gradients(expected, parameters) if parameters else ()
    try:
        return largest_difference(module, (expected, found), (usual, own), parameters)
    except VerificationError as error:
        if module._asked.pruning.taken:
            raise
        # Gradients of what a normalisation takes away are sums that cancel: rounding is all there is of them.
        try:
            exact, limits = Exact(module, call, mode), module._asked.recipe.verify
            with torch.set_grad_enabled(bool(parameters)):
                results = (found, expected, exact())
            largest = rounding_error(*results, (), limits)
            if parameters:
                results = sparse(), dense(), exact()
                largest = max(largest, rounding_error(*results, exact.tensors, limits, parameters))
            return largest
        except Exception:  # whatever code raises that is not for float64
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
    expected, found = results
    limits = module._asked.recipe.verify
    if parameters:  # sums of more terms
        limits = limits.model_copy(update={"rtol": 10 * limits.rtol, "atol": 10 * limits.atol})
    coarsest = max(map(precision, [*module._source.parameters(), *pytree.tree_leaves(expected)]), default=0.0)
    largest = 0.0
    for name, want, have in pairs(expected, found):
        largest = max(largest, require_close(f"output{name}", want, have, limits, coarsest))
    if not parameters:
        return largest
    pruned = pruned_places(module, parameters)
    wanted = [
        gradient if gradient is None or at not in pruned else gradient * entries(parameters[at])
        for at, gradient in enumerate(pulled[0])
    ]
    return max(largest, compare_gradients(wanted, pulled[1], limits, coarsest))


def pruned_places(module: "SparseModule", parameters: Sequence[torch.Tensor]) -> set[int]:
    """The places of parameters whose zeros get no gradient."""
    names = {name for found in module._asked.pruning.taken.values() for name in found}
    known = {id(p) for name, p in module._source.named_parameters(remove_duplicate=False) if name in names}
    return {at for at, parameter in enumerate(parameters) if id(parameter) in known}


def report_of(module: "SparseModule", compiler: Compiler, why: str) -> Report:
    """The report of a model in pieces; rules match where they match in one of them."""
    report = module._asked.report(type(module._source).__name__)
    report.warnings.append(why)
    for entry, found in compiler.reports():
        report.pieces.append(entry)
        if found is None:
            continue
        report.regions += [replace(region, name=f"{entry.name}.{region.name}") for region in found.regions]
        report.dense += [replace(dense, node=f"{entry.name}.{dense.node}") for dense in found.dense]
        report.conversions += found.conversions
        report.warnings += [text for text in found.warnings if text not in report.warnings]
        for at, rule in enumerate(found.rules):
            if at == len(report.rules):
                report.rules.append(replace(rule, matched=list(rule.matched)))
            else:
                known = report.rules[at]
                known.matched += [name for name in rule.matched if name not in known.matched]
    return report


def require_matches(module: "SparseModule", report: Report) -> None:
    """Raises where a rule matches nothing in the pieces of a model.

    Raises:
        RecipeError: it may match nothing nowhere; the text says which.
    """
    recipe = module._asked.recipe
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
    """The first line of the text of an error, of the error behind it where a compiler has wrapped one."""
    error = getattr(error, "inner_exception", error)
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
