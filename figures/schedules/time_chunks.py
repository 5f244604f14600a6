"""The backward of a recurrence over K workers: three ways to scan the chunks' summaries."""

from __future__ import annotations

from fractions import Fraction

from matplotlib.figure import Figure as Picture

from bppsa.schedule import blelloch, simulate
from bppsa.schedule.simulator import Cost
from figures import drawing
from figures.figure import Figure, Options, Record
from figures.paper import beside

WORKERS = (2, 4, 8, 16, 32, 64, 128, 256)
STEPS = 4096
MIDDLES = ("chain", "blelloch", "doubling")
# A product of two Jacobians is the unit; of one with a vector; and a message. R and B go through all steps of a chunk.
PRODUCT, VECTOR, MESSAGE = 1, Fraction(1, 20), Fraction(1, 2)


def makespan(K: int, middle: str) -> float:
    """Of the backward alone: R and what follows it."""
    each = Fraction(STEPS, K)
    costs: dict[str, Cost] = {"R": each * PRODUCT, "E": VECTOR, "D": VECTOR, "U": PRODUCT, "H": PRODUCT}
    timeline = simulate(
        blelloch(K, middle), S=K, B=1, forward=0, backward=each * PRODUCT, costs=costs, gradient_time=MESSAGE
    )
    return float(timeline.makespan)


def measure(options: Options) -> Record:
    found = {middle: [makespan(K, middle) for K in WORKERS] for middle in MIDDLES}
    return {
        "workers": WORKERS,
        "makespan": found,
        "beside": [
            beside(f"{K} workers, fastest first", "blelloch", ranked(found, at)) for at, K in enumerate(WORKERS)
        ],
    }


def ranked(found: dict[str, list[float]], at: int) -> str:
    return ", ".join(f"{middle} {found[middle][at]:.5g}" for middle in sorted(MIDDLES, key=lambda m: found[m][at]))


def draw(record: Record) -> Picture:
    picture, (times, over) = drawing.panels(1, 2)
    for middle, found in record["makespan"].items():
        times.plot(record["workers"], found, "o-", label=middle, markersize=3)
        chunks = [time - 2 * STEPS / K for time, K in zip(found, record["workers"], strict=True)]
        over.plot(record["workers"], chunks, "o-", label=middle, markersize=3)
    times.set(
        title=f"the backward of {STEPS} steps",
        xlabel="workers",
        ylabel="products of Jacobians",
        xscale="log",
        yscale="log",
    )
    over.set(title="of these, the scan over the chunks", xlabel="workers", xscale="log", yscale="log")
    for axes in (times, over):
        axes.set_xticks(record["workers"], [str(K) for K in record["workers"]], minor=False)
        axes.legend()
    return picture


FIGURE = Figure("A recurrence cut over workers: how to scan the chunks' summaries", measure, draw, simulated=True)
