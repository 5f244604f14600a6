"""Wavelet: the memory of gang scheduling against tick-tock (Figure 2), and its speed-ups (Figures 11 and 13)."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure as Picture

from bppsa.schedule import Timeline, ddp, gpipe, naive, simulate, wavelet_dp, wavelet_mp
from figures import drawing
from figures.figure import Figure, Options, Record
from figures.paper import beside

STAGES, WAVES, MANY = 16, 6, 64
# Figure 11, on one machine. Its jobs slow each other where they share a device, which no simulation knows: we give the
# gain without that, and how much slower jobs side by side must have been for the paper's.
PAPER_DP = {"the best": 1.88, "on average": 1.4, "VGG, less than": 1.2}
# Model parallel on 8 devices: communication, and all-reduce with change of partition (section 4.2), of a job's time.
OVERHEADS = {"BERT": Fraction(14 + 5, 100), "VGG-19-BN": Fraction(195 + 20, 1000)}
PAPER_MP = {("BERT", "naive"): 6.7, ("BERT", "gpipe"): 4.15, ("VGG-19-BN", "naive"): 4.7, ("VGG-19-BN", "gpipe"): 4.4}


def tick_tock(waves: int) -> Timeline:
    return simulate(wavelet_dp(waves), S=STAGES, B=waves)


def gang(waves: int) -> Timeline:
    return simulate(ddp(), S=STAGES, B=waves, W=1)


def measure(options: Options) -> Record:
    together = {"gang": gang(WAVES), "tick-tock": tick_tock(WAVES)}
    use = {name: mean(of) / STAGES for name, of in together.items()}
    rows = [
        beside("mean memory, of one wave's peak: gang", "about 30 %", f"{use['gang']:.0%}"),
        beside("mean memory, of one wave's peak: tick-tock", "near the capacity", f"{use['tick-tock']:.0%}"),
        beside(
            "peak activations: gang, tick-tock", "", " and ".join(str(t.peak_activations[0]) for t in together.values())
        ),
    ]
    gain = float(gang(MANY).makespan / tick_tock(MANY).makespan)
    for what, paper in PAPER_DP.items():
        ours = f"{gain:.2f}x, or the paper's where jobs side by side take {gain / paper:.2f} times as long"
        rows.append(beside(f"data parallel, {what}", f"{paper}x", ours))
    for (model, other), paper in PAPER_MP.items():
        what = f"model parallel, 8 devices, {model}, against {other}"
        rows.append(beside(what, f"{paper}x", f"{by_partition(model, other):.2f}x"))
    for model in OVERHEADS:
        implied = PAPER_MP[model, "naive"] / PAPER_MP[model, "gpipe"]
        what = f"model parallel, 8 devices, {model}, gpipe against naive: why gpipe above is so far off"
        ours = f"{pipeline_gain():.2f}x without the cost of small micro-batches, which the paper's pipeline pays"
        rows.append(beside(what, f"{implied:.2f}x, from its two", ours))
    rows.append(
        beside(
            "Lemma 1: gradients equal data parallelism over 2N devices",
            "yes",
            "no: each local gradient enters two updates, of two versions of the weights; "
            "wavelet_dp's waves are micro-batches of one step, whose gradients are equal",
        )
    )
    curves = {name: [[float(now), float(held)] for now, held in of.memory[0]] for name, of in together.items()}
    return {"memory": curves, "beside": rows}


def mean(timeline: Timeline) -> float:
    """Activations held on average over the makespan."""
    curve: list[tuple[Any, Any]] = [*timeline.memory[0], (timeline.makespan, 0)]
    return float(sum(held * (after - now) for (now, held), (after, _) in pairwise(curve)) / timeline.makespan)


def by_partition(model: str, other: str) -> float:
    """How many times as fast as vanilla or pipelined model parallelism; Wavelet's jobs carry its overheads."""
    took = 1 + OVERHEADS[model]
    ours = simulate(wavelet_mp(), S=8, B=8, forward=took, backward=took)
    theirs = simulate({"naive": naive(), "gpipe": gpipe()}[other], S=8, B=8)
    return float(theirs.makespan / ours.makespan)


def pipeline_gain() -> float:
    """How many times as fast as vanilla model parallelism a pipeline is whose jobs cost no more for being small."""
    of_naive, of_gpipe = (simulate(recipe, S=8, B=8).makespan for recipe in (naive(), gpipe()))
    return float(of_naive / of_gpipe)


def draw(record: Record) -> Picture:
    picture, axes = drawing.panels(2, 1)
    for of, (name, curve) in zip(axes, record["memory"].items(), strict=True):
        times, held = zip(*curve, strict=True)
        of.step(times, held, where="post", color="tab:blue")
        of.fill_between(times, held, step="post", alpha=0.3)
        of.axhline(STAGES, color="black", linestyle=":", linewidth=1)
        of.set(
            title=f"{name}: {WAVES} waves of {STAGES} stages", ylabel="activations held", xlim=(0, 2 * STAGES * WAVES)
        )
    axes[-1].set(xlabel="time, in jobs")
    return picture


FIGURE = Figure("Wavelet: memory of one device, gang against tick-tock", measure, draw, simulated=True)
