"""The demo, with sizes small enough for seconds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.breadth import alternate

SCRIPT = Path(__file__).parents[2] / "examples" / "train_language_model.py"
SMALL = ["--hidden", "12", "--length", "20", "--batch", "3", "--steps", "4"]


def demo(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "120"}
    command = [sys.executable, str(SCRIPT), *SMALL, *options]
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", alternate(["gru", "rnn", "lstm"], 3))
def test_trains_twice_and_shows_the_same_loss(tmp_path: Path, kind: str) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 20)
    (text / "b.txt").write_bytes(bytes(range(256)))

    done = demo(tmp_path, "--model", kind, "--data", str(text), "--output", "curve.png")

    assert done.returncode == 0, done.stderr
    assert float(re.search(r"largest difference\D+([0-9.e+-]+)", done.stdout)[1]) < 1e-4
    for row in (
        "loss at step 1 ",
        "loss at step 4 ",
        "held out",
        "first step, s",
        "or loads",
        "a step, ms",
        "a sample",
    ):
        assert row in done.stdout
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(
        r"^step 4 of 4: loss [\d.]+; PyTorch [\d.]+ ms a step, bppsa [\d.]+ ms: [\d.]+x$", done.stdout, re.M
    )


def test_ends_in_time_with_what_is_done(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 20)
    done = demo(tmp_path, "--data", "a.txt", "--steps", "100000", "--minutes", "0.02")
    assert done.returncode == 0, done.stderr
    taken = int(re.search(r"^(\d+) of 100000 steps fit into 0\.02 minutes", done.stdout, re.M)[1])
    assert f"loss at step {taken} " in done.stdout


@pytest.mark.slow
def test_reads_the_standard_library_and_saves_demo_png(tmp_path: Path) -> None:
    done = demo(tmp_path, "--layers", "1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "demo.png").exists()


def test_says_when_the_text_is_too_short(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("short")
    done = demo(tmp_path, "--data", "short.txt")
    assert done.returncode != 0
    assert "5 bytes are too few" in done.stderr
