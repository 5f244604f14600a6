"""Loops over time in Python beside the same models compiled: whole training steps, in turns, with what the plan costs.

    python benchmarks/loops.py --page            measures all in some minutes, and writes the guide's table
    python benchmarks/loops.py --only Kalman     one of them, printed alone and not kept
    python benchmarks/loops.py --clients         layers of packages, where they are installed, not kept
    python benchmarks/loops.py --show --page     measures nothing: prints what is kept, to the page too
    python benchmarks/loops.py --quick           few steps: only shows that all of it runs

The first calls run as PyTorch runs them, are logged, and check the plan. Results are kept in benchmarks/results/, a
file for each machine. Nothing else should run meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import bppsa
import rows.loop_models as models
from clients import CLIENTS, Client
from harness import marked, store
from harness.command import Command, run
from harness.comparison import Options, Row, compare
from harness.parts import Part
from harness.tables import number, quartiles, times
from harness.timing import Step

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "guides" / "loops.md"
PART = "loops"
ROWS = 32
FIRST = 5  # calls, after which the loops of every module have been looked at


def sequence(rows: int, steps: int, width: int) -> tuple[Tensor]:
    return (torch.randn(rows, steps, width),)


def episodes(rows: int, steps: int, width: int) -> tuple[Tensor, Tensor]:
    return torch.randn(steps, rows), (torch.rand(steps, rows) < 0.05).float()


def series(rows: int, steps: int, width: int) -> tuple[Tensor]:
    return (torch.randn(steps, 2),)


def numbers(rows: int, steps: int, width: int) -> tuple[Tensor]:
    return (torch.rand(steps),)


@dataclass(frozen=True)
class Case:
    """model: of a width. inputs: of rows, steps and a width. method: of the model, that is called."""

    name: str
    model: Callable[[int], nn.Module]
    steps: int
    width: int
    inputs: Callable[[int, int, int], tuple[Any, ...]] = sequence
    method: str = "__call__"


OF_ROWS = models.Inline, models.Resets, models.LightGru, models.Feedback, models.Liquid, models.OverTheBatch
CASES = (
    *(Case("Stacked", models.Stacked, steps, width) for width in (16, 64) for steps in (50, 200, 1000)),
    *(Case(model.__name__, model, 200, 16) for model in OF_ROWS),
    Case("Returns", models.Returns, 200, 1, episodes),
    Case("Kalman", models.Kalman, 200, 20, series),
    Case("Pendulum", models.Pendulum, 200, 2, numbers),
)


def of_clients() -> tuple[Case, ...]:
    """Those of packages that are here."""
    here = {name: client for name, client in CLIENTS.items() if client.is_installed}
    return tuple(
        Case(name, partial(client.make, ROWS), 200, 16, partial(given_to, client), client.method)
        for name, client in here.items()
    )


def given_to(client: Client, rows: int, steps: int, width: int) -> tuple[Any, ...]:
    return client.inputs(rows, steps)


def measured(case: Case, options: Options) -> list[Row]:
    torch.manual_seed(0)
    steps = min(case.steps, 20) if options.quick else case.steps
    model, given = case.model(case.width), case.inputs(ROWS, steps, case.width)
    fast = bppsa.compile(model)
    ours = step(getattr(fast, case.method), given)
    began = time.perf_counter()
    for _ in range(FIRST):
        ours()
    first_s = round(time.perf_counter() - began, 2)
    row = compare(step(getattr(model, case.method), given), ours, options.repeats)
    told = {decision.strategy for decision in bppsa.report(fast).decisions if decision.kind == "loop"}
    row |= {"first_s": first_s, "as": ", ".join(sorted(told))}
    return [{"loop": case.name, "T": steps, "H": case.width} | row]


def step(model: Callable[..., Any], given: tuple[Any, ...]) -> Step:
    def run() -> tuple[float, ...]:
        began = time.perf_counter()
        outputs = [each for each in tree_leaves(model(*given)) if each.requires_grad]
        sum(output.square().mean() for output in outputs).backward()
        return (time.perf_counter() - began,)

    return run


def markdown(results: store.Results, file: str) -> Iterator[str]:
    (run,) = results[PART]
    yield "| loop | T, H | PyTorch | bppsa | | first calls |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for row in run["rows"]:
        ms = (f"{number(row[side])} ms" for side in ("peer_ms", "ours_ms"))
        ratio = f"**{times(row['ratio']['median'])}** ({quartiles(row['ratio'])})"
        yield f"| `{row['loop']}` | {row['T']}, {row['H']} | {' | '.join((*ms, ratio))} | {number(row['first_s'])} s |"
    yield ""
    what = f"A training step of the models in `benchmarks/rows/loop_models.py`, B={ROWS} where there is a batch"
    yield marked.footer(what, results, run["on"], file, "python benchmarks/loops.py --page")


def chosen(clients: bool) -> tuple[Case, ...]:
    return of_clients() if clients else CASES


def main() -> None:
    command = Command(__doc__, (9, 2), min(2, os.cpu_count() or 1), ("quick", "only", "clients")).shows()
    command.add_argument("--only", metavar="NAME", help="cases of this name alone")
    command.add_argument("--clients", action="store_true", help="layers of packages, where they are installed")
    command.add_argument("--page", action="store_true", help="write the table of docs/guides/loops.md")
    arguments = command.given()
    cases = [case for case in chosen(arguments.clients) if arguments.only in (None, case.name)]
    kept = run(arguments, {PART: Part(lambda _: cases, measured)})
    if arguments.page and kept.path and PART in kept.results:
        marked.write(PAGE, PART, markdown(kept.results, kept.file))


if __name__ == "__main__":
    main()
