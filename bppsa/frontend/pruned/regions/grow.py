"""Grow regions along a captured graph, and run one on what a call has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from bppsa.errors import Reason, Unsupported
from bppsa.frontend.pruned.regions.draft import Draft, EntriesByLayer, RegionLayer, RegionValue, is_image
from bppsa.frontend.pruned.regions.lay import lay
from bppsa.frontend.pruned.regions.nodes import format_of, run_node
from bppsa.runtime.sparse_conv.apply import run
from bppsa.runtime.sparse_conv.region import Region

AUTOCAST = Reason("autocast, in whose precision pruned layers have no kernels")
KnownValues = dict[fx.Node, Any]


@dataclass(frozen=True, eq=False)
class GraphSegment:
    """Nodes `start` to `stop` of a graph. region: None where PyTorch runs them."""

    start: int
    stop: int
    region: Region | None = None
    inputs: tuple[fx.Node, ...] = ()
    outputs: tuple[tuple[fx.Node, ...], ...] = ()  # for each of the region's, the names it has outside
    formats: tuple[torch.memory_format, ...] = ()  # of each, as PyTorch lays it out
    params: tuple[fx.Node, ...] = ()
    extras: tuple[Any, ...] = ()  # nodes, or numbers
    ahead: tuple[fx.Node, ...] = ()  # nodes that PyTorch runs before the region
    counters: tuple[fx.Node, ...] = ()  # int64, that the region's batch norms raise by one
    layers: tuple[RegionLayer, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()  # of the inputs
    dtype: torch.dtype | None = None  # of all that the region computes with
    constants: tuple[tuple[fx.Node, Any], ...] = ()  # what nodes of the region give that is no tensor, and its value
    aliases: tuple[tuple[fx.Node, fx.Node], ...] = ()  # nodes that give an input of the region as it is, and that
    ended: Reason | None = None  # why it goes no further

    def without_region(self, stop: int) -> GraphSegment:
        """The same for PyTorch, up to `stop`."""
        return GraphSegment(self.start, stop, layers=self.layers, ended=self.ended)


def grow(
    graph: list[fx.Node],
    start: int,
    known: KnownValues,
    entries: EntriesByLayer,
    brought: frozenset[Any] = frozenset(),
) -> GraphSegment:
    """The longest region that begins at node `start`; known: what the nodes before it gave. It may be empty. brought:
    symbols of numbers that are not the same in all of its calls."""
    draft = Draft(known, entries, brought)
    ended, stop = None, start
    if torch.is_autocast_enabled("cpu"):
        return GraphSegment(start, start, ended=AUTOCAST)
    for node in graph[start:]:
        before = draft.mark()
        draft.node = node
        try:
            result = lay(draft, node)
        except Unsupported as reason:
            draft.back_to(before)
            ended = reason.reason
            break
        for argument in node.all_input_nodes:
            same = isinstance(result, RegionValue) and result is draft.found.get(argument)
            if same and len(argument.users) > 1:
                draft.shared.add(result.number)
        if node not in draft.ahead:
            draft.found[node] = result
        stop += 1
    return finish(draft, graph[start:stop], start, ended)


def finish(draft: Draft, inside: list[fx.Node], start: int, ended: Reason | None) -> GraphSegment:
    names: dict[int, list[fx.Node]] = {}
    constants, found, within = [], draft.found, set(inside)
    for node in inside:
        if node not in draft.ahead and any(user not in within for user in node.users):
            if isinstance(found[node], RegionValue):
                names.setdefault(found[node].number, []).append(node)
            else:
                constants.append((node, found[node]))
    outputs = [draft.values[number] for number in names if number not in draft.inputs]
    aliases = [(name, draft.inputs[v]) for v in names if v in draft.inputs for name in names[v]]
    used = {v for node in draft.nodes for v in node.inputs}
    draft.inputs = {v: node for v, node in draft.inputs.items() if v in used}
    return GraphSegment(
        start=start,
        stop=start + len(inside),
        region=draft.region(outputs),
        inputs=tuple(draft.inputs.values()),
        outputs=tuple(tuple(names[v.number]) for v in outputs),
        formats=tuple(format_of(names[v.number][0]) for v in outputs),
        params=tuple(draft.params),
        extras=tuple(draft.extras),
        ahead=tuple(draft.ahead),
        counters=tuple(draft.counters),
        layers=tuple(draft.layers),
        shapes=tuple(tuple(draft.known[node].shape) for node in draft.inputs.values()),
        dtype=draft.dtype,
        constants=tuple(constants),
        aliases=tuple(aliases),
        ended=ended,
    )


def fits(segment: GraphSegment, known: KnownValues) -> bool:
    """Whether its inputs are what the region was made for: those that PyTorch has computed may be anything, but for
    those that run ahead of it, as these follow from what the graph is given."""
    computed = [(x, shape) for x, shape in zip(segment.inputs, segment.shapes, strict=True) if x not in segment.ahead]
    given = [(known[node], shape) for node, shape in computed]
    return all(is_image(x) and x.shape == shape and x.dtype is segment.dtype for x, shape in given)


def run_region(segment: GraphSegment, known: KnownValues) -> None:
    assert segment.region is not None
    for node in segment.ahead:
        known[node] = run_node(node, known)
    if segment.counters:
        torch._foreach_add_([known[node] for node in segment.counters], 1)
    tensors = [*map(known.__getitem__, segment.inputs), *map(known.__getitem__, segment.params)]
    extras = [known[extra] if isinstance(extra, fx.Node) else extra for extra in segment.extras]
    outputs = run(segment.region, tensors, extras)
    for names, output, layout in zip(segment.outputs, outputs, segment.formats, strict=True):
        if layout is torch.channels_last:
            output = output.contiguous(memory_format=layout)
        known.update(dict.fromkeys(names, output))
    known.update(segment.constants)
    known.update((name, known[source]) for name, source in segment.aliases)
