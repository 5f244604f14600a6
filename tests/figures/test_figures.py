"""The figures at sizes of nothing: that all is measured, drawn and kept, not how fast anything is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bppsa.codegen.build import available

ROOT = Path(__file__).parents[2]
WAYS = "PyTorch,sequential,chunked"  # so short a call is left to PyTorch unless it is asked for


def figures(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "figures", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a --quick run leaves."""
    if reason := available():
        pytest.skip(f"the figures compare kernels of ours: {reason}")
    folder = tmp_path_factory.mktemp("out")
    done = figures("--quick", "--ways", WAYS, "--device", "cpu", "--output", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def record(kept: Path) -> Callable[[str], dict[str, Any]]:
    return lambda name: json.loads((kept / f"{name}.json").read_text())


NAMES = ["fig7"]


@pytest.mark.parametrize("name", NAMES)
def test_leaves_pictures_and_a_record(kept: Path, record: Callable[[str], dict[str, Any]], name: str) -> None:
    assert (kept / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (kept / f"{name}.svg").read_text()
    found = record(name)
    assert found["size"] == "quick"
    on = {"device", "baseline", "cpu", "cores", "threads", "torch", "python", "compiler", "revision", "dirty", "date"}
    assert on <= set(found["on"])
    assert found["beside"]
    assert all(set(row) == {"what", "paper", "ours"} for row in found["beside"])
    assert f"]({name}.png)" in (kept / "README.md").read_text()


def test_both_ways_learn_the_same(record: Callable[[str], dict[str, Any]]) -> None:
    found = record("fig7")
    plain, ours = (found["ways"][way] for way in ("PyTorch", "sequential"))
    assert (plain["ran"], ours["ran"]) == ("pytorch", "sequential")
    assert len(plain["loss"]) == len(ours["loss"]) == found["iterations"] == found["iterations_an_epoch"] == 8
    assert len(set(plain["loss"])) > 1
    assert plain["loss"] == pytest.approx(ours["loss"], abs=2e-4)  # rounded to five digits in the record
    assert found["greatest_difference_of_losses"] < 1e-5
    assert found["relative_difference_of_gradients"] < 1e-5
    assert plain["seconds"] == sorted(plain["seconds"])


def test_draws_again_what_is_kept(kept: Path) -> None:
    (kept / "fig7.png").unlink()
    measured = (kept / "fig7.json").read_text()
    done = figures("fig7", "--draw", "--output", str(kept))
    assert done.returncode == 0, done.stderr
    assert (kept / "fig7.png").exists()
    assert (kept / "fig7.json").read_text() == measured


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["fig77"], "fig77: the figures are fig7"), (["--ways", "PyTorch,fastest"], "two or more of PyTorch, auto")],
)
def test_says_what_there_is(arguments: list[str], said: str) -> None:
    done = figures(*arguments)
    assert done.returncode != 0
    assert said in done.stderr
