"""The schedules of the literature, each as its w(s, b, d), its order n(s, b, d) and its extra edges pred(s, b, d).

Every entry returns a `Recipe`; `simulate`, `compare`, `search` and `bppsa.compile` take it as it is, and
`.build(S, B, W)` gives the bound `Schedule`. Where W is left out it is what the schedule needs. B < S is allowed.
"U" is the paper Unifying Parallelization Schemes to Train Deep Nets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bppsa.errors import ScheduleError
from bppsa.schedule.spec import SPLIT, Job, Recipe, Schedule


def forward_first(s: int, b: int, d: str) -> Any:
    """Breadth first: all forwards before any backward, and a stage's micro-batches one after the other. The one order
    in which looped pipelines keep their latency for every B and G."""
    return (d != "F", s if d == "F" else -s, b)


def backward_first(s: int, b: int, d: str) -> Any:
    return (d == "F", b, s)


def naive() -> Recipe:
    """One stage a worker, one micro-batch at a time: model parallelism without a pipeline. Makespan B S (f + b)."""

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        def one_at_a_time(s: int, b: int, d: str) -> Iterable[Job]:
            return [(0, b - 1, "B")] if (s, d) == (0, "F") and b > 0 else ()

        return Schedule(lambda s, b, d: (s, s), forward_first, one_at_a_time)

    return Recipe("naive", build)


def ddp() -> Recipe:
    """Data parallel (U): micro-batch b on worker b mod W, which owns all weights. W = B by default."""

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        workers = W or B
        return Schedule(lambda s, b, d: (b % workers, b % workers), backward_first, W=workers)

    return Recipe("ddp", build)


def fsdp() -> Recipe:
    """Fully sharded data parallel (U): as ddp, but worker s mod W owns the weights of stage s."""

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        workers = W or B
        return Schedule(lambda s, b, d: (s % workers, b % workers), backward_first, W=workers)

    return Recipe("fsdp", build)


def gpipe() -> Recipe:
    """Pipeline (U; Huang et al. 2019): stage s on worker s, all forwards first."""
    return Recipe("gpipe", lambda S, B, W=None: Schedule(lambda s, b, d: (s, s), forward_first))


def one_f_one_b() -> Recipe:
    """Pipeline in which a backward goes first and stage s has at most S - s micro-batches in flight (PipeDream-flush):
    GPipe's makespan with activations of min(S - s, B) micro-batches."""

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        return Schedule(lambda s, b, d: (s, s), backward_first, in_flight(S))

    return Recipe("one_f_one_b", build)


def in_flight(S: int) -> Any:
    """At most S - s micro-batches of stage s between the start of their forward and the end of their backward."""

    def pred(s: int, b: int, d: str) -> Iterable[Job]:
        return [(s, b - (S - s), "B")] if d == "F" and b >= S - s else ()

    return pred


def pipedream() -> Recipe:
    """1F1B without a flush (Narayanan et al. 2019): every backward updates its stage at once, so stage s keeps up to
    S - s versions of its weights. Not SGD: for the simulator only."""

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        return Schedule(lambda s, b, d: (s, s), backward_first, in_flight(S), flush=False)

    return Recipe("pipedream", build)


def zero_bubble() -> Recipe:
    """ZB-H1 (Qi et al. 2023): the weight gradient of b follows the backward of b + s on stage s, and fills the
    bubble. 3B + S - 1 steps where F, B and W take one each and B >= S; activations of S micro-batches."""

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        def n(s: int, b: int, d: str) -> Any:
            return {"B": (b, 0), "W": (b + s, 1), "F": (b - (S - s), 2)}[d]

        return Schedule(lambda s, b, d: (s, s), n, policy="strict", directions=SPLIT)

    return Recipe("zero_bubble", build)


def lpp(G: int, R: int | None = None) -> Recipe:
    """Looped pipelines (U): G groups of R workers. Micro-batch b belongs to group b mod G, stage s to the group's
    worker s mod R. G=1, R=S is gpipe, G=B, R=1 is ddp.

    R=None: W // G where W is known (ScheduleError where W = G*R has no solution), otherwise max(1, S // G).
    """

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        h, workers = groups(S, W, G, R)
        return Schedule(lambda s, b, d: (h(s, b), h(s, b)), forward_first, W=workers)

    return Recipe(call("lpp", G=G, R=R), build)


def fslpp(G: int, R: int | None = None, owner: str = "spread") -> Recipe:
    """Fully sharded looped pipelines (U): as lpp, but each stage's weights have one owner in all groups.

    owner="paper": h(s, s), which uses lcm(G, R) workers only. owner="spread": h(s, s // R + s mod R), the same for
    s < R, which gives every worker at most ceil(S / W) stages.
    """
    owners = {"spread": lambda s, R: s // R + s % R, "paper": lambda s, R: s}
    if owner not in owners:
        raise ScheduleError(f"owner={owner!r} is none of {', '.join(owners)}")

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        h, workers = groups(S, W, G, R)
        column = owners[owner]
        return Schedule(lambda s, b, d: (h(s, column(s, workers // G)), h(s, b)), forward_first, W=workers)

    return Recipe(call("fslpp", G=G, R=R, owner=None if owner == "spread" else owner), build)


def breadth_first(G: int = 1, R: int | None = None) -> Recipe:
    """lpp's placement; a stage's micro-batches go before the next stage's (Lamy-Poirier 2022). It is lpp's order."""
    return Recipe(call("breadth_first", G=G, R=R), lpp(G, R).build)


def depth_first(G: int = 1, R: int | None = None) -> Recipe:
    """lpp's placement; a worker takes the job that has been ready for longest (U)."""

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        h, workers = groups(S, W, G, R)
        return Schedule(lambda s, b, d: (h(s, b), h(s, b)), backward_first, policy="pending", W=workers)

    return Recipe(call("depth_first", G=G, R=R), build)


def groups(S: int, W: int | None, G: int, R: int | None) -> tuple[Any, int]:
    """h(s, b) = R (b mod G) + (s mod R), the worker of (s, b) where G groups have R workers each; and W = G*R."""
    if R is None:
        R = max(1, S // G) if W is None else W // G
    if G < 1 or R < 1 or W not in (None, G * R):
        raise ScheduleError(f"W={W} workers are not G={G} groups of R={R}: W = G*R has to hold")

    def h(s: int, b: int) -> int:
        return R * (b % G) + s % R

    return h, G * R


def call(name: str, **parameters: int | str | None) -> str:
    """ "lpp(G=4)": what is None was left out."""
    return f"{name}({', '.join(f'{key}={value}' for key, value in parameters.items() if value is not None)})"
