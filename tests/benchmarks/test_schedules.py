"""The benchmark of schedules with sizes of nothing: that it runs and keeps what it says, not how fast anything is."""

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
SCRIPT = str(ROOT / "benchmarks" / "schedules.py")


def test_measures_and_keeps(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--quick", "--results", str(tmp_path)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (kept,) = tmp_path.iterdir()
    parts: dict[str, Any] = {name: runs[0] for name, runs in json.loads(kept.read_text()).items() if name != "machine"}
    assert all({"revision", "torch", "threads", "repeats"} <= set(run["on"]) for run in parts.values())
    found = {name: run["rows"] for name, run in parts.items()}

    assert [row["W"] for row in found["schedules"]] == [2, 2, 2]
    for row in found["schedules"]:
        assert row["measured_ms"] > 0
        assert row["step_ms"] > 0
        assert len(row["peaks_simulated"]) == len(row["peaks_measured"]) == 2
    assert [row["peaks_measured"] for row in found["schedules"] if row["schedule"] == "naive"] == [[1, 1]]

    assert {row["peer"] for row in found["pipelines"]} == {"1F1B", "ZBV", "DDP"}
    for row in (*found["pipelines"], *found["workers"]):
        assert row["peer_ms"] > 0
        assert row["ours_ms"] > 0
        assert row["difference"] < 1e-5, "the two have the same gradients"
    assert len(found["workers"]) == 4
    assert [row["way"] for row in found["waves"]] in (["gang", "tick-tock"], [])
    assert all(row["MiB"] > 0 and row["step_s"] > 0 for row in found["many"])

    shown = subprocess.run([*command, "--show"], env=env, capture_output=True, text=True, check=True).stdout
    assert all(name in shown for name in ("one_f_one_b", "ZBV", "tick-tock" if found["waves"] else ""))
