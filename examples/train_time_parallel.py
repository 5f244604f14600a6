"""Train a recurrent language model on long rows of text whose time axis is cut over workers.

    torchrun --nproc-per-node 2 examples/train_time_parallel.py
    python examples/train_time_parallel.py --workers 2 --length 20000

Under torchrun each rank is a worker, and holds the activations of its chunk of the steps alone; without it the workers
are threads. The same steps are first trained by one worker, in a process of its own: losses agree, and what a worker's
memory, and the time of a step, come to beside it is printed, with the timeline that the simulator said and that was
measured. The text is Python's own standard library unless `--data` names a file or a folder.

Letters in shapes: B rows of a batch, T bytes of a row, K workers, each of which has a chunk of T / K.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

import bppsa
from bppsa.schedule import blelloch
from bppsa.schedule.zoo.time_chunks import MIDDLES
from text import batches, loss_of, read_text, split
from train_pipeline import results

MB = 2**20
COLUMNS = 60  # of a diagram in the terminal
SHORT = 16  # bytes for each worker of the rows that everything is warmed up with


class LanguageModel(nn.Module):
    """Bytes [B, T] -> scores of the next byte [B, T, 256]."""

    def __init__(self, kind: str, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, hidden)
        self.recurrent = getattr(nn, kind.upper())(hidden, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, 256)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.recurrent(self.embedding(text))[0])


@dataclass(frozen=True)
class Run:
    """Of one training: the loss in nats a byte and the seconds of every step, and the memory that they took."""

    threads: int  # of a worker
    losses: list[float]
    seconds: list[float]
    held: float  # bytes, when the first loss is computed: the activations of a forward
    peak: float  # bytes, of all steps

    @property
    def milliseconds_a_step(self) -> float:
        return 1e3 * statistics.median(self.seconds[1:])


def main() -> None:
    options = parse_options()
    under_torchrun = "RANK" in os.environ
    if under_torchrun:
        dist.init_process_group("gloo")
    try:
        if options.alone:
            print(json.dumps(asdict(train_alone(options))))
        else:
            run(options, Console(quiet=under_torchrun and dist.get_rank() > 0))
    finally:
        if under_torchrun:
            dist.destroy_process_group()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a language model whose time axis is cut over workers.")
    parser.add_argument("--workers", type=int, default=2, help="without torchrun: threads")
    parser.add_argument("--middle", choices=MIDDLES, default="linear", help="how chunks learn of those behind them")
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--data", type=Path, help="a file or a folder of text (default: Python's standard library)")
    parser.add_argument("--model", choices=("rnn", "gru", "lstm"), default="gru")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=32, help="width H of the model")
    parser.add_argument("--length", type=int, default=100_000, help="bytes T of a row")
    parser.add_argument("--batch", type=int, default=1, help="rows B of a batch")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", type=int, help="train by one worker with so many threads, and print what it took")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps must be at least 2: the first one is not timed")
    return options


def run(options: argparse.Namespace, console: Console) -> None:
    workers = dist.get_world_size() if dist.is_initialized() else options.workers
    threads = max(1, cores() // workers)
    alone = [measured_alone(count) for count in sorted({threads, cores()})] if is_first() else []
    if dist.is_initialized():
        dist.barrier()  # until then the others leave the cores to it
    memory = Memory()
    compiled = cut_over(options, workers, memory)
    console.print(
        f"{options.layers}-layer {options.model.upper()}, H={options.hidden}, T={options.length:,}, B={options.batch}: "
        f"{workers} {'ranks' if dist.is_initialized() else 'threads'} on {cores()} cores, {compiled.timeline.S} stages"
    )
    own = train(compiled.step, compiled, memory, options, workers, threads)
    diagram = compiled.measured.text(compiled.measured.makespan / COLUMNS, color=console.is_terminal)
    console.rule("the last step, measured")
    console.print(Text.from_ansi(diagram), no_wrap=True, overflow="crop", crop=False)
    console.print(results(compiled.timeline, compiled.predicted, compiled.measured))
    memories = [told_by_all(own.held), told_by_all(own.peak)]
    if console.quiet:
        return
    console.print(beside_one_worker(alone, own, *memories))
    console.print(losses_told(alone[0], own))


# --- training ---


def cut_over(options: argparse.Namespace, workers: int, memory: Memory) -> Any:
    return bppsa.compile(
        model_of(options),
        schedule=blelloch(workers, options.middle),
        microbatches=options.microbatches,
        loss_fn=memory.loss_of,
        example_inputs=torch.zeros(options.batch, SHORT * workers, dtype=torch.long),
    )


def train_alone(options: argparse.Namespace) -> Run:
    torch.set_num_threads(options.alone)
    model, memory = bppsa.compile(model_of(options)), Memory()

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = memory.loss_of(model(inputs), targets)
        loss.backward()
        return loss.detach()

    return train(step, model, memory, options, 1, options.alone)


def model_of(options: argparse.Namespace) -> LanguageModel:
    """The same weights in every process."""
    torch.manual_seed(options.seed)
    return LanguageModel(options.model, options.hidden, options.layers)


def train(
    step: Callable[[Tensor, Tensor], Tensor],
    model: nn.Module,
    memory: Memory,
    options: argparse.Namespace,
    workers: int,
    threads: int,
) -> Run:
    """step: of inputs and targets, [B, T] each, to a loss; leaves gradients."""
    text, _ = split(read_text(options.data), options.length)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    for inputs, targets in batches(text, SHORT * workers, options.batch, 1, options.seed):
        step(inputs, targets)  # loads kernels, and what else a first step does once
    losses, seconds = [], []
    memory.begin()
    for inputs, targets in batches(text, options.length, options.batch, options.steps, options.seed):
        start = time.perf_counter()
        optimizer.zero_grad()
        losses.append(step(inputs, targets).item())
        memory.stepped()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return Run(threads, losses, seconds, memory.held, memory.peak)


def measured_alone(threads: int) -> Run:
    """By this script, in a process whose memory nobody else has touched."""
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, *sys.argv, "--alone", str(threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return Run(**json.loads(done.stdout))


# --- memory ---


class Memory:
    """Physical memory of this process, in bytes above what it had at the beginning."""

    def __init__(self) -> None:
        self.before = self.held = 0.0
        self.first = True  # of the steps, before which nothing has been used and given back

    def begin(self) -> None:
        if (clear := Path("/proc/self/clear_refs")).exists():
            clear.write_text("5")  # the peak is counted from now on
        self.before = resident("VmRSS")
        self.held, self.first = 0.0, True

    def stepped(self) -> None:
        self.first = False

    def loss_of(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The forward is over, and all that its backward needs is there."""
        if self.first:
            self.held = max(self.held, resident("VmRSS") - self.before)
        return loss_of(scores, targets)

    @property
    def peak(self) -> float:
        return resident("VmHWM") - self.before


def resident(what: str) -> float:
    """Bytes of physical memory: VmRSS now, VmHWM the most so far. Linux tells; elsewhere no number."""
    if not (status := Path("/proc/self/status")).exists():
        return math.nan
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return 1024.0 * int(lines[what].split()[0])


def told_by_all(number: float) -> list[float]:
    """Of each process."""
    if not dist.is_initialized():
        return [number]
    numbers = [0.0] * dist.get_world_size()
    dist.all_gather_object(numbers, number)
    return numbers


def cores() -> int:
    return os.cpu_count() or 1


def is_first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


# --- what is shown ---


def beside_one_worker(alone: Sequence[Run], own: Run, held: Sequence[float], peaks: Sequence[float]) -> Table:
    """held, peaks: of each process over which time is cut."""
    first, each = alone[0], "" if len(held) == 1 else " each"
    table = Table("", "threads", "activations, MB", "peak, MB", "ms a step", "as fast as one worker")
    table.caption = "memory of a process above that before; in brackets, of one worker's"
    for column in table.columns[1:]:
        column.justify = "right"
    rows = [("one worker", run, f"{run.threads}", [run.held], [run.peak]) for run in alone]
    rows.append(("time cut over workers", own, f"{own.threads}{each}", list(held), list(peaks)))
    for name, run, threads, at_loss, most in rows:
        ratio = first.milliseconds_a_step / run.milliseconds_a_step
        table.add_row(
            name,
            threads,
            beside(at_loss, first.held),
            beside(most, first.peak),
            f"{run.milliseconds_a_step:.0f}",
            f"{ratio:.2f}x",
        )
    return table


def beside(numbers: Sequence[float], of: float) -> str:
    return ", ".join(f"{number / MB:.0f} ({number / of:.2f})" for number in numbers)


def losses_told(alone: Run, own: Run) -> str:
    gap = max(abs(a - b) / abs(a) for a, b in zip(alone.losses, own.losses, strict=True))
    return (
        f"loss {own.losses[0]:.4f} at step 1, {own.losses[-1]:.4f} at step {len(own.losses)}; one worker's "
        f"{alone.losses[0]:.4f} and {alone.losses[-1]:.4f}: {gap:.1e} apart at most, relative"
    )


if __name__ == "__main__":
    main()
