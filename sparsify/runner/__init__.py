"""The command `sparsify run`: train a dense model, apply a recipe, verify and time the result.

In: `run("gcn", dataset="cora", data_root="/data")`, from `sparsify.runner.run`. Out: a `RunResult`; printed, one
table.
"""
