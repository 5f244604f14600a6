"""Figure 10: the work of each step when a pruned VGG-11 is retrained by a scan, and by back-propagation (section 5.3).

Counted on the patterns, for one sample: an entry counts where weights are kept, whatever their values are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from bppsa.plan.levels import hybrid
from figures import drawing
from figures.figure import FULL, QUICK, SCALED, Figure, Options, Record
from figures.paper import PRUNED, UP_LEVELS, beside
from figures.sparse.networks import IMAGE, chain, pruned, vgg11
from figures.sparse.products import ChainCost, ProductStep, Steps, chain_cost, dearest, total

NARROWER = {QUICK: 16, SCALED: 1, FULL: 1}
DENSE, SPARSE, SCAN = "back-propagation, dense", "back-propagation, sparse", "scan"
PHASES = {"up": "up-sweep", "middle": "linear middle", "down": "down-sweep"}
MARKERS = {"mv": "o", "mm": "s"}  # a matrix times a vector, times a matrix
WIDTH = 0.27
BELOW: dict[str, Any] = {
    "fontsize": 6,
    "loc": "upper center",
    "bbox_to_anchor": (0.5, -0.18),
    "frameon": False,
}
COLOURS = {DENSE: "tab:green", SPARSE: "tab:purple", SCAN: "tab:blue"}


def measure(options: Options) -> Record:
    torch.manual_seed(0)
    narrower = NARROWER[options.size]
    x, model = torch.randn(1, *IMAGE), vgg11(narrower)
    # the cotangent of the image is nobody's operand: back-propagation does without its step too
    dense = tuple(ProductStep((*jt.shape, 1), 2 * jt.nnz) for jt in chain(model, x)[1:])
    patterns = [jt.pattern for jt in chain(pruned(model, PRUNED), x)]
    costs = [chain_cost(hybrid(len(patterns), levels), patterns) for levels in range(UP_LEVELS + 1)]
    steps = {
        DENSE: [point("middle", step) for step in dense],
        SPARSE: list(points(costs[0])),
        SCAN: list(points(costs[-1])),
    }
    size = "" if narrower == 1 else f", channels divided by {narrower}"
    return {
        "data": f"counted; {PRUNED:.0%} of each convolution's weights pruned at random{size}",
        "beside": besides(dense, costs),
        "steps": steps,
    }


def points(cost: ChainCost) -> Iterator[Record]:
    """Every step of a scan, with what it would cost if no zero were known. Critical: all have to wait for it."""
    levels = [("up", level.steps) for level in cost.up] + [("down", steps) for steps in cost.down]
    for phase, steps in levels:
        slowest = max(steps, key=lambda step: step.flops, default=None)
        yield from (point(phase, step, step is slowest) for step in steps)
    yield from (point("middle", step) for step in cost.middle)


def point(phase: str, step: ProductStep, critical: bool = True) -> Record:
    kind = "mv" if step.shape[-1] == 1 else "mm"
    return {"phase": phase, "kind": kind, "critical": critical, "dense": step.dense, "flops": step.flops}


def besides(dense: Steps, costs: Sequence[ChainCost]) -> list[Record]:
    plain = costs[0]
    lines = [
        beside(f"dearest step: {DENSE}", "", mflop(dearest(dense))),
        beside(f"dearest step: {SPARSE}", "", mflop(dearest(plain.steps))),
        beside("dearest step: scan, L0 to L2", "similar to the baseline's", mflop(dearest(costs[-1].steps))),
        beside(f"all steps: {DENSE}", "", mflop(total(dense))),
        beside(f"all steps: {SPARSE}", "", mflop(plain.flops)),
    ]
    for levels, cost in enumerate(costs[1:], 1):
        name, left = f"scan, L0 to L{levels}", cost.up[-1]
        full = f"{left.segments} with {left.nnz / 1e6:.1f} M entries, the densest {left.density:.0%} full"
        for what, flops in (("all steps", cost.flops), ("critical path", cost.critical)):
            ratios = f"{flops / total(dense):.3g}x the dense sweep's, {flops / plain.flops:.3g}x the sparse one's"
            lines.append(beside(f"{what}: {name}", "", f"{mflop(flops)}: {ratios}"))
        lines.append(beside(f"J^T at L{levels}", "", full))
    return lines


def mflop(flops: int) -> str:
    return f"{flops / 1e6:.4g} MFLOP"


def draw(record: Record) -> Picture:
    picture, (by_step, by_phase) = drawing.panels(1, 2)
    scatter(by_step, record["steps"])
    for number, (way, found) in enumerate(record["steps"].items()):
        sums = [sum(p["flops"] for p in found if p["phase"] == phase and p["critical"]) for phase in PHASES]
        places = [at + WIDTH * (number - 1) for at in range(len(PHASES))]
        by_phase.bar(places, sums, WIDTH, color=COLOURS[way], label=way)
    by_phase.set(
        yscale="log",
        xticks=range(len(PHASES)),
        xticklabels=list(PHASES.values()),
        ylabel="FLOP, a sample",
        title="the critical path",
    )
    by_phase.legend(**BELOW, ncol=2)
    return picture


def scatter(axes: Axes, steps: dict[str, list[Record]]) -> None:
    for way, found in steps.items():
        kinds = dict.fromkeys((p["kind"], p["critical"]) for p in found)
        for kind, critical in kinds:
            chosen = [p for p in found if (p["kind"], p["critical"]) == (kind, critical)]
            filled = way == SCAN and critical
            axes.scatter(
                [p["dense"] for p in chosen],
                [p["flops"] for p in chosen],
                s=22,
                marker=MARKERS[kind],
                facecolors=COLOURS[way] if filled else "none",
                edgecolors=COLOURS[way],
                label=f"{way}, {kind}{', critical' if filled else ''}",
            )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="multiplications of the step, if no zero were known",
        ylabel="FLOP of the step, a sample",
        title="each step",
    )
    axes.legend(**BELOW, ncol=2)


FIGURE = Figure(
    "Figure 10: work of each step on a pruned VGG-11, by a scan and by back-propagation", measure, draw, True
)
