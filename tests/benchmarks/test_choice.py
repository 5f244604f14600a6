"""The commands about the cost model with sizes of nothing: that they run, keep what they say, and label predictions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bppsa.codegen.cpu.build import available

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
needs_compiler = pytest.mark.skipif(available() is not None, reason="needs a C++ compiler")


def run(script: str, *arguments: object) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_compiler
def test_choice_compares_every_way_and_adds_to_what_is_kept(tmp_path: Path) -> None:
    run("choice.py", "--quick", "--kinds", "RNN", "--results", tmp_path)
    said = run("choice.py", "--quick", "--kinds", "GRU", "--results", tmp_path)
    (kept,) = tmp_path.iterdir()
    ((rows, on),) = [(part["rows"], part["on"]) for part in json.loads(kept.read_text())["choice"]]
    assert {"torch", "revision", "threads"} <= set(on)
    sizes = [(row["kind"], row["T"], row["training"]) for row in rows]
    assert sizes == [(kind, T, training) for kind in ("RNN", "GRU") for T in (1, 20) for training in (True, False)]
    for row in rows:
        check(row)
    assert "auto within 10% of the best: " in said
    assert "median relative error of" in said
    assert run("choice.py", "--show", "--results", tmp_path).splitlines()[-1] == said.splitlines()[-1]


def check(row: dict[str, Any]) -> None:
    measured = row["measured_ms"]
    assert set(measured) == set(row["predicted_ms"])
    scans = {"chunked", "blelloch", "hybrid"} if row["training"] and row["T"] > 4 else set()
    assert set(measured) == {"pytorch", "sequential", *scans}
    assert row["best"] == min(measured, key=measured.__getitem__)
    assert row["over_best"] == pytest.approx(measured[row["auto"]] / measured[row["best"]], rel=0.01)


@needs_compiler
def test_fit_keeps_calls_and_fits_them_again(tmp_path: Path) -> None:
    said = run("fit.py", "--seconds", "0.01", "--seed", "3", "--results", tmp_path)
    assert "pytorch backward: 1 calls" in said
    assert run("fit.py", "--show", "--results", tmp_path) == said


def test_a_prediction_says_that_it_is_one(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton, which counts a kernel's bytes and flops")
    kept = tmp_path / "h200.json"
    said = run("predicted.py", "--quick", "--results", kept)
    assert said.startswith("PREDICTION, not measured: NVIDIA H200")
    found = json.loads(kept.read_text())
    assert "benchmarks/fit.py" in found["machine"]["source"]
    assert {row["phase"] for row in found["phases"]} == {"reduce", "scan", "backward", "products"}
    assert all(key.startswith("predicted") for row in found["times"] for key in row if key.endswith(("_ms", "_us")))
    ways = {row["way"] for row in found["times"]}
    assert {"pytorch", "sequential", "chunked", "newton(4) + chunked"} <= ways
