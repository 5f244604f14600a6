"""What pictures have in common: colours, the caption, curves of training, and how they are saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from figures import paper
from figures.figure import Record

matplotlib.use("Agg")
matplotlib.rcParams |= {
    "font.size": 8,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "lines.linewidth": 1.2,
    "svg.hashsalt": "bppsa",
    "svg.fonttype": "none",
}
COLOURS = {
    "PyTorch": "tab:red",
    "auto": "tab:blue",
    "chunked": "tab:green",
    "sequential": "tab:blue",
    "blelloch": "tab:olive",
}
PAPER: dict[str, Any] = {"color": "black", "linestyle": ":", "linewidth": 1, "label": f"the paper, {paper.DEVICE}"}
SHADES = {"forward": 0.35, "backward": 1.0, "rest": 0.15}  # of a way's colour, by phase
DPI = 110


def panels(rows: int, columns: int, sharey: bool = False) -> tuple[Picture, list[Axes]]:
    """A picture and its axes, row by row."""
    picture, axes = pyplot.subplots(
        rows, columns, figsize=(3.6 * columns, 2.9 * rows + 0.4), layout="constrained", squeeze=False, sharey=sharey
    )
    return picture, list(axes.flat)


def label(way: str) -> str:
    return way if way == "PyTorch" else f"bppsa, {way}"


def curves(by_time: Axes, by_iteration: Axes, trained: Record) -> None:
    """The loss of each way over the wall clock, and over iterations, where they should be one curve."""
    for number, (way, run) in enumerate(trained["ways"].items()):
        window = trained["iterations"] // len(run["loss"])
        iterations = [window * (at + 1) for at in range(len(run["loss"]))]
        by_time.plot(run["seconds"], run["loss"], color=COLOURS[way], label=label(way))
        by_iteration.plot(iterations, run["loss"], "--" if number else "-", color=COLOURS[way], label=label(way))
    by_time.set(xlabel="seconds of training", ylabel="loss, nats", title=f"{trained['overall']:.3g}x overall")
    by_iteration.set(
        xlabel="iterations",
        title=f"greatest difference in an iteration: {trained['greatest_difference_of_losses']:.0e}",
    )
    by_time.legend()
    by_iteration.legend()


def breakdown(axes: Axes, groups: dict[str, list[Record]], paper_shares: list[float]) -> None:
    """For each group a bar a way, of its phases on each other, as shares of the baseline's whole iteration.

    groups: the rows of a tick, the baseline's first; paper_shares: what BPPSA took of the paper's baseline there.
    """
    for at, rows in enumerate(groups.values()):
        rows = [row for row in rows if "error" not in row]
        whole = sum(rows[0][f"{phase}_ms"] for phase in SHADES)
        width = 0.8 / len(rows)
        for number, row in enumerate(rows):
            place, bottom = at + (number - (len(rows) - 1) / 2) * width, 0.0
            for phase, shade in SHADES.items():
                share = row[f"{phase}_ms"] / whole
                name = f"{label(row['way'])}, {phase}" if at == 0 else None
                axes.bar(place, share, width, bottom, color=COLOURS[row["way"]], alpha=shade, label=name)
                bottom += share
            if number:
                times = f"{row['overall_ratio']['median']:.3g}x"
                axes.annotate(times, (place, bottom), fontsize=6, ha="center", va="bottom")
    axes.plot(range(len(paper_shares)), paper_shares, "k_", label=f"the paper, {paper.DEVICE}: BPPSA")
    axes.set(xticks=range(len(groups)), xticklabels=list(groups), ylabel="share of the baseline", title="phases")
    axes.legend(fontsize=5.5, ncol=3, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)


def save(picture: Picture, record: Record, path: Path) -> None:
    """As `path`.svg and `path`.png, with what it was measured on below."""
    picture.suptitle(record["title"], fontsize=10)
    picture.supxlabel(caption(record), fontsize=6, color="dimgray")
    picture.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    picture.savefig(path.with_suffix(".png"), dpi=DPI)
    pyplot.close(picture)


def caption(record: Record) -> str:
    on = record["on"]
    changed = " with changes" if on["dirty"] else ""
    if record["simulated"]:
        how = record.get("data", "simulated")
        return f"{how}; revision {on['revision']}{changed}, {on['date'][:10]}"
    return (
        f"{on['device']}, {on['threads']} threads; baseline: {on['baseline']}; torch {on['torch']}; revision "
        f"{on['revision']}{changed}, {on['date'][:10]}; {record['data']}; sizes: {record['size']}"
    )
