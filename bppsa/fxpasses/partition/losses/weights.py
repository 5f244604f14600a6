"""By what micro-batches are weighted so that their losses make up the batch's, from the graph that gives the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from bppsa.common.graph import ancestors
from bppsa.common.stages import LossMeans, Way
from bppsa.common.terms import term
from bppsa.fxpasses.partition.capture.graph import CapturedGraph
from bppsa.fxpasses.partition.cut.modules import stage_module
from bppsa.fxpasses.partition.losses.loss_graph import LossGraph
from bppsa.fxpasses.partition.means.classes import Classes, of_classes
from bppsa.fxpasses.partition.means.reading import LossReading
from bppsa.fxpasses.partition.means.sharding import (
    ROWS,
    ClassCount,
    Inseparable,
    Monomial,
    Partial,
    Quantity,
    SelectedCount,
)

CHANGES = "loss_fn changes its buffer {} once a micro-batch, and not once a step; change it after `optimizer.step()`"


def means_of(of: LossGraph) -> LossMeans | None:
    """None where what the model returns has no loss, or nothing is known of rows."""
    end = of.end
    if end is None or not of.rows:
        return None
    reading = of.read()
    if of.made and reading.state:
        changed, by = next(iter(reading.state.items()))
        return LossMeans(place=by.meta.get("place", ""), why=CHANGES.format(changed.target))
    found = reading.shardings[end]
    if not isinstance(found, Partial) or found.rows:  # what has rows is no loss: its size is not known
        node = found.node if isinstance(found, Inseparable) else end
        return LossMeans(place=node.meta.get("place", ""))
    terms = ways_of_terms(of, end) if len(found.weights) > 1 else []
    count, sums, number_of = quantities(of, reading, found.weights.union(terms))

    def way(monomial: Monomial) -> Way:
        return tuple(sorted((number_of[q], power) for q, power in monomial))

    return LossMeans(
        count, sums, tuple(sorted(map(way, found.weights))), tuple(map(way, terms)), joined_at(reading, end)
    )


def ways_of_terms(of: LossGraph, end: fx.Node) -> list[Monomial]:
    """The ways of terms with factors, by their numbers; none where the loss is not the sum of such."""
    marked = of.graph.graph.find_nodes(op="call_function", target=term)
    if not marked:
        return []
    reading = of.read(apart=True)
    known = len(reading.terms) == len(marked) and reading.shardings[end] == Partial.of(False)
    return [reading.terms[i] for i in range(len(marked))] if known else []


def joined_at(reading: LossReading, end: fx.Node) -> str:
    """The line where terms that count in several ways are first put together; "" where none are, or it is not known."""
    below = ancestors([end])
    of_terms = ((node, x) for node, x in reading.shardings.items() if isinstance(x, Partial) and len(x.weights) > 1)
    return next((str(node.meta.get("place", "")) for node, _ in of_terms if node in below), "")


def quantities(
    of: LossGraph, reading: LossReading, ways: Iterable[Monomial]
) -> tuple[Callable[..., Sequence[Tensor]], tuple[bool, ...], Mapping[Quantity, int]]:
    """A function of the model's arguments that gives what the ways are made of, whether each adds up, and numbers."""
    place = {node: i for i, node in enumerate(of.graph.graph.nodes)}

    def first(quantity: Quantity) -> tuple[list[int], str, int]:
        """The same on every rank."""
        ignored = quantity.ignored if isinstance(quantity, ClassCount) else 0
        number = 0 if isinstance(ignored, fx.Node) else ignored
        return [place[node] for node in nodes_of(quantity)], type(quantity).__name__, number

    order = sorted({q for way in ways for q, _ in way if q != ROWS}, key=first)
    number: Mapping[Quantity, int] = {ROWS: -1} | {q: i for i, q in enumerate(order)}
    return counting(of.model, of.graph, order), tuple(map(reading.adds_up, order)), number


def counting(model: nn.Module, graph: CapturedGraph, order: Sequence[Quantity]) -> nn.Module:
    """A graph of what the quantities are computed by."""
    new = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    needed = ancestors(node for quantity in order for node in nodes_of(quantity))
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            copies[node] = new.placeholder(node.name)  # what it stands for may be no name: "others[0]"
        elif node in needed:
            copies[node] = new.node_copy(node, copies.__getitem__)
    new.output(tuple(new.call_function(*call_for(quantity, copies)) for quantity in order))
    return stage_module(model, new, graph.constants)


def nodes_of(quantity: Quantity) -> list[fx.Node]:
    if isinstance(quantity, ClassCount):
        return [x for x in (quantity.target, quantity.weight, quantity.ignored) if isinstance(x, fx.Node)]
    if isinstance(quantity, SelectedCount):
        return [quantity.mask]
    return [quantity] if isinstance(quantity, fx.Node) else []


def call_for(quantity: Quantity, copies: Mapping[fx.Node, fx.Node]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if isinstance(quantity, ClassCount):
        given = quantity.target, quantity.weight, quantity.ignored
        target, weight, ignored = (copies[x] if isinstance(x, fx.Node) else x for x in given)
        return (
            (Classes(weight), (target, ignored))
            if isinstance(weight, Tensor)
            else (of_classes, (target, weight, ignored))
        )
    if isinstance(quantity, SelectedCount):
        return torch.sum, (copies[quantity.mask],)
    assert isinstance(quantity, fx.Node)
    return torch.detach, (copies[quantity],)
