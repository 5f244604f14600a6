"""Every part of the benchmark with sizes of nothing: that it runs and keeps what it says, not how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PLACES = [f"<!-- {mark} -->\nold\n<!-- /{mark} -->\n" for mark in ("results", "results AVX2")]
PAGE = f"# title\n{''.join(PLACES)}end\n"


def test_measures_keeps_and_writes_to_a_page(tmp_path: Path) -> None:
    results, page = tmp_path / "results", tmp_path / "page.md"
    page.write_text(PAGE)
    command = [sys.executable, str(ROOT / "benchmarks" / "recurrent.py"), "--quick", "--threads", "1"]
    command += ["--results", str(results), "--page", str(page)]

    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    (kept,) = results.iterdir()
    measured = json.loads(kept.read_text())
    machine = measured.pop("machine")
    assert machine["cores"] >= 1
    assert {"torch", "revision", "dirty", "date", "threads"} <= set(measured["steps"][0]["on"])
    parts = {"steps", "peers", "cells", "inference", "overhead", "first_call", "never_slower"}
    assert parts <= set(measured) <= {*parts, "memory"}
    assert all(run["rows"] for part in parts for run in measured[part])
    assert len(measured["never_slower"]) == 2
    assert all(row["difference"] < 1e-5 for row in measured["steps"][0]["rows"])

    text = page.read_text()
    assert [place in text for place in PLACES].count(True) == 1  # one is this machine's
    assert text.startswith("# title\n")
    assert text.endswith("\nend\n")
    assert "-->\n| T, B, H" in text


def test_names_its_parts() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "recurrent.py"), "--only", "steps,speed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "speed: the parts are steps, peers" in done.stderr
