"""The figures at sizes of nothing: that all is measured, drawn and kept, not how fast anything is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bppsa.codegen.cpu.build import available

pytestmark = pytest.mark.slow

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


MEASURED = ["table1", "fig5", "fig6", "fig7", "fig8", "fig9", "fig10", "fig13"]
NAMES = [*MEASURED, "schedules", "groups", "wavelet", "zero_bubble", "time_chunks"]


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


def test_every_way_is_timed_and_right(record: Callable[[str], dict[str, Any]]) -> None:
    found = record("fig8")
    sizes = {part: [(row["T"], row["B"], row["way"]) for row in found[part]] for part in ("by_steps", "by_rows")}
    ways = WAYS.split(",")
    assert sizes["by_steps"] == [(T, 16, way) for T in (10, 30) for way in ways]
    assert sizes["by_rows"] == [(10, B, way) for B in (2, 4) for way in ways]
    for row in found["by_steps"] + found["by_rows"]:
        assert row["ran"] == {"PyTorch": "pytorch"}.get(row["way"], row["way"])
        assert row["relative_difference"] < 1e-5
        assert min(row[f"{phase}_ms"] for phase in ("forward", "backward", "rest")) > 0
        quartiles = row["backward_quartiles_ms"]
        assert quartiles["low"] <= quartiles["median"] <= quartiles["high"]
    assert {row["backward_ratio"]["median"] for row in found["by_steps"] if row["way"] == "PyTorch"} == {1.0}


def test_a_stand_in_is_labelled_so(record: Callable[[str], dict[str, Any]], kept: Path) -> None:
    for name in ("fig9", "fig13"):
        assert record(name)["data"] == "synthetic notes, a stand-in for IRMAS"
        assert "a stand-in for IRMAS" in (kept / f"{name}.svg").read_text()


def test_grus_of_both_ways_learn_the_same(record: Callable[[str], dict[str, Any]]) -> None:
    assert [(row["set"], row["T"], row["B"]) for row in record("fig9")["rows"]] == [("S", 259, 16)] * 2
    trained = record("fig13")["sets"]["S"]
    assert (trained["T"], trained["inputs"], trained["iterations"]) == (259, 38, 4)
    assert trained["greatest_difference_of_losses"] < 1e-5


def test_draws_again_what_is_kept(kept: Path) -> None:
    (kept / "fig7.png").unlink()
    measured = (kept / "fig7.json").read_text()
    done = figures("fig7", "--draw", "--output", str(kept))
    assert done.returncode == 0, done.stderr
    assert (kept / "fig7.png").exists()
    assert (kept / "fig7.json").read_text() == measured


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fig77"], "fig77: the figures are table1"),
        (["--ways", "PyTorch,fastest"], "two or more of PyTorch, auto"),
    ],
)
def test_says_what_there_is(arguments: list[str], said: str) -> None:
    done = figures(*arguments)
    assert done.returncode != 0
    assert said in done.stderr
