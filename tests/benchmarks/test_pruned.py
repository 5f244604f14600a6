"""The benchmark of pruned networks with narrow ones: that it runs and keeps what it says, not how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CLEAR = Path("/proc/self/clear_refs")


def quick(script: str, folder: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """What it says, and the results that it keeps."""
    command = [sys.executable, str(ROOT / "benchmarks" / script), "--quick", "--threads", "1", *options]
    command += ["--results", str(folder)]
    done = subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (kept,) = folder.iterdir()
    found: dict[str, Any] = json.loads(kept.read_text())
    return done.stdout, found


def test_measures_and_keeps(tmp_path: Path) -> None:
    said, kept = quick("pruned.py", tmp_path, "--only", "vgg11,linear 1024x1024")
    (run,) = kept["pruned"]
    assert {"torch", "revision", "threads"} <= set(run["on"])
    assert {row["network"] for row in run["rows"]} == {"vgg11", "linear 1024x1024"}
    assert all(row["peer_ms"] > 0 and row["ours_ms"] > 0 and row["ran"] for row in run["rows"])
    assert "97% uniform" in said


@pytest.mark.skipif(not CLEAR.exists(), reason="only Linux tells how much memory a process had at most")
def test_memory_is_measured_and_kept(tmp_path: Path) -> None:
    _, kept = quick("pruned_memory.py", tmp_path)
    ((row,),) = [run["rows"] for run in kept["pruned_memory"]]
    assert row["peer_MiB"] > 0
    assert row["ours_MiB"] > 0
