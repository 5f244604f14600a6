"""Schedules in which a stage has one worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bppsa.errors import ScheduleError
from bppsa.schedule.job_graph.spec import SPLIT, Job, JobPlace, Recipe, Schedule
from bppsa.schedule.zoo.shared import backward_first, call, forward_first, in_flight, stage_each


def naive() -> Recipe:
    """Model parallelism without a pipeline: one stage a worker, one micro-batch at a time. Makespan B S (f + b)."""

    def one_at_a_time(s: int, b: int, d: str) -> Sequence[Job]:
        return [(0, b - 1, "B")] if (s, d) == (0, "F") and b > 0 else ()

    return Recipe("naive", lambda S, B, W=None: Schedule(w=stage_each, n=forward_first, pred=one_at_a_time))


def gpipe() -> Recipe:
    """Pipeline (U; Huang et al. 2019): one stage a worker, all forwards first."""
    return Recipe("gpipe", lambda S, B, W=None: Schedule(w=stage_each, n=forward_first))


def one_f_one_b() -> Recipe:
    """GPipe's placement and makespan with less memory (PipeDream-flush): backwards go first, and stage s has at most
    S - s micro-batches in flight."""

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        return Schedule(w=stage_each, n=backward_first, pred=in_flight(lambda s: S - s))

    return Recipe("one_f_one_b", build)


def pipedream() -> Recipe:
    """1F1B without a flush (Narayanan et al. 2019): every backward updates its stage at once, so stage s keeps up to
    S - s versions of its weights. That is not SGD: for the simulator only."""
    build = one_f_one_b().build
    return Recipe("pipedream", lambda S, B, W=None: replace(build(S, B, W), flush=False))


def zero_bubble() -> Recipe:
    """ZB-H1 (Qi et al. 2023): on stage s the weight gradient of b follows the input gradient of b + s, which fills the
    bubble. 3B + S - 1 steps where F, B and W take one each and B >= S; activations of S micro-batches."""

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        def n(s: int, b: int, d: str) -> Any:
            return {"B": (b, 0), "W": (b + s, 1), "F": (b - (S - s), 2)}[d]

        return Schedule(w=stage_each, n=n, policy="strict", directions=SPLIT)

    return Recipe("zero_bubble", build)


def v_schedule() -> Recipe:
    """ZBV's placement (Qi et al. 2024): the stages go down the workers and up again, so worker r has stages r and
    S - 1 - r, the last stage is where the first is, and the turn needs no transfer. W = S / 2.

    Ours is an order of four kinds of jobs and a limit in flight, not their list. Where F, B and W take one each and S
    is even, it has their peak of S activations a worker, and their makespan of 6B + W - 1 steps for B = 2W, 3W, ...;
    between these it takes up to 6 % more.
    """

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        R = (S + 1) // 2

        def w(s: int, b: int, d: str) -> JobPlace:
            r = s if s < R else 2 * R - 1 - s
            return r, r

        def n(s: int, b: int, d: str) -> Any:
            kinds = [d == "F" and s >= R, d == "B", d == "F", d == "W"]
            return (kinds.index(True), b, s)

        limit = in_flight(lambda s: max(1, S - s - (s < R)), freed_by="W")
        return Schedule(w=w, n=n, pred=limit, directions=SPLIT)

    return Recipe("v_schedule", build)


def interleaved(V: int = 2) -> Recipe:
    """Interleaved 1F1B (Narayanan et al. 2021): V stages a worker, stage s on worker s mod W, and Megatron's list of
    each worker r: micro-batches in rounds of W, 2 (W - r - 1) + (V - 1) W forwards to warm up, then a forward and a
    backward in turns. A last round of fewer than W is the list with the others left out. W = S / V; ScheduleError
    where S is not V*W."""

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        R = W or max(1, S // V)
        if S != V * R:
            raise ScheduleError(f"S={S} stages are not V={V} on each of W={R} workers: S = V*W has to hold")
        total = V * R * -(-B // R)

        def n(s: int, b: int, d: str) -> int:
            loop = s // R if d == "F" else V - 1 - s // R
            i = b // R * R * V + loop * R + b % R  # among the worker's jobs of direction d
            warm_up = min(2 * (R - s % R - 1) + (V - 1) * R, total)
            return max(i, 2 * i - warm_up) if d == "F" else min(warm_up + 2 * i + 1, total + i)

        return Schedule(w=lambda s, b, d: (s % R, s % R), n=n, policy="strict", W=R)

    return Recipe(call("interleaved", V=V), build)
