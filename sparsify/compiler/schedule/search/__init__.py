"""Search for schedules of statements without a template: actions on directives, a cost model, a beam.

In: the notation of `Y[i,j] = M[i,j] * N[i,j] * sum(k, P[i,k] * Q[j,k])`, its sizes, its default schedule.
Out: schedules with a lower estimated time than the default, the best first:

    split k ko ki 8; order i, j; order w: ko, ki; precompute w at j in register;
    precompute lanes_w = w over ki in register; vector ki; parallel i dynamic M

Read `facts.py` (the loops of a program), `compose.py` (directives in the order in which they apply), `loops.py`,
`temporaries.py`, `threads.py` (the actions), `beam.py` (the search), `searched.py` (when a search pays, and its memo).

Source: Adams et al., Learning to Optimize Halide with Tree Search and Random Programs, 2019 (beam search over schedules
with a cost model); Ahrens, Kjolstad and Amarasinghe, Autoscheduling for Sparse Tensor Algebra, 2022.
"""
