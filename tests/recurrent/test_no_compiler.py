"""Where no kernel can be built nn.RNN, nn.GRU and nn.LSTM run PyTorch's own forward, and one warning says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import warnings
import torch
from torch import nn
import bppsa

def step(model, plain, x):
    found = []
    for module in (model, plain):
        torch.manual_seed(1)  # drawn once: not for a kernel that is not there, and again by PyTorch
        y, _ = module(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, *plain.parameters()])])
    assert all(torch.equal(a, b) for a, b in zip(*found))

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for plain in (nn.RNN(3, 4, 2, dropout=0.5), nn.GRU(3, 4, 2, dropout=0.5), nn.LSTM(3, 4, 2, dropout=0.5)):
        for strategy in ("auto", "sequential"):
            model = bppsa.compile(plain, strategy=strategy)
            for steps in (50, 1):
                step(model, plain, torch.randn(steps, 2, 3, requires_grad=True))
            with torch.no_grad():
                model.eval()(torch.randn(50, 2, 3))
        (decision,) = model.report.decisions
        assert decision.strategy == "pytorch", decision
        print(decision.reason)
for warning in caught:
    print("WARNING", warning.category.__name__, warning.message)
"""


def run(folder: Path, **variables: str) -> str:
    environment = {**os.environ, "BPPSA_CACHE_DIR": str(folder / "cache"), **variables}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def warnings_in(output: str) -> list[str]:
    return [part for part in output.split("WARNING ")[1:] if "bppsa" in part]


def test_no_compiler(tmp_path: Path) -> None:
    output = run(tmp_path, CXX="/nonexistent")
    (warning,) = warnings_in(output)
    assert warning.startswith("RuntimeWarning")
    assert "set CXX to a C++17 compiler" in warning
    assert "CXX=/nonexistent is not a program" in output.split("WARNING")[0]


def test_none_on_path(tmp_path: Path) -> None:
    (warning,) = warnings_in(run(tmp_path, CXX="", PATH=str(tmp_path)))
    assert "install g++" in warning


@pytest.mark.skipif(os.name != "posix", reason="a shell script stands for the compiler")
def test_a_compiler_that_fails(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho error: no such luck >&2\nexit 1\n")
    broken.chmod(0o755)
    (warning,) = warnings_in(run(tmp_path, CXX=str(broken)))
    assert "no such luck" in warning
    assert "set CXX to another C++17 compiler" in warning
