"""The documents hold what they promise: README's code runs when pasted, commands are real, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
PRINTED = re.findall(r"^```text\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
DOCUMENTS = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize(("block", "printed"), list(zip(BLOCKS, PRINTED, strict=True)), ids=range(len(BLOCKS)))
def test_code_block_prints_what_is_shown(block: str, printed: str, tmp_path: Path) -> None:
    """But for predictions, which are the machine's."""
    (tmp_path / "train.py").write_text(block)
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert without_predictions(done.stdout) == without_predictions(printed)


def without_predictions(text: str) -> str:
    return re.sub(r"(predicted ms=|PyTorch's=|predicted )[\d.]+", r"\1...", text)


def test_it_is_one_screen_and_its_table_is_the_results() -> None:
    assert len(README.splitlines()) <= 150
    done = subprocess.run(
        [sys.executable, "-c", "import json, summary; print(summary.table(json.loads(summary.RESULTS.read_text())))"],
        cwd=ROOT / "benchmarks",
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"<!-- summary -->\n{done.stdout.strip()}\n<!-- /summary -->" in README


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^ {4}|`)make ([a-z0-9-]+)", document.read_text(), re.MULTILINE)) <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", document.read_text())
    assert not [target for target in targets if not (document.parent / target).exists()]
