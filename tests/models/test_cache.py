"""The folder for copies and weights."""

import pytest

from sparsify import options
from sparsify.errors import CacheError
from sparsify.models import cache


def test_is_made_below_the_cache_directory(tmp_path):
    with options.override(cache_dir=tmp_path / "cache"):
        assert cache.folder("weights") == tmp_path / "cache/weights"
    assert (tmp_path / "cache/weights").is_dir()


@pytest.fixture
def blocked(tmp_path):
    """A cache directory that cannot be made."""
    (tmp_path / "cache").write_text("a file where the folder should be")
    with options.override(cache_dir=tmp_path / "cache"):
        yield


def test_cache_that_cannot_be_written_is_replaced_with_a_warning(blocked):
    with pytest.warns(UserWarning, match="cannot be written"):
        found = cache.folder("weights")
    assert found.is_dir()
    with pytest.warns(UserWarning, match="cannot be written"):
        assert cache.folder("weights") == found


def test_nowhere_to_write(blocked, monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "_holders", [])
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(CacheError, match="set SPARSIFY_CACHE_DIR"):
        cache.folder("weights")


def test_keep_replaces_whole_files(tmp_path):
    file = tmp_path / "a"
    cache.keep(file, b"one")
    assert cache.keep(file, b"two").read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [file]
