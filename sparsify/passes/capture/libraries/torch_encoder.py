"""Layers of torch that look at the entries of a mask to choose a way, as `nn.TransformerEncoder` does.

In: `encoder(x, mask)`, which compares the mask with a causal one; `encoder(x, src_key_padding_mask=padding)`, which
packs texts that are padded at their ends, where no gradients are wanted.
Out: the same without these choices: under export, and where the encoder is compared with what was captured.

A mask has the same entries whether it is told to be causal or not. Tokens of padding that are packed away have zeros as
results, others what follows from them: no graph can do both, and a capture, like torch's own, packs nothing.
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
    """Within this context torch's layers take attention for causal only where they are told so."""
    if not hasattr(transformer, DETECT):
        yield
        return
    with substituted(transformer, DETECT, told):
        yield


@contextmanager
def unpacked_texts() -> Iterator[None]:
    """Within this context encoders compute all tokens, those of padding too, as they do where gradients are wanted."""
    with substituted(mha, "get_fastpath_enabled", lambda: False):
        yield


def told(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Whether a caller says that a mask is causal."""
    return is_causal is True
