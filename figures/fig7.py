"""Figure 7: the loss of an RNN that classifies bitstreams, over the wall clock (sections 4.1 and 5.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from matplotlib.figure import Figure as Picture

from figures import drawing
from figures.figure import FULL, QUICK, SCALED, Figure, Options, Record
from figures.paper import RNN_BY_STEPS, RNN_SAMPLES, baseline_beside, beside
from figures.training import side_by_side
from figures.workload import bitstream_workload


@dataclass(frozen=True)
class Sizes:
    samples: int
    steps: int
    rows: int
    epochs: int
    lr: float


PAPER = Sizes(RNN_SAMPLES, 1000, 16, 80, 1e-5)
# In the hundred times fewer iterations of some minutes nothing would be learnt at 1e-5. At 1e-3 training is chaotic:
# a rounding error in the first weights grows to a difference of the losses of 1.
SIZES = {QUICK: Sizes(32, 12, 4, 1, 1e-4), SCALED: replace(PAPER, lr=1e-4), FULL: PAPER}


def measure(options: Options) -> Record:
    sizes = SIZES[options.size]
    workload = bitstream_workload(sizes.samples, sizes.steps, sizes.rows, options.device)
    iterations = sizes.epochs * workload.iterations_an_epoch
    trained = side_by_side(workload, options.pair, sizes.lr, iterations, options.budget)
    paper_s = RNN_BY_STEPS[PAPER.steps].baseline_backward * PAPER.rows / RNN_SAMPLES / PAPER.steps
    ours_s = trained["ways"][options.pair[0]]["backward_ms"] / 1e3 / sizes.steps
    rows = [
        beside("speed-up, overall", "2.73x (RTX 2070)", f"{trained['overall']:.3g}x"),
        beside("speed-up, backward", "16x (RTX 2070)", f"{trained['backward']:.3g}x"),
        beside("losses of an iteration", "equal", f"differ by {trained['greatest_difference_of_losses']:.0e} at most"),
        baseline_beside(f"T={PAPER.steps}, B={PAPER.rows}", paper_s, ours_s),
        beside("iterations", f"{PAPER.epochs * 2000} (80 epochs)", f"{trained['iterations']}"),
        beside("learning rate", f"{PAPER.lr:g}", f"{trained['lr']:g}"),
    ]
    return {"data": "bitstreams (equation 8)", "beside": rows} | trained


def draw(record: Record) -> Picture:
    picture, (by_time, by_iteration) = drawing.panels(1, 2, sharey=True)
    drawing.curves(by_time, by_iteration, record)
    return picture


FIGURE = Figure("Figure 7: an RNN learns to classify bitstreams, loss over the wall clock", measure, draw)
