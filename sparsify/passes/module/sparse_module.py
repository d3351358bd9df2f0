"""The result of `apply`: a module that runs its sparse graph, one variant per mode and input structure.

In: `SparseModule(model, recipe)`. Out: a `torch.fx.GraphModule` with the model's signature, parameter names and modes.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from sparsify.errors import CaptureError
from sparsify.passes.call import tracing
from sparsify.passes.capture import calls, data_sizes, draft
from sparsify.passes.capture.draft import ApplyRequest, Notices
from sparsify.passes.capture.libraries import transformers_cache
from sparsify.passes.capture.shell import Modes, adopt, fill_shell, is_dunder, modes, share_tensors
from sparsify.passes.capture.sparse_parts import sparse_parts
from sparsify.passes.module import prepare
from sparsify.passes.module.check import index_errors
from sparsify.passes.module.check.verify import compare
from sparsify.passes.module.report_origin import ReportOrigin
from sparsify.passes.module.source import generate, traced_calls
from sparsify.passes.module.source.autocast import Autocast
from sparsify.passes.module.source.facade import Facade, adopt_signature
from sparsify.passes.module.source.hooks import Hooks
from sparsify.passes.module.variants.variant import CallIndex, Captures, Variant, pruned_among
from sparsify.passes.module.weights.optimizer_steps import tell_of_replaced
from sparsify.passes.module.weights.packed_weights import Held, Weights, dense_state
from sparsify.passes.operands.content_memo import SparseInputs, reading_once
from sparsify.report import Report
from sparsify.runtime.locks import CAPTURES
from sparsify.storage.subclass import trained_masks

if TYPE_CHECKING:
    from sparsify.passes.module.reconsider import Pending


class SparseModule(fx.GraphModule):
    """A model whose sparse regions are kernels.

    The parameters are shared with the source model; frozen weights read by kernels alone are packed. `.graph` is the
    variant of the current mode; `.report` describes the result for each part of the model. Calls that fit no variant
    are captured anew, up to 8 times; then the source model runs, with one warning. The source model also runs when
    capturing fails, in pieces found by `torch.compile` if kernels make the pieces faster. Calls rejected by the source
    model raise its error, and do not count as captures.
    """

    def __init__(self, model: nn.Module, request: ApplyRequest, weights: Weights | None = None) -> None:
        none_yet = fx.Graph()
        none_yet.output(none_yet.call_function(traced_calls.fail_without_graph))
        super().__init__(nn.Module(), none_yet, type(model).__name__)
        fill_shell(self, model)
        self.training = model.training
        self.report: Report = request.report(type(model).__name__)
        self.report.origin = ReportOrigin(self)
        self._weights = weights or Weights(model, request.inplace)
        self._signature = calls.signature(model)
        self._taking = traced_calls.parameters_of(self._signature)
        self._request = request
        self._matrices = SparseInputs(sparse_parts)
        self._call_index = CallIndex(tuple(self.modules()), self._matrices)
        self._notices = Notices(type(model).__name__, request.is_quiet)
        self._hooks = Hooks(model)
        self._autocast = Autocast()
        self._example: tuple[calls.Call, list[Any]] | None = None
        self._unpacked: dict[str, Held] = {}
        self._captures = Captures()
        self._pending: Pending | None = None
        self._facade = Facade(self)  # last: attributes set from here on may belong to the source model
        adopt(self, self._facade)
        adopt_signature(self, model, self._signature)
        self._register_load_state_dict_pre_hook(self._unpack_to_load)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(self._repack_after_load)  # type: ignore[no-untyped-call]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if is_dunder(name) or "_facade" not in self.__dict__:
                raise
        return self._facade.attribute("", name)

    def __setattr__(self, name: str, value: Any) -> None:
        is_own = name in self.__dict__ or "_facade" not in self.__dict__ or hasattr(type(self), name)
        if is_own or not self._facade.set_attribute("", name, value):
            super().__setattr__(name, value)

    def __copy__(self) -> Any:
        make, args = self.__reduce__()
        return make(*args)

    @property
    def _source(self) -> nn.Module:
        """The model whose code runs for calls without a variant."""
        return self._weights.source

    @property
    def variants(self) -> list[Variant]:
        """All variants in the order of capture."""
        return list(self._captures)

    def show(self, variant: Variant) -> None:
        """Selects the variant shown by `.graph` and `.report`."""
        self._graph, self._code, self.report = variant.captured.graph, variant.code, variant.report
        self.report.origin = ReportOrigin(self)

    @property
    def graph(self) -> fx.Graph:
        """The graph of the shown variant; under `torch.export` a graph that looks up the variant."""
        if not torch.compiler.is_exporting() or tracing.is_elsewhere():
            return self._graph
        graph = fx.Graph()
        names = traced_calls.exported_names(self)
        graph.output(graph.call_function(self.exported, (names, graph.placeholder("*values"))))
        return graph

    @graph.setter
    def graph(self, graph: fx.Graph) -> None:
        set_graph = fx.GraphModule.graph.fset  # type: ignore[attr-defined]
        set_graph(self, graph)

    def exported(self, names: Sequence[str] | None, values: Sequence[Any]) -> Any:
        """The result for the arguments of a call, passed one after the other by `torch.export`.

        Args:
            names: names of the last values; None if unknown.
            values: all arguments.

        Raises:
            CaptureError: no graph exists for the arguments, or several arguments have unknown names.
        """
        if not len(list(self._captures)):
            traced_calls.fail_without_graph()
        if names is None and len(values) > 1:
            raise CaptureError(*traced_calls.NOT_NAMED)
        count = len(values) - len(names or ())
        named = dict(zip(names or (), values[count:], strict=True))
        return traced_calls.traced(self, tuple(values[:count]), named)

    @property
    def generate(self) -> Callable[..., Any]:
        """The `generate` of the transformers model, with sparse steps and unchanged arguments and results.

        Under patterns of attention no keys are kept from step to step, `use_cache` is False.

        Raises:
            AttributeError: the source model generates nothing.
        """
        if not hasattr(self._source, "generate"):
            raise AttributeError(f"{type(self._source).__name__} has no generate")
        return partial(generate.generate, self)

    def recompile(self) -> Any:
        """Compiles the graph; `forward` stays the dispatcher over variants."""
        code = super().recompile()
        kind = type(self)
        if kind is not SparseModule:
            # The `__call__` of torch.fx explains errors of the graph, and takes its time.
            if "__call__" in kind.__dict__:
                del kind.__call__
            kind.forward = traced_calls.separate_copy(kind, SparseModule.forward)  # type: ignore[method-assign]
        return code

    def train(self, mode: bool = True) -> "SparseModule":
        """Sets the mode; `.graph` becomes its variant, captured now if the example tensors are still alive."""
        if "_facade" not in self.__dict__:
            super().train(mode)
            return self
        with self._weights.lock:  # calls that look up a graph see the modes of before or after
            super().train(mode)
            modes_now = modes(self)
        if self._request.inplace:
            (self._weights.callers_model or self._source).train(mode)
        if mode and self._request.trainable is None and self._weights.packed_forms:
            with CAPTURES, self._weights.lock:
                packed = self._weights.packed()
                self._weights.unpack()  # optimizers are made before the first call
                tell_of_replaced(packed)
                share_tensors(self, self._source)
        variant = self._captures.shown(modes_now)
        if variant is None and not self._captures.has_refused(modes_now) and self._example is not None:
            call, references = self._example
            values = [reference() for reference in references]
            if all(value is not None for value in values):
                from sparsify.passes.module.capture_call import capture_call

                call = calls.with_tensors(call, values)
                capture_call(self, call, call.tensors(self._matrices), modes_now)
        elif variant is not None:
            self.show(variant)
        elif (report := self._captures.report_in(modes_now)) is not None:
            self.report = report
        return self

    def prepare(self, kinds: Sequence[Mapping[str, Any]]) -> list[prepare.Prepared]:
        """Captures calls ahead of time and builds their kernels, for servers and threads.

        Args:
            kinds: per kind, whether the model is in `"training"` (default: its present mode), and the example
                `"inputs"`, as for `apply`.

        Returns:
            The outcome of each kind. The modes of the model, gradients, buffers and random numbers are unchanged.

        Raises:
            CaptureError: a kind is wrong, or its calls fail; the text names the kind.
            VerificationError: the results differ from the dense model's beyond the recipe's limits.
        """
        return prepare.prepare(self, kinds)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's result, from the variant that fits the call."""
        is_compiling = torch.compiler.is_compiling()
        if is_compiling and not self._hooks.paths and not tracing.is_elsewhere():
            return traced_calls.traced(self, args, kwargs)
        if callable(traced_calls.watcher()):
            return traced_calls.run_outside(self, args, kwargs, is_told=False)
        if self._hooks.paths and self._facade.runs_hooks():
            return self._facade.run_hooked(args, kwargs)
        is_cast = torch.is_autocast_enabled("cpu")
        if self._pending is not None and self.training and torch.is_grad_enabled() and not is_cast:
            from sparsify.passes.module.reconsider import settle

            call = self.flattened_call(args, kwargs)
            settle(self, call, call.tensors(self._matrices), modes(self))
        earlier = self._call_index  # replaced by any other thread that changes the model
        if not (kwargs or is_cast or is_compiling):
            repeated = earlier.repeated(args)
            if repeated is not None and repeated.direct is not None:
                return repeated.direct(*args)
        quick = None if is_cast else earlier.read(args, kwargs)
        if quick is not None and (indexed := earlier.find(*quick)) is not None:
            if indexed.direct is not None and not is_compiling:
                if not kwargs:
                    earlier.note(quick[0], args, indexed)
                return indexed.direct(*quick[1])
            return self.finish_or_source(indexed, quick[1], args, kwargs)
        if quick is not None and quick[0] in earlier.refused:
            return self._run_refused(earlier.refused[quick[0]], args, kwargs)
        caches = transformers_cache.caches_in((*args, *kwargs.values()))
        if generate.leaves_past(self._request, caches):
            return generate.with_past(self, args, kwargs)
        if is_cast:
            return self._autocast.run(self, args, kwargs)
        call = self.flattened_call(args, kwargs)
        tensors = call.tensors(self._matrices)
        variant = self.variant_for(call, tensors)
        if variant is None:
            like = (modes(self), call.shape)
            pieces = like[0] if like in self._captures.piecewise else None
            is_refused = like in self._captures.refused
            if quick is not None and is_refused and not (self._request.has_masks or call.shape.sizes()):
                earlier.refuse(quick[0], pieces)
            return (
                self.original(*args, **kwargs) if pieces is None else self._run_refused(pieces, args, kwargs)
            )
        if not variant.takes(tensors):
            return self.original(*args, **kwargs)
        if quick is not None:
            earlier.remember(quick[0], args, kwargs, call, self._captures.alike((modes(self), call.shape)))
        result = self.finish_or_source(variant, tensors, args, kwargs)
        for cache in caches:
            result = transformers_cache.filled(cache, result)
        return result

    def flattened_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> calls.Call:
        """The leaves of a call; integers whose values varied between calls are symbols of the graph."""
        varying = self._captures.varying
        call = calls.flatten(self._signature, args, kwargs, varying=varying)
        if self._captures.have_varied(call.shape):
            return calls.flatten(self._signature, args, kwargs, varying=varying)
        return call

    def finish_or_source(
        self, variant: Variant, tensors: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of a variant, or of the source model where the graph does not hold for the call's data."""
        if not variant.captured.is_granted:
            return self.finish(variant, tensors)
        drawn = torch.get_rng_state()
        try:
            return self.finish(variant, tensors)
        except RuntimeError as error:
            if not data_sizes.is_outside(error):
                raise
        torch.set_rng_state(drawn)  # the source model draws what the graph may have drawn
        self._notices.warn(
            "sizes that the data decides, as of x[mask], are 0 or 1 in a call; the source model runs for such calls"
        )
        return self.original(*args, **kwargs)

    def finish(self, variant: Variant, tensors: Sequence[torch.Tensor]) -> Any:
        """The model's output class around the results of a variant."""
        if torch.compiler.is_compiling() and not tracing.is_elsewhere():
            assert variant.run is not None, "captures compile graphs"
            result = variant.run(self, *tensors)
        else:
            assert variant.eager is not None, "captures compile graphs"
            operators = variant.operators
            try:
                if operators is not None and operators.compute(tensors):
                    result = operators.run(*tensors)  # type: ignore[misc]
                else:
                    result = reading_once(variant.eager, tensors)
            except (IndexError, RuntimeError) as error:
                if not index_errors.is_of_index(error):
                    raise
                raise index_errors.with_inputs(error, variant.input_names(), tensors) from error
        return result if variant.is_plain else pytree.tree_unflatten(result, variant.captured.output)

    def variant_for(self, call: calls.Call, tensors: list[torch.Tensor]) -> Variant | None:
        """The variant that fits a call, captured now if missing.

        Returns None when the source model has to run; raises where the source model must not run without the masks of
        the recipe.
        """
        mode, shapes = modes(self), tuple(tensor.shape for tensor in tensors)
        variant = self._captures.fitting((mode, call.shape), shapes)
        is_settled = variant is not None and variant.general is None
        if is_settled or (mode, call.shape) in self._captures.refused:
            return variant
        with self._weights.lock:  # otherwise half of the modules may be in the mode set by another thread
            mode = modes(self)
        from sparsify.passes.module.capture_call import capture_call

        return capture_call(self, call, tensors, mode)

    def run_source(self, call: calls.Call) -> Any:
        """The source model's result for a call, without the patterns of rules."""
        with self._weights.running(self) as mirrored:
            return calls.run_call(mirrored(self._source), self._signature, call)

    def verify_gradients(self, *args: Any, **kwargs: Any) -> float:
        """The largest difference of outputs and parameter gradients from the dense model's for some inputs.

        The dense gradients of pruned weights count only at nonzero weights.
        """
        parameters = [p for p in self._source.parameters() if p.requires_grad]

        def pruned() -> set[int]:
            return pruned_among(parameters, self.variants, self._source)

        may_write = self._captures.may_write(modes(self))
        self._meet(args, kwargs)
        with draft.kept_buffers(self._source):
            return compare(
                calls.anew(self.original, args, kwargs, may_write),
                calls.anew(self, args, kwargs, may_write),
                self._request.recipe.verify,
                parameters,
                pruned,
            )

    def measure(self, *args: Any, repeats: int = 5, **kwargs: Any) -> Report:
        """The report with the median time of each region over `repeats` calls, the first call not counted."""
        run = calls.anew(self, args, kwargs, self._captures.may_write(modes(self)))
        self._meet(args, kwargs)
        run()
        call = self.flattened_call(args, kwargs)
        variant = self.variant_for(call, call.tensors(self._matrices))
        if variant is not None:
            variant.timed(run, repeats)
        return self.report

    def _meet(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Makes kernels compute calls with these arguments, even if their edges are few and new."""
        call = self.flattened_call(args, kwargs)
        tensors = call.tensors(self._matrices)
        variant = self.variant_for(call, tensors)
        if variant is not None and variant.operators is not None:
            variant.operators.meet(tensors)

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """The source model's own result, under the recipe's attention patterns and with the draws of kernels.

        Sparse tensors of this package are passed as torch's. The draws of kernels are reproduced only for captured
        calls.

        Raises:
            CaptureError: the recipe has patterns, and no graph exists for them.
        """
        variant, tensors = None, list[torch.Tensor]()
        if self._request.has_masks or (any(modes(self)) and not torch.is_autocast_enabled("cpu")):
            call = self.flattened_call(args, kwargs)
            tensors = call.tensors(self._matrices)
            like = (modes(self), call.shape)
            if not self._request.has_masks:
                variant = self._captures.fitting(like, tuple(tensor.shape for tensor in tensors))
            elif (variant := self.variant_for(call, tensors)) is None:
                name, why = type(self._source).__name__, self._captures.refused[like]
                raise CaptureError(f"{name} cannot run with the masks of its recipe: {why}")
        if variant is None or variant.masked is None:
            return self._run_source(args, kwargs)
        with self._weights.running(self) as mirrored:
            return variant.masked_result(mirrored(self._source), tensors)

    def _run_refused(self, pieces: Modes | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an uncaptured call, by pieces for its modes if any."""
        from sparsify.passes.module.piecewise import run_uncaptured

        piecewise = self._captures.pieces
        if pieces is None or piecewise is None:
            return run_uncaptured(self, args, kwargs)
        return piecewise.run(self, pieces, args, kwargs)

    def _run_source(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The source model's result; sparse tensors of this package are passed as torch's."""
        with self._weights.running(self) as mirrored:
            return calls.run_source(mirrored(self._source), args, kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Parameters and buffers; packed weights are dense, with `keep_vars` only the packed integer weights."""
        prefix = kwargs.get("prefix", args[1] if len(args) > 1 else "")
        keeps = kwargs.get("keep_vars", args[2] if len(args) > 2 else False)
        with self._weights.lock:
            state = super().state_dict(*args, **kwargs)
            dense = {
                id(weight): self._weights.unpacked(name).detach()
                for name, weight in self._weights.packed().items()
                if not keeps or self._weights.packed_forms[name].spec.has_scales
            }
        for name, parameter in self.named_parameters(remove_duplicate=False):
            if id(parameter) in dense:
                state[prefix + name] = dense[id(parameter)]
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Loads parameters and buffers into the source model, their owner; weights are packed again."""
        with CAPTURES, self._weights.lock:
            packed_forms = self._weights.unpack()
            try:
                return self._source.load_state_dict(dense_state(state_dict, self._source), strict, assign)
            finally:
                self._weights.repack(packed_forms)
                share_tensors(self, self._source)

    def _unpack_to_load(self, state: dict[str, Any], prefix: str, *_: Any) -> None:
        """Makes weights dense while an enclosing module loads a state."""
        with CAPTURES, self._weights.lock:
            self._unpacked = self._weights.unpack()
            share_tensors(self, self._source)
        own_state = {name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)}
        state.update({prefix + name: value for name, value in dense_state(own_state, self._source).items()})

    def _repack_after_load(self, *_: Any) -> None:
        """Packs the weights again after loading."""
        with CAPTURES, self._weights.lock:
            self._weights.repack(self._unpacked)
            share_tensors(self, self._source)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "SparseModule":
        """Converts the source model, the owner of the parameters, for `.double()` and the like.

        Graphs are valid for the captured dtypes: after a change of dtype or device all graphs are dropped, with the
        constants created by captures, which no conversion reaches, as in the source model.
        """
        with CAPTURES, self._weights.lock:
            before = [(tensor.dtype, tensor.device) for tensor in (*self.parameters(), *self.buffers())]
            self._weights.convert(fn, recurse)
            share_tensors(self, self._source)
            if before != [(tensor.dtype, tensor.device) for tensor in (*self.parameters(), *self.buffers())]:
                for name in self._captures.constants():
                    del self._buffers[name]
                self._captures.forget()
                self._call_index.clear()
                self._autocast.dtypes_by_kind.clear()
        return self

    def __reduce__(self) -> Any:
        modes = [module.training for module in self.modules()]
        return restored, (self._source, self._request, self._weights.of(self._weights.source), modes)

    def __deepcopy__(self, memo: dict[int, Any]) -> "SparseModule":
        from sparsify.passes.module.capture_call import compile_graph

        with self._weights.lock:
            variants = list(self._captures.entries)
            source = copy.deepcopy(self._source, memo)
            trained_masks.follow(zip(self._source.parameters(), source.parameters(), strict=True))
            new = SparseModule(source, self._request, self._weights.of(source))
        for (_, shell), (_, module) in zip(new.named_modules(), self.named_modules(), strict=True):
            shell.training = module.training
        refused = self._captures.refused.items()
        new._captures.refused |= {like: why for like, why in refused if like not in self._captures.piecewise}
        new._captures.varying |= self._captures.varying
        for like, variant in variants:
            variant_copy = variant.copied()
            for name, constant in variant_copy.captured.constants.items():
                new.register_buffer(name, constant.clone(), persistent=False)
            compile_graph(new, variant_copy)
            new._captures.add(like, variant_copy)
            if variant.report is self.report:
                new.show(variant_copy)
        memo[id(self)] = new
        return new


def restored(
    source: nn.Module, request: ApplyRequest, weights: Weights, training: Sequence[bool]
) -> SparseModule:
    """A sparse model without graphs, with the training modes of its modules in their order."""
    module = SparseModule(source, request, weights)
    for part, mode in zip(module.modules(), training, strict=True):
        part.training = mode
    return module
