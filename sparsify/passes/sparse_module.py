"""The result of `apply`: a module that runs its sparse graph, for every mode and input structure one variant.

In: `SparseModule(model, recipe)`. Out: a `torch.fx.GraphModule` with the model's signature, parameter names and modes.
"""

import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from sparsify import options as settings
from sparsify.errors import CaptureError
from sparsify.passes import base, calls, own_caches, traced_calls
from sparsify.passes.autocast import Autocast
from sparsify.passes.base import Asked, Key, Notices, Stored
from sparsify.passes.capture import sparse_parts
from sparsify.passes.captures import Captures
from sparsify.passes.check import compare, naming_values, report_half
from sparsify.passes.contents import ReadOnce
from sparsify.passes.drafted import drafted
from sparsify.passes.eager import eager
from sparsify.passes.facade import Facade, adopt_signature
from sparsify.passes.hooks import Hooks, report_recorders
from sparsify.passes.memory import Memory
from sparsify.passes.no_graph import fail_after, fail_without_graph
from sparsify.passes.optimizers import keep_zeros_of
from sparsify.passes.packed import Held, Weights, dense_state
from sparsify.passes.quick import Quick
from sparsify.passes.shell import adopt, fill_shell, following, in_modes, modes, share_again
from sparsify.passes.variant import Variant, pruned_among, return_plainly
from sparsify.passes.verify import verify
from sparsify.report import Report
from sparsify.report_text import fold

MAX_CAPTURES = 8


class SparseModule(Facade):
    """A model whose sparse regions are kernels.

    The parameters are those of the source model; frozen weights that kernels alone read are packed. `.graph` is
    the variant of the current mode; `.report` says what became of the model. Calls that fit no variant are
    captured anew, up to 8 times; then, or when capturing fails, the source model runs, with one warning. Calls that
    the source model refuses end as there, and count for nothing.
    """

    _unpacked: dict[str, Held]
    _matrices: Memory
    _example: tuple[calls.Call, list[Any]] | None
    _generated: Callable[..., Any]

    def __init__(self, model: nn.Module, asked: Asked, weights: Weights | None = None) -> None:
        none_yet = fx.Graph()
        none_yet.output(none_yet.call_function(fail_without_graph))
        super().__init__(nn.Module(), none_yet, type(model).__name__)
        fill_shell(self, model)
        self.training = model.training
        matrices = Memory(sparse_parts)
        hidden = {
            "_weights": weights or Weights(model, asked.inplace),
            "_signature": calls.signature(model),
            "_taking": traced_calls.parameters_of(calls.signature(model)),
            "_asked": asked,
            "_captures": Captures(),
            "_matrices": matrices,
            "_quick": Quick(tuple(self.modules()), matrices),
            "_notices": Notices(type(model).__name__),
            "_hooks": Hooks(model),
            "_autocast": Autocast(),
            "_example": None,
            "report": asked.report(type(model).__name__),
        }
        for name, value in hidden.items():
            object.__setattr__(self, name, value)  # the source model is no submodule
        adopt(self)
        adopt_signature(self, model, self._signature)
        self._register_load_state_dict_pre_hook(self._unpack_to_load)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(self._pack_again)  # type: ignore[no-untyped-call]

    @property
    def _source(self) -> nn.Module:
        """The model whose code runs where no variant does."""
        return self._weights.source

    def recompile(self) -> Any:
        """Compiles the graph; `forward` stays the dispatcher over variants."""
        code = super().recompile()
        kind = type(self)
        object.__setattr__(self, "_generated", kind.__dict__.get("forward"))
        if kind is not SparseModule:
            # The `__call__` of torch.fx explains errors of the graph, and takes its time.
            if "__call__" in kind.__dict__:
                del kind.__call__
            kind.forward = traced_calls.twin(kind, SparseModule.forward)  # type: ignore[method-assign]
        return code

    def train(self, mode: bool = True) -> "SparseModule":
        """Sets the mode; `.graph` becomes the variant of that mode, captured now when the examples still live."""
        super().train(mode)
        if "_captures" not in self.__dict__:
            return self
        if self._asked.inplace:
            (self._weights.given or self._source).train(mode)
        if mode and self._asked.trainable is None:
            self._weights.unpack()  # optimizers are made before the first call
            share_again(self, self._source)
        known = self._captures.shown(modes(self))
        if known is None and not self._captures.has_refused(modes(self)) and self._example is not None:
            call, references = self._example
            values = [reference() for reference in references]
            if all(value is not None for value in values):
                call = calls.with_tensors(call, values)
                self.prepare(call, call.tensors(self._matrices))
        elif known is not None:
            self.show(known)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's result, by the variant that fits the call."""
        if torch.compiler.is_compiling() and not self._hooks.paths:
            return self.traced(args, kwargs)
        if callable(traced_calls.watcher()):
            return traced_calls.run_outside(self, args, kwargs, is_told=False)
        if self._hooks.paths and self.runs_hooks():
            return self.run_hooked(args, kwargs)
        caches = own_caches.given((*args, *kwargs.values()))
        if self.leaves_past(caches):
            return self.with_past(args, kwargs)
        if torch.is_autocast_enabled("cpu"):
            return self._autocast.run(self, args, kwargs)
        quick = self._quick.read(args, kwargs)
        if quick is not None and (known := self._quick.variants.get(quick[0])) is not None:
            return self.finish(known, quick[1])
        call = calls.flatten(self._signature, args, kwargs)
        tensors = call.tensors(self._matrices)
        variant = self.variant_for(call, tensors)
        if variant is None:
            return self.original(*args, **kwargs)
        if variant.written and variant.mixes(tensors):
            return self.original(*args, **kwargs)
        if quick is not None and not variant.written:
            self._quick.remember(quick[0], args, kwargs, call, variant)
        result = self.finish(variant, tensors)
        for cache in caches:
            result = own_caches.filled(cache, result)
        return result

    def finish(self, variant: Variant, tensors: Sequence[torch.Tensor]) -> Any:
        """The model's output class around the results of a variant."""
        if torch.compiler.is_compiling():
            assert variant.run is not None, "prepare compiles the graph"
            result = variant.run(self, *tensors)
        else:
            assert variant.eager is not None, "prepare compiles the graph"
            with ReadOnce():
                result = variant.eager(*tensors)
        return result if variant.is_plain else pytree.tree_unflatten(result, variant.captured.output)

    def variant_for(self, call: calls.Call, tensors: list[torch.Tensor]) -> Variant | None:
        """The variant that fits a call, captured now when there is none.

        None when the source model has to run; what it must not run without raises.
        """
        like = (modes(self), call.shape)
        variant = self._captures.fitting(like, tuple(tensor.shape for tensor in tensors))
        if variant is not None or like in self._captures.refused:
            return variant
        if len(self._captures) >= MAX_CAPTURES:
            if self._asked.has_masks:
                fail_after(MAX_CAPTURES)
            self._notices.warn(
                f"more than {MAX_CAPTURES} captures; the source model runs for calls that fit none of them"
            )
            return None
        return self.prepare(call, tensors)

    def prepare(self, call: calls.Call, tensors: list[torch.Tensor]) -> Variant | None:
        """Captures, compiles and verifies a variant for calls like `call`.

        Raises:
            Exception: what the source model raises for this call.
        """
        like = (modes(self), call.shape)
        self.check_pruning(call)
        try:
            stored = self._weights.stored(self.variants)
            with torch.inference_mode(False), in_modes(self._source, self), self._weights.dense():
                variant = self.build(call, tensors, stored)
        except CaptureError as error:
            with torch.no_grad(), base.kept_buffers(self._source), torch.random.fork_rng(devices=[]):
                self.run_source(calls.copied(call))
            if self._asked.strict or settings.current().strict:
                raise
            self._captures.refused[like] = str(error)
            self.report.warnings.append(str(error))
            self._notices.warn(f"{error}; the source model runs")
            return None
        if not call.shape.has_past:
            references = [weakref.ref(value) for value in call.values if isinstance(value, torch.Tensor)]
            example = calls.with_tensors(call, [None] * len(references))
            object.__setattr__(self, "_example", (example, references))
        self._captures.add(like, variant)
        self.show(self._captures.shown(like[0]) or variant)
        self._quick.variants.clear()
        with torch.inference_mode(False), torch.no_grad():
            self._weights.release(self.variants)
        share_again(self, self._source)
        if self._asked.verify:
            with naming_values(self._source, dict(zip(call.shape.tensor_names(), tensors, strict=True))):
                verify(self, variant, call, tensors)
        with torch.inference_mode(False), torch.no_grad():
            self._weights.pack(self.variants)
        share_again(self, self._source)
        return variant

    def build(self, call: calls.Call, tensors: list[torch.Tensor], stored: Mapping[Key, Stored]) -> Variant:
        """The variant for calls like `call`, compiled; weights are `stored` packed already."""
        asked, known = self._asked, self._captures.constants()
        report_recorders(self._source, self._notices)
        draft = drafted(self._source, asked, call, tensors, asked.dynamic, self._notices, stored, known)
        captured, report = draft.captured, draft.report
        for name, constant in captured.constants.items():
            self.register_buffer(name, constant, persistent=False)
        regions = [node.meta["region"] for node in draft.graph.nodes if "region" in node.meta]
        variant = Variant(captured, report, regions, return_plainly(captured), masked=draft.masked)
        self.compile_graph(variant)
        report_half(report, self._source)
        if report.warnings:
            self._notices.warn("; ".join(fold(dict.fromkeys(report.warnings))))
        return variant

    def compile_graph(self, variant: Variant) -> None:
        """Makes the function that runs a variant, and shows the variant."""
        self.graph = variant.captured.graph  # compiles
        variant.run = self._generated
        variant.written = variant.written_inputs()
        options = settings.current()
        variant.eager = eager(variant.captured.graph, self, self._generated, recycled=options.recycle)
        weights = (self.get_parameter(name) for name in variant.pruned())
        keep_zeros_of(weight for weight in weights if weight.requires_grad)
        self.show(variant)

    def run_source(self, call: calls.Call) -> Any:
        """What the source model computes for a call, without the patterns of rules."""
        values = [own_caches.fresh(calls.as_torch(value)) for value in call.values]
        args, kwargs = calls.arguments_of(pytree.tree_unflatten(values, call.spec), self._signature)
        with following(self._source, self), self._weights.dense():
            return self._source(*args, **kwargs)

    def verify_gradients(self, *args: Any, **kwargs: Any) -> float:
        """The largest difference of outputs and parameter gradients to the dense model's for these inputs.

        The dense gradients of pruned weights count where these are not 0.
        """
        parameters = [p for p in self._source.parameters() if p.requires_grad]

        def pruned() -> set[int]:
            return pruned_among(parameters, self.variants, self._source)

        may_write = self._captures.may_write(modes(self))
        with base.kept_buffers(self._source):
            return compare(
                calls.anew(self.original, args, kwargs, may_write),
                calls.anew(self, args, kwargs, may_write),
                self._asked.recipe.verify,
                parameters,
                pruned,
            )

    def measure(self, *args: Any, repeats: int = 5, **kwargs: Any) -> Report:
        """The report with the median time of each region over `repeats` calls, the first call not counted."""
        run = calls.anew(self, args, kwargs, self._captures.may_write(modes(self)))
        run()
        call = calls.flatten(self._signature, args, kwargs)
        variant = self.variant_for(call, call.tensors(self._matrices))
        if variant is not None:
            variant.timed(run, repeats)
        return self.report

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """The source model's own result, under the patterns that rules put into its attention, and as kernels draw.

        Our sparse tensors are torch's for it. What kernels draw is known of calls that were captured; no other is.

        Raises:
            CaptureError: there are patterns, and no graph to put them into.
        """
        variant, tensors = None, list[torch.Tensor]()
        if self._asked.has_masks or (any(modes(self)) and not torch.is_autocast_enabled("cpu")):
            call = calls.flatten(self._signature, args, kwargs)
            tensors = call.tensors(self._matrices)
            like = (modes(self), call.shape)
            if not self._asked.has_masks:
                variant = self._captures.fitting(like, tuple(tensor.shape for tensor in tensors))
            elif (variant := self.variant_for(call, tensors)) is None:
                name, why = type(self._source).__name__, self._captures.refused[like]
                raise CaptureError(f"{name} cannot run with the masks of its recipe: {why}")
        with following(self._source, self), self._weights.dense():
            if variant is None or variant.masked is None:
                named = {name: calls.as_torch(value) for name, value in kwargs.items()}
                return self._source(*map(calls.as_torch, args), **named)
            return variant.masked_result(self._source, tensors)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Parameters and buffers; packed weights are dense, with `keep_vars` those of whole numbers alone."""
        found = super().state_dict(*args, **kwargs)
        prefix = kwargs.get("prefix", args[1] if len(args) > 1 else "")
        keeps = kwargs.get("keep_vars", args[2] if len(args) > 2 else False)
        dense = {
            id(weight): self._weights.unpacked(name).detach()
            for name, weight in self._weights.packed().items()
            if not keeps or self._weights.held[name].spec.has_scales
        }
        for name, parameter in self.named_parameters(remove_duplicate=False):
            if id(parameter) in dense:
                found[prefix + name] = dense[id(parameter)]
        return found

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Loads parameters and buffers into the source model, whose they are; weights are packed again."""
        held = self._weights.unpack()
        try:
            return self._source.load_state_dict(dense_state(state_dict, self._source), strict, assign)
        finally:
            self._weights.repack(held)
            share_again(self, self._source)

    def _unpack_to_load(self, state: dict[str, Any], prefix: str, *_: Any) -> None:
        """Weights are dense while a module that has this one inside loads a state."""
        object.__setattr__(self, "_unpacked", self._weights.unpack())
        share_again(self, self._source)
        own = {name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)}
        state.update({prefix + name: value for name, value in dense_state(own, self._source).items()})

    def _pack_again(self, *_: Any) -> None:
        """Afterwards they are packed as before."""
        self._weights.repack(self._unpacked)
        share_again(self, self._source)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "SparseModule":
        """Conversions such as `.double()` convert the source model, whose parameters these are.

        Graphs are for the dtypes that were captured: those of others are forgotten, with the tensors that they made,
        which no conversion reaches, as in the source model.
        """
        before = [(tensor.dtype, tensor.device) for tensor in (*self.parameters(), *self.buffers())]
        self._weights.convert(fn, recurse)
        share_again(self, self._source)
        if before != [(tensor.dtype, tensor.device) for tensor in (*self.parameters(), *self.buffers())]:
            for name in self._captures.constants():
                del self._buffers[name]
            self._captures.forget()
            self._quick.variants.clear()
            self._autocast.known.clear()
        return self

    def __reduce__(self) -> Any:
        return SparseModule, (self._source, self._asked, self._weights.of(self._weights.source))

    def __deepcopy__(self, memo: dict[int, Any]) -> "SparseModule":
        source = copy.deepcopy(self._source, memo)
        new = SparseModule(source, self._asked, self._weights.of(source))
        for (_, shell), (_, own) in zip(new.named_modules(), self.named_modules(), strict=True):
            shell.training = own.training
        new._captures.refused.update(self._captures.refused)
        for like, variant in self._captures.known:
            twin = variant.copied()
            for name, constant in twin.captured.constants.items():
                new.register_buffer(name, constant.clone(), persistent=False)
            new.compile_graph(twin)
            new._captures.add(like, twin)
        for variant, twin in zip(self.variants, new.variants, strict=True):
            if variant.report is self.report:
                new.show(twin)
        memo[id(self)] = new
        return new
