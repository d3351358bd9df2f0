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
    share_tensors,
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
        numbers = packed.to_dense()
        dense = numbers if self.spec.rounds is None else widened(numbers, scale, self.dtype)
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
        """The form of the weight's first reader, `None` for readers of the dense weight or of two orientations."""
        specs = [structure.weight for structure in self.structures if structure.weight is not None]
        return None if self.is_shared or len({spec.transposed for spec in specs}) > 1 else specs[0]

    def other_formats(self, stored_spec: MatrixOutput) -> dict[Format, Structure]:
        """The readers of the weight in a format other than the stored one, by format."""
        others: dict[Format, Structure] = {}
        for structure in self.structures:
            if structure.weight is not None and structure.weight.format != stored_spec.format:
                others.setdefault(structure.weight.format, structure)
        return others

    @property
    def places(self) -> str:
        """The text of the listed image sizes of the weight."""
        if not self.layouts or not self.layouts[0].placed.most:
            return ""
        grids = self.layouts[0].placed.stored_grids(layout.example for layout in self.layouts)
        sizes = ["x".join(map(str, grid.extents)) for grid in grids]
        return f", and places in images {', '.join(sizes)} beside"

    def bytes_of_places(self, weight: SparseTensor) -> int:
        """The bytes of the listed images."""
        if not self.layouts:
            return 0
        grids = self.layouts[0].placed.stored_grids(layout.example for layout in self.layouts)
        return sum(grid.extra_bytes(weight) for grid in grids)


def read_weights(model: nn.Module, variants: Iterable[Variant]) -> dict[str, Readers]:
    """The readers of the parameters that regions of some variants pack, by name."""
    parameters = dict(model.named_parameters())
    readers_of: dict[str, Readers] = {}
    for variant in variants:
        for node in variant.captured.graph.find_nodes(op="get_attr"):
            if node.target in parameters:
                readers = readers_of.setdefault(str(node.target), Readers([]))
                for user in node.users:
                    add_readers(readers, node, user)
    return {name: readers for name, readers in readers_of.items() if readers.structures}


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
        callers_model: separate model passed by the user to be changed in place, kept synchronous.
        packed_forms: packed forms of the weights that `source` holds packed, by name.
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
        callers_model: nn.Module | None = None,
        packed_forms: Mapping[str, Held] | None = None,
        roundings: Mapping[str, Moved] | None = None,
    ) -> None:
        self.source, self.is_own, self.callers_model, self.packed_forms = (
            source,
            is_own,
            callers_model,
            dict(packed_forms or {}),
        )
        self.roundings = dict(roundings or {})
        self.placed: dict[str, Placed] = {}
        self.is_followed = False
        self.trained: set[str] = set()
        self.may_exchange = False

    def of(self, source: nn.Module) -> "Weights":
        """The weights for a source model, the present one or a copy."""
        weights = Weights(source, self.is_own, None, self.packed_forms, self.roundings)
        weights.trained = set(self.trained)
        return weights

    def mirror(
        self,
        target_modes: Modes,
        shell: nn.Module | None = None,
        *,
        is_isolated: bool = True,
        to_dense: Callable[[SparseTensor], Tensor] = dense_parameter,
    ) -> Mirror:
        """A mirror of the source model with dense weights, in some modes, with the present tensors of `shell`.

        Args:
            to_dense: function that returns the dense tensors of sparse parameters.
        """
        with self.lock:
            packed = [
                (weight, self.packed_forms[name], self.scale(name)) for name, weight in self.packed().items()
            ]
            trained = self.sparse_parameters()
            dense_mirror = Mirror(self.source, is_isolated=is_isolated)
            dense_mirror.borrow([] if shell is None else borrowed(self.source, shell))
        dense = {id(weight): how.unpack(weight, scale) for weight, how, scale in packed}
        dense_mirror.replace(dense | {id(weight): to_dense(weight) for weight in trained.values()})
        dense_mirror.set_modes(target_modes)
        return dense_mirror

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
            share_tensors(shell, self.source)

    @contextmanager
    def mirrored(self, shell: nn.Module) -> Iterator[Callable[[nn.Module], nn.Module]]:
        """The context of `running`, but always with a mirror: hooks added to the mirror affect no other call."""
        with self.lock:  # keeps the modes of the shell consistent with the mirrored modules
            mirror = self.mirror(modes(shell), shell, is_isolated=False, to_dense=as_dense)
        try:
            yield lambda module: mirror.model if module is self.source else mirror.of(module)
        finally:
            mirror.write_back()

    @contextmanager
    def dense(self) -> Iterator[None]:
        """A context in which the weights of the source model are dense; restores the earlier weights on exit.

        With packed weights, no other thread reads or changes weights meanwhile; callers hold the lock of captures.
        """
        with self.lock if self.packed_forms or self.trained else nullcontext():
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
        self.unpack([name for name in self.packed_forms if name not in readers or readers[name].spec is None])

    def pack(self, variants: Sequence[Variant]) -> None:
        """Packs the weights that all variants read packed.

        The last step of a capture: an earlier failure leaves the models with their weights.
        """
        self.exchange(variants)
        readers = read_weights(self.source, variants)
        specs = {name: reader.spec for name, reader in readers.items() if name not in self.trained}
        unpacked_specs = {
            n: spec for n, spec in specs.items() if spec is not None and n not in self.packed_forms
        }
        if unpacked_specs and not self.is_own:
            try:
                self.source, self.is_own = shared_copy(self.source), True
            except Exception as error:  # modules of the model may raise anything when copied
                reason = f"weights are held dense and packed: {type(self.source).__name__} cannot be copied: {error}"
                variants[-1].report.warnings.append(f"{reason}; inplace=True needs no copy")
                unpacked_specs = {}
        for name, spec in unpacked_specs.items():
            dense = self.source.get_parameter(name)
            form = Held(spec, dense.requires_grad, dense.dtype)
            operands = (structure.operand_of(dense) for structure in readers[name].structures)
            self.hold(name, form, next((o for o in operands if o is not None), None))
            for structure in readers[name].structures:
                structure.memory.clear()
            for layout in readers[name].layouts:
                layout.placed.memory.clear()
        for name, weight in self.packed().items():
            self.pack_second_formats(name, weight, readers[name])
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
        for name, (dense, sparse) in exchanged(self.source, sparse_parameters(self.source, variants)).items():
            replace(self.source, dense, sparse)
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
        sparse = {name: p for name, p in present.items() if name in self.trained and type(p) is SparseTensor}
        self.trained &= sparse.keys()
        return sparse

    def pack_second_formats(self, name: str, weight: SparseTensor, readers: Readers) -> None:
        """Packs a held weight for readers in other formats, once per format."""
        for form, first in readers.other_formats(self.packed_forms[name].spec).items():
            for structure in readers.structures:
                if structure.weight is not None and structure.weight.format == form:
                    structure.second_formats = first.second_formats
                    structure.memory.clear()
            assert first.weight is not None, "it reads a weight"
            first.packed_operand(first.weight, weight)
        if readers.layouts:
            self.list_positions(name, weight, readers.layouts)

    def list_positions(self, name: str, weight: SparseTensor, layouts: Sequence[FlatImages]) -> None:
        """Lists the positions of a weight's entries in the images of all examples, once per image size."""
        placed = self.placed[name] = layouts[0].placed
        most = weight.numel() * self.packed_forms[name].dtype.itemsize - stored_bytes(weight)
        placed.make_room(weight, [layout.example for layout in layouts], most)
        for layout in layouts:
            layout.placed = placed
            placed(weight, layout.example)

    def stored(self, variants: Iterable[Variant]) -> dict[Key, Stored]:
        """The packed forms of the held weights."""
        readers = read_weights(self.source, variants)
        forms_of = {}
        for name, how in self.packed_forms.items():
            read = readers.get(name, Readers([]))
            forms = (how.spec.format, *read.other_formats(how.spec))
            forms_of[name, how.spec.transposed] = Stored(forms, self.bytes_of(name, read))
        return forms_of

    def bytes_of(self, name: str, readers: Readers) -> int:
        """The bytes of a held weight with its scales, and of its readers' additional packed forms."""
        weight = self.source.get_parameter(name)
        assert isinstance(weight, SparseTensor), "held weights are sparse"
        others_read = readers.other_formats(self.packed_forms[name].spec).values()
        others = [s.packed_operand(s.weight, weight) for s in others_read if s.weight is not None]
        scale = self.scale(name)
        own_bytes = readers.bytes_of_places(weight) + (0 if scale is None else scale.nbytes)
        return own_bytes + sum(stored_bytes(one) for one in (weight, *others))

    def hold(self, name: str, how: Held, operand: SparseTensor | None = None) -> None:
        """Replaces a dense weight by its packed form, and registers its scales."""
        dense = self.source.get_parameter(name)
        for module, attribute in owners(self.source, dense) if how.spec.has_scales else ():
            module._buffers[f"{attribute}{SCALES}"] = scales(dense.detach())
        replace(self.source, dense, how.pack(dense, operand))
        self.packed_forms[name] = how

    def unpacked(self, name: str) -> nn.Parameter:
        """The dense parameter of a packed weight."""
        how = self.packed_forms[name]
        return how.unpack(self.source.get_parameter(name), self.scale(name))

    def scale(self, name: str) -> Tensor | None:
        """The scales of the rows of a weight packed as integers."""
        return self.source.get_buffer(f"{name}{SCALES}") if self.packed_forms[name].spec.has_scales else None

    def packed(self) -> dict[str, SparseTensor]:
        """The packed weights by name."""
        if not self.packed_forms:
            return {}
        present: dict[str, Any] = dict(self.source.named_parameters(remove_duplicate=False))
        named = ((name, present.get(name)) for name in self.packed_forms)
        return {name: weight for name, weight in named if isinstance(weight, SparseTensor)}

    def rewrite(self, name: str, dense: Tensor) -> None:
        """Overwrites a weight with dense entries, packed again if the weight is packed."""
        weight = self.source.get_parameter(name)
        if isinstance(weight, SparseTensor):
            replace(self.source, weight, dense)
            self.hold(name, self.packed_forms[name])
        else:
            weight.detach().copy_(dense.detach())

    def rename(self, before: Mapping[str, SparseTensor]) -> None:
        """Drops the packed forms of weights that the source model lost; renamed weights keep theirs."""
        present: dict[str, Any] = dict(self.source.named_parameters(remove_duplicate=False))
        for name, weight in before.items():
            if present.get(name) is not weight:
                how = self.packed_forms.pop(name)
                if name in self.placed:
                    self.placed.pop(name).memory.clear()
                other = next((other for other, parameter in present.items() if parameter is weight), None)
                if other is not None:
                    self.packed_forms[other] = how

    def unpack(self, names: Iterable[str] | None = None) -> dict[str, Held]:
        """Makes weights dense, all of them without `names`; returns their packed forms."""
        released = {}
        for name in list(self.packed_forms if names is None else names):
            replace(self.source, self.source.get_parameter(name), self.unpacked(name))
            released[name] = self.packed_forms.pop(name)
            if name in self.placed:
                self.placed.pop(name).memory.clear()
        self.follow()
        return released

    def follow(self) -> None:
        """Copies the source model's present parameters to the user's model, after a successful capture."""
        from sparsify.passes.rules.merge_masks import take_masks_away

        if self.callers_model is not None and self.is_followed:
            take_masks_away(self.callers_model, self.source)
            share_tensors(self.callers_model, self.source)

    def describe(self, report: Report, readers: Mapping[str, Readers]) -> None:
        """Writes into the report how the weights are held, and the bytes of all parameters."""
        read = {name: readers_of for name, readers_of in readers.items() if name not in self.trained}
        report.weights = [self.entry(name, readers_of) for name, readers_of in read.items()]
        report.weights += [
            trained_entry(name, readers_of) for name, readers_of in self.sparse_parameters().items()
        ]
        readers = {**readers, **dict.fromkeys(self.trained, Readers([]))}
        now = sum(entry.bytes_after for entry in report.weights)
        now += sum(stored_bytes(p) for name, p in self.source.named_parameters() if name not in readers)
        saved = sum(entry.bytes_before - entry.bytes_after for entry in report.weights)
        report.parameter_bytes = now + saved, now
        readers_of = self.roundings.items()
        report.roundings = [RoundingEntry(n, m.dtype, m.largest, m.relative) for n, m in readers_of]

    def entry(self, name: str, readers: Readers) -> WeightEntry:
        """The packed form of a weight that regions pack."""
        weight = self.source.get_parameter(name)
        if isinstance(weight, SparseTensor):
            how = self.packed_forms[name]
            others = readers.other_formats(how.spec)
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
        rounded = self.unpack(
            [name for name, form in self.packed_forms.items() if form.spec.rounds is not None]
        )
        if fn(torch.empty(0)).is_meta:  # patterns cannot exist on the meta device
            rounded.clear()
            self.unpack()
            self.densify()
        packed: list[tuple[Tensor, list[tuple[dict[str, Any], str]]]]
        sparse = (*self.packed().values(), *self.sparse_parameters().values())
        packed = [(weight, places(self.source, weight)) for weight in sparse]
        try:
            for _, stores in packed:
                for store, name in stores:
                    store[name] = None  # torch would swap the parameter, which weak references forbid
            self.source._apply(fn, recurse)
            packed = [
                (nn.Parameter(fn(weight.detach()), requires_grad=weight.requires_grad), stores)
                for weight, stores in packed
            ]
        finally:
            for weight, stores in packed:
                for store, name in stores:
                    store[name] = weight
            renew_flat_weights(self.source.modules())
            self.repack(rounded)

    def repack(self, packed_forms: Mapping[str, Held]) -> None:
        """Packs weights again in their earlier forms."""
        for name, how in packed_forms.items():
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
    result = dict(state)
    for name, value in state.items():
        if isinstance(value, SparseTensor) and name in dense:
            if dense[name].is_floating_point and not value.dtype.is_floating_point:
                raise DtypeError(
                    f"{name} is {value.dtype} in this state, without the scales of its rows",
                    "what state_dict() gives, which is dense",
                )
            result[name] = value.to_dense(dense[name])
    return result


def stored_bytes(tensor: Tensor) -> int:
    """The bytes of a tensor; for a sparse one of its values and its pattern."""
    if isinstance(tensor, SparseTensor):
        return sum(array.nbytes for array in (tensor._vals, *tensor._pattern.arrays_in_place()))
    return tensor.nbytes
