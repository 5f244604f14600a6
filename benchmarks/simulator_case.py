"""One measurement of the simulator in a process of its own: `python simulator_case.py NAME S B` prints JSON.

NAME is a schedule, which is simulated and asked for all metrics, or "search", which tries the zoo on S workers.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from bppsa.schedule import Timeline, lpp, one_f_one_b, search, simulate, zero_bubble

RECIPES = {"one_f_one_b": one_f_one_b(), "zero_bubble": zero_bubble(), "lpp": lpp(G=128)}
NO_METRICS = {"durations", "jobs_of", "lane", "text", "svg", "chrome_trace"}
METRICS = sorted(name for name in vars(Timeline) if not name.startswith("_") and name not in NO_METRICS)


def simulated(name: str, S: int, B: int) -> dict[str, Any]:
    before = time.perf_counter()
    timeline = simulate(RECIPES[name], S=S, B=B)
    between = time.perf_counter()
    for metric in METRICS:
        value = getattr(timeline, metric)
        if callable(value):  # bound()
            value()
    after = time.perf_counter()
    found = {"W": timeline.W, "jobs": len(timeline.start), "metrics": METRICS}
    return found | {"simulate_s": between - before, "metrics_s": after - between, "total_s": after - before}


def searched(S: int, B: int) -> dict[str, Any]:
    before = time.perf_counter()
    found = search(S, B, S)
    return {"W": S, "tried": len(found.ranked), "total_s": time.perf_counter() - before}


def peak_MiB() -> float | None:
    """Of this program; ru_maxrss would begin with that of the process which started it. Only Linux tells."""
    status = Path("/proc/self/status")
    return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024 if status.exists() else None


if __name__ == "__main__":
    name, S, B = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    found = searched(S, B) if name == "search" else simulated(name, S, B)
    print(json.dumps(found | {"MiB": peak_MiB()}))
