"""The example, with rows short enough for seconds: on two ranks, and on three threads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "train_time_parallel.py"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def example(tmp_path: Path, *arguments: str, python: list[str] | None = None) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}  # memory is read
    environment = inherited | {"COLUMNS": "160", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *(python or []), str(SCRIPT), "--steps", "2", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the last step, measured" in done.stdout
    peaks = re.search(r"most activations of a worker\W+(\d[\d ]*\d)\W+(\d[\d ]*\d)\W+(\d[\d ]*\d)", done.stdout)
    assert peaks is not None
    assert len(set(peaks.groups())) == 1  # planned, simulated and measured
    apart = re.search(r"(\S+) apart at most, relative", done.stdout.replace("\n", " "))
    assert apart is not None
    assert float(apart[1]) < 1e-5  # of float32 losses from one worker's
    return done.stdout


def test_each_of_two_ranks_holds_half_of_the_activations(tmp_path: Path) -> None:
    said = example(tmp_path, "--length", "20000", "--layers", "2", python=TORCHRUN)
    assert "2 ranks" in said
    row = re.search(r"time cut over workers\W+1 each\D+\d+ \(([\d.]+)\), \d+ \(([\d.]+)\)", said)
    assert row is not None
    for share in map(float, row.groups()):
        assert 0.35 < share < 0.65  # of what one worker's process holds; some memory is taken page by page


def test_threads_train_alike(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 80)
    small = ["--length", "240", "--hidden", "8", "--layers", "2", "--batch", "3", "--microbatches", "2"]
    said = example(tmp_path, *small, "--data", str(text), "--workers", "3", "--middle", "chain", "--model", "lstm")
    assert "3 threads" in said
    assert said.count("one worker ") >= 1
