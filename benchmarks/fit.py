"""The rates of the shipped CPU record, fitted to calls of random sizes: the numbers for bppsa/plan/machines.py.

    python benchmarks/fit.py                   measures for two minutes, fits, prints; nothing else should run
    python benchmarks/fit.py --add --seed 1    other sizes, added to the calls that are kept
    python benchmarks/fit.py --show            measures nothing: fits the calls that are kept

`bppsa.measure()` does the same with a few sizes, for the machine at hand.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console

import machine
import store
from bppsa import _measure
from bppsa._measure import BLELLOCH, CELLS, CHUNKED, MODULES, SEQUENTIAL, Subject, of_cell, of_module
from bppsa.plan import work
from bppsa.plan.fit import Measured, fitted
from bppsa.plan.machines import EPYC
from bppsa.plan.strategy import Strategy, strategy_of
from bppsa.plan.work import PYTORCH
from comparison import Row
from timing import significant

HERE = Path(__file__).parent
SIZES = {"T": (1, 3000), "B": (1, 64), "H": (4, 512)}  # drawn evenly by their logarithms
KINDS = (*MODULES, *MODULES, *CELLS)  # the modules twice as often
LONGEST_MS = 100.0  # predicted, of any one way
HYBRID = Strategy("hybrid")


def subject_of(kind: str, T: int, B: int, H: int) -> Subject:
    return (of_cell if kind in CELLS else of_module)(kind, T, B, H, "cpu")


def drawn(seed: int) -> Iterator[tuple[str, int, int, int]]:
    draw = random.Random(seed)
    while True:
        T, B, H = (round(math.exp(draw.uniform(math.log(low), math.log(high)))) for low, high in SIZES.values())
        yield draw.choice(KINDS), T, B, H


def measured(kind: str, T: int, B: int, H: int) -> Row:
    """Microseconds of each way that does not take too long; the forward of a scan is that of one sweep."""
    subject = subject_of(kind, T, B, H)
    us: dict[str, float] = {}
    for way in (PYTORCH, SEQUENTIAL, CHUNKED, BLELLOCH, HYBRID):
        predicted = sum(map(EPYC.us, subject.passes(way))) / 1e3
        if predicted > LONGEST_MS or (T < 8 and way not in (PYTORCH, SEQUENTIAL)):
            continue
        forward, backward = subject.training(way)
        us[f"{way} backward"] = backward.us
        if way in (PYTORCH, SEQUENTIAL):
            us[f"{way} forward"] = forward.us
            us[f"{way} inference"] = subject.inference(way)[0].us
    return {"kind": kind, "T": T, "B": B, "H": H, "us": {name: significant(value) for name, value in us.items()}}


def calls_of(row: Row) -> Iterator[tuple[str, Measured]]:
    """With the way and the pass of each."""
    subject = subject_of(*(row[key] for key in ("kind", "T", "B", "H")))
    for name, us in row["us"].items():
        way = PYTORCH if name.startswith(PYTORCH) else strategy_of(name.split()[0])
        training = subject.passes(way)
        passes = {"inference": work.forward(way, subject.counts, subject.size, False)}
        passes |= dict(zip(("forward", "backward"), training, strict=True))
        yield name, Measured(passes[name.split()[1]], us)


def main() -> None:
    arguments = parse()
    console = Console()
    hardware = machine.hardware()
    kept = arguments.results / machine.file_name(hardware)
    results = store.load(kept) | {"machine": hardware}
    rows: list[Row] = results["fit"][0]["rows"] if arguments.add or arguments.show else []
    if not arguments.show:
        machine.require_onednn()
        torch.set_num_threads(arguments.threads)
        on = {**machine.software(), "threads": arguments.threads, "repeats": _measure.REPEATS}
        end = time.monotonic() + arguments.seconds
        for kind, T, B, H in drawn(arguments.seed):
            if time.monotonic() > end:
                break
            rows.append(measured(kind, T, B, H))
        results["fit"] = [{"on": on, "rows": rows}]
        store.save(kept, results)
    calls = [call for row in rows for call in calls_of(row)]
    found = fitted(EPYC, [call for _, call in calls], EPYC.name, EPYC.source, EPYC.margin)
    for name, rates in found.rates.items():
        console.print(f'        "{name}": Rates({rates.launch:g}, {rates.step:g}, {rates.flops:g}, {rates.bytes:g}),')
    errors: dict[str, list[float]] = {}
    for name, call in calls:
        errors.setdefault(name, []).append(abs(found.us(call.phases) / call.us - 1))
    for name, of_calls in errors.items():
        console.print(f"{name}: {len(of_calls)} calls, median relative error {statistics.median(of_calls):.1%}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fits the shipped CPU record to measured calls.")
    parser.add_argument("--seconds", type=float, default=120, help="no case begins after these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--add", action="store_true", help="to the calls that are kept")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
