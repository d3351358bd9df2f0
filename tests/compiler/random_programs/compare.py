"""Runs a program everywhere: interpreters of all representations, compiled C++, dense arrays; all must agree.

In: a `Case`. Out: `Prepared`, one `Lowered` a step, checked by the interpreters, ready to be compiled with others
in one unit by `compile_cases` and then run by `run_compiled`.
"""

import ctypes
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsify.compiler.cpp.toolchain import clang_openmp
from sparsify.compiler.cpp.toolchain.build import BRIDGE, command, find_compiler
from sparsify.compiler.cpp.toolchain.cache import Library
from sparsify.compiler.einsum.infer.share import shared_pattern
from sparsify.compiler.einsum.interpret import interpret as interpret_program
from sparsify.compiler.einsum.nodes import Declaration
from sparsify.compiler.kernel.kernel import Kernel
from sparsify.compiler.kernel.statement_kernel import GeneratedStep
from sparsify.compiler.kernel.variants import Variant, Variants
from sparsify.compiler.loops.interpret import interpret as interpret_loops
from sparsify.compiler.loops.numpy_values import array_dtype
from sparsify.compiler.notation.interpret import interpret as interpret_notation
from sparsify.compiler.operands.arguments import DenseInput, SparseInput
from sparsify.compiler.pipeline import Stages, compile_stages
from sparsify.compiler.plan.plan import Convert, Step, steps
from sparsify.compiler.plan.products.dense_product import DenseProduct
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.size_class import PatternClasses
from sparsify.compiler.schedule.sizes import Sizes, sizes_of
from sparsify.errors import DiscordantError, ScheduleError, UnsupportedProgramError
from sparsify.options import Options
from sparsify.storage import validate
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor
from tests.compiler.random_programs.closeness import (
    assert_close,
    decided_by_order,
    has_comparisons,
    has_logic,
    has_temporaries,
)
from tests.compiler.random_programs.data import SPECIAL, Case, array_of, dense_of
from tests.compiler.random_programs.dense import compute

Values = NDArray[np.float64]
Tensor = torch.Tensor
Choose = Callable[[Step, Sizes], Iterable[Schedule | None]]


class RefusedCodeError(AssertionError):
    """The compiler does not take the code of a case."""

    def __init__(self, prepared: "Prepared", output: str) -> None:
        super().__init__(f"{prepared.case} does not compile:\n{output[:3000]}")
        self.prepared = prepared


@dataclass
class Prepared:
    """A case with lowered steps; `results` are the expected outputs with masks of stored entries."""

    case: Case
    plan: list[tuple[Step, Stages] | DenseProduct | Convert]
    results: Mapping[str, tuple[Values, NDArray[np.bool_]]]
    libraries: list[Library] = field(default_factory=list)


def as_chosen(step: Step, sizes: Sizes) -> Iterable[Schedule | None]:
    """The compiler's choice."""
    return (None,)


def prepare(
    case: Case, choose: Choose = as_chosen, *, whole: bool = False, interpreted: bool = True
) -> Prepared:
    """Lowers a case and compares all interpreters.

    Args:
        choose: the schedules of a step for operands of some sizes, of which the first one that lowers is taken;
            `None` for the compiler's choice.
        whole: all statements are one step.
        interpreted: whether notation and loops are interpreted, too, not the program alone.

    Raises:
        AssertionError: two of them differ.
        SparsifyError: the compiler refuses the program, or all schedules that `choose` gives for a step.
    """
    results = reference(case)
    tensors: dict[str, Tensor] = {name: operand_of(case, name) for name in case.program.inputs}
    plan: list[tuple[Step, Stages] | DenseProduct | Convert] = []
    given_sizes = sizes_of(case.program, [tensors[name] for name in case.program.inputs])
    whole_plan = steps(case.program, given_sizes, scheduled=whole)
    # What is converted afterwards has the values of the result under another name.
    results = {
        **results,
        **{s.source: results[s.result] for s in whole_plan if isinstance(s, Convert) and s.result in results},
    }
    for step in whole_plan:
        if isinstance(step, Step):
            plan.append((step, _stages(case, step, choose, tensors)))
        else:
            plan.append(step)
        if interpreted:
            _interpret(case, plan[-1], tensors, results)
    return Prepared(case, plan, results)


def reference(case: Case) -> dict[str, tuple[Values, NDArray[np.bool_]]]:
    """The results of the program's interpreter, compared with dense arrays."""
    arrays = {name: (case.values[name], case.stored[name]) for name in case.program.inputs}
    results = interpret_program(case.program, arrays)
    _compare_dense(case, results)
    return results


def _stages(case: Case, step: Step, choose: Choose, tensors: Mapping[str, Tensor]) -> Stages:
    """Stages of a step up to C++, by the first schedule that lowers."""
    sources = {twin.name: twin.source for twin in step.twins}
    given = [tensors.get(sources.get(name, name)) for name in step.program.inputs]
    sizes = sizes_of(step.program, given)
    refused: Exception | None = None
    for schedule in choose(step, sizes):
        try:
            return compile_stages(step, schedule, case.vector_bytes, Options(), sizes)
        except (ScheduleError, DiscordantError, UnsupportedProgramError) as error:
            refused = refused or error
    assert refused is not None, "there is a schedule"
    raise refused


def _interpret(
    case: Case,
    planned: tuple[Step, Stages] | DenseProduct | Convert,
    tensors: dict[str, Tensor],
    results: Mapping[str, tuple[Values, NDArray[np.bool_]]],
) -> None:
    """Runs a step by the interpreters of its notation and loops; adds its results to `tensors`."""
    if not isinstance(planned, tuple):
        tensors[planned.result] = planned.compute(tuple(tensors[name] for name in planned.operands))
        if planned.result in results:
            compare_result(str(planned), case, planned.result, tensors[planned.result], results)
        return
    step, stages = planned
    _compare_notation(case, step, stages, tensors, results)
    tensors |= _run_loops(case, step, stages, tensors)
    for name in step.program.outputs:
        if name in results:  # else a temporary of a product that was split
            compare_result(f"loops of {stages.schedule}", case, name, tensors[name], results)


def operand_of(case: Case, name: str) -> Tensor:
    """The tensor of an input."""
    declared = case.program.declaration(name)
    if name in case.tensors:
        return case.tensors[name]
    return torch.from_numpy(case.values[name]).to(getattr(torch, declared.dtype))


def values_of(tensor: Tensor) -> tuple[Values, NDArray[np.bool_]]:
    """Values and mask of stored entries of a tensor, as read by the interpreters."""
    if isinstance(tensor, SparseTensor):
        return dense_of(tensor)
    return array_of(tensor), np.ones(tuple(tensor.shape), bool)


def compare_result(
    where: str, case: Case, name: str, found: Tensor, results: Mapping[str, tuple[Values, NDArray[np.bool_]]]
) -> None:
    """Compares the values and the stored entries of a result."""
    values, stored = values_of(found)
    if name not in results:
        return  # of a sum that has been cut out
    wanted, mask = results[name]
    assert_close(f"{where}: {name}", case, name, values, wanted)
    if isinstance(found, SparseTensor):
        validate.pattern(found.pattern)
        missing = mask & ~stored & (wanted != float(found.fill))
        assert not missing.any(), f"{where}: {name} lacks entries {np.argwhere(missing)[:3].tolist()}"


def _compare_notation(
    case: Case, step: Step, stages: Stages, tensors: Mapping[str, Tensor], results: Mapping[str, Any]
) -> None:
    """Runs the scheduled notation by its interpreter and compares the results."""
    twins = {twin.name: twin.source for twin in step.twins}
    given = {name: values_of(tensors[twins.get(name, name)]) for name in step.program.inputs}
    for name, found in interpret_notation(stages.notation, given).items():
        if name in results:
            assert_close(f"notation of {stages.schedule}: {name}", case, name, found[0], results[name][0])


def _run_loops(case: Case, step: Step, stages: Stages, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Results of a step by the interpreter of loops; undefined values are NaN."""
    function = stages.loops
    twins = {twin.name: twin.source for twin in step.twins}
    extents = dict(step.program.extents)
    numbers = [0] * len(function.sizes)
    buffers: list[Tensor | None] = []
    for name in step.program.inputs:
        declared, tensor = step.program.declaration(name), tensors[twins.get(name, name)]
        extents.update(zip(declared.extents, tensor.shape, strict=True))
        source: DenseInput | SparseInput = SparseInput(
            declared, PatternClasses(name in twins), function.sizes
        )
        if declared.format.is_dense:
            source = DenseInput(declared, name in twins)
        source.read(tensor, numbers, buffers)
    sizes = dict(zip(function.sizes, numbers, strict=True))
    sizes |= {f"{name}_extent": extent for name, extent in extents.items() if f"{name}_extent" in sizes}
    unknown = {f"{output}_nnz": -1 for output in step.program.outputs}
    sizes = {name: unknown.get(name, 0 if name == "serial_threshold" else s) for name, s in sizes.items()}
    arrays = {
        argument.name: _numpy(buffer.detach().reshape(-1))
        for argument, buffer in zip(function.buffers, buffers, strict=False)
        if buffer is not None
    }
    outputs = [step.program.declaration(name) for name in step.program.outputs]
    shapes = {output.name: tuple(extents[name] for name in output.extents) for output in outputs}
    for output in outputs:
        if output.is_assembled:
            continue
        count = int(np.prod(shapes[output.name]))
        if output.pattern_of is not None:
            count = _root(output, twins, tensors, shapes[output.name]).nnz
        arrays[f"{output.name}_vals"] = np.full(count, poison(output.dtype), array_dtype(output.dtype))
    found = interpret_loops(function, sizes, arrays, case.threads)
    assert found.status == 0, f"status {found.status}"
    results = {}
    for output in outputs:
        if output.is_assembled:
            results[output.name] = _grown(output, shapes[output.name], found.grown)
            continue
        values = _torch(arrays[f"{output.name}_vals"], output.dtype)
        if output.pattern_of is not None:
            pattern = _root(output, twins, tensors, shapes[output.name])
            results[output.name] = SparseTensor(pattern, values, output.fill)
        else:
            results[output.name] = _laid_out(output, values, shapes[output.name])
    return results


def _root(
    output: Declaration, twins: Mapping[str, str], tensors: Mapping[str, Tensor], shape: tuple[int, ...]
) -> Pattern:
    """Pattern of a result that shares the pattern of an operand, or of its transposed copy, over further modes."""
    assert output.pattern_of is not None
    source = tensors[twins.get(output.pattern_of, output.pattern_of)]
    assert isinstance(source, SparseTensor)
    if output.pattern_of not in twins:
        return shared_pattern(source.pattern, output.format, shape)
    assert source.dim() == len(shape), "what is turned has the modes of its result"
    return source.pattern.converted(output.format)[0]


def poison(dtype: str) -> float | int:
    """Initial contents of uninitialized memory."""
    if dtype == "bool":
        return 1
    if dtype == "bfloat16":
        return 0x7FC0
    return np.iinfo(dtype).min if dtype.startswith("int") else np.nan


def _laid_out(output: Declaration, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Dense result with its modes in order."""
    ordering = output.format.ordering
    stored = values.reshape([shape[mode] for mode in ordering])
    return stored.permute([ordering.index(mode) for mode in range(len(ordering))])


def _grown(output: Declaration, shape: tuple[int, ...], made: Mapping[str, NDArray[Any]]) -> SparseTensor:
    """An assembled result."""
    values = _torch(made[f"{output.name}_vals"], output.dtype)
    arrays = {name: torch.from_numpy(a) for name, a in made.items() if not name.endswith("_vals")}
    levels = range(1, len(output.format.levels) + 1)
    pos = [arrays.get(f"{output.name}{n}_pos") for n in levels]
    crd = [arrays.get(f"{output.name}{n}_crd") for n in levels]
    if pos[-1] is not None and crd[-1] is not None:
        # Where rows are filled below a bound, memory is left behind the last one.
        crd[-1], values = crd[-1][: int(pos[-1][-1])], values[: int(pos[-1][-1])]
    return SparseTensor(Pattern(output.format, shape, pos, crd), values, output.fill)


def _numpy(values: Tensor) -> NDArray[Any]:
    """Values in the representation of the interpreter of loops."""
    if values.dtype == torch.bfloat16:
        return values.view(torch.int16).numpy().view(np.uint16)
    return values.numpy()


def _torch(values: NDArray[Any], dtype: str) -> Tensor:
    """Values of the interpreter of loops."""
    if dtype == "bfloat16":
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def compile_cases(
    cases: Sequence[Prepared], folder: Path, flags: Sequence[str] = ("-O1",), compiler: str | None = None
) -> None:
    """Compiles the kernels of all cases in one run of the compiler, each kernel in a separate namespace."""
    units = [(case, step[1]) for case in cases for step in case.plan if isinstance(step, tuple)]
    numbers: dict[str, int] = {}
    texts = []
    for number, (_, stages) in enumerate(units):
        if numbers.setdefault(stages.cpp, number) == number:
            text = stages.cpp.replace("sparsify_kernel", f"sparsify_kernel_{number}")
            texts.append(f"namespace unit_{number} {{\n{text}\n}}\n")
    source, result = folder / "kernels.cpp", folder / "kernels.so"
    source.write_text("\n".join(texts))
    settings = Options(compiler=compiler, compiler_flags=tuple(flags))
    found = find_compiler(settings)
    if found.needs_bridge():
        (folder / BRIDGE).write_text(clang_openmp.SOURCE)
    done = subprocess.run(
        command(found, source, result, settings), capture_output=True, text=True, check=False
    )
    if done.returncode:
        place = re.search(r"unit_(\d+)", done.stderr) or re.search(r"sparsify_kernel_(\d+)", done.stderr)
        raise RefusedCodeError(units[int(place[1]) if place else 0][0], done.stderr)
    handle = ctypes.CDLL(str(result))
    for case in cases:
        case.libraries.clear()
    for case, stages in units:
        number = numbers[stages.cpp]
        address = ctypes.cast(getattr(handle, f"sparsify_kernel_{number}"), ctypes.c_void_p).value
        assert address is not None
        notes = {
            "sizes": stages.loops.sizes,
            "buffers": [[b.name, b.dtype, b.output, b.grown] for b in stages.loops.buffers],
        }
        built = Library(f"{number}", result, address, "compiled", 0.0, notes=notes, handle=handle)
        case.libraries.append(built)


class Compiled(Variants):
    """A kernel compiled in one unit with others."""

    def __init__(self, stages: Stages, library: Library) -> None:
        self.built = 0
        self.found = Variant(lambda: stages, library)

    def best(self, sizes: Sizes) -> Variant:
        return self.found


def run_compiled(prepared: Prepared) -> None:
    """Runs the kernels of a case through the public path, and compares the outputs."""
    case = prepared.case
    run_kernel(case, kernel_of(prepared, case.threads), prepared.results)


def run_again(prepared: Prepared, case: Case) -> None:
    """Runs the kernels with other operands."""
    run_kernel(case, kernel_of(prepared, case.threads), reference(case))


def kernel_of(prepared: Prepared, threads: int) -> Kernel:
    """Compiled kernels of a case, multithreaded regardless of the amount of work."""
    case = prepared.case
    settings = Options(threads=threads, serial_threshold=0, vector_bytes=case.vector_bytes)
    libraries = iter(prepared.libraries)
    plan = [
        step
        if not isinstance(step, tuple)
        else GeneratedStep(step[0], Compiled(step[1], next(libraries)), settings)
        for step in prepared.plan
    ]
    return Kernel(case.program, tuple(plan))


def run_kernel(case: Case, kernel: Kernel, results: Mapping[str, tuple[Values, NDArray[np.bool_]]]) -> None:
    """Compares the outputs of a kernel."""
    found = kernel(*(operand_of(case, name) for name in case.program.inputs))
    outputs = case.program.outputs
    for name, value in zip(outputs, found if len(outputs) > 1 else (found,), strict=True):
        compare_result("kernel", case, name, value, results)


def _compare_dense(case: Case, results: Mapping[str, tuple[Values, NDArray[np.bool_]]]) -> None:
    """Compares the interpreter of programs with dense arrays, for finite fills."""
    masks = {**case.stored, **{name: mask for name, (_, mask) in results.items()}}
    declarations = case.program.declarations
    if any(declared.dtype.startswith("complex") for declared in declarations):
        return
    infinite = any(np.isinf(declared.fill) for declared in declarations)
    is_float = all(d.dtype.startswith("float") for d in declarations) and not has_logic(case.program)
    computed = compute(case.program, case.values, masks)
    if (
        infinite
        and has_comparisons(case.program)
        and any(np.isnan(found).any() for found in computed.values())
    ):
        case.undecided |= computed.keys()
    if case.data.values == SPECIAL.values:
        case.compared |= decided_by_order(
            case, masks, {name: values for name, (values, _) in results.items()}
        )
    for name, found in computed.items():
        wanted = results[name][0]
        case.doubtful[name] = np.isnan(found) & (infinite or has_temporaries(case.program))
        if infinite or not is_float or (case.data.values == SPECIAL.values and "sign(" in str(case.program)):
            continue  # a NaN may have been compared since; plain arithmetic knows no truth values and integers
        assert_close(f"dense: {name}", case, name, np.where(np.isnan(found), wanted, found), wanted)
