"""Packed storage of a model's frozen weights: dense only to run, capture or load the source model.

In: a module whose variants read `lin.weight` through kernels alone. Out: `lin.weight` is a `SparseTensor` in the
kernels' format, in every module that had the dense parameter.
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
from sparsify.passes.module.variants.variant import Variant
from sparsify.passes.module.weights.mirror import Mirror
from sparsify.passes.module.weights.sparse_parameters import as_dense, exchanged, sparse_parameters
from sparsify.passes.operands.cached_operands import MatrixOutput, Structure
from sparsify.passes.operands.convolution_operands import FlatImages, Placed
from sparsify.passes.region.sparse_operand import SCALES
from sparsify.report import Report, RoundingEntry, WeightEntry
from sparsify.runtime.locks import WEIGHTS
from sparsify.sparsification.rules.rounding import Moved, scales, widened
from sparsify.storage.format import Format
from sparsify.storage.tensor import SparseTensor


def dense_parameter(weight: SparseTensor) -> nn.Parameter:
    """A dense parameter with the entries of a sparse one."""
    return nn.Parameter(weight.detach().to_dense(), requires_grad=weight.requires_grad)


@dataclass(frozen=True)
class Held:
    """The packed form of a weight.

    Attributes:
        spec: operand that kernels make of the weight.
        requires_grad, dtype: properties of the dense parameter.
    """

    spec: MatrixOutput
    requires_grad: bool
    dtype: torch.dtype

    def pack(self, dense: Tensor, operand: SparseTensor | None = None) -> nn.Parameter:
        """The packed parameter, from an earlier operand if given."""
        return nn.Parameter(self.spec.packed(dense.detach(), operand), requires_grad=False)

    def unpack(self, packed: Tensor, scale: Tensor | None) -> nn.Parameter:
        """The dense parameter, from integers and scales if rounded."""
        assert isinstance(packed, SparseTensor), "held weights are sparse"
        found = packed.to_dense()
        dense = found if self.spec.rounds is None else widened(found, scale, self.dtype)
        return nn.Parameter(dense, requires_grad=self.requires_grad)


@dataclass
class Readers:
    """The structures that pack a weight, in all variants.

    Attributes:
        is_shared: whether a reader needs the weight dense as well.
        layouts: layouts of the convolutions that read the weight.
    """

    structures: list[Structure]
    is_shared: bool = False
    layouts: list[FlatImages] = field(default_factory=list)

    @property
    def spec(self) -> MatrixOutput | None:
        """The form of the weight's first reader, `None` where readers need it dense or in two orientations."""
        specs = [structure.weight for structure in self.structures if structure.weight is not None]
        return None if self.is_shared or len({spec.transposed for spec in specs}) > 1 else specs[0]

    def beside(self, held: MatrixOutput) -> dict[Format, Structure]:
        """The readers of the weight in a format other than the stored one, by format."""
        found: dict[Format, Structure] = {}
        for structure in self.structures:
            if structure.weight is not None and structure.weight.format != held.format:
                found.setdefault(structure.weight.format, structure)
        return found

    @property
    def places(self) -> str:
        """The text of the listed image sizes of the weight."""
        if not self.layouts or not self.layouts[0].placed.most:
            return ""
        kept = self.layouts[0].placed.kept(layout.example for layout in self.layouts)
        sizes = ["x".join(map(str, grid.extents)) for grid in kept]
        return f", and places in images {', '.join(sizes)} beside"

    def bytes_of_places(self, weight: SparseTensor) -> int:
        """The bytes of the listed images."""
        if not self.layouts:
            return 0
        kept = self.layouts[0].placed.kept(layout.example for layout in self.layouts)
        return sum(grid.bytes_beside(weight) for grid in kept)


def read_weights(model: nn.Module, variants: Iterable[Variant]) -> dict[str, Readers]:
    """The readers of the parameters that regions of some variants pack, by name."""
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
    """Adds the structures that pack a weight in a region, or marks the weight as needed dense."""
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
    """The weights of the source model of a sparse model.

    Args:
        source: model whose code runs for calls without a variant; shares its parameters with the sparse model.
        is_own: whether `source` may hold packed weights: an exclusive copy, or a model passed to be changed in place.
        given: separate model passed by the user to be changed in place, kept synchronous.
        held: packed forms of the weights that `source` holds packed, by name.
        roundings: distances by which rounding moved weights, by name.

    Attributes:
        trained: names of sparse parameters of `source` that get gradients.
        may_exchange: whether parameters may be replaced, as no caller holds them yet.
        lock: held while several weights change, or while consistent weights are read.
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
        """The weights for a source model, the present one or a copy."""
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
        """A mirror of the source model with dense weights, in some modes, with the present tensors of `shell`.

        Args:
            made: function that returns the dense tensors of sparse parameters.
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
        """A context with replacements of source modules that are dense and in the state of `shell`.

        The replacements have the modes and the tensors of `shell`. Other threads may run the source model, whose
        modules therefore keep theirs. On exit `shell` gets the buffers that the model has replaced.
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
        """The context of `running`, but always with a mirror: hooks added to the mirror affect no other call."""
        with self.lock:  # keeps the modes of the shell consistent with the mirrored modules
            found = self.mirror(modes(shell), shell, is_isolated=False, made=as_dense)
        try:
            yield lambda module: found.model if module is self.source else found.of(module)
        finally:
            found.write_back()

    @contextmanager
    def dense(self) -> Iterator[None]:
        """A context in which the weights of the source model are dense; restores the earlier weights on exit.

        With packed weights, no other thread reads or changes weights meanwhile; callers hold the lock of captures.
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
        """Unpacks the weights that one of the variants needs dense."""
        readers = read_weights(self.source, variants)
        self.unpack([name for name in self.held if name not in readers or readers[name].spec is None])

    def pack(self, variants: Sequence[Variant]) -> None:
        """Packs the weights that all variants read packed.

        The last step of a capture: an earlier failure leaves the models with their weights.
        """
        self.exchange(variants)
        readers = read_weights(self.source, variants)
        specs = {name: found.spec for name, found in readers.items() if name not in self.trained}
        wanted = {n: spec for n, spec in specs.items() if spec is not None and n not in self.held}
        if wanted and not self.is_own:
            try:
                self.source, self.is_own = shared_copy(self.source), True
            except Exception as error:  # modules of the model may raise anything when copied
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
        """Replaces parameters by sparse ones where the variants train and read them sparse only.

        Parameters shared with another model stay dense.
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
        """The sparse parameters that get gradients, by name; replaced parameters are dropped."""
        if not self.trained:
            return {}
        present: dict[str, Any] = dict(self.source.named_parameters(remove_duplicate=False))
        found = {name: p for name, p in present.items() if name in self.trained and type(p) is SparseTensor}
        self.trained &= found.keys()
        return found

    def pack_beside(self, name: str, weight: SparseTensor, readers: Readers) -> None:
        """Packs a held weight for readers in other formats, once per format."""
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
        """Lists the positions of a weight's entries in the images of all examples, once per image size."""
        placed = self.placed[name] = layouts[0].placed
        most = weight.numel() * self.held[name].dtype.itemsize - stored_bytes(weight)
        placed.make_room(weight, [layout.example for layout in layouts], most)
        for layout in layouts:
            layout.placed = placed
            placed(weight, layout.example)

    def stored(self, variants: Iterable[Variant]) -> dict[Key, Stored]:
        """The packed forms of the held weights."""
        readers = read_weights(self.source, variants)
        found = {}
        for name, how in self.held.items():
            read = readers.get(name, Readers([]))
            forms = (how.spec.format, *read.beside(how.spec))
            found[name, how.spec.transposed] = Stored(forms, self.bytes_of(name, read))
        return found

    def bytes_of(self, name: str, readers: Readers) -> int:
        """The bytes of a held weight with its scales, and of its readers' additional packed forms."""
        weight = self.source.get_parameter(name)
        assert isinstance(weight, SparseTensor), "held weights are sparse"
        beside = readers.beside(self.held[name].spec).values()
        others = [s.packed_operand(s.weight, weight) for s in beside if s.weight is not None]
        scale = self.scale(name)
        held = readers.bytes_of_places(weight) + (0 if scale is None else scale.nbytes)
        return held + sum(stored_bytes(one) for one in (weight, *others))

    def hold(self, name: str, how: Held, operand: SparseTensor | None = None) -> None:
        """Replaces a dense weight by its packed form, and registers its scales."""
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
        """The scales of the rows of a weight packed as integers."""
        return self.source.get_buffer(f"{name}{SCALES}") if self.held[name].spec.has_scales else None

    def packed(self) -> dict[str, SparseTensor]:
        """The packed weights by name."""
        if not self.held:
            return {}
        present: dict[str, Any] = dict(self.source.named_parameters(remove_duplicate=False))
        found = ((name, present.get(name)) for name in self.held)
        return {name: weight for name, weight in found if isinstance(weight, SparseTensor)}

    def rewrite(self, name: str, dense: Tensor) -> None:
        """Overwrites a weight with dense entries, packed again if the weight is packed."""
        weight = self.source.get_parameter(name)
        if isinstance(weight, SparseTensor):
            replace(self.source, weight, dense)
            self.hold(name, self.held[name])
        else:
            weight.detach().copy_(dense.detach())

    def rename(self, before: Mapping[str, SparseTensor]) -> None:
        """Drops the packed forms of weights that the source model lost; renamed weights keep theirs."""
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
        """Makes weights dense, all of them without `names`; returns their packed forms."""
        released = {}
        for name in list(self.held if names is None else names):
            replace(self.source, self.source.get_parameter(name), self.unpacked(name))
            released[name] = self.held.pop(name)
            if name in self.placed:
                self.placed.pop(name).memory.clear()
        self.follow()
        return released

    def follow(self) -> None:
        """Copies the source model's present parameters to the user's model, after a successful capture."""
        from sparsify.passes.rules.merge_masks import take_masks_away

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
        """The packed form of a weight that regions pack."""
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
        """Applies conversions such as `.double()`; packed weights are converted packed, rounded ones dense."""
        rounded = self.unpack([name for name, held in self.held.items() if held.spec.rounds is not None])
        if fn(torch.empty(0)).is_meta:  # patterns cannot exist on the meta device
            rounded.clear()
            self.unpack()
            self.densify()
        packed: list[tuple[Tensor, list[tuple[dict[str, Any], str]]]]
        sparse = (*self.packed().values(), *self.sparse_parameters().values())
        packed = [(weight, places(self.source, weight)) for weight in sparse]
        try:
            for _, known in packed:
                for store, name in known:
                    store[name] = None  # torch would swap the parameter, which weak references forbid
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
        """Packs weights again in their earlier forms."""
        for name, how in held.items():
            self.hold(name, dataclasses.replace(how, dtype=self.source.get_parameter(name).dtype))
        self.follow()


def trained_entry(name: str, weight: SparseTensor) -> WeightEntry:
    """The packed form of a parameter trained sparse."""
    return WeightEntry(
        name, f"{weight.format}, trains sparse", weight.numel() * weight.dtype.itemsize, stored_bytes(weight)
    )


def dense_state(state: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """The state with dense tensors for the dense parameters of `model`.

    Raises:
        DtypeError: integers without their scales in the state.
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
    """The bytes of a tensor; for a sparse one of its values and its pattern."""
    if isinstance(tensor, SparseTensor):
        return sum(array.nbytes for array in (tensor._vals, *tensor._pattern.arrays_in_place()))
    return tensor.nbytes
