"""Whether a region pays, and what `explain` tells of it: a line for each convolution and linear layer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import fx

from bppsa.codegen.sparse_conv.native import LANES
from bppsa.decisions import Decision
from bppsa.errors import Reason
from bppsa.frontend.pruned.regions.draft import RegionLayer
from bppsa.frontend.pruned.regions.grow import GraphSegment
from bppsa.frontend.pruned.regions.nodes import located, path_of
from bppsa.frontend.pruned.regions.products import LAYERS, PLAIN
from bppsa.plan.choose import Choice
from bppsa.plan.sparse import LayerWork, choose_region, gain_of

COMPUTED = Reason(
    "its weight is no Parameter times masks",
    mend="prune by torch.nn.utils.prune, or multiply the Parameter by a mask of its shape",
)


def work_of(layer: RegionLayer) -> LayerWork:
    (height, width), out = layer.window.size, math.prod(layer.window.out)
    weights = layer.inputs // layer.groups * layer.outputs * math.prod(layer.window.kernel)
    activations = layer.inputs * height * width + layer.outputs * out
    return LayerWork(layer.kept, weights, out, activations, masked=layer.kept < weights, first=layer.first)


class How(NamedTuple):
    """What a choice depends on besides the layers."""

    training: bool
    dtype: torch.dtype | None  # None where there is no region


def decide(segment: GraphSegment, how: How) -> Choice:
    if not any(layer.masks for layer in segment.layers):
        return Choice("pytorch", "no pruned layer in its region", {})
    assert how.dtype is not None
    works = [work_of(layer) for layer in segment.layers]
    return choose_region(works, segment.layers[0].samples, LANES[how.dtype], how.training)


def told(segment: GraphSegment, graph: list[fx.Node], choice: Choice, how: How) -> list[Decision]:
    """One Decision a layer of the segment, which says where layouts are converted, and why a region ends."""
    found = []
    for i, layer in enumerate(segment.layers):
        assert how.dtype is not None
        work = work_of(layer)
        gain = gain_of(work, layer.samples, LANES[how.dtype], how.training)
        numbers = {"density": round(work.kept / work.weights, 4), "B": layer.samples, "kept": work.kept}
        numbers |= {"gain": round(gain, 1 if gain >= 1 else 2)}
        if segment.region is None:
            strategy, reason = "pytorch", choice.reason
        else:
            strategy = "sparse" if work.kept < work.weights else "blocked"
            reason = f"in a region of {len(segment.layers)} layers, {choice.reason}"
            reason += "; converts its input" if i == 0 else ""
            reason += f"; {border(segment, graph[segment.stop])}" if i + 1 == len(segment.layers) else ""
        predicted = choice.numbers if segment.region is not None else {}
        speedup = float(predicted["PyTorch's"]) / float(predicted["predicted ms"]) if predicted else None
        found.append(Decision(layer.path, layer.kind, strategy, reason, numbers, speedup=speedup))
    node = graph[segment.start]
    if not segment.layers and node.target in LAYERS and segment.ended is not None:
        found.append(Decision(path_of(node), LAYERS[node.target], "pytorch", located(str(segment.ended), node)))
    if node.target in PLAIN:
        found.append(Decision(path_of(node), PLAIN[node.target], "pytorch", located(str(COMPUTED), node)))
    return found


def border(segment: GraphSegment, after: fx.Node) -> str:
    """How a region ends."""
    why = "" if after.op == "output" or segment.ended is None else f" ({located(str(segment.ended), after)})"
    return f"its region's output is converted back{why}"


def within(prefix: str, decision: Decision) -> Decision:
    """The same of a module that is at `prefix`."""
    path = f"{prefix}.{decision.path}" if prefix and decision.path else prefix or decision.path
    return decision if path == decision.path else replace(decision, path=path)
