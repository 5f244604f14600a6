"""What a schedule is: jobs (s, b, d) and the functions w, n and pred over them (Unifying Parallelization Schemes).

A training step of S stages and B micro-batches has a job for each stage s, micro-batch b and direction d. "F" is
the forward, "B" the backward; where the backward is split (zero bubble), "B" is the gradient of the input and "W"
that of the weights. Who runs a job and who owns the weights it needs is `w`, which job a worker prefers is `n`, and
what a job waits for beyond its inputs is `pred`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from inspect import signature
from numbers import Integral
from typing import Any, Protocol

from bppsa.errors import ScheduleError

F, B, W = "F", "B", "W"
DIRECTIONS = (F, B)
SPLIT = (F, B, W)

Job = tuple[int, int, str]  # (s, b, d)
JobPlace = tuple[int, int]  # (owner of the stage's weights, worker that runs the job)
Jobs = Callable[[int, int, str], Iterable[Job] | None]  # None: no jobs

# greedy: a worker that is free starts the ready job with the smallest n. pending: the one that has been ready for
# longest, n between equals. strict: a worker runs its jobs in the order of n, and waits for each.
POLICIES = ("greedy", "pending", "strict")


@dataclass(frozen=True)
class Schedule:
    """A schedule for a given number of stages, micro-batches and workers.

    Attributes:
        w: w(s, b, d) -> (owner, worker), both in range(W).
        n: n(s, b, d) -> anything that sorts; smaller goes first, equals in the order of `jobs` (d, then b, then s).
        pred: pred(s, b, d) -> jobs that have to end before this one starts; no data goes along these edges.
        jobs: in the place of the grid range(S) x range(B) x directions.
        policy: "greedy": a worker that is free starts the ready job with the smallest n; "pending": the one that has
            been ready for longest; "strict": a worker runs its jobs in the order of n, and waits for each.
        directions: ("F", "B"), or ("F", "B", "W") where the backward is split; others need `inputs`.
        inputs: inputs(s, b, d) -> jobs whose results this one reads. By default those of a chain: (s-1, b, F) for F,
            (s+1, b, B) for B, or (s, b, F) in the last stage, and (s, b, B) for W.
        lane: lane(s, b, d) -> which of the worker's lanes runs the job. A worker runs one job a lane at a time; its
            lanes share its memory. By default there is one lane.
        W: the number of workers; by default as many as w names.
        flush: False where every backward updates its stage at once, as PipeDream does: a stage's weights then have
            versions, and a micro-batch's backward reads the version that its forward read.
        note: what a reader of its diagram should know.

    Raises:
        ScheduleError: the policy or the directions are none (a ValueError).
    """

    w: Callable[[int, int, str], JobPlace]
    n: Callable[[int, int, str], Any] | None = None
    pred: Jobs | None = None
    jobs: Sequence[Job] | None = None
    policy: str = "greedy"
    directions: tuple[str, ...] = DIRECTIONS
    inputs: Jobs | None = None
    lane: Callable[[int, int, str], int] | None = None
    W: int | None = None
    flush: bool = True
    note: str = ""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ScheduleError(f"policy {self.policy!r} is none of {', '.join(POLICIES)}")
        if not self.directions or len(set(self.directions)) < len(self.directions):
            raise ScheduleError(f"directions {self.directions} have to be one or more, each once")
        if self.jobs is None and self.inputs is None:
            self._directions_are_known()

    def _directions_are_known(self) -> None:
        unknown = [d for d in self.directions if d not in SPLIT]
        if unknown:
            raise ScheduleError(
                f"directions {self.directions}: what a job {unknown[0]!r} reads is not known as that of F, B "
                f"and W is; give `inputs`"
            )
        if W in self.directions and B not in self.directions:
            raise ScheduleError(f"directions {self.directions}: W is the rest of a backward, and needs B")


class Build(Protocol):
    def __call__(self, S: int, B: int, W: int | None = None) -> Schedule: ...


@dataclass(frozen=True)
class Recipe:
    """An entry of the zoo: a name, such as "lpp(G=4)", and how to build the schedule for S, B and W.

    Attributes:
        name: what it is called in tables.
        build: build(S, B, W=None) -> Schedule; W=None is the number of workers that the schedule needs. Raises
            ScheduleError where the schedule does not exist for these numbers.
        chunks: into how many the time axis of a recurrent model is cut; its stages are then chunks of its recurrent
            layers.
        square: whether what it stands for needs S = B = W; a model is trained by it with these numbers only.
    """

    name: str
    build: Build
    chunks: int | None = None
    square: bool = False

    def __repr__(self) -> str:
        return self.name


def check_counts(**counts: int | None) -> None:
    """Raises ScheduleError where S, B or W counts nothing."""
    for name, value in counts.items():
        if value is not None and not (isinstance(value, Integral) and value >= 1):
            raise ScheduleError(f"{name}={value!r}: a schedule has at least one stage, one micro-batch and one worker")


def bound_to(schedule: Schedule | Recipe | Build, S: int, B: int, W: int | None) -> Schedule:
    """The schedule itself, or what a recipe, or a function of (S, B, W), builds for these numbers.

    Raises ScheduleError where S, B or W counts nothing, where there is no schedule for them, or it is none at all.
    """
    check_counts(S=S, B=B, W=W)
    if isinstance(schedule, Schedule):
        return schedule
    build = schedule.build if isinstance(schedule, Recipe) else schedule
    if not callable(build):
        raise ScheduleError(f"{build!r} is no schedule; give one, such as gpipe(), or a function of (S, B, W)")
    name = getattr(build, "__name__", repr(build))
    try:
        signature(build).bind(S, B, W)
    except TypeError as error:
        raise ScheduleError(
            f"{name} is no function of (S, B, W): {error}; an entry of the zoo is called first, as gpipe() is"
        ) from None
    found = build(S, B, W)
    if not isinstance(found, Schedule):
        raise ScheduleError(f"{name} gives {found!r} for S={S}, B={B}, W={W}, and not a Schedule")
    return found
