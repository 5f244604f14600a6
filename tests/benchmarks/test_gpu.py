"""The benchmark of CUDA devices where there is none: that it says so, and that all of it runs by another clock."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bppsa
from bppsa.codegen.cpu.build import available

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore:CUDA is not available")


def test_without_a_device_it_says_so_and_stops() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py")]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("no CUDA device: torch ")
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """A --quick run on the CPU, by its clock; gives what it keeps."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    gpu, device = importlib.import_module("gpu"), importlib.import_module("harness.device")
    monkeypatch.setattr(device, "NAME", "cpu")
    monkeypatch.setattr(device, "require", lambda: None)
    monkeypatch.setattr(device, "mark", time.perf_counter)
    monkeypatch.setattr(device, "seconds", lambda start, end: end - start)
    monkeypatch.setattr(device, "synchronize", lambda: None)
    monkeypatch.setattr(device, "hardware", lambda: {"gpu": "NVIDIA None-1"})
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--quick", "--results", str(tmp_path)])

    def run() -> dict[str, Any]:
        gpu.main()
        (kept,) = tmp_path.iterdir()
        assert kept.name == "nvidia-none-1.json"
        return json.loads(kept.read_text())

    return run


@pytest.mark.skipif(available() is not None, reason="needs a C++ compiler")
def test_measures_every_way(quick: Callable[[], dict[str, Any]]) -> None:
    measured = quick()
    assert measured["machine"]["gpu"] == "NVIDIA None-1"
    ((on, rows),) = [(part["on"], part["rows"]) for part in measured["gpu"]]
    assert {"torch", "triton", "cuda", "cudnn", "tf32", "revision", "dirty", "date"} <= set(on)
    assert [(row["kind"], row["way"]) for row in rows] == [
        *((kind, way) for kind in ("GRU", "LSTM", "RNN") for way in ("cuDNN", "auto", "sequential", "chunked")),
        *(("MinGRU", way) for way in ("auto", "sequential", "chunked")),
    ]
    for row in rows:
        assert "error" not in row
        assert row["difference"] < 1e-5
        assert row["launches"] == 0
        assert min(row["forward_ms"], row["backward_ms"]) > 0
        assert row["wall_ms"] >= row["backward_ms"]
        assert ("ratio" in row) == (row["kind"] != "MinGRU" and row["way"] != "cuDNN")


def test_what_raises_or_is_left_to_pytorch_is_a_row(
    quick: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile = bppsa.compile

    def compiled(module: Any, strategy: str, forward: str) -> Any:
        if strategy == "chunked":
            raise RuntimeError("no such kernel")
        return compile(module, strategy="auto", forward=forward)  # leaves so short a call of an RNN to PyTorch

    monkeypatch.setattr(bppsa, "compile", compiled)
    rows = quick()["gpu"][0]["rows"]
    by_way = {way: [row for row in rows if row["way"] == way] for way in ("cuDNN", "sequential", "chunked")}
    assert {row["error"] for row in by_way["chunked"]} == {"RuntimeError: no such kernel"}
    left = [row for row in by_way["sequential"] if row["ran"] == "pytorch"]
    assert "RNN" in {row["kind"] for row in left}
    assert all(row["reason"] and "forward_ms" not in row for row in left)
    assert all(row["forward_ms"] > 0 for row in by_way["cuDNN"])
