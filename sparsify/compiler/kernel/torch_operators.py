"""Operators of torch: what makes a function of this package a node of traced graphs.

In: `register(Operator("double(Tensor x) -> Tensor", run, shapes))`. Out: `torch.ops.sparsify.double`, as long as the
library that is returned lives.

Defined through `torch.library.Library`; the `custom_op` decorator costs 9 to 17 us a call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from sparsify.storage import dispatch

NAMESPACE: Final = "sparsify"
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of torch.

    Attributes:
        schema: its name, arguments and results as torch writes them.
        run: computes it on tensors that have memory.
        shapes: its results on tensors that stand for others; `None` for an operator that calls others, of which
            only those are seen by autograd and by tracers below Dynamo.
        remember: keeps what `backward` needs, `(ctx, inputs, output)`.
        backward: the gradients of the arguments, `(ctx, *gradients)`; `None`: it has none.
    """

    schema: str
    run: Function
    shapes: Function | None = None
    remember: Function | None = None
    backward: Function | None = None

    @property
    def name(self) -> str:
        """As torch calls it, `sparsify::double`."""
        return f"{NAMESPACE}::{self.schema.partition('(')[0]}"


def register(*operators: Operator) -> torch.library.Library:
    """The library that holds these operators."""
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    for operator in operators:
        library.define(operator.schema)
        if operator.shapes is None:
            library.impl(operator.name, operator.run, "CompositeImplicitAutograd")
            name = operator.name.removeprefix(f"{NAMESPACE}::")
            dispatch.HANDLERS[getattr(getattr(torch.ops, NAMESPACE), name)] = partial(
                _on_sparse, operator.run
            )
            continue
        library.impl(operator.name, operator.run, "CompositeExplicitAutograd")
        torch.library.register_fake(operator.name, operator.shapes, lib=library)
        if operator.backward is not None:
            torch.library.register_autograd(
                operator.name, operator.backward, setup_context=operator.remember, lib=library
            )
    return library


def _on_sparse(run: Function, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same operators below autograd, where `run_decompositions` keeps the one that calls them."""
    return run(*args, **kwargs)
