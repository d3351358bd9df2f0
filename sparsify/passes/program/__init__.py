"""A captured graph as one einsum program.

In: the fx graph of a model. Out: a `ModelProgram`: a statement for each node whose operator has a row in the table, and
a refusal for each other node, left to torch. Read `model`, `operator_view`, `translate`, then `table/`.
"""
