"""What has to be measured in processes of their own: the first call of a cell, and memory. `child.py` runs there."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from child import STATUS
from harness.comparison import Options, Row
from harness.timing import significant
from rows.problems import KINDS, Shape

CHILD = Path(__file__).parents[1] / "child.py"
WARM_GOAL_MS, COLD_GOAL_MS = 50, 5000


def run(measurement: str, arguments: dict[str, Any], options: Options, cache: str | None = None) -> dict[str, float]:
    given = json.dumps(arguments | {"threads": options.threads})
    command = [sys.executable, str(CHILD), measurement, given]
    env = os.environ | ({"BPPSA_CACHE_DIR": cache} if cache else {})
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def first_call_cases(options: Options) -> list[str]:
    return ["RNN"] if options.quick else list(KINDS)


def first_call(kind: str, options: Options) -> list[Row]:
    """With an empty cache once, and then with the cache that this left."""
    with tempfile.TemporaryDirectory() as empty:
        cold, *warm = (run("first_call", {"kind": kind}, options, empty) for _ in range(2 if options.quick else 6))
    rows = ("empty", COLD_GOAL_MS, [cold]), ("warm", WARM_GOAL_MS, warm)
    return [
        {"kind": kind, "cache": name, "processes": len(found), "goal_ms": goal, **medians(found)}
        for name, goal, found in rows
    ]


def medians(found: list[dict[str, float]]) -> dict[str, float]:
    parts = {name: significant(statistics.median(one[name] for one in found), 3) for name in found[0]}
    return parts | {"total_ms": significant(statistics.median(sum(one.values()) for one in found), 3)}


MEMORY_SIZES = ((1000, 16, 20), (1000, 16, 64), (300, 32, 128), (50, 64, 512), (1000, 1, 128))  # T, B, H


def memory_cases(options: Options) -> list[Shape]:
    if not STATUS.exists():
        return []  # only Linux tells
    if options.quick:
        return [Shape("GRU", 3, 2, 4)]
    return [Shape(kind, *sizes) for sizes in MEMORY_SIZES for kind in KINDS]


def memory(shape: Shape, options: Options) -> list[Row]:
    sizes = {"kind": shape.kind, "T": shape.T, "B": shape.B, "H": shape.H}
    peer, ours = (significant(run("memory", {"ours": side, **sizes}, options)["MiB"], 3) for side in (False, True))
    return [shape.row() | {"peer_MiB": peer, "ours_MiB": ours, "share": significant(ours / peer, 3)}]
