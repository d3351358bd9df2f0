"""Comparison of a variant's results and gradients with the source model, on the inputs of a captured call.

In: `verify(module, variant, call, tensors)`. Out: the report gets the largest difference, the times of the regions and
the memory of both, or a `VerificationError` is raised. Trained variants are compared by the gradients of all
parameters, and of inputs that require a gradient. `compare` takes two computations of the same outputs.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sparsify.errors import VerificationError
from sparsify.passes.capture import calls
from sparsify.passes.capture.autograd_functions import inlined
from sparsify.passes.capture.libraries.torch_encoder import unpacked_texts
from sparsify.passes.capture.shell import Modes
from sparsify.passes.module.check.row_sample import RowSample, on_rows, row_sample
from sparsify.passes.module.source.hooks import drop_gradient_hooks
from sparsify.passes.module.variants.run_eager import without_effects
from sparsify.passes.module.variants.variant import Variant, pruned_among
from sparsify.passes.module.weights.sparse_parameters import as_dense
from sparsify.passes.operands.content_memo import reading_once
from sparsify.passes.region.sparse_operand import HALVES
from sparsify.passes.rules.not_finite import first_not_finite, value_at
from sparsify.report import Report
from sparsify.runtime.peak import Peak
from sparsify.storage.subclass.trained_masks import entries
from sparsify.storage.tensor import SparseTensor

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule
    from sparsify.recipe import Verify


# Tolerance in roundings of the largest value, for gradients and for results in 16 bits, which torch rounds after every
# operator.
ROUNDINGS: Final = 4
# Seed of the numbers that outputs are multiplied with: unlikely to be the seed of a model's own examples.
TIMES: Final = 2
# Of the numbers that outputs are multiplied with: not one that models' own examples are drawn from.
SEED: Final = 4_093_082_899
# Operators with uninitialised results; FILLING replaces the values, so that two runs agree.
UNINITIALISED: Final = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
)
FILLING: Final = 0.5


def compare(
    dense: Callable[[], Any],
    sparse: Callable[[], Any],
    limits: "Verify",
    parameters: Sequence[torch.Tensor] = (),
    pruned: Callable[[], Collection[int]] = tuple,
    read: Sequence[torch.Tensor] = (),
) -> float:
    """The largest difference between two results; with `parameters`, also between their gradients.

    Args:
        dense, sparse: computations that draw the same random numbers from the same seed.
        limits: `rtol` and `atol`.
        parameters: tensors whose gradients are compared.
        pruned: positions, known after both computations, of parameters whose zeros get no gradient.
        read: operands of the computations; bounds the precision of the results.

    Raises:
        VerificationError: a difference is beyond the limits, or the outputs have different structures.
    """

    def densely() -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            with SameDraws(), unpacked_texts(), inlined(has_gradients=False):  # type: ignore[no-untyped-call]
                return dense()

    with torch.random.fork_rng():
        torch.manual_seed(0)
        with SameDraws():  # type: ignore[no-untyped-call]
            actual = sparse()  # first: the dense model repeats the draws of the kernels of a captured call
        expected = densely()
    largest = 0.0
    coarsest = max(map(precision, (*parameters, *read)), default=0.0)
    for name, want, have in pairs(expected, actual):
        largest = max(largest, require_close(f"output{name}", want, have, limits, coarsest))
    if not parameters:
        return largest
    coarsest = max(coarsest, *map(precision, pytree.tree_leaves(expected)))
    sparse_gradients, zeros = gradients(actual, parameters), pruned()

    def largest_difference(dense_gradients: Sequence[Tensor | None]) -> float:
        masked = [
            gradient * entries(parameters[number])
            if type(gradient) is Tensor and number in zeros
            else gradient
            for number, gradient in enumerate(dense_gradients)
        ]
        return max(largest, compare_gradients(masked, sparse_gradients, limits, coarsest))

    try:
        return largest_difference(gradients(expected, parameters))
    except VerificationError:
        # Gradients of torch's fused attention are wrong in rows whose scores all equal the lowest float: the saved `max
        # + log(sum)` of a row rounds to the maximum. Torch's plain attention decides.
        with sdpa_kernel(SDPBackend.MATH):
            dense_gradients = gradients(densely(), parameters)
        return largest_difference(dense_gradients)


def precision(value: Any) -> float:
    """The spacing of the floating point numbers of a tensor at 1, 0 of anything else."""
    is_floating = isinstance(value, Tensor) and value.dtype.is_floating_point
    return torch.finfo(value.dtype).eps if is_floating else 0.0


def compare_gradients(
    expected: Sequence[Tensor | None],
    actual: Sequence[Tensor | None],
    limits: "Verify",
    precision: float = 0.0,
) -> float:
    """The largest difference of gradients; a missing gradient is a gradient of zeros.

    Gradients are sums of rounded terms that may cancel: `ROUNDINGS` of the largest value among all gradients are
    allowed in addition to the limits.

    Args:
        precision: spacing of the coarsest operands of the gradients.

    Raises:
        VerificationError: a difference is beyond the limits, or only one of two gradients exists.
    """
    largest, rounding = 0.0, ROUNDINGS * precision
    scale = max((largest_of(gradient) for gradient in expected if gradient is not None), default=0.0)
    limits = limits.model_copy(
        update={"rtol": max(limits.rtol, rounding), "atol": limits.atol + rounding * scale}
    )
    for number, (want, have) in enumerate(zip(expected, actual, strict=True)):
        name = f"gradient {number}"
        if want is not None and have is not None:
            largest = max(largest, require_close(name, want, have, limits))
            continue
        for one, kind in ((want, "densely"), (have, "sparsely")):
            if one is not None and one.count_nonzero():
                raise VerificationError(f"{name} exists only {kind}")
    return largest


def compare_training(
    dense: Callable[[], Any],
    sparse: Callable[[], Any],
    limits: "Verify",
    tensors: Sequence[Tensor],
    pruned: Callable[[], Collection[int]],
) -> float:
    """The largest difference of outputs and of gradients; 0 where the dense model itself has no gradients.

    Args:
        dense, sparse, pruned: as in `compare`.
        limits: limits of the outputs; gradients, which add up more terms, have wider limits.
        tensors: tensors whose gradients are compared.

    Raises:
        VerificationError: gradients differ, or exist for the dense model only.
    """
    wider = limits.model_copy(update={"rtol": 10 * limits.rtol, "atol": 10 * limits.atol})
    try:
        return compare(dense, sparse, wider, tensors, pruned)
    except VerificationError:
        raise
    except RuntimeError as error:  # raised by autograd, for example
        try:
            gradients(dense(), tensors)
        except RuntimeError:
            return 0.0
        raise VerificationError(f"gradients exist only densely: {error}") from error


class SameDraws(TorchDispatchMode):
    """Dropout that depends on coordinates alone, and no uninitialised memory.

    Torch's own draws follow the memory order, which may differ.
    """

    only_looks = True  # keeps no tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.native_dropout.default and args[2] is not False:
            mask = drawn(args[0].shape) >= args[1]
            return args[0] * mask / (1 - args[1]), mask
        if func is torch.ops.aten.bernoulli_.float:
            return args[0].copy_(drawn(args[0].shape) < (args[1] if len(args) > 1 else 0.5))
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket not in UNINITIALISED or result.layout is not torch.strided:
            return result
        return result.fill_(FILLING) if result.is_floating_point() else result.zero_()


def drawn(shape: torch.Size) -> torch.Tensor:
    """Uniform numbers in row-major order, from torch's generator."""
    return torch.rand(tuple(shape))


def pairs(expected: Any, actual: Any) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """The tensors of two equal output structures, with their paths."""
    left, left_spec = pytree.tree_flatten_with_path(expected)
    right, right_spec = pytree.tree_flatten(actual)
    if left_spec != right_spec:
        raise VerificationError(f"the outputs are {right_spec}, the dense model's {left_spec}")
    return [
        (pytree.keystr(path), want, have)
        for (path, want), have in zip(left, right, strict=True)
        if isinstance(want, torch.Tensor)
    ]


def require_close(
    name: str, want: torch.Tensor, have: torch.Tensor, limits: "Verify", coarsest: float = 0.0
) -> float:
    """The largest absolute difference, if within the limits.

    Args:
        coarsest: precision of the coarsest operands of the results.
    """
    if want.shape != have.shape or want.dtype != have.dtype:
        raise VerificationError(
            f"{name} is {have.dtype} {list(have.shape)}, densely {want.dtype} {list(want.shape)}"
        )
    if want.numel() == 0:
        return 0.0
    is_floating = want.dtype.is_floating_point
    rtol = max(limits.rtol, ROUNDINGS * max(precision(want), coarsest)) if is_floating else limits.rtol
    want, have = numbers_of(want.detach()), numbers_of(have.detach())
    difference = (want - have).abs().double()
    largest, scale = float(torch.nan_to_num(difference, nan=0.0).max()), largest_of(want)
    same_nan = bool((want.isnan() == have.isnan()).all()) if want.is_floating_point() else True
    if not same_nan:
        places = (want.isnan() != have.isnan()).nonzero()
        raise VerificationError(
            f"{name} differs from the dense model's where one is NaN, in {len(places)} of {want.numel()} entries: "
            f"it is {value_at(have, places)} at {places[0].tolist()}, and the dense model's {value_at(want, places)}",
        )
    if largest > limits.atol + rtol * scale:
        raise VerificationError(
            f"{name} differs from the dense model's by {largest:.3g} (largest value {scale:.3g})",
            f"rtol {rtol:g} and atol {limits.atol:g} allow {limits.atol + rtol * scale:.3g}",
        )
    return largest


def numbers_of(tensor: torch.Tensor) -> torch.Tensor:
    """The entries of a tensor in a dtype with arithmetic in torch; dense unless of this package."""
    if isinstance(tensor, SparseTensor):
        return tensor.float() if tensor.dtype is torch.bool else tensor
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    elif tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        return tensor
    if not tensor.is_floating_point():
        return tensor.double()
    return tensor if tensor.dtype.itemsize > 1 else tensor.float()


def largest_of(tensor: torch.Tensor) -> float:
    """The largest finite absolute value of a tensor, 0 for an empty one."""
    return float(tensor.detach().abs().double().nan_to_num(posinf=0.0).max()) if tensor.numel() else 0.0


@contextmanager
def naming_values(model: torch.nn.Module, tensors: Mapping[str, Any]) -> Iterator[None]:
    """A context in which comparison errors name the weights and inputs with NaN or infinity."""
    try:
        yield
    except VerificationError as error:
        named_tensors = [*model.named_parameters(), *tensors.items()]
        causes = [
            f"{name} is {entry}" for name, tensor in named_tensors if (entry := first_not_finite(tensor))
        ]
        if not causes:
            raise
        raise VerificationError("; ".join((*causes, error.message)), error.remedy) from error


def report_half(report: Report, model: torch.nn.Module) -> None:
    """Warns in the report of a 16-bit model with matched rules and without regions."""
    dtypes = {str(parameter.dtype) for parameter in model.parameters() if parameter.dtype in HALVES}
    if dtypes and not report.regions and any(rule.matched for rule in report.rules):
        reasons = list(dict.fromkeys(entry.reason for entry in report.dense))
        why = f": {'; '.join(reasons)}" if reasons else ""
        report.warnings.append(f"nothing of this model in {', '.join(sorted(dtypes))} runs in kernels{why}")


def gradients(
    outputs: Any, parameters: Sequence[torch.Tensor], like: Any = None
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of the sum of all outputs times fixed random numbers.

    The gradients of sums of squares would hardly depend on a model that ends with a normalisation.

    Args:
        outputs: tree of tensors.
        parameters: tensors that get gradients.
        like: same tree in the dtypes to which the random numbers are rounded.
    """
    dtypes = [leaf.dtype for leaf in pytree.tree_leaves(like) if isinstance(leaf, torch.Tensor)]
    leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    terms = []
    for number, leaf in enumerate(leaves):
        if leaf.requires_grad:
            generator = torch.Generator().manual_seed(SEED + number)
            values = numbers_of(leaf)
            drawn = torch.randn(leaf.shape, generator=generator)
            drawn = drawn.to(dtypes[number]) if dtypes else drawn
            terms.append((values * drawn.to(values.device, values.dtype)).sum())
    if not terms:
        return (None,) * len(parameters)
    return torch.autograd.grad(terms, list(parameters), allow_unused=True)


TIMED_CALLS: Final = 3
# Seconds of calls after which only one more is timed.
TIMED_SECONDS: Final = 0.1


def verify(
    module: "SparseModule", variant: Variant, call: calls.Call, tensors: list[torch.Tensor], mode: Modes
) -> None:
    """Times the regions of a variant, and compares it with the source model on the inputs of the call.

    Raises:
        VerificationError: the results, or the gradients of a trained variant, differ.
    """
    peak, report = Peak(), variant.report
    writes = variant.writes()

    def inputs() -> list[torch.Tensor]:
        return [tensor.clone() for tensor in tensors] if writes else tensors

    def sparse() -> Any:
        result = reading_once(without_effects(module, variant), inputs())
        return result if variant.is_plain else pytree.tree_unflatten(result, variant.captured.output)

    def dense(dense_call: calls.Call = call) -> Any:
        mirror = module._weights.mirror(mode, module, to_dense=as_dense)
        mirror.copy_buffers()
        drop_gradient_hooks(mirror.model)
        with peak:
            if variant.masked is None:
                private_call = calls.copied(dense_call) if writes else dense_call
                return calls.run_call(mirror.model, module._signature, private_call)
            return variant.masked_result(mirror.model, inputs())

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        # First: the compared run follows the memory plan of the timed runs.
        variant.timed(sparse, TIMED_CALLS, TIMED_SECONDS)
    is_whole = variant.masked is not None or writes
    sample = None if is_whole else row_sample(call, hops=len(variant.regions))
    if sample is not None and agrees_on(sample, module, variant, call, dense, sparse):
        return
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        read = [*module._source.parameters(), *tensors]
        limits = module._request.recipe.verify
        try:
            report.largest_error = compare(dense, sparse, limits, read=read)
        except VerificationError as error:
            report.largest_error = rounding(module, variant, call, mode, (dense, sparse), error)
    report.dense_peak_bytes = peak.bytes
    if not module._request.is_trainable(variant.captured.training):
        return
    try:
        largest = gradient_error(module, variant, call, dense, sparse)
    except VerificationError as error:
        largest = rounding(module, variant, call, mode, (dense, sparse), error, trained_tensors(module, call))
    report.largest_error = max(report.largest_error, largest)


def agrees_on(
    sample: RowSample,
    module: "SparseModule",
    variant: Variant,
    call: calls.Call,
    dense: Callable[[calls.Call], Any],
    sparse: Callable[[], Any],
) -> bool:
    """Whether a sample of rows agrees (noted in the report); otherwise all rows have to be compared.

    Rows may depend on more edges than a sample has, as with a normalisation over all nodes.
    """
    report, limits = variant.report, module._request.recipe.verify
    densely, sparsely = on_rows(sample, lambda: dense(sample.call)), on_rows(sample, sparse)
    tensors = [value for value in call.values if isinstance(value, Tensor)]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            error = compare(densely, sparsely, limits, read=[*module._source.parameters(), *tensors])
        if module._request.is_trainable(variant.captured.training):
            error = max(error, gradient_error(module, variant, call, densely, sparsely))
    except (VerificationError, RuntimeError):  # for example model code that requires certain edges
        return False
    report.largest_error, report.compared_rows = error, len(sample.rows)
    return True


def rounding(
    module: "SparseModule",
    variant: Variant,
    call: calls.Call,
    mode: Modes,
    runs: tuple[Callable[[], Any], Callable[[], Any]],
    error: VerificationError,
    parameters: Sequence[Tensor] = (),
) -> float:
    """The largest difference of a variant from the model in float64, where rounding explains an error.

    Args:
        module, variant, call, mode: the compared models and call.
        runs: dense and sparse computation.
        error: the error of their comparison.
        parameters: tensors whose gradients are compared.

    Raises:
        VerificationError: the error, where the sparse model is less precise than the dense one.
    """
    read = [*module._source.parameters(), *(value for value in call.values if isinstance(value, Tensor))]
    is_rounded = any(tensor.is_floating_point() and tensor.dtype is not torch.float64 for tensor in read)
    if not is_rounded or variant.masked is not None or variant.pruned() or variant.writes():
        raise error
    try:
        return compare_rounding(*runs, Exact(module, call, mode), module._request.recipe.verify, parameters)
    except Exception:  # model code without float64 support may raise anything
        raise error from None


def trained_tensors(module: "SparseModule", call: calls.Call) -> list[Tensor]:
    """The parameters and inputs with gradients."""
    inputs = [value for value in call.values if type(value) is torch.Tensor]
    return [tensor for tensor in (*module._source.parameters(), *inputs) if tensor.requires_grad]


class Exact:
    """The source model in float64.

    Attributes:
        tensors: float64 copies of the parameters and of the inputs with gradients.
    """

    def __init__(self, module: "SparseModule", call: calls.Call, mode: Modes) -> None:
        mirror = module._weights.mirror(mode, module)
        self.model, self.signature = copy.deepcopy(mirror.model).double(), module._signature
        drop_gradient_hooks(self.model)
        values = [precisely(value) for value in call.values if isinstance(value, Tensor)]
        self.call = calls.with_tensors(call, values)
        parameters = zip(self.model.parameters(), module._source.parameters(), strict=True)
        self.tensors: list[Tensor] = [tensor for tensor, source in parameters if source.requires_grad]
        self.tensors += [tensor for tensor in values if type(tensor) is torch.Tensor and tensor.requires_grad]

    def __call__(self) -> Any:
        """The results of the call."""
        return calls.run_call(self.model, self.signature, self.call)


def precisely(value: Tensor) -> Tensor:
    """A float64 copy of a tensor; integer tensors are returned unchanged."""
    if not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


def compare_rounding(
    dense: Callable[[], Any],
    sparse: Callable[[], Any],
    exact: Exact,
    limits: "Verify",
    parameters: Sequence[Tensor] = (),
) -> float:
    """The largest difference from the model in float64: at most twice the dense model's, plus the limits.

    Sums of many terms in 16 bits differ by more than a few roundings, also from the exact sum, and gradients jump where
    a rounded number selects one of two slopes.

    Raises:
        VerificationError: the sparse model is less precise than the dense one.
    """
    results = []
    for run in (sparse, dense, exact):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            with SameDraws(), unpacked_texts(), inlined(has_gradients=False):  # type: ignore[no-untyped-call]
                results.append(run())
    actual, expected, true = results
    return rounding_error(actual, expected, true, exact.tensors, limits, parameters)


def rounding_error(
    actual: Any,
    expected: Any,
    true: Any,
    exact: Sequence[Tensor],
    limits: "Verify",
    parameters: Sequence[Tensor] = (),
) -> float:
    """The largest difference of results, or of gradients, from the float64 values.

    Args:
        found, expected, true: results of the sparse model, of the dense one and of the dense one in float64.
        exact: copies of `parameters` in float64.
        limits: tolerance in addition to twice the difference of the dense model.
        parameters: tensors whose gradients are compared; none compares the results themselves.

    Raises:
        VerificationError: the sparse model is less precise than the dense one.
    """
    named = [(f"output{name}", want, have) for name, want, have in pairs(expected, actual)]
    truths: list[Any] = [leaf for leaf in pytree.tree_leaves(true) if isinstance(leaf, Tensor)]
    if parameters:
        sparse_gradients, plain = (
            gradients(actual, parameters, expected),
            gradients(expected, parameters, expected),
        )
        triples = zip(sparse_gradients, plain, gradients(true, exact, expected), strict=True)
        complete = [triple for triple in triples if all(gradient is not None for gradient in triple)]
        named = [(f"gradient {n}", want, have) for n, (have, want, _) in enumerate(complete)]  # type: ignore[misc]
        truths = [truth for _, _, truth in complete]
    scale = max(map(largest_of, truths), default=0.0)
    largest = 0.0
    for (name, want, have), truth in zip(named, truths, strict=True):
        error, usual = (largest_of(numbers_of(part).double() - truth.double()) for part in (have, want))
        allowed = TIMES * usual + limits.atol + max(limits.rtol, ROUNDINGS * precision(want)) * scale
        if have.dtype != want.dtype or have.shape != want.shape:
            raise VerificationError(f"{name} is {have.dtype} {list(have.shape)}, densely {want.dtype}")
        if error > allowed or not torch.equal(have.isfinite(), want.isfinite()):
            raise VerificationError(
                f"{name} differs from the model in float64 by {error:.3g}, the dense one by {usual:.3g}"
            )
        largest = max(largest, error)
    return largest


def gradient_error(
    module: "SparseModule",
    variant: Variant,
    call: calls.Call,
    dense: Callable[[], Any],
    sparse: Callable[[], Any],
) -> float:
    """The largest difference of gradients; 0 without gradients."""
    tensors = trained_tensors(module, call)
    if not tensors or not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return 0.0

    def pruned() -> set[int]:
        return pruned_among(tensors, [variant], module._source)

    try:
        with torch.random.fork_rng(devices=[]):
            return compare_training(dense, sparse, module._request.recipe.verify, tensors, pruned)
    finally:
        for region in variant.regions:
            region.differentiable.clear()  # until the model's first backward, operands are remembered
