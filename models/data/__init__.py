"""Graphs for node classification: one made from a seed, four real ones."""

from sparsify.models.data.graph import Graph
from sparsify.models.data.load import NAMES, load

__all__ = ["NAMES", "Graph", "load"]
