"""Operators of torch: functions of this package as nodes of traced graphs.

In: `register(Operator("double(Tensor x) -> Tensor", run, shapes))`. Out: `torch.ops.sparsify.double`, during the
lifetime of the returned library.

Defined through `torch.library.Library`; the `custom_op` decorator costs 9 to 17 us a call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from sparsify.storage.subclass import dispatch

NAMESPACE: Final = "sparsify"
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of torch.

    Attributes:
        schema: name, arguments and results in torch's schema language.
        run: implementation on tensors with memory.
        shapes: fake-tensor (meta) implementation; `None` for a composite operator, of which autograd and tracers below
            Dynamo see only the constituent operators.
        remember: function that saves the tensors of `backward`, `(ctx, inputs, output)`.
        backward: gradients of the arguments, `(ctx, *gradients)`; `None`: not differentiable.
    """

    schema: str
    run: Function
    shapes: Function | None = None
    remember: Function | None = None
    backward: Function | None = None

    @property
    def name(self) -> str:
        """The qualified name, `sparsify::double`."""
        return f"{NAMESPACE}::{self.schema.partition('(')[0]}"


def register(*operators: Operator) -> torch.library.Library:
    """Registers operators and returns the library that owns them."""
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
    """The composite operator on sparse tensors below autograd, where `run_decompositions` keeps composite nodes."""
    return run(*args, **kwargs)
