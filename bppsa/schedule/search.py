"""Which schedule of the zoo fits a machine best, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from numbers import Real
from typing import Any

from bppsa.errors import ScheduleError
from bppsa.schedule import zoo
from bppsa.schedule.compare import ComparisonRow, as_recipe, reasons, row_or_reason, table, with_recompute
from bppsa.schedule.job_graph.spec import Build, Recipe, Schedule, check_counts
from bppsa.schedule.recompute import Recompute, recompute_of
from bppsa.schedule.simulator import Cost, Number
from bppsa.schedule.timeline import Timeline
from bppsa.schedule.units import BYTES, JOBS, Units

NOT_TRIED = {
    "breadth_first": "it is lpp",
    "pipedream": "it does not compute SGD's gradients",
    "blelloch": "it is for the steps of a recurrence",
    "wavelet_dp": "its gain is what two jobs on one device lose to each other, which only a measurement can tell",
}
AUTO = "auto"
MOST_TOLD = 1000  # as the denominator of a fraction in a text
TIMES = {"activation_time", "gradient_time", "weight_time"}
FREE = (
    "communication counted as free: what workers send each other takes no time here; give activation_time, "
    "gradient_time and weight_time (in a terminal: --forward-ms, --activation-mb and --bandwidth) to count it"
)


def candidates(S: int, W: int) -> Iterator[Recipe]:
    """The zoo with all parameters that make sense for S stages on W workers, less NOT_TRIED."""
    yield from (zoo.naive(), zoo.gpipe(), zoo.one_f_one_b(), zoo.zero_bubble(), zoo.v_schedule())
    yield from (zoo.ddp(), zoo.fsdp(), zoo.wavelet_mp())
    if S > W and S % W == 0:
        yield zoo.interleaved(S // W)
    for G in (G for G in range(1, W + 1) if W % G == 0):
        yield from (zoo.lpp(G), zoo.fslpp(G), zoo.depth_first(G))


@dataclass(frozen=True)
class Candidate:
    """A schedule that was tried. row, timeline: None where it cannot run. lost: why it is not the best; "" for the
    best. recompute: what it recomputes, None where that is nothing."""

    recipe: Recipe
    row: ComparisonRow | None
    lost: str
    recompute: Recompute | None = None
    timeline: Timeline | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Return what it is called in tables."""
        return with_recompute(self.recipe.name, self.recompute)


@dataclass(frozen=True)
class Search:
    """ranked: those that fit, best first; then those that do not. not_tried: of the zoo, and why."""

    ranked: tuple[Candidate, ...]
    not_tried: Mapping[str, str]
    units: Units = JOBS
    free: bool = False  # whether what is sent between workers takes no time

    @property
    def best(self) -> Recipe:
        """Return the schedule that was ranked first."""
        return self.ranked[0].recipe

    def __str__(self) -> str:
        ran = [candidate.row for candidate in self.ranked if candidate.row]
        why = [f"{candidate.name}: {candidate.lost or 'the best'}" for candidate in self.ranked]
        left = [f"{name}: not tried, {reason}" for name, reason in self.not_tried.items()]
        return "\n".join([*([FREE] if self.free else []), table(ran, self.units), "", *why, *left])


def search(
    S: int,
    B: int,
    W: int,
    *,
    memory: Number | None = None,
    memory_gb: Number | None = None,
    recompute: Recompute | bool | str | Sequence[Recompute | bool | str | None] | None = None,
    schedules: Iterable[Schedule | Recipe | Build] | None = None,
    backward: Cost = 1,
    weight: Cost = 1,
    units: Units = JOBS,
    **costs: Any,
) -> Search:
    """Return the best schedule of the zoo for W workers that hold `memory` each, and why the others lost.

    Schedules are ranked by makespan, then memory, then what the busiest worker receives, then name. Every schedule does
    the same work: a backward that is not split takes backward + weight. Other keywords are those of `simulate`. Without
    activation_time, gradient_time or weight_time communication counts as free, and the result says so.

    Args:
        memory: what a worker may hold of activations and weights, in the units of `activation_sizes` and
            `weight_sizes`: the activations' peak, the weights that it owns and the greatest stage that it fetches.
        memory_gb: the same in 10^9 bytes, where `units` count bytes, such as `Units(memory="MB")`.
        recompute: as in `simulate`; of a list each is tried with each schedule, so [None, Recompute(kept=0.1)] asks
            whether to recompute at all. "auto" is [None, True].
        schedules: what to choose from; by default the zoo, with all parameters that make sense.

    Raises:
        ScheduleError: nothing fits; the text says how much memory would do (a ValueError).
    """
    check_counts(S=S, B=B, W=W)
    if not isinstance(memory, Real | None):
        raise ScheduleError(f"memory={memory!r} is no number; it counts in units of activation_sizes and weight_sizes")
    if memory is not None and memory_gb is not None:
        raise ScheduleError("memory= and memory_gb= say the same; give one of them")
    limit = memory if memory_gb is None else units.of_gigabytes(memory_gb)
    variants = variants_of(recompute)
    recipes = candidates(S, W) if schedules is None else map(as_recipe, schedules)
    numbers = {"S": S, "B": B, "W": W, "backward": backward, "weight": weight, "units": units, **costs}
    fit: list[tuple[Any, Candidate]] = []
    lost: list[Candidate] = []
    for recipe, again in product(recipes, variants):
        found = row_or_reason(recipe, split=True, recompute=again, **numbers)
        if isinstance(found, str):
            lost.append(Candidate(recipe, None, found, again))
        elif limit is not None and found.row.memory > limit:
            why = f"holds {told(found.row.memory)} of memory {told(limit)}"
            lost.append(Candidate(recipe, found.row, why, again, found.timeline))
        else:
            fit.append((key(found.row), Candidate(recipe, found.row, "", again, found.timeline)))
    if not fit:
        raise ScheduleError(nothing_fits(S, B, W, limit, lost, units))
    fit.sort(key=lambda pair: pair[0])
    (least, best), *others = fit
    ranked = [best, *(replace(other, lost=behind(least, of)) for of, other in others)]
    lost.sort(key=lambda candidate: (candidate.row is None, candidate.row and candidate.row.memory, candidate.name))
    free = not TIMES & costs.keys()
    return Search((*ranked, *lost), NOT_TRIED if schedules is None else {}, units, free)


def variants_of(recompute: Any) -> list[Recompute | None]:
    """What each schedule is tried with. Raises ScheduleError where that is nothing, or none that is known."""
    if recompute == AUTO:
        recompute = [None, True]
    several = isinstance(recompute, Iterable) and not isinstance(recompute, str)
    found = [recompute_of(one) for one in (recompute if several else [recompute])]
    if not found:
        raise ScheduleError('recompute=[] tries nothing; leave it out, or give some, such as [None, "full"]')
    return found


def told(number: Number) -> str:
    """A size, as short as it can be read."""
    if isinstance(number, int):
        return str(number)
    return str(number) if isinstance(number, Fraction) and number.denominator < MOST_TOLD else f"{float(number):.6g}"


def key(row: ComparisonRow) -> tuple[Any, Any, int, str]:
    return row.makespan, row.memory, row.receives, row.schedule


def behind(best: tuple[Any, ...], other: tuple[Any, ...]) -> str:
    """The first thing in which it does not equal the best."""
    makespan, memory, receives, name = best
    if other[0] != makespan:
        return f"makespan {other[0]} against {makespan}"
    if other[1] != memory:
        return f"the same makespan, but memory {other[1]} against {memory}"
    if other[2] != receives:
        return f"the same makespan and memory, but a worker receives {other[2]} times against {receives}"
    return f"equal to {name}"


def nothing_fits(S: int, B: int, W: int, memory: Number | None, lost: list[Candidate], units: Units) -> str:
    rows = [candidate.row for candidate in lost if candidate.row]
    if not rows:
        return f"no schedule runs S={S} stages on W={W} workers: {reasons([(c.name, c.lost) for c in lost])}"
    least = min(rows, key=lambda row: (row.memory, row.makespan, row.schedule))
    unit = f" {units.memory}" if units.memory in BYTES else ""
    mends = "use more workers, or cut the net into more stages"
    if all(candidate.recompute is None for candidate in lost):
        mends = f"{mends}, or recompute activations (recompute=True)"
    return (
        f"no schedule of S={S} stages, B={B} micro-batches and W={W} workers fits in memory {told(memory or 0)}{unit}: "
        f"{least.schedule} needs least, {told(least.memory)}{unit}; {mends}"
    )
