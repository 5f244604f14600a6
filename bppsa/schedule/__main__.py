"""Draw a schedule, compare some, or search for the best.

python -m bppsa.schedule lpp --G 2 --R 4 -S 8 -B 8
python -m bppsa.schedule --file my_schedule.py:name -S 8 -B 8
python -m bppsa.schedule compare gpipe "lpp(G=2)" my_schedule.py:name -S 8 -B 8
python -m bppsa.schedule search -S 8 -B 16 -W 8 --memory 12
python -m bppsa.schedule search gpipe my_schedule.py:name -S 8 -B 16 -W 8
python -m bppsa.schedule search -S 8 -B 16 -W 8 --forward-ms 12 --activation-mb 50 --bandwidth 10
python -m bppsa.schedule search -S 8 -B 16 -W 8 --activation-mb 900 --kept 0.1 --memory-gb 6 --recompute auto

Without units a time of 1 is a job's, and a size of 1 is what one micro-batch's activations of a stage take.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from bppsa.errors import ScheduleError
from bppsa.schedule.compare import compare
from bppsa.schedule.draw import column
from bppsa.schedule.names import PARAMETERS, ZOO, loaded, made_by, named
from bppsa.schedule.recompute import Recompute
from bppsa.schedule.search import search
from bppsa.schedule.simulator import simulate
from bppsa.schedule.spec import Build, Recipe, Schedule
from bppsa.schedule.timeline import Timeline
from bppsa.schedule.units import JOBS, Units

COSTS = (
    "forward",
    "backward",
    "weight",
    "activation_time",
    "gradient_time",
    "weight_time",
    "activation_sizes",
    "weight_sizes",
)
MOST_COLUMNS = 60  # of a diagram in a terminal
TIMES = ("forward", "backward", "weight", "activation_time", "gradient_time", "weight_time")
SIZES = ("activation_sizes", "weight_sizes")
MEASURES = {
    "forward_ms": ("MS", "what one micro-batch's forward of a stage takes; all times count in it, and are told in ms"),
    "activation_mb": ("MB", "what one micro-batch's activations of a stage take; all sizes, and --memory, are in MB"),
    "bandwidth": ("GB/S", "between workers: a message of as many MB as the stage's activations or weights takes time"),
}
METRICS = {
    "peak_memory": "memory",
    "peak_activations": "memory",
    "weight_storage": "memory",
    "activation_receives": "messages",
    "gradient_receives": "messages",
    "weight_receives": "messages",
}


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_args(arguments)
    try:
        command = COMMANDS.get("".join(given.words[:1]), draw)
        refuse_unused(given, command)
        command(given)
    except (ScheduleError, OSError) as error:  # OSError: a file that cannot be written
        sys.exit(f"{type(error).__name__}: {error}")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m bppsa.schedule", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("words", nargs="*", metavar="SCHEDULE", help=f"compare, search, or one of {', '.join(ZOO)}")
    made.add_argument("--file", metavar="FILE:NAME", help="a schedule of your own, or a function of (S, B, W)")
    made.add_argument("-S", type=int, default=8, help="stages (8)")
    made.add_argument("-B", type=int, default=8, help="micro-batches (8)")
    made.add_argument("-W", type=int, help="workers (as many as the schedule needs)")
    for name, parameter in PARAMETERS.items():
        kind = str if isinstance(parameter.default, str) else int
        made.add_argument(f"--{name}", type=kind, help="of the schedules that have it")
    for cost in COSTS:
        made.add_argument(f"--{cost.replace('_', '-')}", type=Fraction, metavar="NUMBER", help="such as 1, 2/3 or 0.5")
    for name, (metavar, help) in MEASURES.items():
        made.add_argument(f"--{name.replace('_', '-')}", type=Fraction, metavar=metavar, help=help)
    made.add_argument("--memory", type=Fraction, help="search: what a worker can hold of activations and weights")
    made.add_argument("--memory-gb", type=Fraction, metavar="GB", help="search: the same in GB; needs --activation-mb")
    made.add_argument(
        "--recompute",
        choices=("full", "auto"),
        help="run each forward again before its backward; search: auto tries both",
    )
    made.add_argument(
        "--kept", type=Fraction, metavar="SHARE", help="with --recompute: of a stage's activations, what is held (0)"
    )
    made.add_argument("--svg", type=Path, metavar="FILE", help="write the diagram")
    made.add_argument("--trace", type=Path, metavar="FILE", help="write a trace for chrome://tracing or Perfetto")
    made.add_argument("--batches", action="store_true", help="name the micro-batch of each job")
    return made


def draw(given: argparse.Namespace) -> None:
    timeline = simulate(asked(given), **numbers(given))
    exact = column(timeline)
    unit = exact if timeline.makespan <= MOST_COLUMNS * exact else float(timeline.makespan) / MOST_COLUMNS
    print(timeline.text(unit, batches=given.batches, color=sys.stdout.isatty()))
    print(summary(timeline))
    if given.svg:
        timeline.svg(given.svg)
    if given.trace:
        timeline.chrome_trace(given.trace)


def print_comparison(given: argparse.Namespace) -> None:
    compare([named(word) for word in given.words[1:]], **numbers(given))


def print_search(given: argparse.Namespace) -> None:
    among = [named(word) for word in given.words[1:]] or None
    limits: dict[str, Any] = {"memory": whole(given.memory), "memory_gb": whole(given.memory_gb)}
    again = recomputed(given)
    tried = [None, again] if given.recompute == "auto" else again
    print(search(**numbers(given) | {"W": given.W or given.S, "recompute": tried}, **limits, schedules=among))


COMMANDS = {"compare": print_comparison, "search": print_search}
# What only some commands read.
READ: dict[Callable[[argparse.Namespace], None], set[str]] = {
    draw: {"file", "svg", "trace", "batches", *PARAMETERS},
    print_comparison: set(),
    print_search: {"memory", "memory_gb"},
}


def refuse_unused(given: argparse.Namespace, command: Callable[[argparse.Namespace], None]) -> None:
    unused = [name for name in sorted(set().union(*READ.values()) - READ[command]) if getattr(given, name)]
    if unused:
        raise ScheduleError(
            f"--{unused[0]} says nothing here; a schedule's parameters go with its name, as in 'lpp(G=2, R=4)'"
            if unused[0] in PARAMETERS
            else f"--{unused[0]} says nothing here; --help tells what does"
        )


def numbers(given: argparse.Namespace) -> dict[str, Any]:
    """What `simulate` takes besides the schedule, of what was given."""
    costs = {cost: getattr(given, cost) for cost in COSTS if getattr(given, cost) is not None}
    found = {name: whole(cost) for name, cost in measured(given, costs).items()}
    return {"S": given.S, "B": given.B, "W": given.W, "units": units(given), "recompute": recomputed(given), **found}


def recomputed(given: argparse.Namespace) -> Recompute | None:
    """What is recomputed. Raises ScheduleError for a share of nothing."""
    if given.recompute is None:
        if given.kept is not None:
            raise ScheduleError("--kept is what a stage holds that is recomputed; give --recompute too")
        return None
    share = given.kept or Fraction(0)
    sizes = given.activation_sizes if given.activation_sizes is not None else Fraction(1)
    return Recompute(kept=whole(share * sizes * (given.activation_mb or 1)) or 0)


def measured(given: argparse.Namespace, costs: dict[str, Fraction]) -> dict[str, Fraction]:
    """Costs in ms and sizes in MB, as far as these are given. A message of x MB takes x / bandwidth ms."""
    found = dict(costs)
    if given.forward_ms is not None:
        ones = dict.fromkeys(("forward", "backward", "weight"), Fraction(1))
        found |= {name: given.forward_ms * cost for name, cost in (ones | costs).items() if name in TIMES}
    if given.activation_mb is not None:
        ones = dict.fromkeys(SIZES, Fraction(1))
        found |= {name: given.activation_mb * cost for name, cost in (ones | costs).items() if name in SIZES}
    if given.bandwidth is None:
        return found
    if given.forward_ms is None or given.activation_mb is None or given.bandwidth <= 0:
        raise ScheduleError("--bandwidth takes GB/s above 0, and needs --forward-ms and --activation-mb")
    sent = {"activation_time": "activation_sizes", "gradient_time": "activation_sizes", "weight_time": "weight_sizes"}
    twice = [name for name in sent if name in costs]
    if twice:
        raise ScheduleError(f"--bandwidth says what --{twice[0].replace('_', '-')} says too; give one of them")
    return found | {name: found[size] / given.bandwidth for name, size in sent.items()}


def units(given: argparse.Namespace) -> Units:
    return Units(JOBS.time if given.forward_ms is None else "ms", JOBS.memory if given.activation_mb is None else "MB")


def whole(number: Fraction | None) -> Fraction | int | None:
    return int(number) if number is not None and number.denominator == 1 else number


def asked(given: argparse.Namespace) -> Recipe | Schedule | Build:
    """The one schedule that was asked for: `--file`, or a name with its parameters."""
    if given.file and not given.words:
        return loaded(given.file)
    if given.file or len(given.words) != 1:
        raise ScheduleError(f"name one schedule of {', '.join(ZOO)}, or --file FILE:NAME; --help tells more")
    parameters = {name: getattr(given, name) for name in PARAMETERS if getattr(given, name) is not None}
    return made_by(given.words[0], **parameters) if parameters else named(given.words[0])


def summary(timeline: Timeline) -> str:
    units = timeline.units
    head = (
        f"makespan {timeline.makespan} {units.time}, bubble {timeline.bubble:.1%} of the workers' time; of each worker:"
    )
    lines = (
        f"  {name.replace('_', ' '):<20} {for_all(getattr(timeline, name))} {units.memory if of == 'memory' else of}"
        for name, of in METRICS.items()
    )
    return "\n".join([head, *lines])


def for_all(values: Sequence[Any]) -> str:
    return str(values[0]) if len(set(values)) == 1 else " ".join(map(str, values))


if __name__ == "__main__":
    main()
