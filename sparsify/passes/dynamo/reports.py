"""What is said of the graphs that `torch.compile` makes of a model: breaks, and rules that match nothing.

In: a graph of Dynamo's, and the report of what became of it. Out: warnings.
"""

from typing import Any, Final

from torch import fx

from sparsify.report import Report
from sparsify.warn import warn

# Of so many models it is known that they had a graph.
MODELS: Final = 16
_models: list[Any] = []


def is_cut(graph: fx.GraphModule) -> bool:
    """Whether a break, and not the end of the model, ended a graph."""
    reason = getattr(graph, "compile_subgraph_reason", None)
    return reason is not None and bool(reason.graph_break)


def report_break(graph: fx.GraphModule) -> None:
    """Warns where a graph was cut."""
    if is_cut(graph):
        reason: Any = graph.compile_subgraph_reason
        first = str(reason.reason).strip().splitlines()[0]
        warn(f"torch.compile cut the graph, and with it what sparsify could fuse: {first}")


def is_whole(graph: fx.GraphModule, options: Any) -> bool:
    """Whether a graph is that of a whole model: the first of one `torch.compile`, and cut by nothing.

    Args:
        graph: of Dynamo's.
        options: of `torch.compile`, one object for all graphs of a model; models that share it count as one.
    """
    is_first = all(known is not options for known in _models)
    if is_first:
        _models.append(options)
        del _models[:-MODELS]
    return is_first and not is_cut(graph)


def report_rules(report: Report) -> None:
    """Warns of rules that matched nothing in the graph of a whole model."""
    missing = [entry.rule for entry in report.rules if not entry.matched and not entry.note]
    if missing:
        warn(
            f"{', '.join(missing)} of the recipe {report.recipe} matched nothing in the graph of torch.compile: what "
            "was to be sparse stays dense; sparsify.apply says what there is"
        )
