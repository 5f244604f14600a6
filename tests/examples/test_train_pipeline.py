"""The example, with sizes small enough for seconds: on two ranks, and on two threads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "train_pipeline.py"
SMALL = ["--hidden", "8", "--layers", "3", "--length", "12", "--batch", "6", "--steps", "3"]
SMALL += ["--stages", "4", "--microbatches", "4", "--schedule", "lpp", "--G", "1", "--R", "2"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def example(tmp_path: Path, *python: str, data: Path, output: str) -> str:
    environment = os.environ | {"COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *python, str(SCRIPT), *SMALL, "--data", str(data), "--output", output]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_trains_alike_on_ranks_and_on_threads(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 20)

    on_ranks = example(tmp_path, *TORCHRUN, data=text, output="ranks")
    on_threads = example(tmp_path, data=text, output="threads")

    for said, workers in ((on_ranks, "2 ranks"), (on_threads, "2 threads")):
        assert f"lpp(G=1, R=2): 4 stages, 4 micro-batches, {workers}" in said
        for row in ("flops", "the last step, simulated", "the last step, measured", "makespan, ms", "idle"):
            assert row in said
    losses = [
        re.findall(r"loss (\S+) at step 1, (\S+) at step 3; held out (\S+)", said) for said in (on_ranks, on_threads)
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 1  # of rank 0 alone
    peaks = re.search(r"most activations of a worker\W+(\d+ \d+)\W+(\d+ \d+)\W+(\d+ \d+)", on_ranks)
    assert peaks is not None
    assert len(set(peaks.groups())) == 1
    for name in ("ranks-simulated.svg", "ranks-measured.svg", "threads-measured.svg"):
        assert (tmp_path / name).read_text().count('class="job"') == 2 * 4 * 4
