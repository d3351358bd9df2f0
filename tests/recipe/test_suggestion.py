"""Suggestions for misspelled names."""

import pytest

from sparsify.recipe.suggestion import nearest


@pytest.mark.parametrize(
    "name, known, text",
    [
        ("magnitud", ("magnitude", "random"), "; did you mean 'magnitude'?"),
        ("rand", ("random", "random_rows"), "; did you mean 'random' or 'random_rows'?"),
        ("x", ("magnitude", 2), "; there are: magnitude, 2"),
        ("x", (), "; there are none"),
    ],
)
def test_nearest(name, known, text):
    assert nearest(name, known) == text
