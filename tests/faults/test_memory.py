"""The memory of `apply`: little beside the model and one copy, none that only a garbage collection frees."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("memory_of_apply.py")


@pytest.mark.sampled(6)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")
def test_apply_frees_what_it_needs_no_more():
    changes = {"SPARSIFY_CXXFLAGS": "-O0", "SPARSIFY_TUNE_SECONDS": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
    run = [sys.executable, str(PROGRAM), "given,inplace", "pruned,apart"]
    done = subprocess.run(
        run, env={**os.environ, **changes}, capture_output=True, text=True, check=False, timeout=300
    )
    assert not done.returncode, done.stderr
    inplace, apart = (tuple(map(float, line.split())) for line in done.stdout.splitlines())
    for size, peak, _, _, cycles in (inplace, apart):
        assert size > 50
        assert peak <= 2 * size + 40
        assert cycles < 1, "tensors that only a garbage collection frees"
    size, _, after, held, _ = inplace
    assert held < -0.4 * size, "dense weights are freed"
    assert after < -0.25 * size, "and given back to the system"
    assert apart[3] < 0.3 * size
