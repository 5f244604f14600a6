"""How long forward, backward and the rest of a training iteration take, for several ways, taken in turns."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict
from functools import partial

from torch import nn
from torch.optim import Adam, Optimizer

from figures.figure import Record
from figures.training import BACKWARD, PHASES, Phases, check, iterate, ran
from figures.ways import WAYS
from figures.workload import Batch, Workload
from gpu import FAILURES, said
from harness.timing import Spread, Step, interleave, ratio, significant

REPEATS = 20  # at most; the paper takes the mean of as many epochs
FEWEST = 3


def timed(workload: Workload, ways: tuple[str, ...], seconds: float) -> list[Record]:
    """A row for each way, the baseline's first; one that raises is a row that says so."""
    batch = next(workload.batches())
    rows: dict[str, Record] = {}
    steps: dict[str, Step] = {}
    for way in ways:
        rows[way] = {"T": len(batch[0]), "B": workload.rows, "way": way}
        model = WAYS[way](workload.model)  # all share their parameters, which a learning rate of zero leaves alone
        try:
            rows[way]["relative_difference"] = check(workload.model, model, batch)
        except FAILURES as failure:
            rows[way]["error"] = said(failure)
            continue
        rows[way]["ran"] = ran(way, model)
        steps[way] = partial(once, model, Adam(model.parameters(), lr=0.0), batch)
    round_s = sum(sum(step()) for step in steps.values())
    samples = interleave(steps, max(FEWEST, math.floor(min(REPEATS, seconds / round_s))))
    for way, taken in samples.items():
        medians = (statistics.median(phase) for phase in zip(*taken, strict=True))
        rows[way] |= {f"{name}_ms": significant(1e3 * s) for name, s in zip(PHASES, medians, strict=True)}
        rows[way] |= {
            "samples": len(taken),
            "backward_quartiles_ms": asdict(Spread.of([1e3 * sample[BACKWARD] for sample in taken])),
            "backward_ratio": asdict(ratio(samples[ways[0]], taken, BACKWARD)),
            "overall_ratio": asdict(ratio(samples[ways[0]], taken)),
        }
    return list(rows.values())


def once(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Phases:
    return iterate(model, optimizer, batch)[1]


def best(rows: list[Record], way: str, key: str) -> Record:
    """The row in which the way gains most."""
    return max(of(rows, way), key=lambda row: row[key]["median"])


def of(rows: list[Record], way: str) -> list[Record]:
    """Those of one way that ran."""
    return [row for row in rows if row["way"] == way and "error" not in row]
