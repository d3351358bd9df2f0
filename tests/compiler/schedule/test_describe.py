"""Directives in words: every directive has an explanation with the names of its operands."""

import pytest

from sparsify.compiler.schedule import directives
from sparsify.compiler.schedule.describe import gloss
from sparsify.compiler.schedule.directives import Directive, Schedule

TEXTS = {
    "order i, j": "the loops from outside to inside",
    "order w: i, j": "the loops of w from outside to inside",
    "split k ko ki 64": "k = 64 ko + ki; the last tile masked",
    "split k ko ki 64 masked": "k = 64 ko + ki; every tile masked",
    "split k ko ki 64 tail 32 8": "k = 64 ko + ki; the last tile in pieces of 32, 8, the rest masked",
    "fuse h i hi": "hi runs over all pairs of h and i",
    "join n in Y": "Y is computed in one loop over n, whose tiles are counted in it",
    "merge j": "neighbouring loops over j are one",
    "pos j p A": "p runs over the stored positions of A, j is read from them",
    "precompute w at ko in register": "inside ko, w is computed right before it is read, in registers",
    "precompute a = Y at root in memory": "before all loops, a collects what is added to Y, in memory",
    "precompute a = w over p in register": "each iteration of p has a w of its own, a, combined at the end",
    "distribute w": "what w collects is multiplied entry by entry and added to the result",
    "recompute S after m": "what comes after m computes S again",
    "rescale m at jo": "each iteration of jo has a m of what came so far, by which earlier sums are rescaled",
    "pack P = B[j, k] at ko in thread": (
        "inside ko, B is copied to P, stored by j, k, in memory of its own for each thread"
    ),
    "pack P = B[j, k] at root in memory for w": "first, B is copied to P, stored by j, k for w, in memory",
    "vector k": "the iterations of k are the lanes of vector registers",
    "vector k in w": "the iterations of k of w are the lanes of vector registers",
    "unroll i": "the iterations of i are written out",
    "parallel i": "threads take equal ranges of its iterations",
    "parallel i in w": "threads take equal ranges of its iterations in the nest of w",
    "parallel i balanced A": "threads take ranges with equally many stored positions of A",
    "parallel i dynamic A": (
        "threads take one chunk after the other, each with equally many stored positions of A"
    ),
    "parallel i dynamic A hubs 65536": (
        "threads take one chunk after the other, each with equally many stored positions of A; all share the sums of "
        "a row of more than 65,536"
    ),
    "prefetch T 16": "what is gathered from T 16 stored positions later is asked for now",
    "transpose i k in w": "square tiles of i and k that w reads are transposed in registers",
}


@pytest.mark.parametrize(("text", "words"), TEXTS.items(), ids=list(TEXTS))
def test_gloss(text: str, words: str) -> None:
    (directive,) = Schedule.parse(text).directives
    assert gloss(directive) == words


def test_every_directive_has_words() -> None:
    kinds = {
        kind
        for kind in vars(directives).values()
        if isinstance(kind, type) and issubclass(kind, Directive) and kind is not Directive
    }
    assert kinds == {type(Schedule.parse(text).directives[0]) for text in TEXTS}
