"""Parts of a forward that run without gradients or under autocast, which calls alone do not show."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import fx

Autocast = tuple[str, bool, torch.dtype]  # device type, enabled, dtype


@dataclass(frozen=True)
class NodeModes:
    """What holds where a node is made."""

    gradients: bool
    autocast: tuple[Autocast, ...]


def enter(gradients: bool, *autocast: Autocast) -> ExitStack:
    stack = ExitStack()
    if not gradients:
        stack.enter_context(torch.no_grad())
    for device, enabled, dtype in autocast:
        stack.enter_context(torch.autocast(device, dtype, enabled))
    return stack


def leave(region: ExitStack) -> None:
    region.close()


def copied_in_regions(graph: fx.Graph, nodes: Iterable[fx.Node], copy: Callable[[fx.Node], None]) -> None:
    """Copies the nodes one after another, and has each run in its region."""
    region, inside = None, None
    for node in nodes:
        wanted: NodeModes | None = node.meta.get("region")
        if wanted != region:
            if inside is not None:
                graph.call_function(leave, (inside,))
            inside = graph.call_function(enter, (wanted.gradients, *wanted.autocast)) if wanted else None
            region = wanted
        copy(node)
    if inside is not None:
        graph.call_function(leave, (inside,))
