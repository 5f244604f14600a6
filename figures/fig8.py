"""Figure 8: how the backward's time depends on the steps T and on the rows B (section 5.1)."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from figures import drawing
from figures.figure import FULL, QUICK, SCALED, Figure, Options, Record
from figures.paper import DEVICE, RNN_BY_ROWS, RNN_BY_STEPS, RNN_SAMPLES, Epoch, baseline_beside, beside
from figures.phases import best, of, timed
from figures.workload import bitstream_workload

STEPS, ROWS = 1000, 16  # what stays as it is while the other changes


@dataclass(frozen=True)
class Sizes:
    by_steps: tuple[tuple[int, int], ...]  # (T, B)
    by_rows: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.by_steps) + len(self.by_rows)


PAPER = Sizes(tuple((T, ROWS) for T in RNN_BY_STEPS), tuple((STEPS, B) for B in RNN_BY_ROWS))
SIZES = {QUICK: Sizes(((10, 16), (30, 16)), ((10, 2), (10, 4))), SCALED: PAPER, FULL: PAPER}


def measure(options: Options) -> Record:
    sizes = SIZES[options.size]
    seconds = options.budget / len(sizes)

    def rows_of(cases: tuple[tuple[int, int], ...]) -> list[Record]:
        workloads = (bitstream_workload(B, T, B, options.device) for T, B in cases)  # one batch: no bit changes a time
        return [row for workload in workloads for row in timed(workload, options.ways, seconds)]

    found = {"by_steps": rows_of(sizes.by_steps), "by_rows": rows_of(sizes.by_rows)}
    return {"data": "bitstreams (equation 8)", "ways": options.ways, "beside": besides(found, options), **found}


def besides(found: dict[str, list[Record]], options: Options) -> list[Record]:
    everything = found["by_steps"] + found["by_rows"]
    epochs = [*RNN_BY_STEPS.values(), *RNN_BY_ROWS.values()]
    claims = {"backward": ("108x (RTX 2080Ti)", "backward_ratio"), "overall": ("2.75x (RTX 2070)", "overall_ratio")}
    lines = []
    for way in options.ways[1:]:
        for phase, (claim, key) in claims.items():
            if not of(everything, way):
                continue
            row = best(everything, way, key)
            table = max(getattr(epoch, key) for epoch in epochs)
            lines.append(
                beside(
                    f"greatest speed-up, {phase}, {drawing.label(way)} (ran {row['ran']})",
                    f"{claim}, {table:.3g}x ({DEVICE})",
                    f"{row[key]['median']:.3g}x at T={row['T']}, B={row['B']}",
                )
            )
    for row in of(found["by_steps"], options.ways[0]):
        epoch = RNN_BY_STEPS[row["T"]]
        paper_s = epoch.baseline_backward * ROWS / RNN_SAMPLES / row["T"]
        lines.append(baseline_beside(f"T={row['T']}, B={ROWS}", paper_s, row["backward_ms"] / 1e3 / row["T"]))
    return lines


def draw(record: Record) -> Picture:
    picture, axes = drawing.panels(2, 3)
    sweep(axes[:3], record, "by_steps", "T", RNN_BY_STEPS)
    sweep(axes[3:], record, "by_rows", "B", RNN_BY_ROWS)
    axes[0].set(title=f"backward, B={ROWS}")
    axes[3].set(title=f"backward, T={STEPS}")
    return picture


def sweep(axes: list[Axes], record: Record, part: str, letter: str, paper: dict[int, Epoch]) -> None:
    """Latency, speed-up and breakdown of one row of the figure."""
    latency, speed_up, breakdown = axes
    rows, baseline = record[part], record["ways"][0]
    plain = of(rows, baseline)
    sizes = [row[letter] for row in plain]
    epochs = [paper[size] for size in sizes]
    for way in record["ways"]:
        ran, colour, name = of(rows, way), drawing.COLOURS[way], drawing.label(way)
        at, quartiles = [row[letter] for row in ran], [row["backward_quartiles_ms"] for row in ran]
        latency.plot(at, [q["median"] for q in quartiles], "o-", markersize=3, color=colour, label=name)
        latency.vlines(at, [q["low"] for q in quartiles], [q["high"] for q in quartiles], color="black", linewidth=1)
        if way != baseline:
            ratios = [row["backward_ratio"]["median"] for row in ran]
            speed_up.plot(at, ratios, "o-", markersize=3, color=colour, label=name)
    paper_ms = [1e3 * epoch.bppsa_backward * row["B"] / RNN_SAMPLES for epoch, row in zip(epochs, plain, strict=True)]
    latency.plot(sizes, paper_ms, **drawing.PAPER)
    speed_up.plot(sizes, [epoch.backward_ratio for epoch in epochs], **drawing.PAPER)
    speed_up.axhline(1, color="black", linewidth=0.6)
    latency.set(xscale="log", yscale="log", xlabel=letter, ylabel="ms an iteration")
    speed_up.set(xscale="log", yscale="log", xlabel=letter, ylabel="times as fast", title="backward's speed-up")
    latency.legend()
    speed_up.legend()
    pair = record["ways"][:2]
    groups = {thousands(size): [row for row in rows if row[letter] == size and row["way"] in pair] for size in sizes}
    drawing.breakdown(breakdown, groups, [1 / epoch.overall_ratio for epoch in epochs])
    breakdown.set(xlabel=letter)


def thousands(size: int) -> str:
    """30000 -> "30k", so that ticks have room."""
    return f"{size // 1000}k" if size % 1000 == 0 else str(size)


FIGURE = Figure("Figure 8: the backward by sequence length T and by batch size B", measure, draw)
