"""The rates of a shipped record, fitted to calls of random sizes: the numbers for bppsa/plan/machines.py.

    python benchmarks/fit.py                   measures for two minutes, fits, prints; nothing else should run
    python benchmarks/fit.py --device cuda     the same on a GPU
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

from bppsa.api import measuring
from bppsa.api.measuring import (
    BLELLOCH,
    CELLS,
    CHUNKED,
    DIAGONAL,
    MODULES,
    SEQUENTIAL,
    Subject,
    counted,
    of_cell,
    of_module,
)
from bppsa.plan.fit import Measured, fitted
from bppsa.plan.forward import LIBRARY, NEWTON, forward_of
from bppsa.plan.machines import SHIPPED
from bppsa.plan.strategy import Strategy, strategy_of
from bppsa.plan.work import PYTORCH
from harness import device, machine, store
from harness.comparison import Row
from harness.timing import significant

HERE = Path(__file__).parent
SIZES = {  # drawn evenly by their logarithms
    "cpu": {"T": (1, 3000), "B": (1, 64), "H": (4, 512)},
    "cuda": {"T": (10, 30000), "B": (1, 512), "H": (16, 180)},
}
SHIPPED_GPU = "nvidia-h200"  # whose calls the shipped record is fitted to
WIDTHS = (20, 32, 64, 128)  # on a GPU, whose kernels are compiled for each
LONGEST_TREE = {"cpu": 3000, "cuda": 1000}  # steps
KINDS = (*MODULES, *MODULES, *CELLS)  # the modules twice as often
LONGEST_MS = 100.0  # predicted, of any one way
HYBRID = Strategy("hybrid")


def subject_of(device: str, kind: str, T: int, B: int, H: int) -> Subject:
    return (of_cell if kind in CELLS else of_module)(kind, T, B, H, device)


def drawn(device: str, seed: int) -> Iterator[tuple[str, int, int, int]]:
    draw = random.Random(seed)
    while True:
        sizes = SIZES[device].values()
        T, B, H = (round(math.exp(draw.uniform(math.log(low), math.log(high)))) for low, high in sizes)
        if device == "cuda":
            H = min(WIDTHS, key=lambda width: abs(math.log(width / H)))
        yield draw.choice(KINDS), T, B, H


def measured(device: str, kind: str, T: int, B: int, H: int) -> Row:
    """Microseconds of each way that does not take too long; the forward of a scan is that of one sweep."""
    subject = subject_of(device, kind, T, B, H)
    us: dict[str, float] = {}
    for way in (PYTORCH, SEQUENTIAL, CHUNKED, BLELLOCH, HYBRID):
        predicted = sum(map(SHIPPED[device].us, subject.comes_to.passes(way))) / 1e3
        too_long = predicted > LONGEST_MS or (way in (BLELLOCH, HYBRID) and LONGEST_TREE[device] < T)
        if too_long or (T < 8 and way not in (PYTORCH, SEQUENTIAL)):
            continue
        forward, backward = subject.training(way)
        us[f"{way} backward"] = backward.us
        if way in (PYTORCH, SEQUENTIAL):
            us[f"{way} forward"] = forward.us
            us[f"{way} inference"] = subject.inference(way)[0].us
    ahead = NEWTON if kind == DIAGONAL else LIBRARY
    if device == "cuda" and (kind in MODULES or kind == DIAGONAL):
        us[f"{ahead} ahead"] = subject.training(CHUNKED, ahead)[0].us
    return {"kind": kind, "T": T, "B": B, "H": H, "us": {name: significant(value) for name, value in us.items()}}


def calls_of(device: str, row: Row) -> Iterator[tuple[str, Measured]]:
    """With the way and the pass of each; on a GPU of what auto takes there."""
    of = counted(*(row[key] for key in ("kind", "T", "B", "H")), device)
    for name, us in row["us"].items() if of.counts.fits else ():
        if name.endswith(" ahead"):
            yield name, Measured(of.passes(CHUNKED, forward_of(name.split()[0]))[0], us)
            continue
        way = PYTORCH if name.startswith(PYTORCH) else strategy_of(name.split()[0])
        passes = {"inference": of.inference(way)} | dict(zip(("forward", "backward"), of.passes(way), strict=True))
        yield name, Measured(passes[name.split()[1]], us)


def main() -> None:
    arguments = parse()
    console = Console()
    hardware, known = machine.hardware(), SHIPPED[arguments.device]
    kept = arguments.results / machine.file_name(hardware)
    if arguments.device == "cuda" and not arguments.show:
        hardware = {**device.hardware(), **hardware}
        kept = arguments.results / f"{machine.slug(hardware['gpu'])}.json"
    elif arguments.device == "cuda":  # needs no GPU
        kept = arguments.results / f"{SHIPPED_GPU}.json"
    results = store.load(kept) | {"machine": hardware}
    rows: list[Row] = results["fit"][0]["rows"] if arguments.add or arguments.show else []
    if not arguments.show:
        if arguments.device == "cpu":
            machine.require_onednn()
            torch.set_num_threads(arguments.threads)
        on = {**machine.software(), "threads": arguments.threads, "repeats": measuring.REPEATS}
        end = time.monotonic() + arguments.seconds
        for kind, T, B, H in drawn(arguments.device, arguments.seed):
            if time.monotonic() > end:
                break
            rows.append(measured(arguments.device, kind, T, B, H))
        results["fit"] = [{"on": on, "rows": rows}]
        store.save(kept, results)
    calls = [call for row in rows for call in calls_of(arguments.device, row)]
    found = fitted(known, [call for _, call in calls], known.name, known.source, known.margin)
    for name, rates in found.rates.items():
        console.print(f'        "{name}": Rates({rates.launch:g}, {rates.step:g}, {rates.flops:g}, {rates.bytes:g}),')
    errors: dict[str, list[float]] = {}
    for name, call in calls:
        errors.setdefault(name, []).append(abs(found.us(call.phases) / call.us - 1))
    for name, of_calls in errors.items():
        console.print(f"{name}: {len(of_calls)} calls, median relative error {statistics.median(of_calls):.1%}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fits a shipped record to measured calls.")
    parser.add_argument("--seconds", type=float, default=120, help="no case begins after these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--add", action="store_true", help="to the calls that are kept")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--device", choices=sorted(SHIPPED), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
