"""Operands of programs: declarations, sizes and buffers of tensors; scalars; sorted and renumbered coordinates."""
