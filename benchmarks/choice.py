"""Is auto's choice the best one? Predicted beside measured, of every strategy, over a grid of T, B and H.

    python benchmarks/choice.py                  some two minutes; nothing else should run
    python benchmarks/choice.py --kinds GRU      a part; the other kinds stay as they were in the file
    python benchmarks/choice.py --full           a larger grid
    python benchmarks/choice.py --show           measures nothing: prints what is kept

Results are kept in benchmarks/results/, a file for each machine, as part "choice".
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator

import torch
from rich.console import Console

import bppsa
from bppsa.plan.strategy import NAMES
from harness import machine
from harness.command import Command, Kept
from harness.comparison import Row
from harness.tables import number, terminal
from harness.timing import interleave, milliseconds, significant
from rows.problems import KINDS, Problem, Shape, inference

WIDTH = 165
PYTORCH = "pytorch"
SCANS = ("chunked", "blelloch", "hybrid")
SIZES = ((1, 10, 100, 1000), (1, 16, 64), (8, 32, 128))  # T, B, H
FULL = ((1, 3, 10, 30, 100, 300, 1000, 3000), (1, 4, 16, 64), (8, 20, 32, 64, 128, 512))
QUICK = ((1, 20), (2,), (4,))
LONGEST_MS = 60.0  # predicted, of PyTorch; of a scan half as long
NEAR = 1.1  # auto is right where it takes at most so many times as long as the best
WORST = 12  # cases that are shown


def shapes(kinds: list[str], grid: tuple[tuple[int, ...], ...]) -> Iterator[tuple[Shape, bool]]:
    for kind, sizes, training in itertools.product(kinds, itertools.product(*grid), (True, False)):
        yield Shape(kind, *sizes), training


def measure(shape: Shape, training: bool, repeats: int) -> Row | None:
    """None where PyTorch would take too long."""
    problem = Problem.of(shape, training=training)
    with torch.set_grad_enabled(training):
        decision = bppsa.explain(problem.module, problem.x, problem.state).decisions[0]
    predicted = decision.predicted
    if predicted[PYTORCH] > LONGEST_MS:
        return None
    scans = [name for name in SCANS if 2 * predicted.get(name, LONGEST_MS) < LONGEST_MS]
    ways = {PYTORCH: problem.module, "sequential": bppsa.compile(problem.module, strategy="sequential")}
    if shape.T > 4:  # fewer are one chunk
        ways |= {name: bppsa.compile(problem.module, strategy=name) for name in scans}
    steps = {
        way: problem.training(module) if training else inference(problem.output(module)) for way, module in ways.items()
    }
    taken = {way: milliseconds(samples) for way, samples in interleave(steps, repeats).items()}
    foreseen = {way: significant(predicted[way], 3) for way in taken}
    row = shape.row() | {"training": training, "measured_ms": taken, "predicted_ms": foreseen}
    return row | {"auto": decision.strategy, "best": min(taken, key=taken.__getitem__)} | loss(taken, decision.strategy)


def loss(taken: dict[str, float], auto: str) -> Row:
    """How many times as long as the best, and as PyTorch, auto's choice took."""
    over = {"over_best": taken[auto] / min(taken.values()), "over_pytorch": taken[auto] / taken[PYTORCH]}
    return {name: significant(ratio, 3) for name, ratio in over.items()}


def summary(rows: list[Row]) -> Iterator[str]:
    """The figures that say whether anybody would have to choose."""
    near = sum(row["over_best"] <= NEAR for row in rows)
    yield f"auto within {NEAR - 1:.0%} of the best: {near} of {len(rows)} ({near / len(rows):.0%})"
    geometric = statistics.geometric_mean(row["over_best"] for row in rows)
    yield f"auto over the best: mean {geometric:.3f}, worst {max(row['over_best'] for row in rows):.2f} times as long"
    lost = sum(row["over_pytorch"] > NEAR for row in rows)
    yield f"auto more than {NEAR - 1:.0%} slower than PyTorch: {lost}"
    for way in (PYTORCH, *(name for name in NAMES if name != "auto")):
        errors = [abs(r["predicted_ms"][way] / r["measured_ms"][way] - 1) for r in rows if way in r["measured_ms"]]
        if errors:
            text = f"{way}: median relative error of {len(errors)} predictions {statistics.median(errors):.0%}"
            yield f"{text}, of the worst tenth {number(100 * sorted(errors)[-len(errors) // 10])} % or more"


def show(rows: list[Row], console: Console) -> None:
    worst = sorted(rows, key=lambda row: -row["over_best"])[:WORST]
    Console(file=console.file, width=max(WIDTH, console.width)).print(terminal("choice", worst))
    for line in summary(rows):
        console.print(line)


def main() -> None:
    command = Command("Is auto's choice the best one?", (5, 5), 2).shows()
    command.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS), help="with commas")
    command.add_argument("--full", action="store_true", help="a larger grid, some ten minutes")
    arguments = command.given()
    console, kept = Console(), Kept.of(arguments.results)
    before: list[Row] = kept.results["choice"][0]["rows"] if "choice" in kept.results else []
    if arguments.show:
        show(before, console)
        return
    machine.require_onednn()
    torch.set_num_threads(arguments.threads)
    grid = QUICK if arguments.quick else FULL if arguments.full else SIZES
    on = {**machine.software(), "threads": arguments.threads, "repeats": arguments.repeats}
    rows = [row for row in before if row["kind"] not in arguments.kinds]
    for shape, training in shapes(arguments.kinds, grid):
        row = measure(shape, training, arguments.repeats)
        rows += [row] if row else []
    kept.put("choice", [{"on": on, "rows": rows}])
    kept.tell(console)
    show(rows, console)


if __name__ == "__main__":
    main()
