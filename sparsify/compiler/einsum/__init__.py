"""Einsum programs: the IR of whole tensor expressions, and the passes before loops exist."""
