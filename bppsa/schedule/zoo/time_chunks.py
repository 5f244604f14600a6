"""The backward of a recurrence as a scan over chunks of time, one a worker (BPPSA, distributed).

Stage k is chunk k of the time axis. F runs it forward, R reduces it to its summary, the pair (J^T, b) of all its steps,
and B sweeps it backward from the cotangent that enters at its end. In between an exclusive scan over the summaries,
from the last chunk to the first, finds these cotangents. R needs no cotangent from other chunks: it fills the bubble of
the forward.

Where recurrent layers stand on each other, all of this is done layer by layer, from the last to the first in the
backward: stage l * K + k is chunk k of layer l. Its F reads the layer below, its R and B what B of the layer above
gives for the same chunk, on the same worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bppsa.errors import ScheduleError
from bppsa.schedule.job_graph.spec import F, Job, Recipe, Schedule
from bppsa.schedule.zoo.shared import call

Step = tuple[int, str]  # (place, direction); place p is chunk K - 1 - p: the scan begins at the end of time


@dataclass(frozen=True)
class SummaryScan:
    """An exclusive scan over the summaries ("R") of places 0 to K - 2.

    inputs: of each step, the steps whose results it combines, the earlier place first. enters[p]: the step whose result
    is the cotangent that B of place p begins with; into place 0 comes the loss's. first: directions in the order in
    which a worker prefers them, behind all others.
    """

    inputs: dict[Step, list[Step]]
    enters: dict[int, Step]
    first: str = "FRB"


def chain(K: int) -> SummaryScan:
    """E(p), the cotangent behind place p: a product of a matrix and a vector, K - 1 messages deep."""
    inputs = {(p, "E"): [*([(p - 1, "E")] if p else []), (p, "R")] for p in range(K - 1)}
    return SummaryScan(inputs, {p: (p - 1, "E") for p in range(1, K)})


def linear(K: int) -> SummaryScan:
    """No summaries: R(p) is back-propagation through place p, from the cotangent that R(p - 1) hands on, and leaves to
    its B what no other place waits for. K - 1 of them deep, and no work besides back-propagation's; micro-batches and
    layers fill the pipeline."""
    inputs = {(p, "R"): [(p - 1, "R")] for p in range(1, K - 1)}
    return SummaryScan(inputs, {K - 1: (K - 2, "R")} if K > 1 else {}, first="FB")


def tree(K: int) -> SummaryScan:
    """Blelloch's tree. U<l>(p): the product over the 2^l places that end in p. D(p): the cotangent that enters p, from
    the one that enters its parent's block and the product over the block between. About 2 log2 K deep."""

    def up(level: int, p: int) -> Step:
        return p, f"U{level}" if level else "R"

    inputs = {}
    for level in range(1, K.bit_length()):
        half = 2 ** (level - 1)
        for p in range(2 * half - 1, K - 1, 2 * half):
            inputs[up(level, p)] = [up(level - 1, p - half), up(level - 1, p)]
    for p in range(1, K):
        parent, level = p & (p - 1), (p & -p).bit_length() - 1
        inputs[p, "D"] = [*([(parent, "D")] if parent else []), up(level, p - 1)]
    return SummaryScan(inputs, {p: (p, "D") for p in range(1, K)})


def doubling(K: int) -> SummaryScan:
    """Hillis and Steele's. H<l>(p): the product over the 2^l places that end in p, or all up to p where these are
    fewer. log2 K deep, K log2 K products, on workers that would be idle."""

    def total(level: int, p: int) -> Step:
        level = min(level, p.bit_length())
        return p, f"H{level}" if level else "R"

    inputs = {}
    for p in range(K - 1):
        for level in range(1, p.bit_length() + 1):
            inputs[total(level, p)] = [total(level - 1, p - 2 ** (level - 1)), total(level - 1, p)]
    return SummaryScan(inputs, {p: total(K, p - 1) for p in range(1, K)})


MIDDLES: dict[str, Callable[[int], SummaryScan]] = {
    "chain": chain,
    "linear": linear,
    "blelloch": tree,
    "doubling": doubling,
}


def blelloch(K: int, middle: str = "chain") -> Recipe:
    """The time axis of a recurrence cut into K chunks, one a worker, or K / W of them where W is given.

    middle: "chain", "blelloch" or "doubling", how the summaries are scanned; or "linear": there are none, and each
    chunk hands its cotangent to the one before it, as back-propagation does. A summary of a dense recurrence takes
    up to its width times the work of a sweep, so on CPUs with K > 2 "linear" is the one to take.
    Micro-batches pipeline through the forward as in gpipe. Every worker owns the weights, which all chunks share
    (metrics count a copy a chunk). S has to be K, a stage a chunk, or L * K for L recurrent layers, stage l * K + k
    being chunk k of layer l; or 1: the layer that is cut. Directions: F, R, E or U<l> and D or H<l>, and B;
    `simulate(costs={"R": ..., "U": ...})` prices them.
    """
    if middle not in MIDDLES:
        raise ScheduleError(f"middle={middle!r} is none of {', '.join(MIDDLES)}")

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        if S != 1 and S % K:
            raise ScheduleError(
                f"S={S}: a recurrence cut into K={K} chunks has S={K} stages, one a chunk, and L layers have L * {K}"
            )
        workers, scan, layers = W or K, MIDDLES[middle](K), max(S // K, 1)

        def job(step: Step, layer: int, b: int) -> Job:
            return layer * K + K - 1 - step[0], b, step[1]

        def inputs(s: int, b: int, d: str) -> Sequence[Job]:
            layer, k = divmod(s, K)
            p = K - 1 - k
            if d == "F":
                return [*([(s - 1, b, "F")] if k else []), *([(s - K, b, "F")] if layer else [])]
            read = scan.inputs.get((p, d), [])
            if d == "B":
                read = [*([scan.enters[p]] if p in scan.enters else []), *([(p, "R")] if is_sweep(p) else [])]
            combined = [job(step, layer, b) for step in read]
            above = [(s + K, b, "B")] if layer < layers - 1 else []
            return [(s, b, "F"), *combined, *above] if d in "RB" else combined

        def is_sweep(p: int) -> bool:
            """Whether R is the sweep of B, which goes on from there: nothing, or what is known, enters from behind."""
            return p < K - 1 and (p == 0 or (p, "R") in scan.inputs)

        def steps() -> Iterator[tuple[Step, int]]:
            yield from (((p, "F"), layer) for layer in range(layers) for p in reversed(range(K)))
            for layer in reversed(range(layers)):
                summaries = dict.fromkeys((p, "R") for p in range(K - 1))
                yield from ((step, layer) for step in summaries | scan.inputs)
                yield from (((p, "B"), layer) for p in range(K))

        def n(s: int, b: int, d: str) -> Any:
            """What others wait for goes first: the scan, then forwards, summaries, and the sweeps last."""
            return (scan.first.find(d), b)

        def w(s: int, b: int, d: str) -> tuple[int, int]:
            worker = s % K * workers // K
            return worker, worker

        jobs = [job(step, layer, b) for b in range(B) for step, layer in steps()]
        return Schedule(w=w, n=n, jobs=jobs, inputs=inputs, W=workers)

    return Recipe(call("blelloch", {"middle": middle}, K=K), build, chunks=K)


END = "L"


def with_ends(schedule: Schedule, S: int, K: int) -> Schedule:
    """One of `blelloch`, for S = L * K stages, where what follows the last layer, up to the loss, is a job L of its own
    for each chunk: the next chunk's F does not wait for it."""
    assert schedule.n is not None
    assert schedule.inputs is not None
    assert schedule.jobs is not None
    read, rank = schedule.inputs, schedule.n

    def inputs(s: int, b: int, d: str) -> Sequence[Job]:
        if d == END:
            return [(s, b, F)]
        return [*(read(s, b, d) or ()), *([(s, b, END)] if s >= S - K and d in "RB" else [])]

    def n(s: int, b: int, d: str) -> Any:
        """Behind what other chunks wait for."""
        return (0.5, b) if d == END else rank(s, b, d)

    ends = [(s, b, END) for s, b, d in schedule.jobs if d == F and s >= S - K]
    return replace(schedule, jobs=[*schedule.jobs, *ends], inputs=inputs, n=n)
