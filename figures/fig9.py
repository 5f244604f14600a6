"""Figure 9: where the time of a GRU's training iteration goes, for three sets of audio features (section 5.2)."""

from __future__ import annotations

from matplotlib.figure import Figure as Picture

from figures import drawing
from figures.audio import SETS
from figures.figure import Figure, Options, Record
from figures.gru import SIZES, data_name, samples_of, workload
from figures.paper import DEVICE, GRU, IRMAS_SAMPLES, baseline_beside, beside
from figures.phases import best, timed

CLAIMS = {"overall": "2.36x (RTX 2070 or 2080Ti)", "backward": "13.4x (RTX 2070 or 2080Ti)"}


def measure(options: Options) -> Record:
    sizes = SIZES[options.size]
    seconds = options.budget / len(sizes.sets) / len(sizes.rows)
    rows: list[Record] = []
    for name in sizes.sets:
        samples = samples_of(SETS[name], max(sizes.rows), options)
        for B in sizes.rows:
            rows += [{"set": name} | row for row in timed(workload(samples, B, options), options.pair, seconds)]
    return {"data": data_name(options), "beside": besides(rows, options.pair[1]), "rows": rows}


def besides(rows: list[Record], ours: str) -> list[Record]:
    lines = []
    for phase, claim in CLAIMS.items():
        row = best(rows, ours, f"{phase}_ratio")
        gain = f"{row[f'{phase}_ratio']['median']:.3g}x at {row['set']}, B={row['B']}"
        lines.append(beside(f"greatest speed-up, {phase}", claim, gain))
    for row in rows:
        epoch, at = GRU[row["set"], row["B"]], f"{row['set']}, B={row['B']}"
        if row["way"] == ours:
            overall = f"{row['overall_ratio']['median']:.3g}x"
            lines.append(beside(f"speed-up, overall, {at}", f"{epoch.overall_ratio:.3g}x ({DEVICE})", overall))
        else:
            paper_s = epoch.baseline_backward * row["B"] / IRMAS_SAMPLES / row["T"]
            lines.append(baseline_beside(at, paper_s, row["backward_ms"] / 1e3 / row["T"]))
    return lines


def draw(record: Record) -> Picture:
    names = list(dict.fromkeys(row["set"] for row in record["rows"]))
    picture, axes = drawing.panels(1, len(names), sharey=True)
    for panel, name in zip(axes, names, strict=True):
        rows = [row for row in record["rows"] if row["set"] == name]
        sizes = list(dict.fromkeys(row["B"] for row in rows))
        groups = {f"B={B}": [row for row in rows if row["B"] == B] for B in sizes}
        drawing.breakdown(panel, groups, [1 / GRU[name, B].overall_ratio for B in sizes])
        panel.set(title=f"{name}: {SETS[name].frames} x {SETS[name].inputs}")
    return picture


FIGURE = Figure("Figure 9: where the time of a GRU's training iteration on audio features goes", measure, draw)
