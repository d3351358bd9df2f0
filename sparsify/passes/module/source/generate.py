"""Text generation by transformers with a sparse decoder, and its KV cache.

In:  `sparse.generate(ids, max_new_tokens=20)`. Out: the tokens of the dense model with the same weights and patterns;
each step is a call of the sparse model.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from sparsify import options as settings
from sparsify.errors import CaptureError
from sparsify.passes.capture import calls
from sparsify.passes.capture.draft import ApplyRequest
from sparsify.passes.capture.libraries import transformers_cache

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

PAST: Final = "a cache holds keys of earlier calls, for which there is no graph"
ANEW: Final = (
    "a pattern of attention does not say where queries stand among keys of earlier steps: none are kept, each step "
    "computes the whole text"
)


def leaves_past(request: ApplyRequest, caches: Sequence[Any]) -> bool:
    """Whether a call with caches is left to the source model, because the caches have keys of earlier calls.

    True with past keys under attention patterns, for fixed extents, or for caches with contents other than keys.
    """
    past = [cache for cache in caches if transformers_cache.has_past(cache)]
    if not past:
        return False
    is_fixed = request.has_masks or request.dynamic is not None
    return is_fixed or not all(map(transformers_cache.is_plain, past))


def with_past(sparse: "SparseModule", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The source model's result for a call whose cache holds keys of earlier calls.

    Raises:
        CaptureError: nothing may run densely.
    """
    if sparse._request.strict or settings.current().strict:
        raise CaptureError(PAST, "calls without a cache, or without strict")
    sparse._notices.warn(f"{PAST}; such calls run as the source model has them")
    return sparse.run_source(calls.flatten(sparse._signature, args, kwargs, opens=False))


def generate(sparse: "SparseModule", *args: Any, **kwargs: Any) -> Any:
    """Generated text of the source model, with steps computed by the sparse model; encoders run once, densely.

    Raises:
        CaptureError: under patterns of attention an encoder would run on its own, or keys are to be kept.
    """
    source: Any = sparse._source
    name = type(source).__name__
    if sparse._request.has_masks:
        if source.config.is_encoder_decoder:
            raise CaptureError(
                f"{name} runs its encoder by itself to generate, and patterns of attention are in the whole model",
                "calls of the sparse model with the text so far as decoder_input_ids",
            )
        if kwargs.get("use_cache") or kwargs.get("past_key_values") is not None:
            raise CaptureError(
                f"{name} is to generate with a cache, and under a pattern of attention no keys are kept",
                "leave out use_cache and past_key_values: each step then computes the whole text",
            )
        kwargs["use_cache"] = False
        sparse._notices.warn(ANEW)
    shown = running(source, sparse)
    shown.training = sparse.training
    if source.config.is_encoder_decoder:
        encoder = source.get_encoder()
        shown.get_encoder = partial(running, encoder, partial(sparse._facade.run_part, encoder))
    return shown.generate(*args, **kwargs)


def running(module: nn.Module, run: Callable[..., Any]) -> Any:
    """A module with the parts and the signature of another (read by transformers), and other calls."""
    shown = copy.copy(module)
    run_by(shown, run)
    return shown


def run_by(module: Any, run: Callable[..., Any]) -> None:
    """Redirects the calls of a module to a function; the signature is kept."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    forward.__signature__ = calls.signature(module)  # type: ignore[attr-defined]
    module.forward = forward
