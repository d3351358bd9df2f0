"""One-shot pruning of a pretrained sentence encoder by magnitude, Wanda and SparseGPT.

In: MiniLM and texts of AG News. Out: a table of methods and patterns: error of layers, similarity of sentence vectors,
seconds, memory.
"""
