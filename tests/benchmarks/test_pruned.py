"""The benchmark of pruned networks with narrow ones: that it runs and keeps what it says, not how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
