"""From a model to its stages: the passes of this room, one after another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from bppsa.common.stages import COST, MEASURED, Stages
from bppsa.errors import PartitionError, StrategyError
from bppsa.fxpasses.partition.by_hand import by_hand
from bppsa.fxpasses.partition.call.arguments import Arguments, arguments_of, shapes_of
from bppsa.fxpasses.partition.call.progress import telling
from bppsa.fxpasses.partition.capture.captured import captured
from bppsa.fxpasses.partition.capture.graph import CapturedGraph
from bppsa.fxpasses.partition.capture.since import since
from bppsa.fxpasses.partition.check.rows import by_rows
from bppsa.fxpasses.partition.check.sideways import check_sideways
from bppsa.fxpasses.partition.check.verify import check_stages, never_one
from bppsa.fxpasses.partition.cut.balance import balanced
from bppsa.fxpasses.partition.cut.building import build, set_sizes
from bppsa.fxpasses.partition.cut.order import Order, ordered
from bppsa.fxpasses.partition.cut.placement import Placement, ends_as_before
from bppsa.fxpasses.partition.losses.loss_graph import LossGraph
from bppsa.fxpasses.partition.losses.outputs import few, own_loss
from bppsa.fxpasses.partition.losses.weights import means_of
from bppsa.fxpasses.partition.means.sizes import size_of
from bppsa.fxpasses.partition.ops.effects import facts
from bppsa.fxpasses.partition.situations import situation_of
from bppsa.fxpasses.partition.timing import GatherSeconds, alone, measured_cut
from bppsa.fxpasses.partition.unfit import check_fit, check_traceable

DEFAULT = 8  # stages


def partition(
    model: nn.Module,
    example_inputs: Any,
    stages: int | Sequence[nn.Module] = DEFAULT,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    balance: str = COST,
    speeds: Sequence[float] = (),
    all_gather: GatherSeconds = alone,
) -> Stages:
    """Cut `model` into stages of about equal cost and return them; they hold the model's own parameters and buffers.

    The model runs on the example, and is left as it was. Later calls may have other sizes of all dimensions that the
    forward leaves open, and the modes (training, evaluating) that the model has now.

    The cost of an op is its flops, and the bytes that it reads and writes as flops. The largest stage is within 5 % of
    the least possible, the others share what it leaves evenly; of all such cuts this sends the fewest bytes.

    Args:
        model: what to cut.
        example_inputs: the positional arguments of a call, as a tuple, or the only one.
        stages: how many, or the modules of the model that are its stages, in order: the first takes the arguments, each
            other what the one before it returns (the elements of a tuple as arguments), and the last returns the
            result.
        example_kwargs: the keyword arguments of that call.
        balance: "cost", or "measured": ops are timed on the example, forward and backward, and the largest stage is
            within 1 % of the least possible.
        speeds: of each stage, how fast what runs it is; () where all are alike.
        all_gather: from what this process measures to what each worker has measured, the same on all.

    Raises:
        PartitionError: torch.export cannot see the model or would lose a part of it, with the line; or the model cannot
            be cut into so many stages (a RuntimeError).
        StrategyError: a balance that is not known, not as many speeds as stages, or an option that says nothing about
            what is asked for (a ValueError).
    """
    check_options(stages, balance, speeds, all_gather)
    check_fit(model)
    if not isinstance(stages, int):
        return by_hand(model, stages, example_inputs, example_kwargs or {})
    check_traceable(model)
    arguments = arguments_of(model, example_inputs, example_kwargs or {})
    graph = graph_of(model, arguments)
    order = ordered(graph.graph)
    if not 1 <= stages <= len(order.blocks):
        raise too_many(model, order, stages)
    if balance == MEASURED:
        with telling(model, "measuring its ops"):
            cut = measured_cut(model, graph, order, arguments, stages, speeds, all_gather)
        found = made(model, arguments, graph, order, cut.ends)
        timed = (replace(stage, seconds=s) for stage, s in zip(found.stages, cut.seconds, strict=True))
        return replace(found, stages=tuple(timed))
    costs = [sum(facts(node).cost for node in block) for block in order.blocks]
    return made(model, arguments, graph, order, balanced(costs, order.crossing(), stages, speeds))


def graph_of(model: nn.Module, arguments: Arguments) -> CapturedGraph:
    """The graph of the model, and of its loss where it returns one: terms that count in unlike ways have factors."""
    graph = captured(model, arguments)
    loss_graph(model, graph, arguments, list(map(bool, graph.sizes.of_rows))).separate_terms()
    return graph


def loss_graph(model: nn.Module, graph: CapturedGraph, arguments: Arguments, by_rows: Sequence[bool]) -> LossGraph:
    """Of the loss that the model returns. by_rows: of the leaves of the arguments, whether they have rows."""
    return LossGraph(model, graph, arguments.examples, by_rows, own_loss)


def check_options(
    stages: int | Sequence[nn.Module], balance: str, speeds: Sequence[float], all_gather: GatherSeconds
) -> None:
    if balance not in (COST, MEASURED):
        raise StrategyError(f"unknown balance={balance!r}; known: {COST}, {MEASURED}")
    given = {"balance=": balance != COST, "speeds=": len(speeds) > 0, "all_gather=": all_gather is not alone}
    idle = next((name for name, is_so in given.items() if is_so), None)
    if not isinstance(stages, int):
        if idle:
            raise StrategyError(f"{idle} says nothing where stages are given as modules; leave it out")
        return
    if balance != MEASURED and all_gather is not alone:
        raise StrategyError(f"all_gather= says nothing with balance={balance!r}; leave it out")
    if len(speeds) and (len(speeds) != stages or not all(0 < speed < math.inf for speed in speeds)):
        raise StrategyError(f"speeds={list(speeds)} are not {stages} numbers above 0; give one for each of the stages")


def made(model: nn.Module, arguments: Arguments, graph: CapturedGraph, order: Order, ends: Sequence[int]) -> Stages:
    """ends: for each stage, the index of the first block behind it."""
    of_loss = loss_graph(model, graph, arguments, list(map(bool, graph.sizes.of_rows))).numbers()
    found = build(model, graph, order, ends, arguments, of_loss)
    with telling(model, "comparing its stages with it"):
        check_stages(model, found, arguments)
        rows = by_rows(model, found, arguments, graph.sizes.of_rows)
        check_sideways(model, found, arguments, rows)
        sizes = replace(graph.sizes, of_rows=rows)
        set_sizes(found, replace(sizes, never_one=never_one(model, found, arguments, sizes)))
    weights = tuple(frozenset(stage.names.values()) for stage in found.stages)
    means = means_of(loss_graph(model, graph, arguments, rows))
    outputs = [size_of(node) for node in graph.graph.output_node().args[0]]  # of arguments too, by now
    return replace(
        found,
        by_rows=rows,
        shapes=shapes_of(arguments.leaves),
        situation=situation_of(model, arguments.examples),
        taken=arguments.taken,
        again=partial(cut_again, weights, arguments),
        changed=since(model, graph.looked_up),
        means=means,
        few=few(graph.examples, outputs, graph.sizes.shapes, rows),
        check_rows=sizes.check_rows,
        transient=graph.transient,
    )


def cut_again(weights: Placement, arguments: Arguments, model: nn.Module, values: Sequence[Any]) -> Stages:
    """The model as it is now, as in evaluation, in as many stages with the same weights in each. values: of the
    arguments, as `taken` gives them. Raises PartitionError where it cannot be cut so."""
    given = arguments.like(values)
    graph = graph_of(model, given)
    order = ordered(graph.graph)
    return made(model, given, graph, order, ends_as_before(model, weights, order))


def too_many(model: nn.Module, order: Order, stages: int) -> PartitionError:
    """Why there cannot be so many stages."""
    most, largest = len(order.blocks), max(order.blocks, key=len, default=())
    places = [place for node in largest if facts(node).writes and (place := node.meta.get("place"))]
    why = f"; {len(largest)} ops stay together for what is changed in place, as at {places[-1]}" if places else ""
    usual = f"; where stages= is not given, it is {DEFAULT}" if stages == DEFAULT else ""
    return PartitionError(
        f"{type(model).__name__} cannot be cut into {stages} stages; there can be 1 to {most}{why}{usual}"
    )
