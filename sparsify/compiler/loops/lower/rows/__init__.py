"""Rows and parts of a growing result: what surrounds the entries that loops append."""
