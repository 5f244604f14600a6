"""The file that keeps a machine's results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# "machine": the hardware; for each part its runs: what it ran "on" (revision, torch, threads, ...) and its "rows".
Results = dict[str, Any]

LONGEST_LINE = 800


def load(path: Path) -> Results:
    return json.loads(path.read_text()) if path.exists() else {}


def save(path: Path, results: Results) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(results) + "\n")


def text(value: Any, depth: int = 0) -> str:
    """JSON in which whatever fits goes on one line: a row of a table is a line of the file."""
    flat = json.dumps(value)
    if len(flat) <= LONGEST_LINE or not isinstance(value, (dict, list)):
        return flat
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {text(inner, depth + 1)}" for key, inner in value.items()]
    else:
        parts = [text(inner, depth + 1) for inner in value]
    indent = "\n" + " " * depth
    return flat[0] + f"{indent} " + f",{indent} ".join(parts) + indent + flat[-1]
