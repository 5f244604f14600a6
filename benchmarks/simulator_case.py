"""One schedule simulated in a process of its own, with all metrics: `python simulator_case.py NAME S B` prints JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from bppsa.schedule import Timeline, lpp, one_f_one_b, simulate, zero_bubble

RECIPES = {"one_f_one_b": one_f_one_b(), "zero_bubble": zero_bubble(), "lpp": lpp(G=128)}
METRICS = [name for name in vars(Timeline) if not name.startswith("_") and name not in ("bound", "jobs_of", "lane")]


def peak_MiB() -> float | None:
    """Of this program; ru_maxrss would begin with that of the process which started it. Only Linux tells."""
    status = Path("/proc/self/status")
    return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024 if status.exists() else None


def main() -> None:
    name, S, B = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    before = time.perf_counter()
    timeline = simulate(RECIPES[name], S=S, B=B)
    between = time.perf_counter()
    for metric in METRICS:
        getattr(timeline, metric)
    after = time.perf_counter()
    found = {"W": timeline.W, "jobs": len(timeline.start), "metrics": METRICS}
    print(json.dumps(found | {"simulate_s": between - before, "metrics_s": after - between, "MiB": peak_MiB()}))


if __name__ == "__main__":
    main()
