"""Chunks of the rows of a strip: memory per chunk and per row, rescaling and recomputation."""

import pytest

from sparsify.compiler.pipeline import plain_notation
from sparsify.compiler.plan.plan import steps
from sparsify.compiler.schedule.sizes import UNKNOWN
from sparsify.compiler.schedule.templates.row_chain.block_chunks import StripChunks
from sparsify.compiler.schedule.templates.row_chain.block_rows import Strips
from sparsify.compiler.schedule.templates.row_chain.chain import row_chain
from sparsify.compiler.schedule.templates.row_chain.two_pass import two_passes
from tests.compiler.schedule.templates.row_chain.test_strategies import program

SCORES = "order S: h, io, jo, ir, jt, it, is, js"


@pytest.fixture(scope="module")
def chunks() -> StripChunks:
    (step,) = steps(program("bcsr(64,64)"), scheduled=True)
    chain = row_chain(plain_notation(step))
    assert chain is not None
    passes = two_passes(chain)
    assert passes is not None
    return StripChunks(Strips(chain, 8, 4, UNKNOWN), passes)


def test_sums_are_rescaled_chunk_by_chunk(chunks):
    found = str(chunks.online()).split("; ")
    assert SCORES in found
    assert "rescale m at ir" in found
    assert {f"precompute {name} at ir in thread" for name in ("S", "P")} <= set(found)  # of a chunk
    assert {f"precompute {name} at io in thread" for name in ("m", "d", "w1")} <= set(found)  # of its rows
    assert "vector is in m_scale" in found
    assert not any(step.startswith("recompute") for step in found)


def test_scores_are_computed_again(chunks):
    found = str(chunks.recomputed()).split("; ")
    assert found[0] == "recompute S after m"
    assert {SCORES, SCORES.replace("S:", "S_again:")} <= set(found)
    assert "precompute S_again at ir in thread" in found
    assert not any(step.startswith("rescale") or "m_scale" in step for step in found)
