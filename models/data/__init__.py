"""Graphs for node classification, images and texts: real ones and generated ones."""

from sparsify.models.data.graph import Graph
from sparsify.models.data.images import Images, images
from sparsify.models.data.load import NAMES, load
from sparsify.models.data.mnist import mnist
from sparsify.models.data.text import Text, text

__all__ = ["NAMES", "Graph", "Images", "Text", "images", "load", "mnist", "text"]
