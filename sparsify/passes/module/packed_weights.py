"""Frozen weights that a model holds packed: dense only while the source model itself runs, is captured or is loaded.

In: a module whose variants read `lin.weight` through kernels alone. Out: `lin.weight` is a `SparseTensor` in their
format, in every module that had the dense parameter.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from sparsify.compiler.ir.dtypes import name_of
from sparsify.errors import DtypeError
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.call.region_operator import is_call
from sparsify.passes.capture.draft import Key, Stored
from sparsify.passes.capture.shell import (
    Modes,
    borrowed,
    is_lent,
    modes,
    owners,
    places,
    renew_flat_weights,
    replace,
    share_again,
    shared_copy,
)
from sparsify.passes.graph.node_info import call_of
from sparsify.passes.module.mirror import Mirror
from sparsify.passes.module.sparse_parameters import as_dense, exchanged, sparse_parameters
from sparsify.passes.module.variant import Variant
from sparsify.passes.operands.cached_operands import MatrixOutput, Structure
from sparsify.passes.operands.convolution_operands import FlatImages, Placed
from sparsify.passes.region.sparse_operand import SCALES
from sparsify.passes.rules.merge_masks import take_masks_away
from sparsify.report import Report, RoundingEntry, WeightEntry
from sparsify.runtime.locks import WEIGHTS
from sparsify.sparsification.rounding import Moved, scales, widened
from sparsify.storage.format import Format
from sparsify.storage.tensor import SparseTensor


def dense_parameter(weight: SparseTensor) -> nn.Parameter:
    """A dense parameter with the entries of a sparse one."""
    return nn.Parameter(weight.detach().to_dense(), requires_grad=weight.requires_grad)


@dataclass(frozen=True)
class Held:
    """How a weight is held packed.

    Attributes:
        spec: of the operand that kernels make of it.
        requires_grad, dtype: of the dense parameter.
    """

    spec: MatrixOutput
    requires_grad: bool
    dtype: torch.dtype

    def pack(self, dense: Tensor, operand: SparseTensor | None = None) -> nn.Parameter:
        """The packed parameter, of the operand where one was made before."""
        return nn.Parameter(self.spec.packed(dense.detach(), operand), requires_grad=False)

    def unpack(self, packed: Tensor, scale: Tensor | None) -> nn.Parameter:
        """The dense parameter, of whole numbers and their scales where it is held so."""
        assert isinstance(packed, SparseTensor), "held weights are sparse"
        found = packed.to_dense()
        dense = found if self.spec.rounds is None else widened(found, scale, self.dtype)
        return nn.Parameter(dense, requires_grad=self.requires_grad)


@dataclass
class Readers:
    """The structures that pack a weight, in all variants.

    Attributes:
        is_shared: whether something needs it dense as well.
        layouts: of the convolutions that read it.
    """

    structures: list[Structure]
    is_shared: bool = False
    layouts: list[FlatImages] = field(default_factory=list)

    @property
    def spec(self) -> MatrixOutput | None:
        """How the weight is read first, `None` where it is needed dense or its transpose is read too."""
        specs = [structure.weight for structure in self.structures if structure.weight is not None]
        return None if self.is_shared or len({spec.transposed for spec in specs}) > 1 else specs[0]

    def beside(self, held: MatrixOutput) -> dict[Format, Structure]:
        """By format those that read the weight in another one than that in which it is held."""
        found: dict[Format, Structure] = {}
        for structure in self.structures:
            if structure.weight is not None and structure.weight.format != held.format:
                found.setdefault(structure.weight.format, structure)
        return found

    @property
    def places(self) -> str:
        """The listed images beside the weight, in words."""
        if not self.layouts or not self.layouts[0].placed.most:
            return ""
        kept = self.layouts[0].placed.kept(layout.example for layout in self.layouts)
        sizes = ["x".join(map(str, grid.extents)) for grid in kept]
        return f", and places in images {', '.join(sizes)} beside"

    def bytes_of_places(self, weight: SparseTensor) -> int:
        """The bytes of that."""
        if not self.layouts:
            return 0
        kept = self.layouts[0].placed.kept(layout.example for layout in self.layouts)
        return sum(grid.bytes_beside(weight) for grid in kept)


def read_weights(model: nn.Module, variants: Iterable[Variant]) -> dict[str, Readers]:
    """By name the parameters that regions of these variants pack."""
    parameters = dict(model.named_parameters())
    found: dict[str, Readers] = {}
    for variant in variants:
        for node in variant.captured.graph.find_nodes(op="get_attr"):
            if node.target in parameters:
                readers = found.setdefault(str(node.target), Readers([]))
                for user in node.users:
                    add_readers(readers, node, user)
    return {name: readers for name, readers in found.items() if readers.structures}


def add_readers(readers: Readers, node: fx.Node, user: fx.Node) -> None:
    """Adds what packs a weight in a region that reads it, or that the weight is needed dense."""
    if not is_call(user):
        readers.is_shared = True
        return
    region: RegionCall = call_of(user)
    for position, argument in enumerate(user.args[1:]):
        if argument is not node:
            continue
        reading = [o.structure for o in region.operands if position in o.leaves and o.structure is not None]
        packing = [structure for structure in reading if structure.weight is not None]
        readers.structures += packing
        readers.layouts += [] if region.layout is None or not packing else [region.layout]
        is_argument = any(operand.argument == position for operand in region.operands)
        readers.is_shared |= is_argument or len(packing) < len(reading)


class Weights:
    """The weights of the source model of a sparse one.

    Args:
        source: the model whose code runs where no variant does; the sparse model shares its parameters.
        is_own: whether `source` may hold packed weights: it is nobody else's, or was given to be changed.
        given: another model, the one that the user gave to be changed; it follows.
        held: by name the weights that `source` holds packed.
        roundings: by name how far weights were moved when they were rounded.

    Attributes:
        trained: the names of parameters of `source` that are sparse and get gradients.
        may_exchange: whether nobody holds the parameters yet, so that others may take their places.
        lock: held while several weights change, or are read that must fit each other.
    """

    lock: Final = WEIGHTS

    def __init__(
        self,
        source: nn.Module,
        is_own: bool,
        given: nn.Module | None = None,
        held: Mapping[str, Held] | None = None,
        roundings: Mapping[str, Moved] | None = None,
    ) -> None:
        self.source, self.is_own, self.given, self.held = source, is_own, given, dict(held or {})
        self.roundings = dict(roundings or {})
        self.placed: dict[str, Placed] = {}
        self.is_followed = False
        self.trained: set[str] = set()
        self.may_exchange = False

    def of(self, source: nn.Module) -> "Weights":
        """The same of a source model that is this one or a copy."""
        found = Weights(source, self.is_own, None, self.held, self.roundings)
        found.trained = set(self.trained)
        return found

    def mirror(
        self,
        wanted: Modes,
        shell: nn.Module | None = None,
        *,
        is_isolated: bool = True,
        made: Callable[[SparseTensor], Tensor] = dense_parameter,
    ) -> Mirror:
        """A mirror of the source model with dense weights, in these modes, with the tensors that `shell` has now.

        Args:
            made: gives the dense tensors of sparse parameters.
        """
        with self.lock:
            packed = [(weight, self.held[name], self.scale(name)) for name, weight in self.packed().items()]
            trained = self.sparse_parameters()
            found = Mirror(self.source, is_isolated=is_isolated)
            found.borrow([] if shell is None else borrowed(self.source, shell))
        dense = {id(weight): how.unpack(weight, scale) for weight, how, scale in packed}
        found.replace(dense | {id(weight): made(weight) for weight in trained.values()})
        found.set_modes(wanted)
        return found

    @contextmanager
    def running(self, shell: nn.Module) -> Iterator[Callable[[nn.Module], nn.Module]]:
        """Within this context what to run in the place of modules of the source model, dense and as `shell` is.

        It has the modes and the tensors of `shell`. Other threads may run the source model, whose modules therefore
        keep theirs. Afterwards `shell` has the buffers that the model has put in the places of others.
        """
        with self.lock:
            is_same_mode = modes(self.source) == modes(shell)
            was_lent = is_lent(self.source, shell)
        if not self.is_own and is_same_mode and not was_lent:
            yield lambda module: module
        else:
            with self.mirrored(shell) as of:
                yield of
        if not was_lent and is_lent(self.source, shell):
            share_again(shell, self.source)

    @contextmanager
    def mirrored(self, shell: nn.Module) -> Iterator[Callable[[nn.Module], nn.Module]]:
        """Within this context the same, of a mirror in any case: no other call meets hooks that it gets."""
        with self.lock:  # the modes of the shell are those of the modules that are mirrored
            found = self.mirror(modes(shell), shell, is_isolated=False, made=as_dense)
        try:
            yield lambda module: found.model if module is self.source else found.of(module)
        finally:
            found.write_back()

    @contextmanager
    def dense(self) -> Iterator[None]:
        """Within this context the weights of the source model are dense; afterwards they are those from before.

        Where some are packed nobody else reads or changes weights meanwhile; callers hold the lock of captures.
        """
        with self.lock if self.held or self.trained else nullcontext():
            packed = self.packed()
            dense: dict[str, Tensor] = {name: self.unpacked(name) for name in packed}
            trained = self.sparse_parameters()
            packed |= trained
            dense |= {name: dense_parameter(weight) for name, weight in trained.items()}
            for name, weight in packed.items():
                replace(self.source, weight, dense[name])
            try:
                yield
            finally:
                for name, weight in packed.items():
                    replace(self.source, dense[name], weight)

    def release(self, variants: Sequence[Variant]) -> None:
        """Unpacks the weights that one of these variants needs dense."""
        readers = read_weights(self.source, variants)
        self.unpack([name for name in self.held if name not in readers or readers[name].spec is None])

    def pack(self, variants: Sequence[Variant]) -> None:
        """Packs the weights that these variants read packed alone.

        The last step of a capture: whatever fails before it, the models have their weights.
        """
        self.exchange(variants)
        readers = read_weights(self.source, variants)
        specs = {name: found.spec for name, found in readers.items() if name not in self.trained}
        wanted = {n: spec for n, spec in specs.items() if spec is not None and n not in self.held}
        if wanted and not self.is_own:
            try:
                self.source, self.is_own = shared_copy(self.source), True
            except Exception as error:  # whatever the modules of the model raise when they are copied
                reason = f"weights are held dense and packed: {type(self.source).__name__} cannot be copied: {error}"
                variants[-1].report.warnings.append(f"{reason}; inplace=True needs no copy")
                wanted = {}
        for name, spec in wanted.items():
            dense = self.source.get_parameter(name)
            held = Held(spec, dense.requires_grad, dense.dtype)
            operands = (structure.operand_of(dense) for structure in readers[name].structures)
            self.hold(name, held, next((o for o in operands if o is not None), None))
            for structure in readers[name].structures:
                structure.memory.clear()
            for layout in readers[name].layouts:
                layout.placed.memory.clear()
        for name, weight in self.packed().items():
            self.pack_beside(name, weight, readers[name])
        self.is_followed = True
        self.follow()
        for variant in variants:
            self.describe(variant.report, readers)

    def exchange(self, variants: Sequence[Variant]) -> None:
        """Puts sparse parameters in the places of those that these variants train and read sparse alone.

        Parameters that are another model's, too, stay the dense ones that both share.
        """
        if not (self.may_exchange and self.is_own):
            return
        for name, (dense, made) in exchanged(self.source, sparse_parameters(self.source, variants)).items():
            replace(self.source, dense, made)
            self.trained.add(name)

    def densify(self) -> None:
        """Puts dense parameters in the places of sparse ones."""
        for weight in self.sparse_parameters().values():
            replace(self.source, weight, dense_parameter(weight))
        self.trained.clear()

    def sparse_parameters(self) -> dict[str, SparseTensor]:
        """The sparse parameters that get gradients, by name; those that somebody replaced are forgotten."""
        if not self.trained:
            return {}
        present: dict[str, Any] = dict(self.source.named_parameters(remove_duplicate=False))
        found = {name: p for name, p in present.items() if name in self.trained and type(p) is SparseTensor}
        self.trained &= found.keys()
        return found

    def pack_beside(self, name: str, weight: SparseTensor, readers: Readers) -> None:
        """Packs a held weight for the readers that want it otherwise, once for each format."""
        for form, first in readers.beside(self.held[name].spec).items():
            for structure in readers.structures:
                if structure.weight is not None and structure.weight.format == form:
                    structure.beside = first.beside
                    structure.memory.clear()
            assert first.weight is not None, "it reads a weight"
            first.packed_operand(first.weight, weight)
        if readers.layouts:
            self.place(name, weight, readers.layouts)

    def place(self, name: str, weight: SparseTensor, layouts: Sequence[FlatImages]) -> None:
        """Lists the places of a weight's entries in the images of all examples, once for each of their sizes."""
        placed = self.placed[name] = layouts[0].placed
        most = weight.numel() * self.held[name].dtype.itemsize - stored_bytes(weight)
        placed.make_room(weight, [layout.example for layout in layouts], most)
        for layout in layouts:
            layout.placed = placed
            placed(weight, layout.example)

    def stored(self, variants: Iterable[Variant]) -> dict[Key, Stored]:
        """How weights are packed that are held so."""
        readers = read_weights(self.source, variants)
        found = {}
        for name, how in self.held.items():
            read = readers.get(name, Readers([]))
            forms = (how.spec.format, *read.beside(how.spec))
            found[name, how.spec.transposed] = Stored(forms, self.bytes_of(name, read))
        return found

    def bytes_of(self, name: str, readers: Readers) -> int:
        """The bytes of a held weight with its scales, and of what these readers have beside it."""
        weight = self.source.get_parameter(name)
        assert isinstance(weight, SparseTensor), "held weights are sparse"
        beside = readers.beside(self.held[name].spec).values()
        others = [s.packed_operand(s.weight, weight) for s in beside if s.weight is not None]
        scale = self.scale(name)
        held = readers.bytes_of_places(weight) + (0 if scale is None else scale.nbytes)
        return held + sum(stored_bytes(one) for one in (weight, *others))

    def hold(self, name: str, how: Held, operand: SparseTensor | None = None) -> None:
        """Puts the packed weight in the place of the dense one, and its scales beside it."""
        dense = self.source.get_parameter(name)
        for module, own in owners(self.source, dense) if how.spec.has_scales else ():
            module._buffers[f"{own}{SCALES}"] = scales(dense.detach())
        replace(self.source, dense, how.pack(dense, operand))
        self.held[name] = how

    def unpacked(self, name: str) -> nn.Parameter:
        """The dense parameter of a packed weight."""
        how = self.held[name]
        return how.unpack(self.source.get_parameter(name), self.scale(name))

    def scale(self, name: str) -> Tensor | None:
        """The scales of the rows of a packed weight that is held as whole numbers."""
        return self.source.get_buffer(f"{name}{SCALES}") if self.held[name].spec.has_scales else None

    def packed(self) -> dict[str, SparseTensor]:
        """The packed weights by name."""
        if not self.held:
            return {}
        present: dict[str, Any] = dict(self.source.named_parameters(remove_duplicate=False))
        found = ((name, present.get(name)) for name in self.held)
        return {name: weight for name, weight in found if isinstance(weight, SparseTensor)}

    def rewrite(self, name: str, dense: Tensor) -> None:
        """Gives a weight the entries of a dense one, packed where it is packed now."""
        weight = self.source.get_parameter(name)
        if isinstance(weight, SparseTensor):
            replace(self.source, weight, dense)
            self.hold(name, self.held[name])
        else:
            weight.detach().copy_(dense.detach())

    def rename(self, before: Mapping[str, SparseTensor]) -> None:
        """Forgets how weights were held that the source model has no more; others may have other names by now."""
        present: dict[str, Any] = dict(self.source.named_parameters(remove_duplicate=False))
        for name, weight in before.items():
            if present.get(name) is not weight:
                how = self.held.pop(name)
                if name in self.placed:
                    self.placed.pop(name).memory.clear()
                other = next((other for other, found in present.items() if found is weight), None)
                if other is not None:
                    self.held[other] = how

    def unpack(self, names: Iterable[str] | None = None) -> dict[str, Held]:
        """Makes weights dense, all of them without `names`; how they were held."""
        released = {}
        for name in list(self.held if names is None else names):
            replace(self.source, self.source.get_parameter(name), self.unpacked(name))
            released[name] = self.held.pop(name)
            if name in self.placed:
                self.placed.pop(name).memory.clear()
        self.follow()
        return released

    def follow(self) -> None:
        """Gives the model that follows the parameters that the source model has now, once one capture succeeded."""
        if self.given is not None and self.is_followed:
            take_masks_away(self.given, self.source)
            share_again(self.given, self.source)

    def describe(self, report: Report, readers: Mapping[str, Readers]) -> None:
        """Writes into the report how the weights are held, and the bytes of all parameters."""
        read = {name: found for name, found in readers.items() if name not in self.trained}
        report.weights = [self.entry(name, found) for name, found in read.items()]
        report.weights += [trained_entry(name, found) for name, found in self.sparse_parameters().items()]
        readers = {**readers, **dict.fromkeys(self.trained, Readers([]))}
        now = sum(entry.bytes_after for entry in report.weights)
        now += sum(stored_bytes(p) for name, p in self.source.named_parameters() if name not in readers)
        saved = sum(entry.bytes_before - entry.bytes_after for entry in report.weights)
        report.parameter_bytes = now + saved, now
        found = self.roundings.items()
        report.roundings = [RoundingEntry(n, m.dtype, m.largest, m.relative) for n, m in found]

    def entry(self, name: str, readers: Readers) -> WeightEntry:
        """How a weight is held that regions pack."""
        weight = self.source.get_parameter(name)
        if isinstance(weight, SparseTensor):
            how = self.held[name]
            others = readers.beside(how.spec)
            form = str(weight.format) + "".join(f", and {other} beside" for other in others)
            form += "" if how.spec.rounds is None else f", {name_of(weight.dtype)}"
            form += readers.places
            after = self.bytes_of(name, readers)
            return WeightEntry(name, form, weight.numel() * how.dtype.itemsize, after)
        before = weight.nbytes
        copies = {id(structure): structure.entry.bytes_after for structure in readers.structures}
        return WeightEntry(name, "dense, and packed beside", before, before + sum(copies.values()))

    def convert(self, fn: Callable[..., Any], recurse: bool) -> None:
        """Conversions such as `.double()`; packed weights are converted packed, rounded ones dense."""
        rounded = self.unpack([name for name, held in self.held.items() if held.spec.rounds is not None])
        if fn(torch.empty(0)).is_meta:  # where no pattern can be
            rounded.clear()
            self.unpack()
            self.densify()
        packed: list[tuple[Tensor, list[tuple[dict[str, Any], str]]]]
        sparse = (*self.packed().values(), *self.sparse_parameters().values())
        packed = [(weight, places(self.source, weight)) for weight in sparse]
        try:
            for _, known in packed:
                for store, name in known:
                    store[name] = None  # torch would swap it, which weak references forbid
            self.source._apply(fn, recurse)
            packed = [
                (nn.Parameter(fn(weight.detach()), requires_grad=weight.requires_grad), known)
                for weight, known in packed
            ]
        finally:
            for weight, known in packed:
                for store, name in known:
                    store[name] = weight
            renew_flat_weights(self.source.modules())
            self.repack(rounded)

    def repack(self, held: Mapping[str, Held]) -> None:
        """Packs weights again that were packed before."""
        for name, how in held.items():
            self.hold(name, dataclasses.replace(how, dtype=self.source.get_parameter(name).dtype))
        self.follow()


def trained_entry(name: str, weight: SparseTensor) -> WeightEntry:
    """How a parameter is held that trains sparse."""
    return WeightEntry(
        name, f"{weight.format}, trains sparse", weight.numel() * weight.dtype.itemsize, stored_bytes(weight)
    )


def dense_state(state: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """The state with dense tensors for the dense parameters of `model`.

    Raises:
        DtypeError: whole numbers whose scales the state has not.
    """
    dense = {
        name: parameter.dtype
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if not isinstance(parameter, SparseTensor)
    }
    found = dict(state)
    for name, value in state.items():
        if isinstance(value, SparseTensor) and name in dense:
            if dense[name].is_floating_point and not value.dtype.is_floating_point:
                raise DtypeError(
                    f"{name} is {value.dtype} in this state, without the scales of its rows",
                    "what state_dict() gives, which is dense",
                )
            found[name] = value.to_dense(dense[name])
    return found


def stored_bytes(tensor: Tensor) -> int:
    """The bytes of a tensor, of a sparse one those of its values and its pattern."""
    if isinstance(tensor, SparseTensor):
        return sum(array.nbytes for array in (tensor._vals, *tensor._pattern.arrays_in_place()))
    return tensor.nbytes
