"""Cells of the literature beside a Python loop over the same cell: whole training steps, in turns.

    python benchmarks/cells.py --page            measures all of them in some four minutes, and writes the page's table
    python benchmarks/cells.py --only RetNet     one of them, printed alone and not kept
    python benchmarks/cells.py --show --page     measures nothing: prints what is kept, to the page too
    python benchmarks/cells.py --part states     cells with heads and matrices: times, memory of a step, shares of peaks
    python benchmarks/cells.py --part chunked    three of them beside the chunked forms of their papers
    python benchmarks/cells.py --quick           sizes of nothing: only shows that all of it runs

The cells are the blocks of docs/guides/literature.md, and those of states.py, in float32.
Results are kept in benchmarks/results/, a file for each machine. Nothing else should run meanwhile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import bppsa
from bppsa.runtime.recurrent.reference import loop
from harness import marked, store
from harness.command import Command, run
from harness.comparison import Options, Row, compare
from harness.parts import Part, names_of
from harness.tables import number, quartiles, times
from rows import blocks, states
from rows.blocks import Shown
from rows.problems import training_step

PART = "literature"
QUICK = {"T": 3, "B": 2, "I": 4, "H": 4, "heads": 2, "D": 2}


def measured(name: str, options: Options) -> list[Row]:
    torch.manual_seed(0)
    shown = blocks.read(name, **(QUICK if options.quick else {}))
    (decision,) = bppsa.explain(lambda: bppsa.scan(shown.cell, shown.carry, shown.xs)).decisions
    if decision.strategy != "sequential" and not options.quick:
        raise SystemExit(f"not timed, because not fused: {name}: {decision.reason}")
    cotangents = [torch.randn_like(output) for output in outputs(loop, shown)]
    peer, ours = (training_step(over(scan, shown), shown.inputs, cotangents) for scan in (loop, bppsa.scan))
    return [{"cell": name} | compare(peer, ours, options.repeats)]


def over(scan: Callable[..., Any], shown: Shown) -> Callable[[], list[Tensor]]:
    return lambda: outputs(scan, shown)


def outputs(scan: Callable[..., Any], shown: Shown) -> list[Tensor]:
    """What a loss can read: the last carry and the ys, as far as they have gradients."""
    return [leaf for leaf in pytree.tree_leaves(scan(shown.cell, shown.carry, shown.xs)) if leaf.requires_grad]


# ---- the page


def write(page: Path, results: store.Results, file: str) -> None:
    marked.write(page, "ratios", markdown(results, file))


def markdown(results: store.Results, file: str) -> Iterator[str]:
    (run,) = results[PART]
    yield "| cell | Python loop | `bppsa.scan` | |"
    yield "| --- | ---: | ---: | ---: |"
    for row in run["rows"]:
        ratio = f"**{times(row['ratio']['median'])}** ({quartiles(row['ratio'])})"
        ms = (f"{number(row[side])} ms" for side in ("peer_ms", "ours_ms"))
        yield f"| [{row['cell']}](#{anchor(row['cell'])}) | {' | '.join((*ms, ratio))} |"
    yield ""
    what = "A training step, and how many times as fast as a Python loop over the same cell"
    yield marked.footer(what, results, run["on"], file, "python benchmarks/cells.py --page")


def anchor(heading: str) -> str:
    """As the site names it."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).lower())


def parts_of(only: list[str]) -> dict[str, Part]:
    """By name; only: the cells of the page that are measured."""
    return {
        PART: Part(lambda _: only, measured),
        states.STATES: Part(states.cases, states.measure_states),
        states.CHUNKED: Part(states.beside_chunks, states.measure_chunked),
    }


def main() -> None:
    names = blocks.names()
    command = Command(__doc__, (9, 2), min(2, os.cpu_count() or 1), ("quick", "only")).shows()
    command.add_argument("--only", choices=names, action="append", metavar="NAME", help="may be given several times")
    command.add_argument("--part", type=names_of(parts_of([])), help=f"of {', '.join(parts_of([]))} (default: all)")
    command.add_argument("--page", type=Path, nargs="?", const=blocks.PAGE, help="write the table there")
    arguments = command.given()
    wanted = arguments.part or ([PART] if arguments.only or arguments.page else list(parts_of([])))
    parts = parts_of(arguments.only or names)
    kept = run(arguments, {part: parts[part] for part in wanted})
    if arguments.page and PART in kept.results:
        write(arguments.page, kept.results, kept.file)


if __name__ == "__main__":
    main()
