"""Looped pipelines: G groups of R workers, and the stages go round in each group (U)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bppsa.errors import ScheduleError
from bppsa.schedule.job_graph.spec import JobPlace, Recipe, Schedule
from bppsa.schedule.zoo.shared import backward_first, call, forward_first

OWNERS = ("spread", "paper")


def lpp(G: int, R: int | None = None) -> Recipe:
    """Looped pipelines (U): G groups of R workers. Micro-batch b belongs to group b mod G, stage s to the group's
    worker s mod R. G=1, R=S is gpipe, G=B, R=1 is ddp.

    R=None: W // G where W is known (ScheduleError where W = G*R has no solution), otherwise max(1, S // G).
    """

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        h, workers = groups(S, W, G, R)
        return Schedule(
            w=lambda s, b, d: (h(s, b), h(s, b)), n=forward_first, W=workers, note=uneven(S, W, G, R, workers)
        )

    return Recipe(call("lpp", G=G, R=R), build)


def fslpp(G: int, R: int | None = None, owner: str = "spread") -> Recipe:
    """Fully sharded looped pipelines (U): as lpp, but each stage's weights have one owner in all groups.

    owner="paper": h(s, s), which uses lcm(G, R) workers only. owner="spread": h(s, s // R + s mod R), the same for
    s < R, which gives every worker at most ceil(S / W) stages.
    """
    if owner not in OWNERS:
        raise ScheduleError(f"owner={owner!r} is none of {', '.join(OWNERS)}")

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        h, workers = groups(S, W, G, R)
        in_group = workers // G

        def w(s: int, b: int, d: str) -> JobPlace:
            return h(s, s if owner == "paper" else s // in_group + s % in_group), h(s, b)

        return replace(lpp(G, R).build(S, B, W), w=w)

    return Recipe(call("fslpp", {} if owner == "spread" else {"owner": owner}, G=G, R=R), build)


def breadth_first(G: int = 1, R: int | None = None) -> Recipe:
    """lpp's placement; a stage's micro-batches go before the next stage's (Lamy-Poirier 2022). It is lpp's order."""
    return Recipe(call("breadth_first", G=G, R=R), lpp(G, R).build)


def depth_first(G: int = 1, R: int | None = None) -> Recipe:
    """lpp's placement; a worker takes the job that has been ready for longest (U)."""
    build = lpp(G, R).build
    return Recipe(
        call("depth_first", G=G, R=R),
        lambda S, B, W=None: replace(build(S, B, W), n=backward_first, policy="pending"),
    )


def groups(S: int, W: int | None, G: int, R: int | None) -> tuple[Callable[[int, int], int], int]:
    """h(s, b) = R (b mod G) + (s mod R), the worker of (s, b) where G groups have R workers each; and W = G*R."""
    if R is None:
        R = max(1, S // G) if W is None else W // G
    if R < 1 or W not in (None, G * R):
        raise ScheduleError(f"W={W} workers are not G={G} groups of R={R}: W = G*R has to hold")

    def h(s: int, b: int) -> int:
        return R * (b % G) + s % R

    return h, G * R


def uneven(S: int, W: int | None, G: int, R: int | None, workers: int) -> str:
    """Says so where nobody has named the number of workers and S stages are no multiple of G groups."""
    if R is not None or W is not None or S % G == 0:
        return ""
    return f"G={G} does not divide S={S}: a group has max(1, S // G) = {workers // G} workers; give R, or W = G*R"
