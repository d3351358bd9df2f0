"""Accuracy of sparse training: methods and sparsities with equal steps, on real data if a data folder is given."""
