"""Texts of data sets, of files and generated ones."""

import gzip

import pytest

from sparsify.errors import DataError
from sparsify.models.data import text


def test_a_file_and_its_last_tenth(tmp_path):
    (tmp_path / "a.txt").write_bytes(bytes(range(20)))
    found = text(str(tmp_path / "a.txt"))
    assert found.train.tolist() == list(range(18))
    assert found.val.tolist() == [18, 19]
    assert found.split == "the last tenth"


@pytest.mark.parametrize(
    ("name", "folder", "row", "expected"),
    [
        ("ag_news", "ag_news_csv", '"3","head","body"\n', b"head body"),
        ("imdb", "imdb_csv", '"2","good","9_7.txt"\n', b"good"),
    ],
)
def test_texts_of_a_table(tmp_path, name, folder, row, expected):
    (tmp_path / folder).mkdir()
    for part in ("train", "test"):
        (tmp_path / folder / f"{part}.csv.gz").write_bytes(gzip.compress(row.encode()))
    found = text(name, tmp_path)
    assert bytes(found.train.tolist()) == bytes(found.val.tolist()) == expected


@pytest.mark.sampled(2)
def test_generated_text_has_a_seed():
    assert text(seed=1).train.tolist() == text(seed=1).train.tolist()
    assert text(seed=1).train.tolist() != text(seed=2).train.tolist()


def test_errors(tmp_path):
    with pytest.raises(DataError, match=r"ag_news is not here: .*; --data-root names"):
        text("ag_news")
    with pytest.raises(DataError, match="cannot be read"):
        text(str(tmp_path / "none.txt"))
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match="no characters"):
        text(str(tmp_path / "empty.txt"))
    (tmp_path / "imdb_csv").mkdir()
    (tmp_path / "imdb_csv" / "train.csv.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="cannot be read"):
        text("imdb", tmp_path)


def test_real(data_root):
    found = text("ag_news", data_root)
    assert len(found.train) > 10**6 and int(found.train.max()) < 256
