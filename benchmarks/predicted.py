"""Recurrences on an H200 that is not there: what each kernel launches, moves and computes, and the predicted times.

    PYTHONPATH=. python benchmarks/predicted.py           compiles the kernels for sm_90, prints, keeps the results
    PYTHONPATH=. python benchmarks/predicted.py --quick   counts and predicts, compiles nothing

Every time is a prediction, from the record in bppsa/plan/machines.py: no GPU has run any of this. Those of kernels of
CUDA C++ are from the model of latencies (tests/cuda/aot.json), beside what cuDNN took on an H200. Results are
kept in benchmarks/results/h200-predicted.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bppsa.codegen.language.traffic import traffic
from bppsa.frontend.planning.rates import machine_of
from bppsa.frontend.planning.sweeps import compile_recurrence, reduction_of
from bppsa.frontend.rnn.spec import Spec
from bppsa.plan import forward, work
from bppsa.plan.choose import PlannedCall
from bppsa.plan.strategy import Strategy, divide
from bppsa.plan.work import ITERATIONS, PYTORCH, Phase, Size
from harness import machine, store
from harness.comparison import Row
from harness.tables import number
from harness.timing import significant
from rows.problems import KINDS
from tests.triton.usage import boundaries_usage, usage

FILE = Path(__file__).parent / "results" / "h200-predicted.json"
STEPS, ROWS, WIDTH = (1000, 10_000, 30_000), 16, 20
CAPABILITY = 90
MEASURED = Path(__file__).parent / "results" / "nvidia-h200.json"
MODELLED = Path(__file__).parent.parent / "tests" / "cuda" / "aot.json"
HOST_MS = 1.0  # of a step's two ways: Python, products around the sweeps, launches; as measured with kernels of Triton
WORST = {20: 1.5, 32: 1.5, 64: 2.3}  # measured over modelled, with one warp a scheduler and with two
BY_NEWTON = f"newton({ITERATIONS}) + chunked"
WAYS = (PYTORCH, "sequential", "chunked", "blelloch", "hybrid", BY_NEWTON)


def spec_of(kind: str) -> Spec:
    return Spec.of(KINDS[kind](WIDTH, WIDTH))


def kernels(kind: str, *, compiled: bool) -> Iterator[Row]:
    """What each reads, writes and computes of a row and step, a reduction of a column of it; and what it uses."""
    recurrence = spec_of(kind).recurrence
    program = compile_recurrence(recurrence, torch.float32, False, "cuda").program
    reduction = reduction_of(recurrence, torch.float32, False, "cuda")
    for kernel, columns in ((program.forward, 1), (program.backward, 1), (reduction.kernel, reduction.columns)):
        work = traffic(kernel, "float")
        used: dict[str, Any] = asdict(usage(kernel, "float", CAPABILITY, columns=columns)) if compiled else {}
        yield {"kind": kind, "kernel": kernel.name, "bytes": work.bytes, "flops": work.flops + work.folded} | used
    if compiled:
        used = asdict(boundaries_usage(reduction.size, reduction.structure.width == 1, "float", CAPABILITY))
        yield {"kind": kind, "kernel": "boundaries"} | used


def call_of(kind: str, T: int) -> PlannedCall:
    counts = spec_of(kind).counts(torch.float32, ROWS, "cuda")
    return PlannedCall(counts, Size(T, ROWS), True, machine_of("cuda"))


def phases(kind: str, T: int) -> Iterator[Row]:
    """Of a backward in chunks: launches, and each phase's bytes, flops and microseconds."""
    call = call_of(kind, T)
    for name, what in work.backward(Strategy("chunked"), call.layers[0], call.size):
        us = call.machine.parts(name, what)
        row = {"kind": kind, "T": T, "phase": name, **rounded(asdict(what))}
        yield row | {"predicted_us": rounded(us), "predicted_total_us": significant(sum(us.values()), 3)}


def times(kind: str, T: int) -> Iterator[Row]:
    """Milliseconds of the device, host left aside, of forward and backward by each strategy."""
    call = call_of(kind, T)
    counts = call.layers[0]
    for way in WAYS:
        strategy = PYTORCH if way == PYTORCH else Strategy(way.rpartition(" ")[2])
        ahead = forward.NEWTON if way == BY_NEWTON else forward.SEQUENTIAL
        passes = {
            "forward": work.forward(strategy, counts, call.size, True, ahead),
            "backward": work.backward(strategy, counts, call.size),
        }
        row = {"kind": kind, "T": T, "B": ROWS, "H": WIDTH, "way": way, "chunk": chunk_of(strategy, T)}
        yield row | {f"predicted_{name}_ms": device_ms(call, found) for name, found in passes.items()}


def chunk_of(strategy: Strategy | str, T: int) -> int | None:
    return None if isinstance(strategy, str) else divide(strategy, T).length


def device_ms(call: PlannedCall, found: list[Phase]) -> float:
    return significant(sum(sum(call.machine.parts(*phase).values()) for phase in found) / 1e3, 3)


def rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: value if isinstance(value, int) else significant(value, 3) for name, value in values.items()}


def row_sweeps() -> Iterator[Row]:
    """A training step by two sweeps of CUDA C++ beside cuDNN's measured one. Each row has a multiprocessor of its own,
    so rows cost nothing. ratio: where the model is right; least: where it is as far off as it was at worst for kernels
    of Triton (`tests/cuda/latency.py`)."""
    modelled = json.loads(MODELLED.read_text())
    for row in store.load(MEASURED)["gpu"][0]["rows"]:
        names = [f"{row['kind']} {row['H']} {kernel}" for kernel in ("forward", "backward")]
        if row["way"] != "cuDNN" or not all(name in modelled for name in names):
            continue
        sweeps = [row["T"] * modelled[name]["us"] / 1e3 for name in names]
        theirs = row["forward_ms"] + row["backward_ms"]
        found = {key: row[key] for key in ("kind", "T", "B", "H")} | {"cudnn_ms": significant(theirs, 3)}
        found |= {"predicted_forward_ms": significant(sweeps[0], 3), "predicted_backward_ms": significant(sweeps[1], 3)}
        ratios = {
            "ratio": theirs / (sum(sweeps) + HOST_MS),
            "least": theirs / (WORST[row["H"]] * sum(sweeps) + HOST_MS),
        }
        yield found | rounded(ratios)


def show(results: dict[str, Any], console: Console) -> None:
    console.print(f"PREDICTION, not measured: {results['machine']['name']}, B={ROWS}, H={WIDTH}, float32")
    columns = ("kernel", "bytes", "flops", "registers", "stack", "shared", "warps")
    table = Table("", *columns, title="of a row and step (of a reduction: a column)")
    for row in results["kernels"]:
        table.add_row(row["kind"], *(str(row.get(column, "")) for column in columns))
    console.print(table)
    table = Table(
        "", "T", "phase", "launches", "MB", "Mflop", "predicted us", title="a backward in chunks (prediction)"
    )
    for row in results["phases"]:
        sizes = number(row["bytes"] / 1e6), number(row["flops"] / 1e6), number(row["predicted_total_us"])
        table.add_row(row["kind"], str(row["T"]), row["phase"], str(row["launches"]), *sizes)
    console.print(table)
    table = Table("", "T", "way", "chunk", "forward ms", "backward ms", "cuDNN's backward", "cuDNN's step")
    table.title = "predicted times of the device (prediction)"
    for row in results["times"]:
        forward, backward = row["predicted_forward_ms"], row["predicted_backward_ms"]
        if row["way"] == PYTORCH:
            theirs = forward, backward
        gains = f"{theirs[1] / backward:.1f}x", f"{sum(theirs) / (forward + backward):.1f}x"
        table.add_row(
            row["kind"], str(row["T"]), row["way"], str(row["chunk"] or ""), number(forward), number(backward), *gains
        )
    console.print(table)
    columns = ("T", "B", "H", "cuDNN ms", "forward ms", "backward ms", "ratio", "at the least")
    table = Table("", *columns, title="kernels of CUDA C++ beside cuDNN on an H200 (prediction)")
    for row in results["row_sweeps"]:
        ms = (number(row[key]) for key in ("cudnn_ms", "predicted_forward_ms", "predicted_backward_ms"))
        table.add_row(
            row["kind"], *(str(row[key]) for key in "TBH"), *ms, *(f"{row[k]:.1f}x" for k in ("ratio", "least"))
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted times on an H200.")
    parser.add_argument("--quick", action="store_true", help="compile nothing, keep nothing without --results")
    parser.add_argument("--results", type=Path, help=f"file (default: {FILE.name})")
    arguments = parser.parse_args()
    results = {
        "machine": machine_of("cuda").as_json(),
        "on": machine.software(),
        "kernels": [row for kind in KINDS for row in kernels(kind, compiled=not arguments.quick)],
        "phases": [row for kind in KINDS for T in STEPS for row in phases(kind, T)],
        "row_sweeps": list(row_sweeps()),
        "times": [row for kind in KINDS for T in STEPS for row in times(kind, T)],
    }
    show(results, Console(width=140))
    if kept := arguments.results or (None if arguments.quick else FILE):
        store.save(kept, results)


if __name__ == "__main__":
    main()
