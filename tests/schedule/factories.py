"""Every entry of the zoo with numbers for which it exists, and slow ways to find what the simulator finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from bppsa.schedule import (
    Job,
    Recipe,
    Schedule,
    Timeline,
    blelloch,
    breadth_first,
    ddp,
    depth_first,
    fsdp,
    fslpp,
    gpipe,
    interleaved,
    lpp,
    naive,
    one_f_one_b,
    pipedream,
    simulate,
    v_schedule,
    wavelet_dp,
    wavelet_mp,
    zero_bubble,
)

PLAIN = (naive, gpipe, one_f_one_b, pipedream, zero_bubble, v_schedule, ddp, fsdp, wavelet_mp)
GROUPED = (lpp, fslpp, breadth_first, depth_first)

sizes = st.integers(1, 7)
durations = st.integers(1, 4)


@st.composite
def scattered(draw: st.DrawFn, S: int = 1) -> Recipe:
    """Any owner, worker, lane and order for each job, forward and backward apart; some micro-batches wait for the one
    before."""
    seed, workers, lanes = draw(st.integers(0, 999)), draw(sizes), draw(st.integers(1, 2))
    directions = draw(st.sampled_from([("F", "B"), ("F", "B", "W")]))
    policy = draw(st.sampled_from(["greedy", "pending"]))

    def any_of(count: int, *what: Any) -> int:
        return random.Random(repr((seed, what))).randrange(count)

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        return Schedule(
            w=lambda *job: (any_of(workers, "owner", *job), any_of(workers, "worker", *job)),
            n=lambda *job: any_of(5, "n", *job),
            pred=lambda s, b, d: [(s, b - 1, d)] if b and any_of(3, "pred", s, b, d) == 0 else (),
            lane=lambda *job: any_of(lanes, "lane", *job),
            policy=policy,
            directions=directions,
            W=workers,
        )

    return Recipe(f"scattered({seed}, {workers}, {lanes})", build)


@st.composite
def chains(draw: st.DrawFn, S: int = 1) -> Recipe:
    """A schedule that exists for every S, all of whose jobs are F, B and W along a chain."""
    grouped = st.builds(lambda entry, G, R: entry(G, R), st.sampled_from(GROUPED), sizes, st.none() | sizes)
    paper = st.builds(lambda G, R: fslpp(G, R, owner="paper"), sizes, sizes)
    plain = st.sampled_from([entry() for entry in PLAIN])
    return draw(st.one_of(plain, grouped, paper, st.builds(wavelet_dp, st.integers(1, 3)), scattered()))


@st.composite
def recipes(draw: st.DrawFn, S: int) -> Recipe:
    """A schedule that exists for S stages."""
    V = st.sampled_from([V for V in range(1, S + 1) if S % V == 0])
    cut = st.builds(blelloch, st.just(S), st.sampled_from(["chain", "blelloch", "doubling"]))
    return draw(st.one_of(chains(), st.builds(interleaved, V), cut))


@st.composite
def timelines(draw: st.DrawFn, of: Callable[[int], st.SearchStrategy[Recipe]] = recipes) -> Timeline:
    """Any schedule, any sizes, a cost for each stage."""
    S, B = draw(sizes), draw(sizes)
    per_stage = st.lists(durations, min_size=S, max_size=S)
    costs = {name: draw(per_stage) for name in ("forward", "backward", "weight")}
    return simulate(draw(of(S)), S=S, B=B, costs={"R": draw(durations), "U": draw(durations)}, **costs)


def chain_inputs(jobs: set[Job], job: Job) -> list[Job]:
    """What back-propagation along a chain needs first."""
    s, b, d = job
    sources: dict[str, list[Job]] = {"F": [(s - 1, b, "F")], "B": [(s + 1, b, "B"), (s, b, "F")], "W": [(s, b, "B")]}
    return [source for source in sources[d] if source in jobs][:1]


def lifetimes(timeline: Timeline) -> dict[tuple[int, int], tuple[int, Any, Any]]:
    """(s, b) -> worker, birth and death of its activations."""
    last = "W" if (0, 0, "W") in timeline.start else "B"
    return {
        (s, b): (timeline.worker[s, b, "F"], timeline.start[s, b, "F"], timeline.end[s, b, last])
        for s, b, d in timeline.start
        if d == "F"
    }


def alive(timeline: Timeline, worker: int, time: Any) -> int:
    """Activations on a worker just after a time."""
    return sum(at == worker and birth <= time < death for at, birth, death in lifetimes(timeline).values())


def recursion(timeline: Timeline) -> dict[Job, Any]:
    """The paper's recursion (section "Latency, network, and memory usage"), with t(succ(j*)) where it prints t(j*), and
    several predecessors: of the jobs whose predecessors are done, the one that can start soonest, n between equals."""
    graph = timeline.graph
    jobs = list(timeline.jobs)
    before: dict[Job, list[Job]] = {job: [] for job in jobs}
    for p, q in graph.edges():
        before[jobs[q]].append(jobs[p])
    number = {job: i for i, job in enumerate(jobs)}
    end: dict[Job, Any] = {}
    busy_until = dict.fromkeys(graph.line, 0)
    while len(end) < len(jobs):
        frontier = [job for job in jobs if job not in end and all(p in end for p in before[job])]

        def soonest(job: Job) -> tuple[Any, int]:
            ready = max((end[p] for p in before[job]), default=0)
            return max(ready, busy_until[graph.line[number[job]]]), graph.rank[number[job]]

        chosen = min(frontier, key=soonest)
        end[chosen] = soonest(chosen)[0] + graph.duration[number[chosen]]
        busy_until[graph.line[number[chosen]]] = end[chosen]
    return end
