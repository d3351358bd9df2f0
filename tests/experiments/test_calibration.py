"""One-shot pruning of an encoder: the rows of the table, and what they were measured with."""

import argparse
import csv
import gzip
import json

import pytest

from experiments.calibration.__main__ import COLUMNS, RECORDED, run, write

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "runs"]


@pytest.fixture
def place(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    made = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=16, max_position_embeddings=16))
    made.save_pretrained(tmp_path / "weights")
    model = tokenizers.models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="a")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "weights" / "tokenizer.json"))
    folder = tmp_path / "ag_news_csv"
    folder.mkdir()
    for part in ("train", "test"):
        with gzip.open(folder / f"{part}.csv.gz", "wt", encoding="utf-8") as file:
            csv.writer(file).writerows([("1", " ".join(WORDS[at:])) for at in range(6)])
    return tmp_path


def test_a_row_says_what_it_was_measured_with(place):
    asked = argparse.Namespace(
        row=("wanda", "50 %"),
        weights=place / "weights",
        data_root=place,
        samples=4,
        length=8,
        evaluated=3,
    )
    found = run(asked)
    assert set(found) == {*COLUMNS, RECORDED}
    assert found["zeros"] == pytest.approx(0.5, abs=0.02) and 0 < found["layer error"] < 1
    recorded = found[RECORDED]
    assert recorded["samples"] == 4 and recorded["length"] == 8 and recorded["scope"] == "layer"
    assert len(recorded["layers"]) == 6 and len(recorded["calibration sha256"]) == 64
    assert recorded["evaluation split"] == "the first 3 texts of ag_news_csv/test.csv.gz"
    write(place / "rows.json", [found])
    assert json.loads((place / "rows.json").read_text(encoding="utf-8"))[0][RECORDED] == recorded
    write(place / "rows.csv", [found])
    rows = list(csv.reader((place / "rows.csv").read_text(encoding="utf-8").splitlines()))
    assert tuple(rows[0]) == COLUMNS and len(rows) == 2
