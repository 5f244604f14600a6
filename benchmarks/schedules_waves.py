"""Memory of one device over a step, measured and simulated: waves one after the other (gang), and in tick-tock.

`python schedules_waves.py NAME WAVES STAGES WIDTH ROWS` measures one way, as a process of its own, and prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

import bppsa
from bppsa.schedule import ddp, wavelet_dp
from harness.comparison import Options, Row
from harness.timing import significant

WAYS = {"gang": lambda waves: ddp(), "tick-tock": wavelet_dp}
STATM = Path("/proc/self/statm")
MMAP_BYTES = 1 << 16  # a tensor of this size has pages of its own, which go back to the system when it is freed
PERIOD = 1e-3
POINTS = 500  # of a curve
SIZES = (6, 16, 512, 4096)  # waves, stages, width, rows
QUICK_SIZES = (2, 4, 16, 2000)

Curve = list[tuple[float, float]]


def cases(options: Options) -> list[str]:
    return list(WAYS) if STATM.exists() else []


def measure(way: str, options: Options) -> list[Row]:
    found = curves(way, *(QUICK_SIZES if options.quick else SIZES))
    measured, simulated = found.pop("measured_MiB"), found.pop("simulated")
    levels = [level for _, level in simulated]
    each = found["activation_MiB"]
    return [
        found
        | {
            "peak_MiB": significant(max(level for _, level in measured), 3),
            "simulated_MiB": significant(max(levels) * each, 3),
            "mean_MiB": significant(mean(measured), 3),
            "simulated_mean_MiB": significant(mean(simulated) * each, 3),
        }
    ]


def curves(way: str, waves: int, S: int, width: int, rows: int) -> dict[str, Any]:
    """Of one step. measured_MiB: (seconds, what is resident above what was before the step); simulated: (seconds,
    activations held), with the times that the jobs took."""
    command = [sys.executable, __file__, way, *map(str, (waves, S, width, rows))]
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(MMAP_BYTES)}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def run(way: str, waves: int, S: int, width: int, rows: int) -> dict[str, Any]:
    torch.manual_seed(0)
    layers = [layer for _ in range(S) for layer in (nn.Linear(width, width), nn.ReLU())]
    x, target = torch.randn(2, waves * rows, width)
    compiled: Any = bppsa.compile(
        nn.Sequential(*layers),
        schedule=WAYS[way](waves),
        stages=S,
        microbatches=waves,
        workers=1,
        loss_fn=nn.MSELoss(),
        example_inputs=x,
    )
    compiled.step(x, target)
    compiled.zero_grad()
    before = resident_MiB()
    with sampled() as found:
        start = time.perf_counter()
        compiled.step(x, target)
        took, after = time.perf_counter() - start, resident_MiB()
    timeline = compiled.measured
    return {
        "way": way,
        "waves": waves,
        "S": S,
        "step_s": significant(took),
        "activation_MiB": rows * width * 4 / 2**20,
        "peaks_simulated": compiled.timeline.peak_activations[0],
        "peaks_measured": timeline.peak_activations[0],
        "measured_MiB": thinned(
            [
                *((now - start, level - before) for now, level in found if start <= now < start + took),
                (took, after - before),  # where no other thread had a turn it is all there is
            ]
        ),
        "simulated": [(float(now), float(level)) for now, level in compiled.predicted.memory[0]],
    }


@contextmanager
def sampled() -> Iterator[Curve]:
    """(time, MiB) every PERIOD within the block."""
    found: Curve = []
    done = threading.Event()

    def sample() -> None:
        while not done.wait(PERIOD):
            found.append((time.perf_counter(), resident_MiB()))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def resident_MiB() -> float:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def thinned(curve: Curve) -> Curve:
    every = max(1, len(curve) // POINTS)
    return [(significant(now), round(level, 1)) for now, level in curve[::every]]


def mean(curve: Curve) -> float:
    """Over time; of the shortest runs there is one sample."""
    (begin, first), (end, _) = curve[0], curve[-1]
    area = sum(level * (after - now) for (now, level), (after, _) in pairwise(curve))
    return area / (end - begin) if end > begin else first


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], *map(int, sys.argv[2:]))))
