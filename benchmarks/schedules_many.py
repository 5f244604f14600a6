"""Many ranks of a tiny model on one machine: how long they take to start and to run a step, and how much memory.

`python schedules_many.py SCHEDULE RANKS RANK STORE` is one rank, as a process of its own; rank 0 prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import bppsa
from bppsa.schedule.names import named
from harness.comparison import Options, Row
from harness.timing import significant

SMAPS = Path("/proc/self/smaps_rollup")
CASES = (("one_f_one_b", 8), ("one_f_one_b", 64), ("ddp", 64))
QUICK = (("one_f_one_b", 2),)
STEPS = 3
PATIENCE = timedelta(minutes=20)  # on two cores, 64 ranks import PyTorch for minutes


def cases(options: Options) -> list[tuple[str, int]]:
    return list(QUICK if options.quick else CASES) if SMAPS.exists() else []


def measure(case: tuple[str, int], options: Options) -> list[Row]:
    schedule, count = case
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        commands = [
            [sys.executable, __file__, schedule, str(count), str(rank), f"{folder}/store"] for rank in range(count)
        ]
        ranks = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for command in commands]
        said, *_ = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"a rank of {schedule} on {count} ranks has failed")
    return [{"schedule": schedule, "ranks": count, **json.loads(said)}]


def run(schedule: str, count: int, begin: float) -> dict[str, Any]:
    """What all ranks took, the slowest one. begin: when this one began, before it imported anything but Python's."""
    started = time.time()
    torch.manual_seed(0)
    layers = [layer for _ in range(count) for layer in (nn.Linear(8, 8), nn.Tanh())]
    x, target = torch.randn(2 * count, 8), torch.randn(2 * count, 8)
    options = {"stages": count, "microbatches": count, "loss_fn": nn.MSELoss(), "example_inputs": x}
    compiled = bppsa.compile(nn.Sequential(*layers), schedule=named(schedule), **options)
    seconds = [started - begin, time.time() - started]
    for _ in range(STEPS):
        dist.barrier()
        before = time.time()
        compiled.step(x, target)
        seconds.append(time.time() - before)
    told = [torch.empty(len(seconds) + 1) for _ in range(count)]
    dist.all_gather(told, torch.tensor([*seconds, memory_MiB()]))
    start, cut, first, *others, memory = torch.stack(told).amax(0).tolist()
    found = {"start_s": start, "cut_s": cut, "first_step_s": first, "step_s": min(others), "MiB": memory}
    return {name: significant(value, 3) for name, value in found.items()}


def memory_MiB() -> float:
    """Of this process, its share of what it shares."""
    (line,) = [line for line in SMAPS.read_text().splitlines() if line.startswith("Pss:")]
    return int(line.split()[1]) / 1024


def began() -> float:
    """When this process began, in seconds of `time.time()`."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def main(schedule: str, count: int, rank: int, store: str) -> None:
    torch.set_num_threads(1)
    options = {"store": dist.FileStore(store, count), "rank": rank, "world_size": count, "timeout": PATIENCE}
    dist.init_process_group("gloo", **options)
    try:
        found = run(schedule, count, began())
    finally:
        dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
