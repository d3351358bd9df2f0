"""Entries of a tensor that become zero."""
