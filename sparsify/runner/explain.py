"""The command `sparsify explain`: a registered model with its recipe, or an expression over formats.

In: `explain_model_request(resolve("gcn"))`, or `explain_expression("ij,jk->ik", ["csr", "dense"])`. Out: sections.
The model is not trained and nothing is measured; an expression is not even compiled.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import torch

from sparsify.compiler import calibrate
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.nodes import Access, Assign, Index, Program
from sparsify.compiler.einsum.text.parse import read
from sparsify.compiler.einsum.text.subscripts import read_subscripts
from sparsify.compiler.explain import Section, explain_program, only, printed
from sparsify.compiler.ir.node import find
from sparsify.compiler.kernel.kernel import result_index_dtypes
from sparsify.compiler.schedule.cost.statement import estimate_us
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.errors import CaptureError, EinsumError, FormatError, ParseError, ScheduleError, SparsifyError
from sparsify.options import check_stage, current
from sparsify.passes.apply import apply
from sparsify.passes.explain import STAGES, Explanation, explain_model
from sparsify.passes.graph.operators import scope
from sparsify.passes.rules.mark import named
from sparsify.recipe.suggestion import nearest
from sparsify.runner.preview import captured
from sparsify.runner.request import Request
from sparsify.runner.subject import subject
from sparsify.storage.format import Format

DTYPES: Final = ("float32", "float64")
MISTAKES: Final = (EinsumError, FormatError, ParseError, ScheduleError)


@dataclass(frozen=True, slots=True)
class Shown:
    """The parts of an explanation to print.

    Attributes:
        subject: the model or expression explained.
        sections: sections in print order.
        facts: machine-readable facts besides the sections.
        hint: how to see omitted parts.
    """

    subject: str
    sections: tuple[Section, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    hint: str = ""

    def __str__(self) -> str:
        return printed(self.sections) + (f"\n\n{self.hint}" if self.hint else "")

    def to_dict(self) -> dict[str, Any]:
        """The explanation as plain data."""
        sections = [section.to_dict() for section in self.sections]
        return {"subject": self.subject, **self.facts, "sections": sections}


def check_stages(stages: Sequence[str]) -> tuple[str, ...]:
    """The names between commas.

    Raises:
        SparsifyError: a name is no stage; the message lists the stages.
    """
    names = tuple(part.strip() for text in stages for part in text.split(",") if part.strip())
    for name in names:
        check_stage(name, "--stage ", STAGES)
    return names


def explain_model_request(request: Request, *, region: str = "1", stages: Sequence[str] = ()) -> Shown:
    """The request's model with untrained weights, made sparse by its recipe.

    Args:
        request: model, recipe and data.
        region: the number of the region to show, or `all`.
        stages: stages of the region to show; all by default.

    Raises:
        SparsifyError: the region or a stage is unknown.
        CaptureError: the model cannot be captured.
    """
    names = check_stages(stages)
    asked = subject(request)
    model, example = asked.model, asked.example
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are in the report
        try:
            module = apply(model, request.recipe, example, verify=False)
        except SparsifyError:
            raise
        except (ValueError, RuntimeError, TypeError) as error:  # of the model
            raise CaptureError(f"{request.entry.name} does not run: {error}", "other arguments") from error
    if not module.variants:
        raise CaptureError("; ".join(module.report.warnings), "only what is captured can be explained")
    with torch.no_grad():
        module(*example)  # schedules are chosen by the sizes of a call
    found = explain_model(module)
    chosen = chosen_regions(found, region)
    sections = (found.model, *chosen)
    if names:
        sections = only(chosen, names)
    left = len(found.regions) - len(chosen)
    hint = (
        f"{left} more of {len(found.regions)} regions: --region N shows one, --region all every one"
        if left
        else ""
    )
    facts = {"model": request.entry.name, "recipe": request.recipe.name, "data": asked.text}
    return Shown(request.entry.name, sections, facts, hint)


def chosen_regions(found: Explanation, region: str) -> tuple[Section, ...]:
    """Sections of the requested regions."""
    text = region.strip().removeprefix("region_")
    if text == "all" or (text == "1" and not found.regions):
        return found.regions
    count = len(found.regions)
    if not text.isdigit() or not 1 <= int(text) <= count:
        there = f"1 to {count}, or all" if count else "the model has none"
        raise SparsifyError(f"there is no region {region!r}", there)
    return (found.regions[int(text) - 1],)


def operators_of(request: Request) -> list[tuple[str, int, list[str]]]:
    """Operators of the request's model by their names in rules, with counts and module scopes."""
    asked = subject(request)
    draft = captured(asked.model, asked.example, request)
    scopes: dict[str, list[str]] = {}
    for candidate in named(draft):
        if candidate.kind == "op":
            scopes.setdefault(candidate.name, []).append(scope(candidate.node))
    return [(name, len(found), sorted({*found} - {""})) for name, found in sorted(scopes.items())]


def explain_expression(
    text: str,
    formats: Sequence[str],
    *,
    sizes: Mapping[str, int] | None = None,
    density: float = 0.01,
    dtype: str = "float32",
    schedule: str | None = None,
    stages: Sequence[str] = (),
) -> Shown:
    """The stages of einsum subscripts with a format for each operand, or of index notation with `A=csr` for each.

    Args:
        text: `ij,jk->ik`, or `y[i] = A[i,j] * x[j]`.
        formats: formats of the operands, in order, or by name.
        sizes: extents of index variables, for the choice of the schedule; all extents for an estimate of the time.
        density: density of sparse operands, for the same purposes.
        dtype: data type of all operands.
        schedule: schedule in place of the chosen one.
        stages: stages to show; all by default.

    Raises:
        SparsifyError: a mistake in the arguments, with a hint.
    """
    names = check_stages(stages)
    if dtype not in DTYPES:
        raise SparsifyError(f"there are no kernels for {dtype}{nearest(dtype, DTYPES)}")
    known = dict(sizes or {})
    try:
        statements, ranks = notation(text, known) if "[" in text else subscripts(text, formats, known)
        operands = described(ranks, assigned(ranks, formats, by_name="[" in text), dtype)
        program = declare(statements, operands)
        wanted = None if schedule is None else Schedule.parse(schedule)
        given = sizes_of(program, known, density)
        sections = explain_program(program, wanted, sizes=given, cost=cost_of(program, given, density))
    except MISTAKES as error:
        raise SparsifyError(str(error)) from error
    return Shown(text, only(sections, names) if names else sections)


def sizes_of(program: Program, extents: Mapping[str, int], density: float) -> Sizes:
    """Sizes of sparse operands for a given density of stored entries."""
    stored = {}
    for name in program.inputs:
        declared = program.declaration(name)
        if not declared.format.is_dense and all(index in extents for index in declared.extents):
            stored[name] = max(1, round(density * prod(extents[index] for index in declared.extents)))
    return Sizes(extents, stored)


def cost_of(program: Program, sizes: Sizes, density: float) -> str:
    """The estimated time of a call, "" unless all extents are known."""
    if any(index not in sizes.extents for d in program.declarations for index in d.extents):
        return ""
    machine = calibrate.cached_machine(current())
    estimate = estimate_us(program, sizes.extents, sizes.stored, machine)
    entries = "".join(f", {number} entries in {name}" for name, number in sizes.stored.items())
    return f"estimated {estimate:.0f} us a call: {machine.threads} threads{entries} (density {density:g})"


Statements = tuple[tuple[Assign, ...], dict[str, int]]


def subscripts(text: str, formats: Sequence[str], sizes: Mapping[str, int]) -> Statements:
    """The statement of einsum subscripts, and the number of modes of each operand."""
    if "..." in text:
        raise SparsifyError(f"{text}: how many modes `...` stands for is not known", "write letters")
    terms = text.replace(" ", "").partition("->")[0].split(",")
    if len(formats) != len(terms):
        rest = ["dense"] * (len(terms) - 1)
        raise SparsifyError(
            f"{text} has {len(terms)} operands and {len(formats)} formats are given",
            f"give one for each, as in: sparsify explain {text!r} {' '.join(['csr', *rest])}",
        )
    require_known(sizes, {letter for term in terms for letter in term})
    shapes = [tuple(sizes.get(letter, 2) for letter in term) for term in terms]
    statement = read_subscripts(text, shapes)
    operands = [f for n in find(statement.value, Access) if (f := n.tensor)]
    return (statement,), {name: len(term) for name, term in zip(operands, terms, strict=True)}


def notation(text: str, sizes: Mapping[str, int]) -> Statements:
    """The statements of index notation, and the number of modes of each operand."""
    statements = read(text).statements
    results = {statement.target.tensor for statement in statements}
    accesses = [node for s in statements for node in find(s, Access)]
    ranks = {access.tensor: len(access.indices) for access in accesses if access.tensor not in results}
    require_known(sizes, {i.name for access in accesses for i in find(access, Index)})
    return statements, ranks


def require_known(sizes: Mapping[str, int], known: set[str]) -> None:
    """Raises for an extent of an unknown index variable."""
    for name in sizes:
        if name not in known:
            raise SparsifyError(
                f"--sizes {name}: there is no index variable {name!r}{nearest(name, sorted(known))}"
            )


def assigned(ranks: Mapping[str, int], formats: Sequence[str], *, by_name: bool) -> dict[str, str]:
    """The format of each operand, by name."""
    if not by_name:
        return dict(zip(ranks, formats, strict=True))
    found = {}
    for pair in formats:
        name, equals, form = pair.partition("=")
        if not equals or name not in ranks:
            raise SparsifyError(
                f"{pair!r} gives no operand a format{nearest(name, ranks) if equals else ''}",
                f"write {' '.join(f'{operand}=csr' for operand in ranks)}",
            )
        found[name] = form
    return {name: found.get(name, "dense") for name in ranks}


def described(ranks: Mapping[str, int], formats: Mapping[str, str], dtype: str) -> dict[str, Operand]:
    """The operands of a program."""
    operands = {}
    for name, rank in ranks.items():
        text = formats[name]
        try:
            form = Format("scalar" if rank == 0 else text, rank=rank)
        except FormatError as error:
            raise SparsifyError(f"the format {text!r} of {name}: {error}") from error
        indices = () if form.is_dense else result_index_dtypes(form)
        operands[name] = Operand(form, dtype, index_dtypes=indices)
    return operands
