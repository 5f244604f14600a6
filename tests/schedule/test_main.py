"""python -m bppsa.schedule."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bppsa.schedule import __main__ as command
from bppsa.schedule import blelloch, fslpp, lpp, simulate, wavelet_dp
from bppsa.schedule.names import PARAMETERS

MINE = """
from bppsa.schedule import Schedule

def mine(S, B, W=None):
    return Schedule(lambda s, b, d: (s % 2, s % 2))
"""


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    command.main([str(word) for word in words])
    return capsys.readouterr().out


def test_draws(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    svg, trace = tmp_path / "a.svg", tmp_path / "a.json"
    out = printed(capsys, "lpp", "--G", 2, "--R", 4, "-S", 8, "-B", 8, "--svg", svg, "--trace", trace)
    timeline = simulate(lpp(G=2, R=4), S=8, B=8)
    assert out.startswith(timeline.text())
    assert f"makespan {timeline.makespan} jobs" in out
    assert svg.stat().st_size > 1000
    assert trace.stat().st_size > 1000
    for same in ("lpp(G=2, R=4)", "lpp(2, 4)", "lpp(2, R=4)"):
        assert out == printed(capsys, same, "-S", 8, "-B", 8)


def test_costs_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    assert "makespan 5/3 jobs," in printed(capsys, "gpipe", "-S", 1, "-B", 1, "--forward", "2/3")


def test_times_in_ms_and_sizes_in_mb(capsys: pytest.CaptureFixture[str]) -> None:
    measured = ("--forward-ms", 12, "--backward", 2, "--activation-mb", 50, "--bandwidth", 10)
    out = printed(capsys, "gpipe", "-S", 2, "-B", 1, *measured)
    sent = 50 / 10  # MB over GB/s: ms
    assert f"makespan {12 * 2 + 24 * 2 + 2 * sent:g} ms" in out
    assert "peak activations     50 MB" in out
    assert "time in ms" in out


def test_a_search_says_whether_communication_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = ("search", "-S", 4, "-B", 4, "-W", 4)
    assert printed(capsys, *numbers).startswith("communication counted as free")
    counted = printed(capsys, *numbers, "--forward-ms", 1, "--activation-mb", 50, "--bandwidth", 1)
    assert "free" not in counted
    assert "fsdp: the best" not in counted  # it fetches weights, which takes 50 jobs' time
    assert "makespan in ms" in counted


def test_a_schedule_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "my_schedule.py"
    path.write_text(MINE)
    out = printed(capsys, "--file", f"{path}:mine", "-S", 4, "-B", 2)
    assert len([line for line in out.splitlines() if line.startswith("w")]) == 2
    assert "mine" in printed(capsys, "compare", f"{path}:mine", "gpipe", "-S", 4, "-B", 2)


def test_compares_and_searches(capsys: pytest.CaptureFixture[str]) -> None:
    assert "lpp(G=2)" in printed(capsys, "compare", "gpipe", "lpp(G=2)", "-S", 4, "-B", 4)
    assert "fsdp: the best" in printed(capsys, "search", "-S", 8, "-B", 16, "-W", 8, "--memory", 12)
    few = printed(capsys, "search", "gpipe", "lpp(G=2)", "-S", 4, "-B", 8)
    assert "lpp(G=2): the best" in few
    assert "fsdp" not in few


def test_a_name_that_is_printed_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for recipe in (lpp(2, 3), fslpp(2, owner="paper"), blelloch(8, "doubling"), wavelet_dp()):
        assert f"\n{recipe.name} " in printed(capsys, "compare", recipe.name, "-S", 8, "-B", 8)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "name one schedule of breadth_first"),
        (["gpipe", "ddp"], "name one schedule"),
        (["nope"], "'nope' is none of"),
        (["gpipe", "--G", "3"], r"gpipe takes \(\)"),
        (["lpp"], "lpp takes .*missing"),
        (["lpp(2"], "is no schedule"),
        (["lpp(G=3)", "-W", "4"], r"W = G\*R"),
        (["lpp(2, 4, 3)"], "lpp takes .*too many positional arguments"),
        (["lpp(x)"], r"'lpp\(x\)' is no schedule; write it as"),
        (["lpp(G='2')"], "lpp has G='2', and needs at least 1"),
        (["lpp"], r"lpp takes \(G: int, R: int \| None = None\): missing"),
        (["--file", "missing.py:x"], "there is no file 'missing.py'"),
        (["--file", "missing.py"], "names no schedule of the file; write FILE:NAME"),
        (["gpipe", "--file", "missing.py:x"], "name one schedule of .*, or --file"),
        (["gpipe", "--memory", "3"], "--memory says nothing here"),
        (["compare", "lpp(G=2)", "--G", "2"], r"--G says nothing here; .* as in 'lpp\(G=2, R=4\)'"),
        (["search", "--batches"], "--batches says nothing here"),
        (["compare", "-S", "2"], "no schedule"),
        (["gpipe", "--bandwidth", "3"], "needs --forward-ms and --activation-mb"),
        (
            ["gpipe", "--forward-ms", "1", "--activation-mb", "1", "--bandwidth", "3", "--weight-time", "1"],
            "says what --weight-time says too",
        ),
        (["search", "--memory", "0"], "fits in memory 0"),
        (["gpipe", "--memory", "0"], "--memory says nothing here"),
        (["gpipe", "--memory-gb", "3"], "--memory-gb says nothing here"),
        (["gpipe", "--recompute", "full", "--kept", "1.5"], "--kept 3/2 is no share"),
        (["compare", "gpipe", "--recompute", "auto"], "--recompute auto is for search"),
    ],
)
def test_refusals(words: list[str], error: str) -> None:
    with pytest.raises(SystemExit, match=error):
        command.main(words)


@pytest.mark.parametrize("words", [["--forward", "1/0"], ["--forward-ms", "x"]])
def test_what_is_no_number(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["gpipe", *words])
    assert f"argument {words[0]}: '{words[1]}' is no number, such as 1, 2/3 or 0.5" in capsys.readouterr().err


def test_help_says_what_each_parameter_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.MEANINGS.keys() == PARAMETERS.keys()
    with pytest.raises(SystemExit):
        command.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--G G number of groups of workers (breadth_first, depth_first, fslpp, lpp)" in text
    assert "--forward NUMBER time of one forward job (1)" in text


def test_a_file_without_the_name(tmp_path: Path) -> None:
    path = tmp_path / "my_schedule.py"
    path.write_text(MINE)
    with pytest.raises(SystemExit, match="has no 'yours'"):
        command.main(["--file", f"{path}:yours"])


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="No such file"):
        command.main(["ddp", "--svg", str(tmp_path / "missing" / "a.svg")])


def test_as_a_module() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "bppsa.schedule", "ddp", "-S", "2", "-B", "2"], capture_output=True, check=True
    )
    assert "∇1" in ran.stdout.decode()
