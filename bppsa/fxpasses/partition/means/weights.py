"""By what micro-batches are weighted so that their losses make up the batch's, from the graph that gives the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from bppsa.common.graph import ancestors
from bppsa.common.stages import LossMeans
from bppsa.fxpasses.partition.call.arguments import leaf_of
from bppsa.fxpasses.partition.capture.graph import CapturedGraph
from bppsa.fxpasses.partition.cut.modules import stage_module
from bppsa.fxpasses.partition.means.classes import Classes, of_classes
from bppsa.fxpasses.partition.means.reading import LossReading
from bppsa.fxpasses.partition.means.sharding import ROWS, ClassCount, Inseparable, Partial, Quantity, SelectedCount
from bppsa.fxpasses.partition.means.trials import Trials

CHANGES = "loss_fn changes its buffer {} once a micro-batch, and not once a step; change it after `optimizer.step()`"


def means_of(
    model: nn.Module,
    graph: CapturedGraph,
    arguments: Sequence[Any],
    by_rows: Sequence[bool],
    loss: Callable[[Any], Any],
    made: int = 0,
) -> LossMeans | None:
    """None where what the model returns has no loss, or nothing is known of rows.

    arguments: of the example. loss: takes it from what the model returns. made: how many of the arguments, the first
    ones, a model has made, so that they are not known before it runs.
    """
    leaf = loss(graph.assemble(graph.examples))
    number = next((i for i, x in enumerate(graph.examples) if x is leaf), None)
    if number is None:
        return None
    end = graph.graph.output_node().args[0][number]
    pairs = zip(graph.sizes.shapes, by_rows, strict=True)
    rows = frozenset(s for shape, yes in pairs if shape and yes for s in getattr(shape[0], "free_symbols", ()))
    if not rows or not isinstance(leaf, Tensor) or leaf.dim():
        return None
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    reading = LossReading(rows, lambda path: path not in parameters, trials_of(model, graph, arguments), made == 0)
    give(reading, graph, arguments, by_rows, made)
    for node in graph.graph.nodes:
        if (
            node.op not in ("output", "placeholder")
            and node not in reading.shardings
            and node.target is not graph.sizes
        ):
            reading.read(node)
    if made and reading.state:
        changed, by = next(iter(reading.state.items()))
        return LossMeans(place=by.meta.get("place", ""), why=CHANGES.format(changed.target))
    found = reading.shardings[end]
    if not isinstance(found, Partial) or found.rows:  # what has rows is no loss: its size is not known
        node = found.node if isinstance(found, Inseparable) else end
        return LossMeans(place=node.meta.get("place", ""))
    return LossMeans(*quantities(model, graph, reading, found), joined_at(reading, end))


def joined_at(reading: LossReading, end: fx.Node) -> str:
    """The line where terms that count in several ways are first put together; "" where none are, or it is not known."""
    below = ancestors([end])
    of_terms = ((node, x) for node, x in reading.shardings.items() if isinstance(x, Partial) and len(x.weights) > 1)
    return next((str(node.meta.get("place", "")) for node, _ in of_terms if node in below), "")


def trials_of(model: nn.Module, graph: CapturedGraph, arguments: Sequence[Any]) -> Trials:
    leaves = tree_leaves(list(arguments))
    pairs = ((shape, x.shape) for shape, x in zip(graph.sizes.shapes, leaves, strict=True) if shape is not None)
    known = {symbol: size for shape, sizes in pairs for symbol, size in zip(shape, sizes, strict=True)}
    device = next((x.device for x in leaves if isinstance(x, Tensor)), torch.device("cpu"))
    return Trials(model, graph.constants, known, device)


def give(
    reading: LossReading, graph: CapturedGraph, arguments: Sequence[Any], by_rows: Sequence[bool], made: int
) -> None:
    """The arguments and, of those that are containers, their leaves."""
    leaves = iter(zip(graph.sizes.shapes, by_rows, strict=True))
    for number, (node, example) in enumerate(zip(graph.graph.find_nodes(op="placeholder"), arguments, strict=True)):
        parts = [(x, *next(leaves)) for x in tree_leaves(example)]
        users = [user for user in node.users if user.target is leaf_of]
        whole = [(node, parts[0])] if isinstance(example, Tensor) else [(user, parts[user.args[1]]) for user in users]
        reading.given(node, False, number >= made)
        for found, (x, shape, has_rows) in whole:
            found.meta["made"] = x.dtype, shape
            reading.given(found, has_rows, number >= made)


def quantities(
    model: nn.Module, graph: CapturedGraph, reading: LossReading, found: Partial
) -> tuple[Callable[..., Sequence[Tensor]], tuple[bool, ...], tuple[tuple[tuple[int, int], ...], ...]]:
    """A function of the model's arguments that gives them, whether each adds up, and the weights of a loss."""
    place = {node: i for i, node in enumerate(graph.graph.nodes)}

    def first(quantity: Quantity) -> tuple[list[int], str, int]:
        """The same on every rank."""
        ignored = quantity.ignored if isinstance(quantity, ClassCount) else 0
        return [place[node] for node in nodes_of(quantity)], type(quantity).__name__, ignored

    order = sorted({q for weight in found.weights for q, _ in weight if q != ROWS}, key=first)
    number: Mapping[Quantity, int] = {ROWS: -1} | {q: i for i, q in enumerate(order)}
    weights = tuple(sorted(tuple(sorted((number[q], power) for q, power in weight)) for weight in found.weights))
    sums = tuple(map(reading.adds_up, order))
    return counting(model, graph, order), sums, weights


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
        return [node for node in (quantity.target, quantity.weight) if isinstance(node, fx.Node)]
    if isinstance(quantity, SelectedCount):
        return [quantity.mask]
    return [quantity] if isinstance(quantity, fx.Node) else []


def call_for(quantity: Quantity, copies: Mapping[fx.Node, fx.Node]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if isinstance(quantity, ClassCount):
        weight = quantity.weight
        if isinstance(weight, Tensor):
            return Classes(weight, quantity.ignored), (copies[quantity.target],)
        known = None if weight is None else copies.get(weight)
        return of_classes, (copies[quantity.target], known, quantity.ignored)
    if isinstance(quantity, SelectedCount):
        return torch.sum, (copies[quantity.mask],)
    assert isinstance(quantity, fx.Node)
    return torch.detach, (copies[quantity],)
