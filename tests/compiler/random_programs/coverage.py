"""Coverage of random programs: directives of schedules, formats, vector widths, threads, compilers.

In: compared programs. Out: the number of occurrences of each, and a table with 0 for features that never occurred.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain

from rich.console import Console
from rich.table import Table

from sparsify.compiler.schedule import directives as d
from sparsify.storage.format import Format
from tests.compiler.random_programs.compare import Prepared
from tests.compiler.random_programs.data import Case
from tests.compiler.random_programs.generate import NAMED, RESULTS, WIDTHS
from tests.compiler.random_programs.layers import FORMS, NARROW

POLICIES = ("static", "balanced", "dynamic")
PLAIN = ("order", "fuse", "join", "pos", "pack", "vector", "unroll", "prefetch", "transpose")


def covered(prepared: Prepared) -> Iterator[str]:
    """Features of the kernels of a program."""
    for step in prepared.plan:
        if not isinstance(step, tuple):
            yield f"step {type(step).__name__}"
            continue
        for directive in step[1].schedule.directives:
            yield from names(directive)
    for declared in prepared.case.program.declarations:
        role = "operand" if declared.name in prepared.case.program.inputs else "result"
        if not declared.format.is_dense:
            yield f"{role} {spelled(declared.format)}"
        yield f"dtype {declared.dtype}"


def run_with(case: Case, compiler: str) -> str:
    """Name of a configuration: vector width, threads and compiler."""
    return f"run {case.vector_bytes:2} bytes, {case.threads} threads, {compiler}"


def names(directive: d.Directive) -> Iterator[str]:
    """Names of a directive with its variants."""
    match directive:
        case d.Split(tail=tail, masked=masked):
            yield f"directive split{' masked' * masked}{' tail' * bool(tail)}"
        case d.Precompute(scope=scope, source=source, over=over, listed=listed, marked=marked):
            yield f"directive precompute{' over' if over else ' of' if source else ''} in {scope}"
            if listed or marked:
                yield f"directive precompute{' listed' * listed}{' marked' * marked}"
        case d.Parallel(policy=policy, by=by, hubs=hubs):
            yield f"directive parallel {policy}{' by positions' * bool(by)}"
            if hubs:
                yield "directive parallel hubs"
        case _:
            yield f"directive {type(directive).__name__.lower()}"


def spelled(form: Format) -> str:
    """A format without the sizes of its blocks."""
    text = re.sub(r"([/%])\d+", r"\1b", str(form))
    return re.sub(r"(grouped|sliced)\(\d+", r"\1(n", text)


def wanted(compilers: list[str]) -> Iterator[str]:
    """All features that should occur."""
    yield from (f"directive {name}" for name in PLAIN)
    yield from (f"directive split{kind}" for kind in ("", " masked", " tail"))
    yield from (f"directive precompute{kind} in {s}" for kind in ("", " of", " over") for s in d.SCOPES)
    yield from ("directive precompute listed", "directive precompute marked")
    yield from (f"directive parallel {policy}" for policy in (*POLICIES, "hubs"))
    yield from (f"directive parallel {policy} by positions" for policy in ("balanced", "dynamic"))
    forms = [text.format(crd=crd, width=8, height=4) for text in FORMS for crd in NARROW]
    operands = [Format(text) for text in (*chain(*NAMED.values()), *forms)]
    results = [Format(text) for text in chain(*RESULTS.values())]
    for role, found in (("operand", operands), ("result", results)):
        yield from (f"{role} {spelled(form)}" for form in found if not form.is_dense)
    yield from (
        f"run {width:2} bytes, {threads} threads, {compiler}"
        for compiler in dict.fromkeys(compilers)
        for width in WIDTHS
        for threads in (1, 2)
    )


def show(counts: Mapping[str, int], compilers: list[str]) -> None:
    """Prints the table."""
    every = Counter(dict.fromkeys(wanted(compilers), 0))
    every.update(counts)
    table = Table("what", "how often", title="covered by programs that agreed", show_edge=False)
    for name in sorted(every):
        table.add_row(name, f"{every[name]:,}", style="bold red" if every[name] == 0 else None)
    Console(width=110).print(table)
    print(f"{sum(count == 0 for count in every.values())} of {len(every)} never occurred")
