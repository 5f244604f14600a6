"""A model's forward, in its present mode, as a graph that was seen to hold what the model does."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from bppsa.fxpasses.partition.call.arguments import Arguments
from bppsa.fxpasses.partition.call.kept import kept
from bppsa.fxpasses.partition.call.progress import telling
from bppsa.fxpasses.partition.call.results import check_result
from bppsa.fxpasses.partition.call.transient import marked
from bppsa.fxpasses.partition.capture.copied import copied
from bppsa.fxpasses.partition.capture.exported import exported
from bppsa.fxpasses.partition.capture.graph import CapturedGraph
from bppsa.fxpasses.partition.capture.lengths import lengths_as_sizes
from bppsa.fxpasses.partition.capture.sizes import sizes_of
from bppsa.fxpasses.partition.capture.unseen import look


def captured(model: nn.Module, arguments: Arguments) -> CapturedGraph:
    """Its first node checks the sizes that it is called with.

    Raises PartitionError for what export cannot see, and for what it would lose.
    """
    with telling(model, "running it on the example"), kept(model):
        seen = look(model, arguments)
        check_result(model, seen.result)
    with telling(model, "exporting it"), marked(model, seen.transient), lengths_as_sizes(seen.lengths):
        found = exported(model, arguments)
    with telling(model, "running its graph"), kept(model):
        graph = copied(model, arguments, found, sizes_of(found, arguments))
        return replace(graph, looked_up=seen.looked_up, transient=seen.transient)
