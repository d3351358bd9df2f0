"""What `sparsify run` does: a dense model trained, made sparse by a recipe, verified and timed.

In: `run("gcn", dataset="cora", data_root="/data")`. Out: a `RunResult` that prints one table.
"""

from sparsify.runner.preview import Preview, preview
from sparsify.runner.request import Request, resolve
from sparsify.runner.result import RunResult
from sparsify.runner.run import run
from sparsify.runner.status import exit_status

__all__ = ["Preview", "Request", "RunResult", "exit_status", "preview", "resolve", "run"]
