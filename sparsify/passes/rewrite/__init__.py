"""Rewrites of model programs: statements in, statements out, the graph unchanged.

In: a `ModelProgram` and the storage of its tensors. Out: the same program in canonical form. Read `simplify`, `inline`,
`distribute` (sums term by term), `relation` (gathers and scatters), `softmax`, then `demand`.
"""
