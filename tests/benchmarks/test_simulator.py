"""The benchmark of the simulator with sizes of nothing: that it runs and keeps what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_measures_and_keeps(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "simulator.py"), "--quick", "--repeats", "1"]
    done = subprocess.run([*command, "--results", str(tmp_path)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    (kept,) = tmp_path.iterdir()
    ((on, rows),) = [(run["on"], run["rows"]) for run in json.loads(kept.read_text())["simulator"]]
    assert {"revision", "dirty", "date", "python"} <= set(on)
    assert [row["schedule"] for row in rows] == ["one_f_one_b", "lpp", "search", "plan"]
    assert [row["W"] for row in rows] == [2, 128, 2, 2]
    assert [row.get("jobs") for row in rows] == [12, 512, None, 12]
    assert rows[2]["tried"] > 5
    assert all(row["total_s"] > 0 for row in rows)
    assert all(row.get("MiB", 1) < 100 for row in rows[:3]), "of a process without torch"


def test_a_case_loads_no_torch_and_asks_for_every_metric() -> None:
    program = "import simulator_case, sys; print(simulator_case.METRICS); sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "benchmarks", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for metric in ("makespan", "bubble", "peak_activations", "weight_versions", "weight_receives_cached"):
        assert metric in done.stdout
