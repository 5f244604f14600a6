"""Wavelet's two ways run on this machine as one device: the memory of a step, measured beside simulated."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure as Picture

import schedules_waves
from figures import drawing
from figures.figure import QUICK, Figure, Options, Record
from figures.paper import beside


def measure(options: Options) -> Record:
    sizes = schedules_waves.QUICK_SIZES if options.size == QUICK else schedules_waves.SIZES
    found = {way: schedules_waves.curves(way, *sizes) for way in schedules_waves.WAYS}
    return {
        "data": "random numbers",
        "sizes": sizes,
        "ways": found,
        "beside": [row for way, of in found.items() for row in rows(way, of)],
    }


def rows(way: str, of: Record) -> list[dict[str, str]]:
    each = of["activation_MiB"]
    return [
        beside(
            f"{way}: most activations held, simulated with the times that jobs took, and counted",
            "",
            f"{max(held for _, held in of['simulated']):g} and {of['peaks_measured']}",
        ),
        beside(
            f"{way}: peak memory, of these activations and measured",
            "",
            f"{max(held for _, held in of['simulated']) * each:.0f} and {peak(of['measured_MiB']):.0f} MiB",
        ),
        beside(f"{way}: a step", "", f"{of['step_s']:.3g} s"),
    ]


def peak(curve: Any) -> float:
    return max(level for _, level in curve)


def draw(record: Record) -> Picture:
    picture, axes = drawing.panels(2, 1)
    waves, stages, *_ = record["sizes"]
    for of, (way, found) in zip(axes, record["ways"].items(), strict=True):
        times, levels = zip(*found["measured_MiB"], strict=True)
        of.fill_between(times, levels, alpha=0.3, color="tab:blue", label="measured")
        now, held = zip(*found["simulated"], strict=True)
        simulated = [count * found["activation_MiB"] for count in held]
        of.step(now, simulated, where="post", color="black", linewidth=1, label="simulated")
        of.set(title=f"{way}: {waves} waves of {stages} stages", ylabel="MiB above the weights")
        of.set(xlim=(0, None), ylim=(0, None))
        of.legend()
    axes[-1].set(xlabel="seconds")
    return picture


FIGURE = Figure("Wavelet: memory of one device over a step, measured and simulated", measure, draw)
