"""A region as it would run, before it is decided that it will: for timing.

In: a region with its program. Out: `trial(draft, region)`, a call without arguments that does what the emitted call
would do with the example's inputs, and its kernel to compile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import fx

from sparsify.compiler.kernel import Kernel
from sparsify.compiler.prepare import build_all
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.errors import SparsifyError
from sparsify.passes.call.bind import Plan, bind, bind_matrix, cut_out, extract
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.estimate import example
from sparsify.passes.choose.site import Site, site_of
from sparsify.passes.region.region import Region
from sparsify.report import Report


@dataclass(frozen=True)
class Trial:
    """A call of a region with the example's inputs.

    Attributes:
        call: runs it.
        kernel: of its own, `None` where nodes or a library compute it.
        sizes: of the kernel's operands.
    """

    call: Callable[[], Any]
    kernel: Kernel | None = None
    sizes: Sizes | None = None


def site(draft: Draft, region: Region) -> Site:
    """The call of a region with the nodes of its arguments; its kernel is not compiled yet.

    Raises:
        SparsifyError: the region cannot be called.
    """
    scratch = replace(draft, report=Report())
    plans: dict[frozenset[fx.Node], Plan] = {}
    for matrix in region.matrices if not region.backend else ():
        bind_matrix(scratch, matrix, region.names[matrix.name], plans)
    bindings = bind(scratch, region, plans)
    for plan in plans.values():
        cut_out(scratch, plan)
    found = site_of(scratch, region, bindings)
    if isinstance(found, SparsifyError):
        raise found
    return found


def trial(draft: Draft, region: Region) -> Trial:
    """The call of a region with the example's inputs; its kernel is not compiled yet.

    Raises:
        SparsifyError: the region cannot be called.
    """
    found = site(draft, region)
    call = partial(found.call, *(example(draft, node) for node in found.arguments))
    if found.call.library is not None:
        return Trial(call)
    return Trial(call, found.call.kernel, found.sizes)


def dense_trial(draft: Draft, region: Region) -> Trial:
    """The call of the nodes of a region as they are."""
    module = extract(draft, region.read, [region.output])
    return Trial(partial(module.forward, *(example(draft, node) for node in region.read)))


def compiled(trials: Sequence[Trial]) -> None:
    """Compiles the kernels of trials, side by side.

    Raises:
        SparsifyError: one cannot be compiled.
    """
    build_all([(t.kernel, t.sizes) for t in trials if t.kernel is not None and t.sizes is not None])
