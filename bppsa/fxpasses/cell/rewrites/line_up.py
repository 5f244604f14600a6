"""Write into a recorded cell what PyTorch does without a word: values of one step meet the batch, numbers change dtype.

A sweep reads rows [B, n] of its own dtype, so what comes in from outside the loop has to be such rows before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from bppsa.common.chain import FILLS, is_pointwise
from bppsa.fxpasses.cell.rewrites.each_step import beside

aten = torch.ops.aten
PARAM, X, CARRY = 0, 1, 2  # how far a node is from constant


def levels(graph: fx.Graph, carries: Iterable[fx.Node], xs: Iterable[fx.Node]) -> dict[fx.Node, int]:
    level: dict[fx.Node, int] = {**dict.fromkeys(xs, X), **dict.fromkeys(carries, CARRY)}
    for node in graph.nodes:
        if node not in level:
            level[node] = max((level[arg] for arg in node.all_input_nodes), default=PARAM)
    return level


def line_up(graph: fx.Graph, level: dict[fx.Node, int], x: fx.Node, rows: int) -> None:
    """Where an op that waits for the carry reads something of x or of the parameters that is not yet rows."""
    numbers = (lambda arg, node: number(arg, node, level),)
    ways: tuple[Callable[[fx.Node, fx.Node], tuple[Any, tuple, dict] | None], ...] = (
        lambda arg, node: own_rows(arg, node, level, x, rows),
        *numbers,
        lambda arg, node: broadcast(arg, node, level, rows),
    )
    for node in list(graph.nodes):
        if node.op != "call_function" or level[node] == PARAM:
            continue
        if not (is_pointwise(node.target) or node.target is aten.cat.default):
            continue
        for way in ways if level[node] == CARRY else numbers:  # of x alone it may stand in the loop all the same
            for arg in node.all_input_nodes:
                found = way(arg, node)
                if found is not None:
                    node.replace_input_with(arg, inserted(graph, node, level, *found))


def at_each_step(graph: fx.Graph, y: fx.Node, level: dict[fx.Node, int], x: fx.Node) -> fx.Node:
    """An output that depends on neither the carry nor x, as one of each step of x, in memory of its own."""
    if level[y] != PARAM:
        return y
    with graph.inserting_after(next(reversed(graph.nodes))):
        all_alike = graph.call_function(beside, (y, x))
    with graph.inserting_after(all_alike):
        own = graph.call_function(aten.clone.default, (all_alike,))
    for new in (all_alike, own):
        new.meta["val"], level[new] = y.meta["val"], X
    return own


def inserted(graph: fx.Graph, node: fx.Node, level: dict[fx.Node, int], op: Any, args: tuple, options: dict) -> fx.Node:
    with graph.inserting_before(node):
        new = graph.call_function(op, args, options)
    given, named = fx.node.map_arg((args, options), lambda arg: arg.meta["val"])
    new.meta.update(val=op(*given, **named), path=node.meta.get("path", ""), line=node.meta.get("line", ""))
    level[new] = level[args[0]] if op is aten._to_copy.default else X
    return new


def own_rows(
    arg: fx.Node, node: fx.Node, level: dict[fx.Node, int], x: fx.Node, rows: int
) -> tuple[Any, tuple, dict] | None:
    """A tensor that the cell closes over, with a row for each of the batch's: the same at every step. A single one is
    for all rows, but where it is put beside a batch of one."""
    value, out = arg.meta["val"], node.meta["val"]
    if level[arg] != PARAM or arg.target in FILLS or not isinstance(value, torch.Tensor):
        return None
    fits = value.dim() == out.dim() > 0 and value.shape[0] == rows and (rows > 1 or not is_pointwise(node.target))
    return (beside, (arg, x), {}) if fits else None


def number(arg: fx.Node, node: fx.Node, level: dict[fx.Node, int]) -> tuple[Any, tuple, dict] | None:
    """An integer of x that meets real numbers, or a real number of another dtype, which the cell may close over."""
    value, wanted = arg.meta["val"], common_dtype(node)
    if wanted is None or value.dtype in (wanted, torch.bool):
        return None
    of_x = level[arg] == X and level[node] == CARRY
    if not (of_x or (level[arg] == PARAM and value.is_floating_point())):
        return None
    return aten._to_copy.default, (arg,), {"dtype": wanted}


def common_dtype(node: fx.Node) -> torch.dtype | None:
    """The dtype in which an op computes; None where it does not compute with real numbers."""
    if node.meta["val"].is_floating_point():
        return node.meta["val"].dtype
    values = [arg.meta["val"] for arg in node.all_input_nodes]
    if any(value.is_complex() for value in values):
        return None
    reals = [value for value in values if value.is_floating_point()]
    reals = [value for value in reals if value.dim()] or reals  # beside others a number says nothing
    return functools.reduce(torch.promote_types, (value.dtype for value in reals)) if reals else None


def broadcast(arg: fx.Node, node: fx.Node, level: dict[fx.Node, int], rows: int) -> tuple[Any, tuple, dict] | None:
    """A value of x that has no rows, or one for all."""
    value, out = arg.meta["val"], node.meta["val"]
    if level[arg] != X or not is_pointwise(node.target) or out.shape[:1] != (rows,):
        return None
    if value.dim() == out.dim() and value.shape[0] == rows:
        return None
    padded = [1] * (out.dim() - value.dim()) + list(value.shape)
    return aten.expand.default, (arg, [rows, *padded[1:]]), {}
