"""bppsa beside PyTorch on recurrent models, interleaved in one process: medians, ratios and their quartiles.

    python benchmarks/recurrent.py                              everything, about half an hour; nothing else should run
    python benchmarks/recurrent.py --only steps,cells           some parts; the others stay as they were in the file
    python benchmarks/recurrent.py --quick                      sizes of nothing: only shows that all of it runs
    python benchmarks/recurrent.py --show --page                measures nothing: prints what is kept, to the page too

Results are kept in benchmarks/results/, a file for each machine.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from rich.console import Console

import fresh
import grid
import machine
import overhead
import results_page
import speed
import store
from comparison import Options
from parts import Part, measure_part, names_of, show
from store import Results

HERE = Path(__file__).parent


PARTS = {
    "steps": Part(speed.step_cases, speed.steps),
    "peers": Part(speed.peer_cases, speed.peers),
    "cells": Part(speed.cell_cases, speed.own_cells),
    "inference": Part(speed.inference_cases, speed.inferences),
    "overhead": Part(overhead.cases, overhead.measure),
    "first_call": Part(fresh.first_call_cases, fresh.first_call),
    "memory": Part(fresh.memory_cases, fresh.memory),
    "never_slower": Part(grid.lines, grid.measure, runs=2),
}


def main() -> None:
    arguments = parse()
    console = Console()
    hardware = machine.hardware()
    kept = arguments.results and arguments.results / machine.file_name(hardware)
    results: Results = store.load(kept) if kept else {}
    results["machine"] = hardware
    if arguments.show:
        for part in PARTS:
            for run in results.get(part, ()):
                show(part, run["rows"], console)
    else:
        machine.require_onednn()
        if (load := machine.load()) > 0.5:
            console.print(f"[yellow]The load average is {load:.1f}: what else is running will make the ratios scatter.")
        torch.set_num_threads(arguments.threads)
        options = Options(arguments.threads, arguments.repeats, arguments.quick)
        for part in arguments.only:
            results[part] = measure_part(part, PARTS[part], options, console)
            if kept:
                store.save(kept, results)
    if kept:
        console.print(f"results are in {kept}")
    if arguments.page and kept:
        results_page.write(arguments.page, results)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="bppsa beside PyTorch on recurrent models.")
    parser.add_argument(
        "--only", type=names_of(PARTS), default=list(PARTS), help=f"parts, with commas: {', '.join(PARTS)}"
    )
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--repeats", type=int, help="interleaved samples of each side (default: 15, with --quick 3)")
    parser.add_argument(
        "--quick", action="store_true", help="sizes of nothing; keeps nothing unless --results is given"
    )
    parser.add_argument("--show", action="store_true", help="measure nothing, print what is kept")
    parser.add_argument("--results", type=Path, help="folder (default: benchmarks/results)")
    page = HERE.parent / "docs" / "benchmarks.md"
    parser.add_argument("--page", type=Path, nargs="?", const=page, help="write the tables there")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or (3 if arguments.quick else 15)
    arguments.results = arguments.results or (None if arguments.quick else HERE / "results")
    return arguments


if __name__ == "__main__":
    main()
