"""The training of a registered model under a recipe: `sparsify train`.

In: `run(resolve("gpt", recipe="rigl90", steps=1000))`. Out: an `Outcome`: loss, accuracy, zeros by tensor, the time of
a step beside that of the dense model; in a folder a log, curves and a checkpoint.

Read `settings.py` (what is asked for), `task.py` (batches, a pure function of seed and step), `prepare.py` (the model,
its optimizer and its pruner), `checkpoint.py`, `log.py`, `outcome.py`, then `loop.py`, which joins them.
"""
