"""Figure 13: the loss of a GRU that tells instruments apart, over the wall clock (appendix F)."""

from __future__ import annotations

from matplotlib.figure import Figure as Picture

from figures import drawing
from figures.audio import SETS
from figures.figure import Figure, Options, Record
from figures.gru import EPOCHS, LEARNING_RATE, SIZES, data_name, samples_of, workload
from figures.paper import DEVICE, GRU, beside
from figures.training import side_by_side

ROWS = 16


def measure(options: Options) -> Record:
    sizes = SIZES[options.size]
    seconds = options.budget / len(sizes.sets)
    iterations = sizes.epochs * sizes.iterations_an_epoch
    trained = {}
    for name in sizes.sets:
        task = workload(samples_of(SETS[name], sizes.samples, options), ROWS, options)
        trained[name] = side_by_side(task, options.pair, sizes.lr, iterations, seconds)
    lines = [line for name, of_set in trained.items() for line in besides(name, of_set)]
    return {"data": data_name(options), "beside": lines, "sets": trained}


def besides(name: str, trained: Record) -> list[Record]:
    paper = GRU[name, ROWS]
    differ = f"differ by {trained['greatest_difference_of_losses']:.0e} at most"
    settings = f"{EPOCHS} epochs, {LEARNING_RATE:g}"
    return [
        beside(f"{name}: speed-up, overall", f"{paper.overall_ratio:.3g}x ({DEVICE})", f"{trained['overall']:.3g}x"),
        beside(f"{name}: losses of an iteration", "the same shape", differ),
        beside(f"{name}: iterations, learning rate", settings, f"{trained['iterations']}, {trained['lr']:g}"),
    ]


def draw(record: Record) -> Picture:
    sets = record["sets"]
    picture, axes = drawing.panels(2, len(sets))
    for number, (name, trained) in enumerate(sets.items()):
        by_time, by_iteration = axes[number], axes[len(sets) + number]
        drawing.curves(by_time, by_iteration, trained)
        by_time.set(title=f"{name}, T={trained['T']}: {by_time.get_title()}")
    return picture


FIGURE = Figure("Figure 13: a GRU learns to tell instruments apart, loss over the wall clock", measure, draw)
