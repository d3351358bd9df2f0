"""Graphs for node classification, images and texts: real data sets and generated ones."""

from sparsify.models.data.graph import Graph
from sparsify.models.data.images import Images, images
from sparsify.models.data.load import NAMES, load
from sparsify.models.data.mnist import mnist
from sparsify.models.data.sentences import Sentences, sentences
from sparsify.models.data.text import Text, text

__all__ = ["NAMES", "Graph", "Images", "Sentences", "Text", "images", "load", "mnist", "sentences", "text"]
