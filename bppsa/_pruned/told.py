"""Whether a region pays, and what `explain` tells of it: a line for each convolution and linear layer."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import fx, nn

from bppsa._pruned.draft import Layer
from bppsa._pruned.masks import LAYERS
from bppsa._pruned.regions import Segment
from bppsa._pruned.rewritten import kind_of
from bppsa.codegen.blocked.native import LANES
from bppsa.plan.choose import Choice
from bppsa.plan.sparse import Work, choose_region, gain_of
from bppsa.report import Decision


def work_of(layer: Layer) -> Work:
    (height, width), out = layer.window.size, math.prod(layer.window.out)
    weights = layer.inputs // layer.groups * layer.outputs * math.prod(layer.window.kernel)
    activations = layer.inputs * height * width + layer.outputs * out
    return Work(layer.kept, weights, out, activations, masked=layer.kept < weights, first=layer.first)


class How(NamedTuple):
    """What a choice depends on besides the layers."""

    training: bool
    dtype: torch.dtype


def decide(segment: Segment, how: How) -> Choice:
    if not segment.layers:
        return Choice("pytorch", "no convolution or linear layer in it", {})
    works = [work_of(layer) for layer in segment.layers]
    return choose_region(works, segment.layers[0].samples, LANES[how.dtype], how.training)


def told(segment: Segment, graph: list[fx.Node], choice: Choice, root: nn.Module, how: How) -> list[Decision]:
    """One Decision a layer of the segment, which says where layouts are converted, and why a region ends."""
    prefix = root.__dict__["_bppsa_path"]
    found = []
    for i, layer in enumerate(segment.layers):
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
        found.append(Decision(join(prefix, layer.path), layer.kind, strategy, reason, numbers))
    if not segment.layers and (node := graph[segment.start]).op == "call_module":
        module = root.get_submodule(str(node.target))
        if isinstance(module, LAYERS) and segment.ended is not None:
            kind = kind_of(module).__name__.lower()
            found.append(Decision(join(prefix, str(node.target)), kind, "pytorch", str(segment.ended)))
    return found


def border(segment: Segment, after: fx.Node) -> str:
    """How a region ends."""
    why = "" if after.op == "output" else f" ({segment.ended})"
    return f"its region's output is converted back{why}"


def join(prefix: str, path: str) -> str:
    return f"{prefix}.{path}" if prefix and path else prefix or path
