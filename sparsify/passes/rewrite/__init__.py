"""Rewrites of model programs: statements in, statements out, the graph as it was.

In: a `ModelProgram` and how its tensors are stored. Out: the same program in canonical form. Read `simplify`, `inline`,
`distribute` (sums term by term), `relation` (gathers and scatters), `softmax`, then `demand`.
"""
