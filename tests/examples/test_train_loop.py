"""The example, with few updates."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "train_loop.py"


def test_both_runs_have_the_same_losses(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--steps", "40", "--updates", "8"]
    environment = os.environ | {"COLUMNS": "160"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"│ *\d+ *│ *([0-9.]+) *│ *([0-9.]+) *│", done.stdout)
    assert len(rows) == 8
    for plain, ours in rows:
        assert abs(float(plain) - float(ours)) < 1e-3
    assert "train_loop.py:" in done.stdout
    assert ": sequential:" in done.stdout
