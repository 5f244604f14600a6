"""The example with transformers' GPT-2: it goes on from its checkpoint, along the curve of one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "train_gpt.py"
SHORT = ["--layers", "2", "--width", "16", "--length", "16", "--batch", "8", "--save-every", "3", "--data", str(SCRIPT)]
RANKS = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def example(folder: Path, *options: str, launcher: list[str] | None = None) -> str:
    command = [sys.executable, *(launcher or []), str(SCRIPT), *SHORT, *options]
    (folder / "sitecustomize.py").write_text("from tests.models.library import operators\n\noperators()\n")
    paths = os.pathsep.join([str(folder), str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def difference_in(said: str) -> float:
    (found,) = re.findall(r"differ by at most ([0-9.e+-]+)", said)
    return float(found)


def test_the_curve_is_that_of_one_process(tmp_path: Path) -> None:
    """On ranks, in two runs, the second under another schedule."""
    example(tmp_path, "--compare", "--steps", "6", "--folder", "run", "--schedule", "fsdp", launcher=RANKS)
    (tmp_path / "run" / "00000006").rename(tmp_path / "lost")  # as if it had ended after the third step
    said = example(tmp_path, "--compare", "--steps", "6", "--folder", "run", "--recompute", "full", launcher=RANKS)
    assert "step 6" in said
    assert difference_in(said) < 1e-4
    assert (tmp_path / "gpt-measured.svg").read_text().startswith("<svg")


def test_bfloat16(tmp_path: Path) -> None:
    said = example(tmp_path, "--compare", "--steps", "4", "--bf16", "--schedule", "lpp(G=2)", "--microbatches", "2")
    assert difference_in(said) < 0.05
