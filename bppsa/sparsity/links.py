"""The operators of one node of a graph: what its rule says for the arguments asked for, broadcasts put in."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.common.graph import nodes_in
from bppsa.sparsity.masks import pruned
from bppsa.sparsity.operators.transposed import TransposedJacobian
from bppsa.sparsity.rules import rule_of

aten = torch.ops.aten
ValueOf = Callable[[fx.Node], Any]
NodeMasks = Mapping[fx.Node, Tensor]  # of pruned weights, bool and True where one is kept
Factors = tuple[fx.Node, tuple[TransposedJacobian, ...]]


def links_of(node: fx.Node, wanted: Container[fx.Node], value: ValueOf, masks: NodeMasks) -> list[Factors]:
    """Gives for each tensor argument in `wanted` the factors of J^T by it, from the argument to the node; an argument
    that comes twice has two. value: of a node, or its stand-in; masks: of the nodes that are pruned weights.

    Raises `Unsupported` where the op has no rule.
    """
    source, place = (node.args[0], node.args[1]) if node.target is operator.getitem else (node, None)
    rule = rule_of(source.target)
    out: Any = value(node) if place is None else outputs_of(source, value)
    shape = out.shape if place is None and torch.Tag.pointwise in source.target.tags else None

    def operand(argument: fx.Node) -> Any:
        given = value(argument)
        return given if shape is None else given.expand(shape)

    found = rule(*fx.node.map_arg(source.args, operand), out=out, **fx.node.map_arg(source.kwargs, value))
    arguments = nodes_in(source.args)
    pairs = zip(arguments, found if place is None else found[place], strict=True)
    mask = next((masks[argument] for argument in arguments if argument in masks), None)
    return [
        (argument, (*expansion(value(argument), shape), op if mask is None else pruned(op, mask)))
        for argument, op in pairs
        if op is not None and argument in wanted
    ]


def expansion(x: Tensor, shape: torch.Size | None) -> tuple[TransposedJacobian, ...]:
    """The broadcast of x to `shape`, where there is one."""
    if shape is None or x.shape == shape:
        return ()
    return rule_of(aten.expand.default)(x, shape, out=x.expand(shape))


def outputs_of(source: fx.Node, value: ValueOf) -> tuple[Tensor, ...]:
    """The outputs of an op that has several, each of which the recorder takes out by a node of its own."""
    items = {user.args[1]: user for user in source.users if user.target is operator.getitem}
    return tuple(value(items[i]) for i in range(len(items)))
