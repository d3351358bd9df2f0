"""`sparsify reproduce PAPER [FIGURE]`: figures and tables of papers measured on this machine.

In: `run("scorch", ["figure5"], setting, out)`. Out: a table, a CSV and a picture for each figure, and a manifest.

A figure is an entry of `registry.py`; what it states is in `figure.py`. `run.py` measures its rows one by one,
`store.py` keeps each finished row, so that an interrupted run continues, `table.py` and `picture.py` show them,
`manifest.py` says with what, where and from which data they were made. Figures lie in `experiments/scorch` and beside.
"""
