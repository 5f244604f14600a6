"""One measurement that needs a process of its own:

    python benchmarks/child.py first_call '{"kind": "GRU", "threads": 2}'
    python benchmarks/child.py memory '{"kind": "GRU", "T": 1000, "B": 16, "H": 20, "ours": true, "threads": 2}'

Prints it as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from rows.problems import KINDS, Problem, Shape

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
WIDTH = 20
STEPS = 5


def first_call(kind: str) -> dict[str, float]:
    """Of a cell that the process has not seen, PyTorch itself being warm."""
    import bppsa

    bppsa.compile  # noqa: B018  loads what it needs: an import's time, not a call's
    problem = Problem.of(Shape(kind, 10, 4, WIDTH))
    for other in KINDS:
        warm = Problem.of(Shape(other, 10, 4, WIDTH))
        warm.training(warm.module)()
    start = time.perf_counter()
    fast = bppsa.compile(problem.module, strategy="sequential")
    compiled = time.perf_counter()
    forward, backward = problem.training(fast)()
    return {"compile_ms": 1e3 * (compiled - start), "forward_ms": 1e3 * forward, "backward_ms": 1e3 * backward}


def memory(kind: str, T: int, B: int, H: int, ours: bool) -> dict[str, float]:
    """The peak above what is resident after the imports."""
    if ours:
        import bppsa

        bppsa.compile  # noqa: B018  as above
    CLEAR.write_text("5")  # the peak restarts here: imports had one of their own
    before = kilobytes("VmRSS")
    problem = Problem.of(Shape(kind, T, B, H))
    step = problem.training(bppsa.compile(problem.module) if ours else problem.module)
    for _ in range(STEPS):
        step()
    return {"MiB": (kilobytes("VmHWM") - before) / 1024}


def kilobytes(field: str) -> int:
    """Not getrusage: its ru_maxrss survives exec, so a child starts with the peak of whoever started it."""
    return int(next(line.split()[1] for line in STATUS.read_text().splitlines() if line.startswith(field + ":")))


if __name__ == "__main__":
    measurements: dict[str, Callable[..., dict[str, float]]] = {"first_call": first_call, "memory": memory}
    arguments = json.loads(sys.argv[2])
    torch.set_num_threads(arguments.pop("threads"))
    print(json.dumps(measurements[sys.argv[1]](**arguments)))
