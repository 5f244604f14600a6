"""bppsa beside PyTorch on recurrent models, interleaved in one process: medians, ratios and their quartiles.

    python benchmarks/recurrent.py                              everything, about half an hour; nothing else should run
    python benchmarks/recurrent.py --only steps,cells           some parts; the others stay as they were in the file
    python benchmarks/recurrent.py --quick                      sizes of nothing: only shows that all of it runs
    python benchmarks/recurrent.py --show --page                measures nothing: prints what is kept, to the page too

Results are kept in benchmarks/results/, a file for each machine.
"""

from __future__ import annotations

import os
from pathlib import Path

from harness import machine, results_page
from harness.command import Command, run
from harness.parts import Part, names_of
from rows import fresh, grid, overhead, speed

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
    command = Command("bppsa beside PyTorch on recurrent models.", (15, 3), min(2, os.cpu_count() or 1)).shows()
    command.add_argument(
        "--only", type=names_of(PARTS), default=list(PARTS), help=f"parts, with commas: {', '.join(PARTS)}"
    )
    page = Path(__file__).parent.parent / "docs" / "benchmarks.md"
    command.add_argument("--page", type=Path, nargs="?", const=page, help="write the tables there")
    arguments = command.given()
    if not arguments.show:
        machine.require_onednn()
    kept = run(arguments, PARTS if arguments.show else {part: PARTS[part] for part in arguments.only})
    if arguments.page and kept.path:
        results_page.write(arguments.page, kept.results)


if __name__ == "__main__":
    main()
