"""The benchmark of sparse operators with sizes of nothing: that it runs and keeps what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("scipy")

SCRIPT = str(Path(__file__).parents[2] / "benchmarks" / "sparse.py")


def test_measures_and_keeps(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--quick", "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (kept,) = tmp_path.iterdir()
    measured = json.loads(kept.read_text())
    for part in ("products", "scalings", "vectors"):
        rows = measured[part][0]["rows"]
        assert rows
        assert all(row["difference"] < 1e-6 and row["ours_ms"] > 0 and row["lanes_ms"] > 0 for row in rows)
    assert "products" in subprocess.run([*command, "--show"], capture_output=True, text=True, check=True).stdout.lower()
