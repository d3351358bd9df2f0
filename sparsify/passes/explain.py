"""Explanation of an applied model: its graph, and every region stage by stage.

In: a `SparseModule`. Out: `Section`s: the model, then a section for each region.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sparsify.compiler.explain import SECTIONS, Section
from sparsify.passes.call.region_text import region_section
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.passes.region.printer import aligned
from sparsify.report import folded_names
from sparsify.report_text import UNLIMITED, fold_rows, paragraphs, terminal_width, wrapped

STAGES: Final = ("graph", "marked", *SECTIONS)
# How far the sections of a model are indented.
MARGIN: Final = 4


@dataclass(frozen=True, slots=True)
class Explanation:
    """The sections of a model.

    Attributes:
        model: result for the model as a whole.
        regions: section of each region, in the order of the graph.
    """

    model: Section
    regions: tuple[Section, ...]

    def __str__(self) -> str:
        return "\n\n\n".join(map(str, (self.model, *self.regions)))


def explain_model(module: SparseModule) -> Explanation:
    """The explanation of all variants captured so far; example inputs or the first call capture one."""
    sections = []
    for variant in module.variants:
        calls = {region.name: region for region in variant.regions}
        mode = " in training" if variant.captured.training else " in evaluation"
        which = mode if len(module.variants) > 1 else ""
        sections += [region_section(calls[entry.name], entry, which) for entry in variant.report.regions]
    return Explanation(model_section(module), tuple(sections))


def model_section(module: SparseModule) -> Section:
    """The result for the whole model: rules, regions, dense operators with reasons."""
    report = module.report
    rules = [(rule.rule, rule.where, folded_names(rule.matched), rule.note) for rule in report.rules]
    regions = [(entry.name, entry.einsum) for entry in report.regions]
    dense = [(f"%{entry.node}", entry.op, entry.scope, entry.reason) for entry in report.dense]
    chains = [(f"%{chain.node}", chain.scope, chain.form, chain.timed) for chain in report.chains]
    lines = list(report.lines(folded_names))
    if not module.variants:
        lines.append("nothing is captured yet: call the model once, or give apply example inputs")
    sections = [
        Section("rules", columns(("rule", "where", "matched", "note"), rules)),
        Section("regions", columns(("region", "einsum"), regions)),
        Section("convolutions of torch's", columns(("node", "scope", "runs", "timed us"), chains)),
    ]
    if module.variants:
        rows = columns(("node", "operator", "scope", "reason"), [tuple(row) for row in fold_rows(dense)])
        sections.append(Section("left dense", rows or "nothing that a rule reached"))
    width = terminal_width(UNLIMITED) - MARGIN
    text = "\n".join(wrapped(line, width) for line in lines)
    return Section("model", text, inner=tuple(section for section in sections if section.text))


def columns(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Rows in columns, or as paragraphs in a narrower terminal."""
    text, width = aligned(rows), terminal_width(UNLIMITED) - MARGIN
    fits = max(map(len, text.splitlines()), default=0) <= width
    return text if fits else paragraphs(headers, rows, width)
