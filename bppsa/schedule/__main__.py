"""Draw a schedule, compare some, or search for the best.

python -m bppsa.schedule lpp --G 2 --R 4 -S 8 -B 8
python -m bppsa.schedule --file my_schedule.py:name -S 8 -B 8
python -m bppsa.schedule compare gpipe "lpp(G=2)" my_schedule.py:name -S 8 -B 8
python -m bppsa.schedule search -S 8 -B 16 -W 8 --memory 12
python -m bppsa.schedule search gpipe my_schedule.py:name -S 8 -B 16 -W 8
python -m bppsa.schedule search -S 8 -B 16 -W 8 --forward-ms 12 --activation-mb 50 --bandwidth 10
python -m bppsa.schedule search -S 8 -B 16 -W 8 --activation-mb 900 --kept 0.1 --memory-gb 6 --recompute auto

Without units a time of 1 is a job's, and a size of 1 is what one micro-batch's activations of a stage take. Numbers
are such as 1, 2/3 or 0.5.
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
from bppsa.schedule.job_graph.spec import Build, Recipe, Schedule
from bppsa.schedule.names import PARAMETERS, ZOO, loaded, made_by, named, signature
from bppsa.schedule.recompute import FULL, Recompute
from bppsa.schedule.search import AUTO, search
from bppsa.schedule.simulator import simulate
from bppsa.schedule.timeline import Timeline
from bppsa.schedule.units import JOBS, Units
from bppsa.schedule.zoo.looped import OWNERS
from bppsa.schedule.zoo.time_chunks import MIDDLES

COSTS = {
    "forward": "time of one forward job (1)",
    "backward": "time of one backward job; where it is split, of the gradient of the input (1)",
    "weight": "time of one job for the gradient of the weights, where the backward is split (1)",
    "activation_time": "time to bring a stage's input from another worker (0)",
    "gradient_time": "time to bring the gradient of a stage's output from another worker (0)",
    "weight_time": "time to fetch a stage's weights from their owner (0)",
    "activation_sizes": "what one micro-batch's activations of a stage take (1)",
    "weight_sizes": "what the weights of a stage take (1)",
}
MEANINGS = {  # of the schedules' parameters
    "G": "number of groups of workers",
    "R": "number of workers of each group",
    "V": "number of stages of each worker",
    "waves": "number of waves of micro-batches",
    "K": "number of chunks of time",
    "owner": f"who owns a stage's weights, one of {', '.join(OWNERS)}",
    "middle": f"how summaries of chunks are scanned, one of {', '.join(MIDDLES)}",
}
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
        made.add_argument(f"--{name}", type=kind, help=f"{MEANINGS[name]} ({', '.join(having(name))})")
    for cost, help in COSTS.items():
        made.add_argument(option(cost), type=number, metavar="NUMBER", help=help)
    for name, (metavar, help) in MEASURES.items():
        made.add_argument(option(name), type=number, metavar=metavar, help=help)
    made.add_argument("--memory", type=number, help="search: what a worker can hold of activations and weights")
    made.add_argument("--memory-gb", type=number, metavar="GB", help="search: the same in GB; needs --activation-mb")
    made.add_argument(
        "--recompute",
        choices=(FULL, AUTO),
        help="full: run each forward again before its backward; auto (search): try both",
    )
    made.add_argument(
        "--kept", type=number, metavar="SHARE", help="with --recompute: of a stage's activations, what is held (0)"
    )
    made.add_argument("--svg", type=Path, metavar="FILE", help="write the diagram")
    made.add_argument("--trace", type=Path, metavar="FILE", help="write a trace for chrome://tracing or Perfetto")
    made.add_argument("--batches", action="store_true", help="name the micro-batch of each job")
    return made


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def number(text: str) -> Fraction:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text!r} is no number, such as 1, 2/3 or 0.5") from None


def having(parameter: str) -> list[str]:
    """The schedules that have it."""
    return [name for name, entry in ZOO.items() if parameter in signature(entry).parameters]


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
    tried = [None, again] if given.recompute == AUTO else again
    print(search(**numbers(given) | {"W": given.W or given.S, "recompute": tried}, **limits, schedules=among))


COMMANDS = {"compare": print_comparison, "search": print_search}
# What only some commands read.
READ: dict[Callable[[argparse.Namespace], None], set[str]] = {
    draw: {"file", "svg", "trace", "batches", *PARAMETERS},
    print_comparison: set(),
    print_search: {"memory", "memory_gb"},
}


def refuse_unused(given: argparse.Namespace, command: Callable[[argparse.Namespace], None]) -> None:
    others = sorted(set().union(*READ.values()) - READ[command])
    unused = [name for name in others if getattr(given, name) is not None and getattr(given, name) is not False]
    if unused:
        raise ScheduleError(
            f"{option(unused[0])} says nothing here; a schedule's parameters go with its name, as in 'lpp(G=2, R=4)'"
            if unused[0] in PARAMETERS
            else f"{option(unused[0])} says nothing here; --help tells what does"
        )
    if given.recompute == AUTO and command is not print_search:
        raise ScheduleError("--recompute auto is for search, which tries both; give --recompute full, or leave it out")


def numbers(given: argparse.Namespace) -> dict[str, Any]:
    """What `simulate` takes besides the schedule, of what was given."""
    costs = {cost: getattr(given, cost) for cost in COSTS if getattr(given, cost) is not None}
    found = {name: whole(cost) for name, cost in measured(given, costs).items()}
    return {"S": given.S, "B": given.B, "W": given.W, "units": units(given), "recompute": recomputed(given), **found}


def recomputed(given: argparse.Namespace) -> Recompute | None:
    """What is recomputed. Raises ScheduleError for a share of nothing, or what is none."""
    if given.recompute is None:
        if given.kept is not None:
            raise ScheduleError("--kept is what a stage holds that is recomputed; give --recompute too")
        return None
    share = given.kept or Fraction(0)
    if not 0 <= share <= 1:
        raise ScheduleError(f"--kept {share} is no share of a stage's activations, from 0 to 1")
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
        raise ScheduleError(f"--bandwidth says what {option(twice[0])} says too; give one of them")
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
