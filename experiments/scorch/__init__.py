"""The figures of Scorch's paper: graph networks, autoencoders, sparse transformers, kernels.

In: the registry of `experiments/reproduce`. Out: a `FIGURE` in each module, with the settings of the appendices.

Source: Yan, Root, Gale, Broman and Kjolstad, Scorch: A Library for Sparse Deep Learning, 2024.
"""
