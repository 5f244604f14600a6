"""Whether a region pays, and what `explain` tells of it: a line for each convolution and linear layer."""

from __future__ import annotations

import math

import torch
from torch import fx, nn

from bppsa._pruned.draft import Layer
from bppsa._pruned.masks import LAYERS
from bppsa._pruned.regions import Segment
from bppsa._pruned.rewritten import kind_of
from bppsa.codegen.blocked.native import LANES
from bppsa.plan.choose import Choice
from bppsa.plan.sparse import Work, choose_region
from bppsa.report import Decision


def work_of(layer: Layer) -> Work:
    entries = layer.entries()
    (height, width), out = layer.window.size, math.prod(layer.window.out)
    weights = layer.inputs // layer.groups * layer.outputs * math.prod(layer.window.kernel)
    activations = layer.inputs * height * width + layer.outputs * out
    kept = entries.forward.count
    return Work(kept, weights, out, activations, masked=kept < weights, first=layer.first)


def decide(segment: Segment, training: bool, dtype: torch.dtype) -> Choice:
    if not segment.layers:
        return Choice("pytorch", "no convolution or linear layer in it", {})
    works = [work_of(layer) for layer in segment.layers]
    return choose_region(works, segment.layers[0].samples, LANES[dtype], training)


def told(segment: Segment, graph: list[fx.Node], choice: Choice, root: nn.Module) -> list[Decision]:
    """One Decision a layer of the segment; its numbers say where layouts are converted."""
    prefix = root.__dict__["_bppsa_path"]
    found = []
    for i, layer in enumerate(segment.layers):
        work = work_of(layer)
        numbers = {"density": round(work.kept / work.weights, 4), "B": layer.samples, "kept": work.kept}
        if segment.region is None:
            strategy, reason = "pytorch", choice.reason
        else:
            strategy = "sparse" if work.kept < work.weights else "blocked"
            reason = f"in a region of {len(segment.layers)} layers, {choice.reason}"
            reason += "; converts its input" if i == 0 else ""
            reason += "; its region's output is converted back" if i + 1 == len(segment.layers) else ""
        found.append(Decision(join(prefix, layer.path), layer.kind, strategy, reason, numbers))
    if not segment.layers and (node := graph[segment.start]).op == "call_module":
        module = root.get_submodule(str(node.target))
        if isinstance(module, LAYERS) and segment.ended is not None:
            kind = kind_of(module).__name__.lower()
            found.append(Decision(join(prefix, str(node.target)), kind, "pytorch", str(segment.ended)))
    return found


def join(prefix: str, path: str) -> str:
    return f"{prefix}.{path}" if prefix and path else prefix or path
