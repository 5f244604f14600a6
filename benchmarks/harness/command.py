"""A benchmark as a command: its options, the file that keeps its results, and a run of its parts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from harness import machine, store
from harness.comparison import Options
from harness.parts import Part, measure_part, show

RESULTS = Path(__file__).parents[1] / "results"
Runs = list[dict[str, Any]]


class Command(argparse.ArgumentParser):
    """repeats: by default, and with --quick. threads: by default; None where there is no such option. partial: options
    with which nothing is kept unless --results is given."""

    def __init__(
        self,
        description: str | None,
        repeats: tuple[int, int],
        threads: int | None = None,
        partial: Sequence[str] = ("quick",),
    ) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.repeats, self.partial = repeats, partial
        usual, few = repeats
        if threads is not None:
            self.add_argument("--threads", type=int, default=threads, help=f"of PyTorch (default: {threads})")
        self.add_argument("--repeats", type=int, help=f"interleaved samples (default: {usual}, with --quick {few})")
        self.add_argument("--quick", action="store_true", help="sizes of nothing, to see that all of it runs")
        self.add_argument("--results", type=Path, help="folder (default: benchmarks/results)")

    def shows(self) -> Command:
        """Adds an option to measure nothing."""
        self.add_argument("--show", action="store_true", help="measure nothing, print what is kept")
        return self

    def given(self) -> argparse.Namespace:
        arguments = self.parse_args()
        arguments.repeats = arguments.repeats or self.repeats[arguments.quick]
        partial = any(getattr(arguments, name) for name in self.partial) and not getattr(arguments, "show", False)
        arguments.results = arguments.results or (None if partial else RESULTS)
        return arguments


@dataclass(frozen=True)
class Kept:
    """This machine's results. path: where they are written to, None where they are not kept."""

    path: Path | None
    results: store.Results
    file: str

    @staticmethod
    def of(folder: Path | None) -> Kept:
        hardware = machine.hardware()
        file = machine.file_name(hardware)
        path = folder and folder / file
        return Kept(path, (store.load(path) if path else {}) | {"machine": hardware}, file)

    def put(self, part: str, runs: Runs) -> None:
        self.results[part] = runs
        if self.path:
            store.save(self.path, self.results)

    def tell(self, console: Console) -> None:
        if self.path:
            console.print(f"results are in {self.path}")


def run(
    arguments: argparse.Namespace,
    parts: Mapping[str, Part],
    joined: Callable[[Runs, Runs], Runs] = lambda before, new: new,
) -> Kept:
    """Measures the parts, or shows what is kept of them. joined: a part's runs of before, and those of now."""
    console, kept = Console(), Kept.of(arguments.results)
    if arguments.show:
        for part in parts:
            for one in kept.results.get(part, ()):
                show(part, one["rows"], console)
        return kept
    if (load := machine.load()) > 0.5:
        console.print(f"[yellow]The load average is {load:.1f}: what else is running will make the ratios scatter.")
    torch.set_num_threads(arguments.threads)
    options = Options(arguments.threads, arguments.repeats, arguments.quick)
    for name, part in parts.items():
        kept.put(name, joined(kept.results.get(name, []), measure_part(name, part, options, console)))
    kept.tell(console)
    return kept
