"""What a schedule costs in one process, beside a loop over the same micro-batches: workers that are threads."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from torch import nn

import bppsa
from harness.comparison import Options, Row
from harness.timing import Step, interleave, milliseconds, ratio
from rows.schedules_cases import LARGE, SMALL, TINY, Case, Size, batch, network
from schedules_rank import difference, gradients

LOSS = nn.MSELoss()
# One worker with nothing to share, then with stages and micro-batches; then two.
CASES = ((Case("gpipe", 1, 1), 1), (Case("ddp", 4, 8), 1), (Case("one_f_one_b", 2, 8), 2), (Case("ddp", 4, 2), 2))
Measured = tuple[Case, int, Size]


def cases(options: Options) -> list[Measured]:
    sizes = (TINY,) if options.quick else (LARGE, SMALL)
    return [(case, W, size) for size in sizes for case, W in CASES]


def measure(of: Measured, options: Options) -> list[Row]:
    case, W, size = of
    x, target = batch(case.B, size)
    plain = network(case.S, size)
    compiled: Any = bppsa.compile(
        network(case.S, size),
        schedule=case.recipe,
        stages=case.S,
        microbatches=case.B,
        workers=W,
        loss_fn=LOSS,
        example_inputs=x,
    )
    parts = list(zip(x.tensor_split(case.B), target.tensor_split(case.B), strict=True))

    def loop() -> None:
        for rows, wanted in parts:
            (LOSS(plain(rows), wanted) / case.B).backward()

    def ours() -> None:
        compiled.step(x, target)

    steps = {"peer": timed(loop, plain), "ours": timed(ours, compiled)}
    samples = interleave(steps, options.repeats * size.samples)
    off = difference(gradients(plain), gradients(compiled))
    return [
        {"schedule": case.schedule, "S": case.S, "B": case.B, "W": W, "jobs": size.name}
        | {f"{side}_ms": milliseconds(found) for side, found in samples.items()}
        | {
            "ratio": asdict(ratio(samples["peer"], samples["ours"])),
            "difference": off,
        }
    ]


def timed(run: Any, module: nn.Module) -> Step:
    def step() -> tuple[float]:
        module.zero_grad()
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start,)

    return step
