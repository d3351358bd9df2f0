"""`sparsify reproduce PAPER [FIGURE]`: figures and tables of papers measured on this machine.

In: `run("scorch", ["figure5"], setting, out)`. Out: a table, a CSV and a picture for each figure, and a manifest.

`registry.py` lists the figures; `figure.py` defines their data. `run.py` measures the rows one by one, `store.py` keeps
finished rows, so that an interrupted run continues, `table.py` and `picture.py` print and draw figures, `manifest.py`
records versions, machine and data. The figures themselves are in `experiments/scorch` and `experiments/sten`.
"""
