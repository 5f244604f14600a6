"""Many ranks of a tiny model on one machine: how long they take to start and to run a step, and how much memory.

Each is a process of its own, forked from one that has imported PyTorch: on two cores, 64 imports take minutes.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from datetime import timedelta
from multiprocessing.connection import Connection, wait
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
CASES = (("one_f_one_b", 8), ("one_f_one_b", 64))
QUICK = (("one_f_one_b", 2),)
STEPS = 3
PATIENCE = timedelta(minutes=20)
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch._dynamo", "torch.export._trace", "bppsa.distributed.steps.ranks", __name__])


def cases(options: Options) -> list[tuple[str, int]]:
    return list(QUICK if options.quick else CASES) if SMAPS.exists() else []


def measure(case: tuple[str, int], options: Options) -> list[Row]:
    schedule, count = case
    found, told = CONTEXT.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.time()
        each = (schedule, count, begin, f"{folder}/store")
        ranks = [CONTEXT.Process(target=on_rank, args=(rank, *each, told), daemon=True) for rank in range(count)]
        for rank in ranks:
            rank.start()
        while (running := [rank for rank in ranks if rank.exitcode is None]) and not any(
            rank.exitcode for rank in ranks
        ):
            wait([rank.sentinel for rank in running])
        for rank in ranks:
            rank.kill()  # the others would wait for one that has failed
            rank.join()
    if any(rank.exitcode for rank in ranks):
        raise SystemExit(f"a rank of {schedule} on {count} ranks has failed")
    return [{"schedule": schedule, "ranks": count, **found.recv()}]


def on_rank(rank: int, schedule: str, count: int, begin: float, store: str, told: Connection) -> None:
    torch.set_num_threads(1)
    options = {"store": dist.FileStore(store, count), "rank": rank, "world_size": count, "timeout": PATIENCE}
    dist.init_process_group("gloo", **options)
    try:
        found = run(schedule, count, begin)
    finally:
        dist.destroy_process_group()
    if rank == 0:
        told.send(found)


def run(schedule: str, count: int, begin: float) -> dict[str, Any]:
    """What all ranks took, the slowest one. begin: when the first was started."""
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
