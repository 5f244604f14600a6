"""One measurement of the simulator in a process of its own: `python simulator_case.py NAME S B` prints JSON.

NAME is a schedule, which is simulated and asked for all metrics; "search", which tries the zoo on S workers; or "plan",
which plans 1F1B of S stages for the executor, and makes the steps of one of its S workers.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from bppsa.schedule import Timeline, lpp, one_f_one_b, search, simulate, zero_bubble

RECIPES = {"one_f_one_b": one_f_one_b(), "zero_bubble": zero_bubble(), "lpp": lpp(G=128)}
NO_METRICS = {"durations", "jobs_of", "jobs_on", "lane", "text", "svg", "chrome_trace"}
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


def planned(S: int, B: int) -> dict[str, Any]:
    from bppsa.distributed.steps.plans import make_plan  # loads torch, which the others do without
    from bppsa.schedule.job_graph.spec import bound_to
    from bppsa.schedule.programs.messages import Item
    from bppsa.schedule.programs.program import Action
    from bppsa.schedule.units import JOBS

    def from_below(s: int, b: int, kind: str) -> list[Item]:
        return [Item(kind, s, b)] if s else []

    def from_above(s: int, b: int, kind: str) -> list[Item]:
        return [Item(kind, s + 1, b)] if s < S - 1 else []

    def reads(action: Action) -> list[Item]:
        s, b, d = action
        return from_below(s, b, "A") if d == "F" else from_above(s, b, "G")

    def writes(action: Action) -> list[Item]:
        s, b, d = action
        return from_above(s, b, "A") if d == "F" else from_below(s, b, "G")

    before = time.perf_counter()
    plan = make_plan(bound_to(one_f_one_b(), S, B, S), S, B, S, {"F": 1, "B": 2}, None, JOBS, reads, writes)
    plan.program(S // 2)
    return {"W": S, "jobs": len(plan.timeline.jobs), "total_s": time.perf_counter() - before}


WHOLE = {"search": searched, "plan": planned}


def peak_MiB() -> float | None:
    """Of this program; ru_maxrss would begin with that of the process which started it. Only Linux tells."""
    status = Path("/proc/self/status")
    return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024 if status.exists() else None


if __name__ == "__main__":
    name, S, B = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    found = WHOLE[name](S, B) if name in WHOLE else simulated(name, S, B)
    print(json.dumps(found | {"MiB": peak_MiB()}))
