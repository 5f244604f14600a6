"""Train a small recurrent language model twice from one seed: with plain PyTorch, and with `bppsa.compile`.

    python examples/train_language_model.py
    python examples/train_language_model.py --model lstm --hidden 128 --data ~/books
    python examples/train_language_model.py --steps 200                                  a quarter of the time

The model reads bytes and predicts the next one; the text is Python's own standard library unless `--data` names a file
or a folder. Both sides see the same batches, so their losses agree and only the clock differs. They take turns of some
steps each, fewer on a slow machine, and a line every few seconds says how far they are and what the ratio is. Training
ends after `--minutes`, if not all steps are done by then. Prints a table and some generated text, and saves the loss
against the wall clock as a picture. Needs matplotlib.

Letters in shapes: B rows of a batch, T bytes of a row.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import bppsa

matplotlib.use("Agg")
from matplotlib import pyplot

from text import batches, loss_of, read_text, split

PROMPT = "def "
TURN = 10  # steps of one side before it is the other's turn
TURN_S = 1.5  # after which a turn ends too, so that a slow machine prints lines as often
LEAST = 2  # steps of the first turn: one that may be slow, and one that is timed
LINE_S = 3.0  # between two lines of progress
KINDS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class LanguageModel(nn.Module):
    """Bytes [B, T] and a state -> scores of the next byte [B, T, 256] and the state after the last byte."""

    def __init__(self, kind: str, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, hidden)
        self.recurrent = KINDS[kind](hidden, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, 256)

    def forward(self, text: Tensor, state: object = None) -> tuple[Tensor, object]:
        features, state = self.recurrent(self.embedding(text), state)
        return self.head(features), state


@dataclass
class Run:
    """What one training run measured: the loss in nats a byte and the seconds of every step."""

    name: str
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    held_out: float = math.nan  # bits a byte

    @property
    def milliseconds_a_step(self) -> float:
        """The median without the first step, which builds or loads kernels and warms caches."""
        return 1e3 * statistics.median(self.seconds[1:])


def main() -> None:
    options = parse_options()
    console = Console()
    training, held_out = (part.to(options.device) for part in split(read_text(options.data), options.length))
    torch.manual_seed(options.seed)
    plain = LanguageModel(options.model, options.hidden, options.layers).to(options.device)
    fast = bppsa.compile(copy.deepcopy(plain))  # a copy, because the two would share their parameters
    runs = [Run("PyTorch"), Run("bppsa")]

    console.print(f"{title(options)}: {len(training):,} bytes of text")
    console.print(
        f"{options.steps} steps of each side, in turns of {TURN}, or as many as fit into {options.minutes:g} minutes "
        "(--steps 200 is shorter, --minutes sets the limit)"
    )
    console.print("a few steps of a copy first, which do not count")
    warm_up(plain, training, options)
    done = train_in_turns(runs, (plain, fast), training, options, console)
    if done < options.steps:
        console.print(
            f"{done} of {options.steps} steps fit into {options.minutes:g} minutes: this machine is slow or busy"
        )
    report = str(fast.report)  # of the last call, so of the last training step
    for run, model in zip(runs, (plain, fast), strict=True):
        console.print(f"held-out text by {run.name}")
        run.held_out = bits_per_byte(model, held_out, options)

    console.print(results(*runs))
    console.print(report, markup=False)
    console.rule("a sample")
    console.print(generate(fast, PROMPT, length=300), markup=False, highlight=False, soft_wrap=True)
    console.rule()
    plot(runs, title(options), options.output)
    console.print(f"saved {options.output}")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a language model with PyTorch and with bppsa.compile.")
    parser.add_argument("--data", type=Path, help="a file or a folder of text (default: Python's standard library)")
    parser.add_argument("--model", choices=KINDS, default="gru")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64, help="width H of the model")
    parser.add_argument("--length", type=int, default=256, help="bytes T of a row")
    parser.add_argument("--batch", type=int, default=16, help="rows B of a batch")
    parser.add_argument("--steps", type=int, default=800, help="training steps of each side (default: 800)")
    parser.add_argument("--minutes", type=float, default=3.0, help="when training ends at the latest (default: 3)")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=Path("demo.png"), help="where the picture goes")
    options = parser.parse_args()
    if options.steps < LEAST:
        parser.error("--steps must be at least 2: the first one is not timed")
    return options


def title(options: argparse.Namespace) -> str:
    threads = torch.get_num_threads()
    return (
        f"{options.layers}-layer {options.model.upper()}, H={options.hidden}, T={options.length}, B={options.batch}, "
        f"{threads} thread{'s' if threads > 1 else ''}"
    )


# --- training ---


def train_in_turns(
    runs: list[Run], models: tuple[nn.Module, ...], text: Tensor, options: argparse.Namespace, console: Console
) -> int:
    """The steps that each side has taken: all, or those before the time is over."""
    first, *others = [steps_of(model, text, options, run) for run, model in zip(runs, models, strict=True)]
    start = told = time.perf_counter()
    done, limit = 0, 60 * options.minutes
    while done < options.steps:
        turn = take_turn(first, 1 if done else LEAST)
        for side in others:
            for _ in itertools.islice(side, turn):
                pass
        now, begun, done = time.perf_counter(), done == 0, done + turn
        over = now - start >= limit
        if now - told >= LINE_S or begun or over or done == options.steps:
            told = now
            left = min((now - start) / done * (options.steps - done), limit - (now - start))
            console.print(progress(runs, done, options.steps, left), soft_wrap=True)
        if over:
            break
    return done


def take_turn(side: Iterator[None], least: int) -> int:
    """How many steps it took: TURN, or fewer where they are slow."""
    start, taken = time.perf_counter(), 0
    for _ in itertools.islice(side, TURN):
        taken += 1
        if taken >= least and time.perf_counter() - start >= TURN_S:
            break
    return taken


def steps_of(model: nn.Module, text: Tensor, options: argparse.Namespace, run: Run) -> Iterator[None]:
    """One training step each time that it is asked to go on."""
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    for inputs, targets in batches(text, options.length, options.batch, options.steps, options.seed):
        start = time.perf_counter()
        run.losses.append(train_step(model, optimizer, inputs, targets))
        run.seconds.append(time.perf_counter() - start)
        yield


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> float:
    loss = loss_of(model(inputs)[0], targets)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()  # waits for the device


def warm_up(model: nn.Module, text: Tensor, options: argparse.Namespace) -> None:
    """Steps of a copy that is thrown away: what PyTorch does once in a process must not count against the first run."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    for inputs, targets in batches(text, options.length, options.batch, 3, options.seed):
        train_step(model, optimizer, inputs, targets)


@torch.no_grad()
def bits_per_byte(model: nn.Module, text: Tensor, options: argparse.Namespace) -> float:
    """Mean over the first batches of held-out text, one piece after another."""
    pieces = text[: (len(text) - 1) // options.length * options.length].view(-1, options.length)
    targets = text[1 : pieces.numel() + 1].view_as(pieces)
    chosen = min(len(pieces), 16 * options.batch)
    parts = zip(pieces[:chosen].split(options.batch), targets[:chosen].split(options.batch), strict=True)
    total = sum(len(inputs) * loss_of(model(inputs)[0], expected).item() for inputs, expected in parts)
    return total / chosen / math.log(2)


@torch.no_grad()
def generate(model: nn.Module, prompt: str, length: int, temperature: float = 0.7) -> str:
    """Text that goes on from the prompt, one byte at a time, each with the state that the one before left."""
    device = next(model.parameters()).device
    rng = torch.Generator().manual_seed(0)
    text = list(prompt.encode())
    scores, state = model(torch.tensor([text], device=device))
    for _ in range(length):
        chances = (scores[0, -1] / temperature).softmax(-1).cpu()
        text.append(int(torch.multinomial(chances, 1, generator=rng)))
        scores, state = model(torch.tensor([text[-1:]], device=device), state)
    return "".join(
        c if c.isprintable() or c == "\n" else "\N{MIDDLE DOT}" for c in bytes(text).decode(errors="replace")
    )


# --- what is shown ---


def progress(runs: list[Run], done: int, steps: int, seconds_left: float) -> str:
    """A line of text. The first turn of a side has what is done once in it, so the ratio is of medians."""
    plain, fast = runs
    a, b = plain.milliseconds_a_step, fast.milliseconds_a_step
    left = f", {max(0, seconds_left):.0f} s left" if done < steps else ""
    return (
        f"step {done} of {steps}: loss {fast.losses[-1]:.3f}; {plain.name} {a:.1f} ms a step, {fast.name} {b:.1f} ms: "
        f"{a / b:.1f}x{left}"
    )


def results(plain: Run, fast: Run) -> Table:
    caption = "bppsa's first step also builds its kernels, or loads them where an earlier run left them in the cache"
    table = Table("", plain.name, fast.name, "ratio or difference", caption=caption)
    for column in table.columns[1:]:
        column.justify = "right"
    last = len(plain.losses) - 1
    for step in sorted({last * part // 6 for part in range(7)}):
        a, b = plain.losses[step], fast.losses[step]
        table.add_row(f"loss at step {step + 1}", f"{a:.4f}", f"{b:.4f}", f"{abs(a - b):.1e}")
    largest = max(abs(a - b) for a, b in zip(plain.losses, fast.losses, strict=True))
    table.add_row("largest difference", "", "", f"{largest:.1e}")
    table.add_row("held out, bits a byte", f"{plain.held_out:.3f}", f"{fast.held_out:.3f}", "", end_section=True)
    table.add_row("first step, s", f"{plain.seconds[0]:.2f}", f"{fast.seconds[0]:.2f}", "")
    a, b = plain.milliseconds_a_step, fast.milliseconds_a_step
    table.add_row("a step, ms (median)", f"{a:.1f}", f"{b:.1f}", f"[bold]{a / b:.1f}x[/bold]")
    # without a ratio of their own: pauses of a busy machine are in them
    table.add_row("all steps, s", f"{sum(plain.seconds):.1f}", f"{sum(fast.seconds):.1f}", "")
    return table


def plot(runs: list[Run], heading: str, path: Path, window: int = 20) -> None:
    """The loss, as a mean over the last `window` steps, against the seconds since training began."""
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for run in runs:
        recent = [run.losses[max(0, end - window) : end] for end in range(1, len(run.losses) + 1)]
        axes.plot(list(itertools.accumulate(run.seconds)), [statistics.fmean(part) for part in recent], label=run.name)
    axes.set(title=heading, xlabel="seconds of training", ylabel="loss, nats a byte")
    axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
