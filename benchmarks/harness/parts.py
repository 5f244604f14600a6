"""Parts of a benchmark: the cases of each, how one is measured, and the table that shows it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from harness import machine
from harness.comparison import Options, Row
from harness.tables import terminal

WIDTH = 165  # of the widest table


@dataclass(frozen=True)
class Part:
    cases: Callable[[Options], list[Any]]
    measure: Callable[[Any, Options], list[Row]]
    runs: int = 1  # how often the whole part is measured


def names_of(parts: Iterable[str]) -> Callable[[str], list[str]]:
    """Reads names of parts with commas between them."""

    def names(text: str) -> list[str]:
        unknown = set(text.split(",")) - set(parts)
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: the parts are {', '.join(parts)}")
        return text.split(",")

    return names


def measure_part(name: str, part: Part, options: Options, console: Console) -> list[dict[str, Any]]:
    """The runs of a part: what each ran on, and its rows."""
    cases, runs = part.cases(options), []
    several = part.runs > 1
    for number in range(part.runs):
        on = {**machine.software(), "threads": options.threads, "repeats": options.repeats}
        rows: list[Row] = []
        with progress_bar(console) as progress:
            bar = progress.add_task(f"{name} {number + 1}" if several else name, total=len(cases), case="")
            for case in cases:
                progress.update(bar, case=str(case))
                rows += part.measure(case, options)
                progress.advance(bar)
            progress.update(bar, case="")
        show(name, rows, console)
        runs.append({"on": on, "rows": rows})
    return runs


def show(part: str, rows: list[Row], console: Console) -> None:
    """Whole also where the terminal is narrow, or is none."""
    Console(file=console.file, width=max(WIDTH, console.width)).print(terminal(part, rows))


def progress_bar(console: Console) -> Progress:
    name, case = TextColumn("{task.description:14}"), TextColumn("{task.fields[case]}")
    return Progress(
        name, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), case, console=console
    )
