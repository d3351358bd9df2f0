"""Graphs for node classification: one made from a seed, four real ones."""

from .graph import Graph
from .load import NAMES, load

__all__ = ["NAMES", "Graph", "load"]
