"""The result of `apply`: a module that runs its sparse graph, for every mode and input structure one variant.

In: `SparseModule(model, recipe)`. Out: a `torch.fx.GraphModule` with the model's signature, parameter names
and modes.
"""

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from sparsify import options as settings
from sparsify.errors import CaptureError
from sparsify.passes import PASSES, base, calls
from sparsify.passes.capture import Captured, Dynamic, capture, sparse_parts
from sparsify.passes.check import compare
from sparsify.passes.memory import Memory
from sparsify.recipe import Recipe
from sparsify.report import Report

MAX_CAPTURES = 8
PLAIN = (torch.Tensor, nn.Parameter)


@dataclass
class Variant:
    """One graph of a model: for one mode and one structure of inputs.

    Attributes:
        is_plain: whether the graph returns the model's output itself; else the leaves of its output class.
    """

    captured: Captured
    report: Report
    regions: list[Any]
    is_plain: bool
    run: Callable[..., Any] | None = None
    fitting: set[Any] = field(default_factory=set)

    def fits(self, shapes: tuple[Any, ...]) -> bool:
        """Whether tensors of these shapes fit the captured extents."""
        if shapes in self.fitting:
            return True
        known: dict[str, int] = {}
        for shape, extents in zip(shapes, self.captured.extents, strict=True):
            for size, extent in zip(shape, extents, strict=True):
                if isinstance(extent, int):
                    if size != extent:
                        return False
                elif size < 2 or known.setdefault(extent, size) != size:  # 0 and 1 are special to export
                    return False
        self.fitting.add(shapes)
        return True


class Shell(nn.Module):
    """A module of the source model without its code: it holds the same parameters under the same names."""


class SparseModule(fx.GraphModule):
    """A model whose sparse regions are kernels.

    The parameters are those of the source model. `.graph` is the variant of the current mode; `.report`
    says what became of the model. Calls that fit no variant are captured anew, up to 8 times; then, or when
    capturing fails, the source model runs, with one warning.
    """

    report: Report
    _source: nn.Module
    _signature: inspect.Signature
    _names: tuple[str, ...]
    _recipe: Recipe
    _dynamic: Dynamic
    _strict: bool
    _verify: bool
    _variants: dict[tuple[bool, calls.CallShape], Variant | None]
    _quick: dict[Any, Variant]
    _matrices: Memory
    _captures: int
    _warned: bool
    _generated: Callable[..., Any]

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        *,
        dynamic: Dynamic = None,
        strict: bool = False,
        verify: bool = True,
    ) -> None:
        empty = fx.Graph()
        empty.output(None)
        super().__init__(nn.Module(), empty, type(model).__name__)
        fill_shell(self, model)
        self.training = model.training
        hidden = {
            "_source": model,
            "_signature": calls.signature(model),
            "_names": tuple(calls.signature(model).parameters),
            "_recipe": recipe,
            "_dynamic": dynamic,
            "_strict": strict,
            "_verify": verify,
            "_variants": {},
            "_quick": {},
            "_matrices": Memory(sparse_parts),
            "_captures": 0,
            "_warned": False,
            "report": Report(type(model).__name__, recipe.name),
        }
        for name, value in hidden.items():
            object.__setattr__(self, name, value)  # the source model is no submodule

    def recompile(self) -> Any:
        """Compiles the graph; `forward` stays the dispatcher over variants."""
        code = super().recompile()
        kind = type(self)
        object.__setattr__(self, "_generated", kind.__dict__.get("forward"))
        if "forward" in kind.__dict__ and kind is not SparseModule:
            del kind.forward
        return code

    @property
    def variants(self) -> list[Variant]:
        """All variants in the order in which they were captured."""
        return [variant for variant in self._variants.values() if variant is not None]

    def train(self, mode: bool = True) -> "SparseModule":
        """Sets the mode; `.graph` becomes the variant of that mode when there is one."""
        super().train(mode)
        for (training, _), variant in self.__dict__.get("_variants", {}).items():
            if training == mode and variant is not None:
                self.show(variant)
                break
        return self

    def show(self, variant: Variant) -> None:
        """Makes a variant the one that `.graph` and `.report` are about."""
        self._graph = variant.captured.graph
        object.__setattr__(self, "report", variant.report)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's result, by the variant that fits the call."""
        if torch.compiler.is_compiling():
            return self.traced(args, kwargs)
        if not kwargs and all(type(arg) in PLAIN for arg in args):
            quick = (self.training, *[(arg.dtype, arg.layout, arg.dim()) for arg in args])
            variant = self._quick.get(quick)
            if variant is not None and variant.fits(tuple(arg.shape for arg in args)):
                return self.finish(variant, args)
        call = calls.flatten(self._signature, args, kwargs)
        tensors = call.tensors(self._matrices)
        variant = self.variant_for(call, tensors)
        if variant is None:
            return self.original(*args, **kwargs)
        if not kwargs and all(type(arg) in PLAIN for arg in args) and len(tensors) == len(args):
            self._quick[(self.training, *[(arg.dtype, arg.layout, arg.dim()) for arg in args])] = variant
        return self.finish(variant, tensors)

    def finish(self, variant: Variant, tensors: Sequence[torch.Tensor]) -> Any:
        """The model's output class around the results of a variant."""
        assert variant.run is not None, "prepare compiles the graph"
        result = variant.run(self, *tensors)
        return result if variant.is_plain else pytree.tree_unflatten(result, variant.captured.output)

    def traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result while tracing: the variant of this mode and these arguments; shapes are not looked at."""
        for (training, shape), variant in self._variants.items():
            if training != self.training or variant is None:
                continue
            values = dict(zip(self._names, args, strict=False)) | kwargs
            if tuple(values) == shape.names:
                tensors = pytree.tree_leaves(list(values.values()))
                return self.finish(variant, [t for t in tensors if isinstance(t, torch.Tensor)])
        return self._source(*args, **kwargs)

    def variant_for(self, call: calls.Call, tensors: list[torch.Tensor]) -> Variant | None:
        """The variant that fits a call, captured now when there is none.

        None when the source model has to run.
        """
        key = (self.training, call.shape)
        variant: Variant | None = self._variants.get(key)
        if variant is not None and variant.fits(tuple(tensor.shape for tensor in tensors)):
            return variant
        if variant is None and key in self._variants:
            return None
        if self._captures >= MAX_CAPTURES:
            self.warn(
                f"more than {MAX_CAPTURES} captures; the source model runs for calls that fit none of them"
            )
            return None
        return self.prepare(call, tensors)

    def prepare(self, call: calls.Call, tensors: list[torch.Tensor]) -> Variant | None:
        """Captures, compiles and verifies a variant for calls like `call`."""
        object.__setattr__(self, "_captures", self._captures + 1)
        key = (self.training, call.shape)
        dynamic = self._dynamic if key not in self._variants else ()
        try:
            with in_mode(self._source, self.training):
                variant = self.build(call, tensors, dynamic)
        except CaptureError as error:
            if self._strict or settings.current().strict:
                raise
            self._variants[key] = None
            self.report.warnings.append(str(error))
            self.warn(f"{error}; the source model runs")
            return None
        self._variants[key] = variant
        self._quick.clear()
        if self._verify:
            self.verify(variant, call, tensors)
        return variant

    def build(self, call: calls.Call, tensors: list[torch.Tensor], dynamic: Dynamic) -> Variant:
        """The variant for calls like `call`, compiled."""
        captured = capture(self._source, call, dynamic)
        report = Report(type(self._source).__name__, self._recipe.name, specialised=captured.specialised)
        examples = dict(zip(call.shape.tensor_names(), tensors, strict=True))
        strict = self._strict or self._recipe.compile.fallback == "error"
        current = settings.current()
        if self._recipe.compile.threads is not None:
            current = replace(current, threads=self._recipe.compile.threads)
        draft = base.Draft(captured, self._source, self._recipe, report, current, examples, strict)
        draft = base.run(PASSES, draft)
        for name, constant in captured.constants.items():
            if not hasattr(self, name):
                self.register_buffer(name, constant, persistent=False)
        regions = [node.meta["region"] for node in draft.graph.nodes if "region" in node.meta]
        variant = Variant(captured, report, regions, return_plainly(captured))
        self.compile_graph(variant)
        for text in report.warnings:
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        return variant

    def compile_graph(self, variant: Variant) -> None:
        """Makes the function that runs a variant, and shows the variant."""
        self.graph = variant.captured.graph  # compiles
        variant.run = self._generated
        self.show(variant)

    def verify(self, variant: Variant, call: calls.Call, tensors: list[torch.Tensor]) -> None:
        """Compares a variant with the source model on the inputs of the call."""
        args, kwargs = calls.arguments_of(pytree.tree_unflatten(call.values, call.spec), self._signature)

        def dense() -> Any:
            with warnings.catch_warnings(), in_mode(self._source, self.training):
                warnings.simplefilter("ignore")
                return self._source(*args, **kwargs)

        with torch.no_grad():
            variant.report.largest_error = compare(
                dense, lambda: self.finish(variant, tensors), self._recipe.verify
            )

    def verify_gradients(self, *args: Any, **kwargs: Any) -> float:
        """The largest difference of outputs and parameter gradients to the dense model's for these inputs."""
        parameters = [parameter for parameter in self._source.parameters() if parameter.requires_grad]
        return compare(
            lambda: self.original(*args, **kwargs),
            lambda: self(*args, **kwargs),
            self._recipe.verify,
            parameters,
        )

    def measure(self, *args: Any, repeats: int = 5, **kwargs: Any) -> Report:
        """The report with the median time of each region over `repeats` calls, the first call not counted."""
        self(*args, **kwargs)
        regions = [region for variant in self.variants for region in variant.regions]
        for region in regions:
            region.times_us = []
        for _ in range(repeats):
            self(*args, **kwargs)
        for region in regions:
            times, region.times_us = region.times_us, None
            for entry in self.report.regions:
                if entry.name == region.name and times:
                    entry.measured_us = sorted(times)[len(times) // 2]
        return self.report

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """The source model's own result."""
        with in_mode(self._source, self.training):
            return self._source(*args, **kwargs)

    def warn(self, text: str) -> None:
        """Warns once in the life of the module."""
        if not self._warned:
            object.__setattr__(self, "_warned", True)
            warnings.warn(f"{type(self._source).__name__}: {text}", RuntimeWarning, stacklevel=5)

    def __deepcopy__(self, memo: dict[int, Any]) -> "SparseModule":
        source = copy.deepcopy(self._source, memo)
        new = SparseModule(
            source, self._recipe, dynamic=self._dynamic, strict=self._strict, verify=self._verify
        )
        new.train(self.training)
        for key, variant in self._variants.items():
            if variant is None:
                new._variants[key] = None
                continue
            captured = copy.copy(variant.captured)
            captured.graph = fx.Graph()
            captured.graph.output(captured.graph.graph_copy(variant.captured.graph, {}))
            twin = Variant(captured, copy.deepcopy(variant.report), variant.regions, variant.is_plain)
            for name, constant in captured.constants.items():
                new.register_buffer(name, constant.clone(), persistent=False)
            new.compile_graph(twin)
            new._variants[key] = twin
        new.train(self.training)
        memo[id(self)] = new
        return new


def return_plainly(captured: Captured) -> bool:
    """Makes the graph return the model's output, not its leaves, where its containers are plain."""
    kinds = {part.type for part in parts_of(captured.output)} - {None}
    if not kinds <= {tuple, list, dict}:
        return False
    node = captured.graph.output_node()
    node.args = (pytree.tree_unflatten(list(node.args[0]), captured.output),)  # type: ignore[arg-type]
    return True


def parts_of(spec: pytree.TreeSpec) -> Iterator[pytree.TreeSpec]:
    """A tree and all trees inside it."""
    yield spec
    for child in spec.children():
        yield from parts_of(child)


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Within this context `model` is in training mode or not.

    Afterwards every module is in its mode again.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def fill_shell(shell: nn.Module, model: nn.Module) -> None:
    """Gives `shell` the parameters, buffers and submodules of `model`, as shells of the same names."""
    for name, parameter in model._parameters.items():
        shell.register_parameter(name, parameter)
    for name, buffer in model._buffers.items():
        shell.register_buffer(name, buffer, persistent=name not in model._non_persistent_buffers_set)
    for name, child in model._modules.items():
        inner: nn.Module | None = None
        if child is not None:
            inner = Shell()
            inner.training = child.training
            fill_shell(inner, child)
        shell.add_module(name, inner)
