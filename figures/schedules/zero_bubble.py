"""Zero bubble against 1F1B: the weight gradient fills what the pipeline leaves idle (Qi et al. 2023)."""

from __future__ import annotations

from matplotlib.figure import Figure as Picture

from bppsa.schedule import Recipe, Timeline, one_f_one_b, simulate, v_schedule, zero_bubble
from figures import drawing
from figures.figure import Figure, Options, Record
from figures.paper import beside
from figures.schedules.bars import bars

WORKERS = (2, 4, 8, 16)
SCHEMES: dict[str, Recipe] = {"1F1B": one_f_one_b(), "ZB-H1": zero_bubble(), "V": v_schedule()}


def timeline(scheme: str, workers: int) -> Timeline:
    """Twice as many micro-batches as workers; F, B and W one unit each, halves where a worker has two stages."""
    stages, unit = (2 * workers, 1) if scheme == "V" else (workers, 2)
    backward = 2 * unit if scheme == "1F1B" else unit
    return simulate(
        SCHEMES[scheme],
        S=stages,
        B=2 * workers,
        forward=unit,
        backward=backward,
        weight=unit,
        activation_sizes=workers / stages,
    )


def measure(options: Options) -> Record:
    found = {scheme: [timeline(scheme, workers) for workers in WORKERS] for scheme in SCHEMES}
    four = {scheme: of[WORKERS.index(4)] for scheme, of in found.items()}
    law = {"1F1B": "3 (B + W - 1) = 33", "ZB-H1": "3B + W - 1 = 27", "V": "3B + (W - 1) / 2 = 25.5"}
    return {
        "workers": WORKERS,
        "bubble": {scheme: [t.bubble for t in of] for scheme, of in found.items()},
        "peak": {scheme: [float(max(t.peak_activations)) for t in of] for scheme, of in found.items()},
        "beside": [
            *(
                beside(f"{scheme}: makespan, W = 4, B = 8", law[scheme], f"{t.makespan / 2:g}")
                for scheme, t in four.items()
            ),
            beside(
                "peak activations of 1F1B, ZB-H1, V",
                "4, 4, 4",
                ", ".join(f"{max(t.peak_activations):g}" for t in four.values()),
            ),
        ],
    }


def draw(record: Record) -> Picture:
    picture, axes = drawing.panels(2, 2)
    for of, scheme in zip(axes, SCHEMES, strict=False):
        bars(of, timeline(scheme, 4), scheme)
    last = axes[-1]
    for scheme, bubble in record["bubble"].items():
        last.plot(record["workers"], bubble, "o-", label=scheme, markersize=3)
    last.set(title="idle share, B = 2W", xlabel="workers", ylim=(0, 0.45))
    last.legend(ncols=3)
    return picture


FIGURE = Figure("Zero bubble against 1F1B", measure, draw, simulated=True)
