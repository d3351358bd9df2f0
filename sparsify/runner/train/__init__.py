"""The training of a registered model under a recipe: `sparsify train`.

In: `run(resolve("gpt", recipe="rigl90", steps=1000))`. Out: an `Outcome`: loss, accuracy, zeros by tensor, the times of
sparse and dense steps; in a folder a log, curves and a checkpoint.

Read `settings.py` (options), `task.py` (batches, a pure function of seed and step), `prepare.py` (model, optimizer and
pruner), `checkpoint.py`, `log.py`, `outcome.py`, then `loop.py` (the training itself).
"""
