"""Rewrites the graph of a loss whose terms count in unlike ways, so that each of them gets a factor of its own.

Only what leads from the sums of such terms to the loss is copied: all else that a model returns stays as it was.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from bppsa.common.graph import ancestors
from bppsa.common.terms import term
from bppsa.fxpasses.partition.means.linear import ADDING, addends
from bppsa.fxpasses.partition.means.reading import LossReading
from bppsa.fxpasses.partition.means.sharding import Partial
from bppsa.fxpasses.partition.means.sizes import name_of, written
from bppsa.fxpasses.partition.ops.effects import Facts, facts


def adds_terms(numbers: Set[fx.Node]) -> bool:
    """Whether a loss is a sum of terms, which may count in unlike ways. numbers: what makes it of values of rows."""
    return any(name_of(node) in ADDING and len(addends(node)) > 1 for node in numbers)


def separate(graph: fx.Graph, reading: LossReading, end: fx.Node) -> fx.Node | None:
    """Puts `term` around each addend of a sum of unlike terms, in a copy of what makes the loss of these sums, and
    returns the copy of the loss. None where there is no such sum, or a view of it is changed in place."""
    found = reading.shardings[end]
    if not isinstance(found, Partial) or found.rows or len(found.weights) < 2:
        return None
    copies = TermCopies(graph, reading)
    of_loss = makers(graph, end)
    if not all(copies.take(node) for node in list(graph.nodes) if node in of_loss):
        return None
    return copies.of.get(end)


def makers(graph: fx.Graph, end: fx.Node) -> set[fx.Node]:
    """What a node is computed from, and what is written to that on the way."""
    found, writers = ancestors([end]), [node for node in graph.nodes if written(node)]
    while more := [node for node in writers if node not in found and not found.isdisjoint(written(node))]:
        found |= ancestors(more)
    return found


class TermCopies:
    """of: nodes that sums of unlike terms lead to, or that these are written to, and their copies."""

    def __init__(self, graph: fx.Graph, reading: LossReading) -> None:
        self.graph, self.reading = graph, reading
        self.of: dict[fx.Node, fx.Node] = {}
        self.terms = 0

    def take(self, node: fx.Node) -> bool:
        """Copies a node that belongs to them. To be called in the graph's order. False where it cannot be copied."""
        joins = self.is_join(node)
        if not joins and self.of.keys().isdisjoint(node.all_input_nodes):
            return True
        target, changed = node.target, written(node)
        if changed:
            target = out_of_place(target)
            if target is None or any(facts(source).view or has_views(source) for source in changed):
                return False
        with self.graph.inserting_before(node):
            given, named = fx.node.map_arg((node.args, node.kwargs), lambda source: self.of.get(source, source))
            if joins:
                given = self.with_terms(given, node)
            copy = self.graph.create_node(node.op, target, given, named)
        copy.meta = node.meta | {"facts": without_effects(facts(node))}
        self.of |= dict.fromkeys([node, *changed], copy)
        return True

    def is_join(self, node: fx.Node) -> bool:
        """Whether it adds up such terms. What arguments alone decide is a count, and no term."""
        sharding = self.reading.shardings.get(node)
        joins = name_of(node) in ADDING and isinstance(sharding, Partial) and len(sharding.weights) > 1
        return joins and node not in self.reading.data

    def with_terms(self, given: tuple[Any, ...], node: fx.Node) -> tuple[Any, ...]:
        first, *others = given
        if isinstance(first, (list, tuple)):
            return [self.term(x, node) for x in first], *others
        return self.term(first, node), self.term(others[0], node), *others[1:]

    def term(self, x: Any, node: fx.Node) -> Any:
        if not isinstance(x, fx.Node) and not x:
            return x  # the zero that Python's sum begins with
        new = self.graph.call_function(term, (x, self.terms))
        source = x if isinstance(x, fx.Node) else node
        new.meta = source.meta | {"facts": without_effects(facts(source)), "region": node.meta.get("region")}
        self.terms += 1
        return new


def out_of_place(target: Any) -> Any:
    """The op that gives what another one writes; None where there is none of that name."""
    packet, overload = target.overloadpacket, target._overloadname
    namespace = getattr(torch.ops, target.namespace)
    return getattr(getattr(namespace, packet.__name__.removesuffix("_"), None), overload, None)


def has_views(node: fx.Node) -> bool:
    return any(facts(user).view for user in node.users)


def without_effects(of: Facts) -> Facts:
    return replace(of, writes=frozenset(), holds=frozenset(), sites={}, draws=False, view=False)
