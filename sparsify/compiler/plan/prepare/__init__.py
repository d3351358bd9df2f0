"""Preparation of statements for loops: blocks expanded, operands transposed, merges limited, sums split."""
