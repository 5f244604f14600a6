"""How long the simulator of schedules takes, with all metrics, and how much memory: up to a million jobs, a search, and
a plan of two million jobs for the executor.

    python benchmarks/simulator.py              four minutes; nothing else should run
    python benchmarks/simulator.py --quick      sizes of nothing: only shows that it runs

Every case runs in processes of its own, which load no torch but for the plan. Results are kept in benchmarks/results/.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from harness import machine
from harness.command import Command, Kept
from harness.timing import significant

HERE = Path(__file__).parent
CASES = (  # schedule, S, B: ten times the jobs from row to row, then as many on many workers; the zoo on S workers
    ("one_f_one_b", 8, 625),
    ("one_f_one_b", 8, 6_250),
    ("one_f_one_b", 8, 62_500),
    ("zero_bubble", 8, 41_667),
    ("one_f_one_b", 1024, 488),
    ("lpp", 1024, 488),
    ("search", 64, 256),
    ("plan", 1024, 1000),
)
QUICK = (("one_f_one_b", 2, 3), ("lpp", 128, 2), ("search", 2, 2), ("plan", 2, 3))
GOALS = {
    ("one_f_one_b", 8, 62_500): {"goal_s": 8, "goal_MiB": 1500},
    ("search", 64, 256): {"goal_s": 10},
    ("plan", 1024, 1000): {"goal_s": 20},
}


def measure(case: tuple[str, int, int], repeats: int) -> dict[str, Any]:
    """The medians of some processes."""
    command = [sys.executable, str(HERE / "simulator_case.py"), *map(str, case)]
    runs = [json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout) for _ in range(repeats)]
    row = dict(zip(("schedule", "S", "B"), case, strict=True))
    row |= {key: runs[0][key] for key in ("W", "jobs", "tried") if key in runs[0]}
    for key in ("simulate_s", "metrics_s", "total_s", "MiB"):
        if runs[0].get(key) is not None:
            row[key] = significant(statistics.median(run[key] for run in runs), 3)
    if "jobs" in row:
        row["us_a_job"] = significant(1e6 * row["total_s"] / row["jobs"], 3)
    return row | GOALS.get(case, {})


def show(rows: list[dict[str, Any]], console: Console) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*names)
    for row in rows:
        table.add_row(*(str(row.get(name, "")) for name in names))
    Console(file=console.file, width=max(140, console.width)).print(table)


def main() -> None:
    arguments = Command("The simulator of schedules, up to a million jobs.", (3, 3)).given()
    console, on = Console(), {**machine.software(), "repeats": arguments.repeats}
    rows = [measure(case, arguments.repeats) for case in (QUICK if arguments.quick else CASES)]
    show(rows, console)
    kept = Kept.of(arguments.results)
    kept.put("simulator", [{"on": on, "rows": rows}])
    kept.tell(console)


if __name__ == "__main__":
    main()
