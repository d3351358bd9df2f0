"""Directives applied: index notation in, index notation out."""
