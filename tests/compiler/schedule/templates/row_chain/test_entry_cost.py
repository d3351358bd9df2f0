"""Prices of chains over single entries: costs of both forms, and costs of only one."""

from dataclasses import replace

import pytest
import torch

from sparsify.compiler.einsum.infer.format import infer_format
from sparsify.compiler.evaluate import _program
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.schedule.cost.machine import scaled
from sparsify.compiler.schedule.templates.row_chain.chain import row_chain
from sparsify.compiler.schedule.templates.row_chain.entry_cost import EntryCost
from tests.compiler.schedule.templates.row_chain.test_entry_heads import PRODUCTS, SUMS, operands

EXTENTS = {"i": 4000, "j": 4000, "h": 8, "f": 8, "k": 8}
STORED = 120_000


def priced(text: str, item_bytes: int = 4, dtype: torch.dtype = torch.float32, stored: int = STORED, **more):
    given = {name: value.to(dtype) for name, value in operands(text, 8, 8).items()}
    fixed = {"h": 8, "f": 8} | ({"k": 8} if "k]" in text else {})
    program = infer_format(_program(text, "Y", None, fixed, given))
    chain = row_chain(concretize(program))
    assert chain is not None
    return EntryCost.of(program, chain, {**EXTENTS, **more}, stored, scaled(1, 64), item_bytes)


def apart(cost: EntryCost) -> float:
    return sum(cost.apart_us(nest) for nest in cost.chain.nests)


@pytest.mark.parametrize("text", [SUMS, PRODUCTS], ids=["sums", "products"])
def test_one_kernel_saves_what_is_between_statements(text):
    cost = priced(text)
    assert cost.is_beside
    assert 1.5 < apart(cost) / cost.fused_us() < 6


@pytest.mark.parametrize("text", [SUMS, PRODUCTS], ids=["sums", "products"])
def test_prices_follow_entries(text):
    few, many = priced(text, stored=STORED // 10), priced(text)
    assert 2 < many.fused_us() / few.fused_us() < 10
    assert 2 < apart(many) / apart(few) < 10


def test_halves_are_computed_in_lanes_of_float32():
    wide, half = priced(PRODUCTS), priced(PRODUCTS, dtype=torch.bfloat16)
    assert wide.lanes == half.lanes == 16
    assert half.fused_us() <= wide.fused_us()


def test_entries_that_are_kept_are_written_by_both_forms():
    cost = priced(SUMS)
    kept = replace(cost, program=replace(cost.program, outputs=("Y", "P")))
    written = 8 * STORED * 4
    wanted = written / cost.machine.reads.at(written)
    assert kept.fused_us() - cost.fused_us() == pytest.approx(wanted)
    assert apart(kept) == apart(cost)  # where they are always


def test_short_rows_are_computed_one_by_one_apart():
    """Rows of one or two entries fill no vector: separate kernels compute them one by one, one kernel in vectors."""
    cost = priced(SUMS)
    entries = next(nest for nest in cost.chain.nests if nest.kind == "entries" and "exp" in str(nest.assign))
    short, long = (replace(cost, stored=4000 * mean) for mean in (1, 30))
    assert short.apart_us(entries) < 0.7 * short._in_vectors(entries)
    assert long._apart(entries) == long._in_vectors(entries)


def test_products_of_one_head_are_cheap_apart():
    one, two = (priced(PRODUCTS, h=heads) for heads in (1, 2))
    (scores,) = (nest for nest in one.chain.nests if nest.kind == "scores")
    assert one.apart_us(scores) < 0.45 * two.apart_us(scores)


def test_what_is_computed_of_sums_is_computed_for_each_entry():
    text = PRODUCTS.replace("0.5 * sum(k, Q[i,h,k] * K[j,h,k])", "exp(sum(k, Q[i,h,k] * K[j,h,k]))")
    plain, more = (replace(priced(each), is_beside=False) for each in (PRODUCTS, text))
    added = more._outside(more.chain.nests[0]) - plain._outside(plain.chain.nests[0])
    wanted = plain.entries * added * plain.machine.vector_us
    assert added > 10
    assert more.fused_us() - plain.fused_us() > wanted
    assert apart(more) - apart(plain) > wanted


def test_scores_without_heads_have_entries_of_others_at_hand():
    text = (
        "P[i,j] = exp(A[i,j]) * stored(A[i,j])\n"
        "S[i,j] = P[i,j] * sum(k, Q[i,k] * K[j,k])\n"
        "Y[i,f] += S[i,j] * X[j,f]"
    )
    drawn = {name: torch.rand(30, 8) for name in "QKX"}
    given = {**operands(SUMS, 1, 1), **drawn}
    given = {name: given[name] for name in "AQKX"}
    program = infer_format(_program(text, "Y", None, {"k": 8, "f": 8}, given))
    chain = row_chain(concretize(program))
    assert chain is not None
    (scores,) = (nest for nest in chain.nests if nest.kind == "scores")
    plain = EntryCost.of(program, chain, EXTENTS, STORED, scaled(1, 64), 4)
    heads = replace(plain, chain=replace(chain, leading=("h",)), extents={**EXTENTS, "h": 1})
    assert plain._others(scores) == 1
    assert plain.apart_us(scores) < 0.8 * heads.apart_us(scores)
