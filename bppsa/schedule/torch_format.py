"""Schedules from and to the CSV of torch.distributed.pipelining: a row a rank, a cell a job such as 0F2 or 1B0.

Nothing here imports torch: its schedule objects are read by their attributes.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from bppsa.errors import ScheduleError
from bppsa.schedule.job_graph.spec import DIRECTIONS, SPLIT, B, Build, F, Job, Recipe, Schedule, W
from bppsa.schedule.job_graph.spec import W as WEIGHT
from bppsa.schedule.simulator import simulate
from bppsa.schedule.timeline import Timeline

ACTION = re.compile(r"(\d+)(F|I|W|B)(\d+)")
# What torch adds to a schedule where it lowers it; the simulator finds these out itself.
ADDED = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|(SEND|RECV)_[FB]\d+)")
TORCH = {F: "F", B: "I", W: "W"}  # of a split backward; a whole one is "B"


class TorchSchedule(str):
    """CSV text in torch's "compute_only" format, for each of the `groups` of ranks that run it side by side.

    groups, ranks: the shape (dp, pp) of the device mesh. sharded: whether the weights of a stage are sharded over the
    groups (`fully_shard`) or replicated (`DistributedDataParallel`). Group g gets the micro-batches b with
    b % groups == g, in that order.
    """

    groups: int
    ranks: int
    sharded: bool

    def __new__(cls, text: str, groups: int, ranks: int, sharded: bool) -> TorchSchedule:
        made = super().__new__(cls, text)
        made.groups, made.ranks, made.sharded = groups, ranks, sharded
        return made


def from_torch(source: Any) -> Schedule:
    """Return the schedule of a CSV (its text, or a file's path) or of a schedule object of torch, in strict order.

    S, B and W are those of the source: `simulate` takes the same. A whole backward of a schedule that also has split
    ones becomes a B and the W right after it.

    Raises:
        ScheduleError: a cell is no action, two ranks run a job, or none does: on the last rank of torch 2.13's
            Schedule1F1B, `pipeline_order` counts from 1 (a ValueError).
    """
    place: dict[Job, int] = {}
    order: dict[Job, int] = {}
    lists = [list(jobs_of(cells)) for cells in rows_of(source)]
    split = any(d in ("I", "W") for row in lists for _, _, d in row)
    for rank, row in enumerate(lists):
        for at, action in enumerate(row):
            for job in meaning(action, split):
                if job in place:
                    raise ScheduleError(f"job {job} is on rank {place[job]} and on rank {rank}")
                place[job], order[job] = rank, 2 * at + (job[2] == W)
    complete(place)
    return Schedule(
        lambda s, b, d: (place[s, b, d], place[s, b, d]),
        lambda s, b, d: order[s, b, d],
        jobs=tuple(place),
        policy="strict",
        directions=SPLIT if split else DIRECTIONS,
        W=len(lists),
    )


def complete(place: Mapping[Job, int]) -> None:
    """Raises ScheduleError where a stage, a micro-batch or a direction that is there lacks a job."""
    if not place:
        raise ScheduleError("the torch schedule has no job")
    stages, batches, directions = (dict.fromkeys(of) for of in zip(*place, strict=True))
    grid = product(range(1 + max(stages)), range(1 + max(batches)), directions)
    missing = next((job for job in grid if job not in place), None)
    if missing is not None:
        raise ScheduleError(
            f"no rank of the torch schedule runs job {missing}, of S={1 + max(stages)} stages and "
            f"B={1 + max(batches)} micro-batches; where it is torch's Schedule1F1B, take one_f_one_b()"
        )


def rows_of(source: Any) -> list[Iterable[str]]:
    """The cells of each rank as text."""
    actions = getattr(source, "pipeline_order", None) or getattr(source, "pipeline_order_with_comms", None)
    if actions is not None:
        return [[str(action) for action in actions[rank] if action is not None] for rank in sorted(actions)]
    if isinstance(source, Path) or (isinstance(source, str) and "\n" not in source and Path(source).is_file()):
        source = Path(source).read_text(encoding="utf-8")
    elif isinstance(source, str) and source.endswith(".csv"):
        raise ScheduleError(f"there is no file {source!r}")
    if not isinstance(source, str):
        raise ScheduleError(f"{type(source).__name__} is no CSV and has no pipeline_order")
    return list(csv.reader(io.StringIO(source)))


def jobs_of(cells: Iterable[str]) -> Iterable[tuple[int, int, str]]:
    """(stage, micro-batch, torch's direction) of a rank, in order; those that it overlaps one after the other."""
    for cell in cells:
        overlapped = cell.strip().removesuffix("OVERLAP_F_B").strip("()")
        for name in filter(None, (part.strip() for part in overlapped.split(";"))):
            found = ACTION.fullmatch(name)
            if found:
                yield int(found[1]), int(found[3]), found[2]
            elif not ADDED.fullmatch(name):
                raise ScheduleError(f"{name!r} is no action of torch.distributed.pipelining")


def meaning(action: tuple[int, int, str], split: bool) -> list[Job]:
    s, b, d = action
    if d == "B" and split:
        return [(s, b, B), (s, b, W)]
    return [(s, b, {"I": B}.get(d, d))]


def to_torch(
    schedule: Schedule | Recipe | Build, *, S: int, B: int, W: int | None = None, **costs: Any
) -> TorchSchedule:
    """Return the schedule as torch runs it: one CSV for every group of ranks, over a mesh of groups and ranks.

    Torch keeps a stage on one rank of a group, so the groups have to run alike, each on its own micro-batches, and
    shards all stages' weights over the ranks that run them, or none. Greedy schedules are resolved by simulating them;
    `costs` are those of `simulate`.

    Raises:
        ScheduleError: torch cannot express the schedule, or would run it with wrong gradients: a split backward with
            replicated weights skips DistributedDataParallel's hooks there, so that gradients are silently not reduced
            (a ValueError).
    """
    timeline = simulate(schedule, S=S, B=B, W=W, **costs)
    refuse_what_torch_lacks(timeline)
    groups = groups_of(timeline.jobs_of, B)
    program = one_program(timeline.jobs_of, groups)
    stages_on_one_rank(program)
    split, sharded = any(d == WEIGHT for row in program for _, _, d in row), is_sharded(timeline)
    if split and len(groups) > 1 and not sharded:
        raise ScheduleError(
            "torch does not reduce the gradients of a split backward between replicas (pytorch issue 144530); "
            "use a schedule that does not split it, or one that shards the weights"
        )
    lines = (",".join(f"{s}{TORCH[d] if split else d}{b}" for s, b, d in row) for row in program)
    return TorchSchedule("\n".join(lines) + "\n", len(groups), len(program), sharded)


def refuse_what_torch_lacks(timeline: Timeline) -> None:
    unknown = [d for d in timeline.jobs.directions if d not in SPLIT]
    if unknown:
        raise ScheduleError(f"torch knows no jobs of direction {unknown[0]}")
    if timeline.lanes > 1:
        raise ScheduleError("torch knows no lanes")
    if not timeline.graph.schedule.flush:
        raise ScheduleError("torch ends every step in a flush, and the schedule has none; with one it is one_f_one_b()")


def groups_of(jobs: list[list[Job]], B: int) -> list[list[int]]:
    """The workers of each group; group g has the micro-batches b with b mod groups = g."""
    batches = [frozenset(b for _, b, _ in row) for row in jobs]
    groups = sorted(set(filter(None, batches)), key=min)
    if groups != [frozenset(range(g, B, len(groups))) for g in range(len(groups))]:
        raise ScheduleError(
            f"torch runs groups of ranks that share no micro-batch, {len(groups)} of them found: group g has to take "
            f"the micro-batches b with b mod {len(groups)} = g, all of their stages"
        )
    return [[worker for worker, of in enumerate(batches) if of == group] for group in groups]


def one_program(jobs: list[list[Job]], groups: list[list[int]]) -> list[list[Job]]:
    """The list of each rank of a group, micro-batches counted within the group."""
    programs = [[[(s, b // len(groups), d) for s, b, d in jobs[worker]] for worker in group] for group in groups]
    for g, program in enumerate(programs):
        if program != programs[0]:
            raise ScheduleError(
                f"torch runs the same program in every group, but that of group {g} differs from group 0's"
            )
    return programs[0]


def stages_on_one_rank(program: list[list[Job]]) -> None:
    rank_of: dict[int, int] = {}
    for rank, row in enumerate(program):
        for s, _, _ in row:
            if rank_of.setdefault(s, rank) != rank:
                raise ScheduleError(
                    f"torch keeps a stage on one rank, but stage {s} is on ranks {rank_of[s]} and {rank}"
                )


def is_sharded(timeline: Timeline) -> bool:
    """Whether a stage has one owner among the workers that run it, and not each of these its own weights."""
    owners: dict[int, set[int]] = {}
    workers: dict[int, set[int]] = {}
    for job, worker in timeline.worker.items():
        owners.setdefault(job[0], set()).add(timeline.owner[job])
        workers.setdefault(job[0], set()).add(worker)
    if all(timeline.owner[job] == worker for job, worker in timeline.worker.items()):
        return False
    for s, of in owners.items():
        if len(of) > 1 or not of <= workers[s]:
            raise ScheduleError(
                f"torch shards the weights of each stage over the ranks that run it, or leaves each rank its own; "
                f"those of stage {s}, which runs on workers {sorted(workers[s])}, are owned by {sorted(of)}"
            )
    return True
