"""Graphs for node classification, one made from a seed, four real ones; and images."""

from sparsify.models.data.graph import Graph
from sparsify.models.data.load import NAMES, load
from sparsify.models.data.mnist import mnist

__all__ = ["NAMES", "Graph", "load", "mnist"]
