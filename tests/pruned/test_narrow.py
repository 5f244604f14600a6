"""The kernels as they are built for machines with fewer and narrower registers than this one's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bppsa.codegen.cpu import build
from tests.breadth import alternate

ROOT = Path(__file__).parents[2]
HAS_AVX2 = "avx2" in build.cpu_features().split()
MACHINES = {"AVX2": ["-march=haswell"], "the least of its kind": []}


@pytest.mark.parametrize("machine", alternate(MACHINES))
def test_kernels_for(machine: str) -> None:
    if machine == "AVX2" and not HAS_AVX2:
        pytest.skip("this CPU has no AVX2")
    command = [sys.executable, "-m", "tests.pruned.narrow", *MACHINES[machine], "-O1"]  # last: half the time to build
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
