"""python -m bppsa.plan_training, and the page that it writes."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from torch import nn

from bppsa.api.plan_command import main

NUMBERS = ["--workers", "2", "--tflops", "1", "--bandwidth-gbps", "10"]
BUILD = """
import torch
def build():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8)), torch.zeros(4, 8)
"""


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_command_prints_a_ranking_and_writes_a_page(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BUILD)
    command = [sys.executable, "-m", "bppsa.plan_training", "mine:build", *NUMBERS, "--html", "plan.html"]
    path = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    done = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ms a step" in done.stdout
    page = Tags()
    page.feed((tmp_path / "plan.html").read_text())
    assert not page.open
    assert page.seen.count("svg") == 2
    assert {"table", "rect", "path"} <= set(page.seen)


@pytest.mark.parametrize(
    ("place", "says"),
    [("nothing", "names no function"), ("not_there_at_all:f", "there is no module"), ("torch:nn", "has no function")],
)
def test_what_cannot_be_built_is_told(place: str, says: str) -> None:
    with pytest.raises(SystemExit, match=says):
        main([place, *NUMBERS])


def test_other_dtypes_and_results_are_told() -> None:
    with pytest.raises(SystemExit, match="no floating-point dtype"):
        main(["torch:rand", *NUMBERS, "--dtype", "int8"])
    with pytest.raises(SystemExit, match="and not \\(model, example\\)"):
        main([f"{nn.Identity.__module__}:Identity", *NUMBERS])


def test_all_rows_are_printed_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "built.py").write_text(BUILD)
    monkeypatch.syspath_prepend(str(tmp_path))
    main(["built:build", *NUMBERS])
    short = capsys.readouterr().out
    main(["built:build", *NUMBERS, "--all"])
    assert "terminal --all, tells of each" in short
    assert len(short.splitlines()) < len(capsys.readouterr().out.splitlines())
