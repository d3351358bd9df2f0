"""Adapters that make the models of third-party libraries capturable, one file for each behaviour.

In: a model that calls torch, torch-geometric or transformers. Out: a context in which `torch.export` can capture it,
and the original behaviour afterwards.
"""
