"""Directives of schedules: text, checks, meaning in words, and rewriting of loops.

In: concrete index notation and `order i, k, j; vector k`. Out: the notation with reordered loops and vector lanes.

Read `directive.py` (what each directive defines), `order.py` and `split.py` (the shortest ones), `precompute.py`
(temporaries), then `schedule.py` (the text of several directives, and their application in order).
"""

from sparsify.compiler.schedule.directives.directive import SCOPES, Directive
from sparsify.compiler.schedule.directives.distribute import Distribute
from sparsify.compiler.schedule.directives.fuse import Fuse, Join, Merge
from sparsify.compiler.schedule.directives.lanes import Transpose, Unroll, Vector
from sparsify.compiler.schedule.directives.order import Order
from sparsify.compiler.schedule.directives.pack import Pack
from sparsify.compiler.schedule.directives.parallel import Parallel
from sparsify.compiler.schedule.directives.position import Pos
from sparsify.compiler.schedule.directives.precompute import Precompute
from sparsify.compiler.schedule.directives.prefetch import Prefetch
from sparsify.compiler.schedule.directives.recompute import Recompute
from sparsify.compiler.schedule.directives.rescale import Rescale
from sparsify.compiler.schedule.directives.schedule import CLASSES, DIRECTIVES, Schedule, apply
from sparsify.compiler.schedule.directives.split import Split

__all__ = [
    "CLASSES",
    "DIRECTIVES",
    "SCOPES",
    "Directive",
    "Distribute",
    "Fuse",
    "Join",
    "Merge",
    "Order",
    "Pack",
    "Parallel",
    "Pos",
    "Precompute",
    "Prefetch",
    "Recompute",
    "Rescale",
    "Schedule",
    "Split",
    "Transpose",
    "Unroll",
    "Vector",
    "apply",
]
