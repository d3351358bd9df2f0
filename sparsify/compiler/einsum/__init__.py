"""Einsum programs: the IR of whole tensor expressions, and the steps that need no loops."""
