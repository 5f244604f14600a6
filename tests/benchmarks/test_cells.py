"""The ratios of docs/guides/literature.md: the command measures and writes them, and the page has those kept."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "literature.md"
RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("cells")


def test_the_page_shows_what_is_kept(cells: ModuleType, tmp_path: Path) -> None:
    """python benchmarks/cells.py --show --page writes it anew."""
    shown = PAGE.read_text()
    file = re.search(r"`benchmarks/results/(.*?\.json)`", shown)
    if file is None:  # not measured yet
        assert "<!-- ratios -->\n<!-- /ratios -->" in shown
        return
    results, copy = cells.store.load(RESULTS / file[1]), tmp_path / "page.md"
    copy.write_text(shown)
    cells.write(copy, results, file[1])
    assert copy.read_text() == shown
    assert [row["cell"] for row in results[cells.PART][0]["rows"]] == cells.blocks.names()


def test_headings_are_named_as_the_site_names_them(cells: ModuleType) -> None:
    assert cells.anchor("Hawk's RG-LRU") == "hawks-rg-lru"
    assert cells.anchor("Hodgkin and Huxley's neuron") == "hodgkin-and-huxleys-neuron"


@pytest.mark.slow
def test_measures_keeps_and_writes_to_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# title\n<!-- ratios -->\nold\n<!-- /ratios -->\nend\n")

    command = [sys.executable, str(ROOT / "benchmarks" / "cells.py"), "--quick", "--threads", "1"]
    command += ["--only", "Zoneout", "--only", "Hawk's RG-LRU", "--results", str(tmp_path / "results")]
    done = subprocess.run([*command, "--page", str(page)], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    (kept,) = (tmp_path / "results").iterdir()
    ((on, rows),) = [(run["on"], run["rows"]) for run in json.loads(kept.read_text())["literature"]]
    assert {"torch", "revision", "dirty", "date", "threads"} <= set(on)
    assert [row["cell"] for row in rows] == ["Zoneout", "Hawk's RG-LRU"]
    text = page.read_text()
    assert text.startswith("# title\n<!-- ratios -->\n| cell | Python loop")
    assert "| [Hawk's RG-LRU](#hawks-rg-lru) | " in text
    assert text.endswith("\n<!-- /ratios -->\nend\n")
    assert "old" not in text
