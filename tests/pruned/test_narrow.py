"""The kernels as they are built for machines with fewer and narrower registers than this one's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bppsa.codegen import isa
from tests.breadth import alternate

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("level", alternate(["x86-64-v3", "x86-64"]))
def test_kernels_for(level: str) -> None:
    if not isa.named(level).needs <= set(isa.cpu_features().split()):
        pytest.skip(f"this CPU is no {level}")
    command = [sys.executable, "-m", "tests.pruned.narrow", level]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
