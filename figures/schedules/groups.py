"""What the number of groups costs and saves, from a pipeline (G = 1) to data parallelism (G = B), and what the memory
of activations allows: Table 1 and the throughput bound of Unifying Parallelization Schemes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from matplotlib.figure import Figure as Picture

from bppsa.schedule import (
    Recipe,
    Schedule,
    Timeline,
    ddp,
    depth_first,
    fsdp,
    fslpp,
    gpipe,
    lpp,
    naive,
    one_f_one_b,
    simulate,
    table1,
    v_schedule,
    zero_bubble,
)
from figures import drawing
from figures.figure import Figure, Options, Record
from figures.paper import beside

SIZE = 16  # stages, micro-batches and workers of the sweep over G
METRICS: dict[str, Callable[[Timeline], Any]] = {
    "latency, in units of f + b": lambda t: t.makespan / 2,
    "peak activations of a worker": lambda t: max(t.peak_activations),
    "stages whose weights a worker owns": lambda t: max(t.weight_storage),
    "activations a worker receives": lambda t: max(t.activation_receives),
    "weights a worker receives": lambda t: max(t.weight_receives),
}
STAGES = 8  # of the frontier


def alternating(S: int, B: int, W: int | None = None) -> Schedule:
    """The counter-example to rho <= M / S: two stages that change places, one micro-batch after the other's turn."""
    return Schedule(
        lambda s, b, d: ((s + b) % 2, (s + b) % 2),
        pred=lambda s, b, d: [(1, b - 1, "B")] if (s, d) == (0, "F") and b else (),
    )


def frontier() -> Iterator[tuple[str, Timeline]]:
    recipes: list[Recipe] = [naive(), gpipe(), one_f_one_b(), zero_bubble(), v_schedule(), ddp(), fsdp()]
    recipes += [scheme(G, R) for G in (1, 2, 4) for R in (2, 4, 8) for scheme in (lpp, depth_first)]
    for recipe in recipes:
        for B in (4, 8, 32):
            yield recipe.name, simulate(recipe, S=STAGES, B=B)


def measure(options: Options) -> Record:
    groups = [G for G in range(1, SIZE + 1) if SIZE % G == 0]
    found = {
        name: [simulate(scheme(G), S=SIZE, B=SIZE, W=SIZE) for G in groups]
        for name, scheme in (("LPP", lpp), ("FSLPP", fslpp))
    }
    points: list[dict[str, Any]] = [
        {
            "schedule": name,
            "rho": t.utilisation,
            "mean_peak": float(Fraction(sum(t.peak_activations), t.W)),
            "bound": float(t.bound()),
        }
        for name, t in frontier()
    ]
    counter = simulate(alternating, S=2, B=64)
    return {
        "groups": groups,
        "sweep": {
            name: {metric: [float(read(t)) for t in of] for metric, read in METRICS.items()}
            for name, of in found.items()
        },
        "frontier": points,
        "text": {"Table 1, S = B = 8, G = 2, R = 4": str(table1(8, 8, 2, 4))},
        "beside": [
            beside(
                "rho of two stages that change places, B = 64, M = 1",
                "at most M / S = 0.5",
                f"{counter.utilisation:.3f}",
            ),
            beside("the bound that holds", "M / S", "2 * mean peak / (S + 1)"),
            beside("schedules above it", "", f"{sum(p['rho'] > p['bound'] + 1e-9 for p in points)} of {len(points)}"),
            beside("cells of Table 1 (S = B = 8, G = 2, R = 4) that a simulation gives too", "25 of 25", agreeing()),
        ],
    }


def agreeing() -> str:
    cells = table1(8, 8, 2, 4).cells.values()
    return f"{sum(not cell.reason for cell in cells)} of {len(cells)}"


def draw(record: Record) -> Picture:
    picture, axes = drawing.panels(2, 3)
    for of, metric in zip(axes, METRICS, strict=False):
        for name, style in (("LPP", "o-"), ("FSLPP", "s--")):
            of.plot(record["groups"], record["sweep"][name][metric], style, label=name, markersize=3)
        of.set(title=metric, xlabel="groups G", xscale="log", ylim=(0, None))
        of.set_xticks(record["groups"], [str(G) for G in record["groups"]], minor=False)
        of.legend()
    last = axes[-1]
    places = [point["mean_peak"] for point in record["frontier"]]
    last.plot(places, [point["rho"] for point in record["frontier"]], "x", color="tab:blue", label="schedules")
    along = [max(places) ** (at / 50) for at in range(51)]
    last.plot(along, [min(1, 2 * peak / (STAGES + 1)) for peak in along], color="black", label="2 M / (S + 1)")
    last.plot(along, [min(1, peak / STAGES) for peak in along], ":", color="tab:red", label="the paper's M / S")
    last.set(
        title=f"the bound, S = {STAGES}",
        xlabel="mean peak of activations",
        ylabel="throughput a worker",
        xscale="log",
    )
    last.legend()
    return picture


FIGURE = Figure(
    f"Looped pipelines, S = B = W = {SIZE}: from GPipe (G = 1) to DDP (G = {SIZE})", measure, draw, simulated=True
)
