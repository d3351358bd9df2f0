"""A model and its call, captured as an equivalent fx graph.

In: a model, its arguments. Out: a `Draft`: the graph, the parameters by name, shape guards, the report. Read
`calls.py`, `export.py`, `draft.py`, then the preparations for export: `guards.py`, `inline_blocks.py`,
`sparse_inputs.py`.
"""
