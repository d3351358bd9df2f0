"""Accuracy of sparse training: methods and shares of zeros with equal steps, on real data where it is there."""
