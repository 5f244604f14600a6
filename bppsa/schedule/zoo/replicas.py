"""Schedules in which a worker runs all stages of its micro-batches, and Wavelet's."""

from __future__ import annotations

from collections.abc import Sequence

from bppsa.schedule.job_graph.spec import Job, Recipe, Schedule
from bppsa.schedule.zoo.shared import backward_first, call


def ddp() -> Recipe:
    """Data parallel (U): micro-batch b on worker b mod W, which owns all weights. W = B by default."""

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        workers = W or B
        return Schedule(w=lambda s, b, d: (b % workers, b % workers), n=backward_first, W=workers)

    return Recipe("ddp", build)


def fsdp() -> Recipe:
    """Fully sharded data parallel (U): as ddp, but worker s mod W owns the weights of stage s."""

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        workers = W or B
        return Schedule(w=lambda s, b, d: (s % workers, b % workers), n=backward_first, W=workers)

    return Recipe("fsdp", build)


def wavelet_dp(waves: int = 2) -> Recipe:
    """Data parallel in tick-tock (Wavelet, section 3.2): micro-batch b on worker b mod W in wave b // W. Even waves run
    on one lane, odd ones on another (two streams of a device), each one forward behind the wave before it: a wave
    allocates while the one before frees. W = ceil(B / waves) by default.

    The waves are micro-batches of one step on one version of the weights, so gradients are those of data parallelism
    over B. The paper's own reads two versions; its Lemma 1 does not account for that.
    """

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        workers = W or -(-B // waves)

        def after_the_wave_before(s: int, b: int, d: str) -> Sequence[Job]:
            first = s == (0 if d == "F" else S - 1)
            return [(S - 1 - s, b - workers, d)] if first and b >= workers else ()

        return Schedule(
            w=lambda s, b, d: (b % workers, b % workers),
            n=backward_first,
            pred=after_the_wave_before,
            lane=lambda s, b, d: b // workers % 2,
            W=workers,
        )

    return Recipe(call("wavelet_dp", waves=waves), build)


def wavelet_mp() -> Recipe:
    """Model parallel in tick-tock (Wavelet, section 3.3): in a cycle all workers run the same stage, each on another
    micro-batch, and hand these on round robin. Figure 10 has S = B = W; W = S by default.

    Every worker runs every stage, so it owns all weights: data parallelism with activations on the move.
    """

    def build(S: int, B: int, W: int | None = None) -> Schedule:
        workers = W or S
        return Schedule(w=lambda s, b, d: ((s + b) % workers, (s + b) % workers), n=backward_first, W=workers)

    return Recipe("wavelet_mp", build, square=True)
