"""A timeline as bars: a row a worker, the colour a micro-batch, forwards light and backwards strong."""

from __future__ import annotations

from matplotlib import colormaps
from matplotlib.axes import Axes

from bppsa.schedule import F, Job, Timeline
from bppsa.schedule.draw import label

STRENGTH = {F: 0.45}
COLOURS = colormaps["tab10"]
HEIGHT = 0.9


def bars(axes: Axes, timeline: Timeline, title: str) -> None:
    lanes, units = timeline.lanes, timeline.units
    for job in timeline.jobs:
        bar(axes, timeline, job, timeline.worker[job] + timeline.lane[job] / lanes, HEIGHT / lanes)
    axes.set(
        title=f"{title}: {timeline.makespan} {units.time}, {timeline.bubble:.0%} idle, "
        f"at most {max(timeline.peak_activations):g} {units.memory}",
        xlim=(0, timeline.makespan),
        ylim=(timeline.W - 0.5, -0.5),
        yticks=range(timeline.W),
        yticklabels=[f"w{worker}" for worker in range(timeline.W)],
    )
    axes.grid(visible=False)


def bar(axes: Axes, timeline: Timeline, job: Job, row: float, height: float) -> None:
    _, b, d = job
    start, end = float(timeline.start[job]), float(timeline.end[job])
    colour = (*COLOURS(b % COLOURS.N)[:3], STRENGTH.get(d, 1.0))
    axes.broken_barh([(start, end - start)], (row - HEIGHT / 2, height), facecolor=colour, edgecolor="white", lw=0.4)
    if timeline.makespan <= 40:
        axes.text((start + end) / 2, row - HEIGHT / 2 + height / 2, label(job), ha="center", va="center", fontsize=5)
