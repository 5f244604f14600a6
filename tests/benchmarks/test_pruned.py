"""The benchmark of pruned networks with narrow ones: that it runs and keeps what it says, not how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLEAR = Path("/proc/self/clear_refs")


def test_measures_and_keeps(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "pruned.py"),
        "--quick",
        "--threads",
        "1",
        "--only",
        "vgg11,linear 1024x1024",
    ]
    done = subprocess.run(
        [*command, "--results", str(tmp_path)],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (kept,) = tmp_path.iterdir()
    (run,) = json.loads(kept.read_text())["pruned"]
    assert {"torch", "revision", "threads"} <= set(run["on"])
    assert {row["network"] for row in run["rows"]} == {"vgg11", "linear 1024x1024"}
    assert all(row["peer_ms"] > 0 and row["ours_ms"] > 0 and row["ran"] for row in run["rows"])
    assert "97% uniform" in done.stdout


@pytest.mark.skipif(not CLEAR.exists(), reason="only Linux tells how much memory a process had at most")
def test_memory_is_measured_and_kept(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "pruned_memory.py"), "--quick", "--threads", "1"]
    done = subprocess.run(
        [*command, "--results", str(tmp_path)],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (kept,) = tmp_path.iterdir()
    ((row,),) = [run["rows"] for run in json.loads(kept.read_text())["pruned_memory"]]
    assert row["peer_MiB"] > 0
    assert row["ours_MiB"] > 0
