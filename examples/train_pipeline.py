"""Train a deep recurrent language model on several workers, by any schedule of the zoo.

    torchrun --nproc-per-node 4 examples/train_pipeline.py --schedule lpp --G 2
    python examples/train_pipeline.py --schedule one_f_one_b --stages 4 --microbatches 8

Under torchrun each rank is a worker and keeps the weights of its stages; without it the workers are threads. Prints how
the model was cut and, after training, what the simulator said of a step beside what was measured; saves both as
diagrams. Text, bytes and loss are those of train_language_model.py.

Letters in shapes: B rows of a batch, T bytes of a row.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

import bppsa
from bppsa.errors import BppsaError
from bppsa.schedule import Recipe, Timeline
from bppsa.schedule.names import PARAMETERS, ZOO, made_by, named
from text import batches, loss_of, read_text, split

COLUMNS = 36  # of a diagram in the terminal


class LanguageModel(nn.Module):
    """Bytes [B, T] -> scores of the next byte [B, T, 256]. Each layer is a module of its own, where it can be cut."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, hidden)
        self.layers = nn.ModuleList(nn.GRU(hidden, hidden, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(hidden, 256)

    def forward(self, text: Tensor) -> Tensor:
        features = self.embedding(text)
        for layer in self.layers:
            features = features + layer(features)[0]
        return self.head(features)


def main() -> None:
    options = parse_options()
    under_torchrun = "RANK" in os.environ
    if under_torchrun:
        dist.init_process_group("gloo")
    try:
        run(options, Console(quiet=under_torchrun and dist.get_rank() > 0))
    finally:
        if under_torchrun:
            dist.destroy_process_group()


def run(options: argparse.Namespace, console: Console) -> None:
    training, held_out = split(read_text(options.data), options.length)
    torch.manual_seed(options.seed)  # all ranks begin with the same weights
    compiled: Any = bppsa.compile(
        LanguageModel(options.hidden, options.layers),
        schedule=options.recipe,
        stages=options.stages,
        microbatches=options.microbatches,
        workers=options.workers,
        loss_fn=loss_of,
        example_inputs=torch.zeros(options.batch, options.length, dtype=torch.long),
    )
    console.print(title(options, compiled.timeline))
    console.print(compiled.stages.table(options.recipe, options.microbatches, options.workers), markup=False)
    losses, seconds = train(compiled, training, options, console)
    timelines = {"simulated": compiled.predicted, "measured": compiled.measured}
    for name, timeline in timelines.items():
        console.rule(f"the last step, {name}")
        diagram = timeline.text(timelines["measured"].makespan / COLUMNS, color=console.is_terminal)
        console.print(Text.from_ansi(diagram), no_wrap=True, overflow="crop", crop=False)
    console.rule()
    console.print(results(compiled.timeline, **timelines))
    console.print(losses_told(losses, seconds, bits_per_byte(compiled, held_out, options)))
    if not console.quiet:
        for name, timeline in timelines.items():
            path = options.output.with_name(f"{options.output.name}-{name}.svg")
            timeline.svg(path)
            console.print(f"saved {path}")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a language model on several workers by a schedule.")
    parser.add_argument(
        "--schedule", default="one_f_one_b", help=f"one of {', '.join(ZOO)}; 'lpp(G=2)' or FILE.py:NAME too"
    )
    for name, parameter in PARAMETERS.items():
        kind = str if isinstance(parameter.default, str) else int
        parser.add_argument(f"--{name}", type=kind, help="of the schedules that have it")
    parser.add_argument("--stages", type=int, help="default: 4, or the schedule's own where it cuts time")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--workers", type=int, help="without torchrun: threads (default: what the schedule needs)")
    parser.add_argument("--data", type=Path, help="a file or a folder of text (default: Python's standard library)")
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--hidden", type=int, default=64, help="width H of the model")
    parser.add_argument("--length", type=int, default=128, help="bytes T of a row")
    parser.add_argument("--batch", type=int, default=16, help="rows B of a batch")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--output", type=Path, default=Path("pipeline"), help="what the names of the diagrams begin with"
    )
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps must be at least 2: the first one is not timed")
    given = {name: getattr(options, name) for name in PARAMETERS if getattr(options, name) is not None}
    try:
        options.recipe = made_by(options.schedule, **given) if given else named(options.schedule)
    except BppsaError as error:
        parser.error(str(error))
    if options.stages is None and getattr(options.recipe, "chunks", None) is None:
        options.stages = 4
    return options


def title(options: argparse.Namespace, timeline: Timeline) -> str:
    name = options.recipe.name if isinstance(options.recipe, Recipe) else options.schedule
    workers = "ranks" if dist.is_initialized() else "threads"
    return (
        f"{name}: {timeline.S} stages, {options.microbatches} micro-batches, {timeline.W} {workers} on "
        f"{os.cpu_count()} cores\n{options.layers} GRUs, H={options.hidden}, T={options.length}, B={options.batch}"
    )


# --- training ---


def train(
    compiled: Any, text: Tensor, options: argparse.Namespace, console: Console
) -> tuple[list[float], list[float]]:
    """The loss in nats a byte and the seconds of every step."""
    optimizer = torch.optim.Adam(compiled.parameters(), lr=options.lr)  # of a rank: those that it owns
    losses, seconds = [], []
    with progress_bar(console) as progress:
        bar = progress.add_task("training", total=options.steps, loss=math.nan)
        for inputs, targets in batches(text, options.length, options.batch, options.steps, options.seed):
            start = time.perf_counter()
            optimizer.zero_grad()
            losses.append(compiled.step(inputs, targets).item())
            compiled.clip_grad_norm_(1.0)
            optimizer.step()
            seconds.append(time.perf_counter() - start)
            progress.update(bar, advance=1, loss=losses[-1])
    return losses, seconds


@torch.no_grad()
def bits_per_byte(compiled: Any, text: Tensor, options: argparse.Namespace) -> float:
    """Of a batch of held-out text."""
    inputs, targets = next(batches(text, options.length, options.batch, 1, options.seed))
    return loss_of(compiled(inputs), targets).item() / math.log(2)


# --- what is shown ---


def progress_bar(console: Console) -> Progress:
    loss = TextColumn("loss {task.fields[loss]:.3f}")
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), loss, TimeElapsedColumn(), console=console
    )


def results(planned: Timeline, simulated: Timeline, measured: Timeline) -> Table:
    caption = "planned: flops for costs; simulated: the times of the measured jobs"
    table = Table("of a step", "planned", "simulated", "measured", caption=caption)
    for column in table.columns[1:]:
        column.justify = "right"
    timelines = (planned, simulated, measured)
    table.add_row("makespan, ms", "", *(f"{1e3 * timeline.makespan:.1f}" for timeline in timelines[1:]))
    table.add_row("idle", *(f"{timeline.bubble:.0%}" for timeline in timelines))
    table.add_row(
        "most activations of a worker", *(" ".join(map(str, timeline.peak_activations)) for timeline in timelines)
    )
    return table


def losses_told(losses: Sequence[float], seconds: Sequence[float], held_out: float) -> str:
    return (
        f"loss {losses[0]:.4f} at step 1, {losses[-1]:.4f} at step {len(losses)}; held out {held_out:.3f} bits a byte\n"
        f"{1e3 * statistics.median(seconds[1:]):.1f} ms a step (median)"
    )


if __name__ == "__main__":
    main()
