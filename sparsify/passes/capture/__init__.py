"""A model and a call of it to an fx graph that computes what the call computes.

In: a model, its arguments. Out: a `Draft`: the graph, the parameters under their names, shape guards, the report.
Read `calls.py`, `export.py`, `draft.py`, then what export needs: `guards.py`, `inline_blocks.py`, `sparse_inputs.py`.
"""
