"""The figures of STen's paper: an encoder layer over sparsities, sparsifiers measured, fine-tuning under zeros.

In: the registry of `experiments/reproduce`. Out: a `FIGURE` in each module.

Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022.
"""
