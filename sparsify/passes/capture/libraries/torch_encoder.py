"""Layers of torch that branch on the entries of a mask, such as `nn.TransformerEncoder`.

In: `encoder(x, mask)`, which compares the mask with a causal one; `encoder(x, src_key_padding_mask=padding)`, which
packs texts padded at their ends, where no gradients are wanted.
Out: the same layers without these branches: under export, and in comparisons of the encoder with its capture.

The entries of a mask are independent of the causal hint. Packing gives padding tokens zero results, no packing gives
computed ones: no graph can do both, and a capture, like torch's own, packs nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from torch.backends import mha
from torch.nn.modules import transformer

from sparsify.runtime.confined import substituted

DETECT: Final = "_detect_is_causal_mask"


@contextmanager
def unasked() -> Iterator[None]:
    """A context in which torch's layers treat attention as causal only if the caller passes `is_causal`."""
    if not hasattr(transformer, DETECT):
        yield
        return
    with substituted(transformer, DETECT, explicit_hint):
        yield


@contextmanager
def unpacked_texts() -> Iterator[None]:
    """A context in which encoders compute all tokens, padding included, as with gradients."""
    with substituted(mha, "get_fastpath_enabled", lambda: False):
        yield


def explicit_hint(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Whether a caller declares a mask as causal."""
    return is_causal is True
