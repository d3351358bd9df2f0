"""The command `sparsify run`: a dense model trained, made sparse by a recipe, verified and timed.

In: `run("gcn", dataset="cora", data_root="/data")`, from `sparsify.runner.run`. Out: a `RunResult`, which prints
one table.
"""
