"""The example, with few epochs; CIFAR-10's reader on files of a few images."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "retrain_pruned.py"
SHORT = ["--model", "lenet", "--epochs", "1", "--retrain", "2"]


def example(tmp_path: Path, *options: str) -> str:
    command = [sys.executable, str(SCRIPT), *SHORT, *options]
    environment = os.environ | {"COLUMNS": "160"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_runs_reach_the_same_accuracy(tmp_path: Path) -> None:
    said = example(tmp_path, "--output", "curve.png")
    for row in re.findall(r"held out, epoch.*", said):
        plain, ours = (float(number) for number in re.findall(r"([0-9.]+)%", row))
        assert abs(plain - ours) < 4  # early on, rounding moves a few of the 359 images to another side
    assert "97% pruned (layer)" in said
    assert "times as fast" in said
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_reads_cifar_10(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    data = numpy.random.default_rng(0).integers(0, 256, (8, 3072), dtype=numpy.uint8)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (folder / name).write_bytes(pickle.dumps({b"data": data, b"labels": [i % 10 for i in range(8)]}))
    assert "held out, epoch 2" in example(tmp_path, "--cifar", str(folder), "--scheme", "global")
