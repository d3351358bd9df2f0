"""Sparsifiers by passes: streaming, blocking, materializing; selections by score."""
