"""The diagrams of Unifying Parallelization Schemes: DDP, GPipe, LPP and FSLPP."""

from __future__ import annotations

from matplotlib.figure import Figure as Picture

from bppsa.schedule import Recipe, Timeline, ddp, fslpp, gpipe, lpp, simulate
from figures import drawing
from figures.figure import Figure, Options, Record
from figures.paper import beside
from figures.schedules.bars import bars

# Four stages, eight micro-batches, a backward of two units: the paper's numbers.
SCHEMES: dict[str, Recipe] = {"DDP": ddp(), "GPipe": gpipe(), "LPP, G=2": lpp(G=2, R=4), "FSLPP, G=2": fslpp(G=2, R=4)}


def timeline(scheme: str) -> Timeline:
    return simulate(SCHEMES[scheme], S=4, B=8, forward=1, backward=2)


def measure(options: Options) -> Record:
    found = {scheme: timeline(scheme) for scheme in SCHEMES}
    return {
        "text": {scheme: of.text() for scheme, of in found.items()},
        "beside": [
            beside("DDP, 8 workers: columns of the diagram", "12", f"{found['DDP'].makespan}"),
            beside(
                "GPipe, 4 workers: columns",
                "29, which no number of micro-batches gives: it is 3 (B + 3)",
                f"{found['GPipe'].makespan} with B = 8",
            ),
            beside("LPP, 2 groups of 4 workers: columns", "the diagram is lost", f"{found['LPP, G=2'].makespan}"),
            beside(
                "FSLPP: most weights received by a worker",
                "S - 1 = 3",
                f"{max(found['FSLPP, G=2'].weight_receives)}, "
                f"or {max(found['FSLPP, G=2'].weight_receives_cached)} where it keeps the last stage",
            ),
        ],
    }


def draw(record: Record) -> Picture:
    picture, axes = drawing.panels(2, 2)
    for of, scheme in zip(axes, SCHEMES, strict=True):
        bars(of, timeline(scheme), scheme)
    return picture


FIGURE = Figure("Unifying Parallelization Schemes: its diagrams", measure, draw, simulated=True)
