"""Masks: attention patterns at any length, blocks, files, masks of other libraries."""
