"""Kernels for 64-bit ARM, where a cross compiler and an emulator are installed: a sweep, both ways."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bppsa.codegen import isa
from tests.aarch64.emulated import LEVEL, missing


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_kernel_is_the_interpreters_on_arm() -> None:
    command = [sys.executable, "-m", "tests.aarch64", "GRU, f", "GRU, b"]
    done = subprocess.run(command, env={**os.environ, isa.VARIABLE: LEVEL}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("differs by") == 4
