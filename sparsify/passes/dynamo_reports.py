"""What is said of the graphs that `torch.compile` makes of a model: breaks, and rules that match nothing in them.

In: a graph of Dynamo's, and the report of what became of it. Out: warnings.
"""

import warnings
from typing import Any, Final

from torch import fx

from sparsify.report import Report

# Models whose matches are remembered.
MODELS: Final = 16
_matched: list[tuple[Any, set[str]]] = []


def is_cut(graph: fx.GraphModule) -> bool:
    """Whether a break, and not the end of the model, ended a graph."""
    reason = getattr(graph, "compile_subgraph_reason", None)
    return reason is not None and bool(reason.graph_break)


def report_break(graph: fx.GraphModule) -> None:
    """Warns where a graph was cut."""
    if is_cut(graph):
        reason: Any = graph.compile_subgraph_reason
        first = str(reason.reason).strip().splitlines()[0]
        warnings.warn(
            f"torch.compile cut the graph, and with it what sparsify could fuse: {first}",
            RuntimeWarning,
            stacklevel=3,
        )


def matched_before(options: Any) -> set[str]:
    """The rules that matched in earlier graphs of one `torch.compile`, which has one object of options for all."""
    for known, labels in _matched:
        if known is options:
            return labels
    _matched.append((options, set()))
    del _matched[:-MODELS]
    return _matched[-1][1]


def report_rules(graph: fx.GraphModule, report: Report, matched: set[str]) -> None:
    """Warns at the end of a model of rules that matched nothing in it, once.

    Args:
        graph: the last one that there is.
        report: of what became of it.
        matched: the rules that matched in other graphs of the model; those of this one are added.
    """
    matched |= {entry.rule for entry in report.rules if entry.matched or entry.note}
    missing = [entry.rule for entry in report.rules if entry.rule not in matched]
    if missing and not is_cut(graph):
        matched.update(missing)
        warnings.warn(
            f"{', '.join(missing)} of the recipe {report.recipe} matched nothing in this graph of torch.compile, nor "
            "in those before it: what was to be sparse stays dense; sparsify.apply says what there is",
            RuntimeWarning,
            stacklevel=2,
        )
