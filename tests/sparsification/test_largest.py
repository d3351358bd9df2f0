"""Selections by score: exact counts, ties by index, whatever a sample says of the scores."""

import pytest
import torch

from sparsify.sparsification.rules import largest
from sparsify.sparsification.rules.largest import largest_listed, largest_of, magnitudes, ordered


def expected(scores: torch.Tensor, count: int, among: torch.Tensor | None) -> torch.Tensor:
    """The same by a stable sort."""
    found = ordered(scores).double()
    places = torch.arange(len(found)) if among is None else among.nonzero().flatten()
    order = found[places].argsort(descending=True, stable=True)
    mask = torch.zeros(len(found), dtype=torch.bool)
    mask[places[order[:count]]] = True
    return mask


KINDS = {
    "normal": lambda s: s,
    "ties": lambda s: (2 * s).round(),
    "bool": lambda s: s > 0,
    "nan": lambda s: torch.where(s > 1, torch.nan, s),
    "infinite": lambda s: torch.where(s > 1, torch.inf, torch.where(s < 0, -torch.inf, s)),
    "sorted": lambda s: s.sort().values,
    "integers": lambda s: (10 * s).long(),
    "bfloat16": lambda s: s.bfloat16(),
}


@pytest.mark.parametrize("share", [None, 0.1, 0.9])
@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_are_those_of_a_stable_sort(kind, share, monkeypatch) -> None:
    monkeypatch.setattr(largest, "SAMPLED", 1000)
    monkeypatch.setattr(largest, "SAMPLE", 200)
    torch.manual_seed(0)
    for entries in (7, 900, 5000):
        scores = KINDS[kind](torch.randn(entries))
        among = None if share is None else torch.rand(entries) < share
        most = entries if among is None else int(among.sum())
        for count in (0, 1, most // 50, most // 3, most - 1, most):
            found = largest_of(scores, count, among)
            assert torch.equal(found, expected(scores, max(count, 0), among)), (entries, count)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bool"])
def test_the_largest_scores_of_parts(kind, monkeypatch) -> None:
    monkeypatch.setattr(largest, "SAMPLED", 1000)
    monkeypatch.setattr(largest, "SAMPLE", 200)
    monkeypatch.setattr(largest, "PART", 700)
    torch.manual_seed(1)
    entries = KINDS[kind](torch.randn(5000))
    among = torch.rand(5000) < 0.8
    for count in (1, 100, 1500):
        found = largest_of(entries, count, among, magnitudes)
        assert torch.equal(found, expected(magnitudes(entries), count, among)), count


def test_the_largest_of_a_list() -> None:
    torch.manual_seed(0)
    scores, among = (3 * torch.randn(40, 30)).round(), torch.rand(40, 30) < 0.3
    places = among.flatten().nonzero().flatten()
    for count in (0, 1, 100, len(places), len(places) + 1):
        found = largest_listed(scores[among], places, count, (40, 30))
        assert torch.equal(found, largest_of(scores, count, among)), count
