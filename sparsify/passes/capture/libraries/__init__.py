"""Adapters that make the models of third-party libraries capturable, one file per behaviour.

In: a model that calls torch, torch-geometric or transformers. Out: a context in which `torch.export` can capture the
model, with the original behaviour restored on exit.
"""
