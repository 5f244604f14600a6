"""The pages in docs/ hold what they promise: code runs, commands print what is shown, diagrams are current."""

from __future__ import annotations

import importlib.util
import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import bppsa
from bppsa import cells, errors, schedule, strategies

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CONSOLE = re.compile(r"^```console\n\$ python -m (.*?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

PAGES = {str(page.relative_to(DOCS)): page.read_text() for page in sorted(DOCS.rglob("*.md"))}
LONG = {"guides/literature.md"}  # a kernel for each of its cells
WITH_CODE = [
    pytest.param(name, marks=[pytest.mark.slow] if name in LONG else [])
    for name, text in PAGES.items()
    if PYTHON.search(text)
]
COMMANDS = [found for text in PAGES.values() for found in CONSOLE.findall(text)]


@pytest.mark.parametrize("name", WITH_CODE)
def test_code_of_a_page_runs_from_its_top(name: str, tmp_path: Path) -> None:
    program = "\n".join(PYTHON.findall(PAGES[name]))
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("command", "shown"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_a_command_prints_what_is_shown(command: str, shown: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    )
    assert done.stdout.rstrip() == shown.rstrip()


def gallery() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gallery", DOCS / "gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_diagrams_are_those_of_the_code(tmp_path: Path) -> None:
    """python docs/gallery.py draws them anew."""
    drawing = gallery()
    for name in drawing.GALLERY:
        drawing.drawn(name).svg(tmp_path / "a.svg")
        assert (tmp_path / "a.svg").read_text() == (drawing.FOLDER / f"{name}.svg").read_text(), name
        assert f"pictures/schedules/{name}.svg" in PAGES["schedules.md"]


def test_every_page_is_in_the_site() -> None:
    listed = (ROOT / "mkdocs.yml").read_text()
    assert not [name for name in PAGES if name not in listed]


def test_the_glossary_is_short() -> None:
    rows = re.findall(r"^\| (?!---|word )", PAGES["internals/glossary.md"], re.MULTILINE)
    assert 30 <= len(rows) <= 60


def test_every_environment_variable_is_documented() -> None:
    used = {name for path in (ROOT / "bppsa").rglob("*.py") for name in re.findall(r"BPPSA_[A-Z_]+", path.read_text())}
    assert used
    assert not [name for name in used if f"`{name}`" not in PAGES["reference/environment.md"]]


def test_every_public_function_says_what_it_does() -> None:
    for module in (bppsa, schedule, cells, strategies, errors):
        for name in getattr(module, "__all__", vars(module)):
            found = getattr(module, name)
            if inspect.isfunction(found) or (inspect.isclass(found) and found.__module__.startswith("bppsa")):
                assert (found.__doc__ or "").strip(), f"{module.__name__}.{name}"
                assert not found.__doc__.startswith(f"{name}("), f"{module.__name__}.{name}"  # a dataclass's own


def test_every_public_name_is_in_the_reference() -> None:
    modules = {"cells", "errors", "schedule", "strategies", "__version__"}
    assert not [
        n for n in set(bppsa.__all__) - modules if f"::: bppsa.{n}\n" not in PAGES["reference/functions.md"] + "\n"
    ]
    constants = {"B", "F", "W", "DIRECTIONS", "SPLIT", "Job", "TorchSchedule"}
    zoo = {n for n in schedule.__all__ if n in vars(schedule.zoo)}
    rest = set(schedule.__all__) - constants - zoo
    shown = re.findall(r"^::: bppsa\.schedule\.(\S+)$", PAGES["reference/schedule.md"], re.MULTILINE)
    assert not rest - {name.rpartition(".")[2] for name in shown}
    ready = re.findall(r"^::: bppsa\.cells\.(\S+)$", PAGES["reference/cells.md"], re.MULTILINE)
    assert set(ready) == set(cells.__all__) - {"State"}
