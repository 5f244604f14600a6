"""In which order a graph's nodes run, and which of them stay together.

A node that asks for a shape or takes a part of a tuple goes right behind what it reads, so that the number or the part
goes to later stages in the place of the whole. What needs no activation (a mask, a normalised weight) waits for the
first node that reads it. What is changed in place is made and changed within one stage; an attribute that is changed,
which the next micro-batch finds as this one leaves it, is also read within that stage alone.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

from bppsa.fxpasses.partition.call.arguments import leaf_of
from bppsa.fxpasses.partition.capture.sizes import Sizes
from bppsa.fxpasses.partition.ops.effects import facts

NodeBlock = tuple[fx.Node, ...]


@dataclass(frozen=True)
class Order:
    """blocks: the nodes that compute, in the order in which they run; no cut goes through a block. light: those that a
    stage does again where it can, rather than be sent the result; some are in no block, because they need nothing but
    arguments and attributes."""

    blocks: tuple[NodeBlock, ...]
    light: frozenset[fx.Node]

    def crossing(self) -> list[int]:
        """The bytes of the values that cross each boundary between two blocks."""
        place = {node: i for i, block in enumerate(self.blocks) for node in block}
        change = [0] * (len(self.blocks) + 1)
        for node, made in place.items():
            last = max((place.get(user, len(self.blocks) - 1) for user in node.users), default=made)
            change[made] += facts(node).bytes
            change[last] -= facts(node).bytes
        return list(accumulate(change[: len(self.blocks) - 1]))


def ordered(graph: fx.Graph) -> Order:
    written = {storage: node for node in graph.nodes for storage in facts(node).writes}
    light = {node for node in graph.nodes if is_light(node) and not is_tied(node, written)}
    unread = never_read(graph, light)
    calls = [node for node in graph.nodes if node.op.startswith("call_") and node not in unread]
    heavy = [node for node in calls if node not in light and not is_check(node)]
    groups = with_followers(late(heavy, light, written), calls)
    kept = [facts(node).state if node.op == "call_module" else facts(node).holds for node in attributes(graph)]
    lasting = {storage for storages in kept for storage in storages & written.keys()}
    return Order(tuple(merged(groups, lasting)), frozenset(light))


def attributes(graph: fx.Graph) -> tuple[fx.Node, ...]:
    """What is of the model: attributes, and calls of modules with theirs."""
    return *graph.find_nodes(op="get_attr"), *graph.find_nodes(op="call_module")


def is_light(node: fx.Node) -> bool:
    part = node.target in (operator.getitem, leaf_of) and node.args[0].meta.get("container", False)
    call = node.op == "call_function" and not is_check(node)
    return call and (part or node.meta.get("decidable", False))


def is_check(node: fx.Node) -> bool:
    return isinstance(node.target, Sizes)


def is_tied(node: fx.Node, written: dict[StorageWeakRef, fx.Node]) -> bool:
    """Whether it matters when the node runs, because something is written in place."""
    return any(facts(other).holds & written.keys() for other in (node, *node.all_input_nodes))


def overwritten(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes whose value others read before it is changed in place, or that is changed through a view of it: where
    the value is a view too, as a linear layer's of three dimensions is, autograd goes past it to what both are views
    of."""
    holders: dict[StorageWeakRef, list[fx.Node]] = {}
    read: set[StorageWeakRef] = set()
    found: set[fx.Node] = set()
    for node in nodes:
        for storage in facts(node).writes:
            there = holders.get(storage, [])
            if storage in read or any(facts(other).view for other in there[1:]):
                found.update(there)
        sources = {storage for source in node.all_input_nodes for storage in facts(source).holds}
        read |= sources - facts(node).writes - facts(node).holds  # a view is looked at where it is read
        for storage in facts(node).holds:
            holders.setdefault(storage, []).append(node)
    return found


def never_read(graph: fx.Graph, light: set[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node in light and found.issuperset(node.users):
            found.add(node)
    return found


def late(heavy: list[fx.Node], light: set[fx.Node], written: dict[StorageWeakRef, fx.Node]) -> list[fx.Node]:
    """What reads no activation goes before the first node that reads it."""
    free: set[fx.Node] = set()
    for node in heavy:
        unmoved = facts(node).draws or is_tied(node, written) or node.op == "call_module"
        if not unmoved and all(i.op == "get_attr" or i in free or i.meta["decidable"] for i in node.all_input_nodes):
            free.add(node)
    first: dict[fx.Node, float] = {node: i for i, node in enumerate(heavy)}
    graph_order = reversed(heavy[0].graph.nodes) if heavy else ()
    for node in graph_order:
        if node in free or node in light:
            first[node] = min((first.get(user, math.inf) for user in node.users), default=math.inf)
    place = {node: i for i, node in enumerate(heavy)}
    return sorted(heavy, key=lambda node: (first[node], node not in free, place[node]))


def with_followers(heavy: list[fx.Node], calls: list[fx.Node]) -> list[list[fx.Node]]:
    """Each node with the light ones and the checks that can run as soon as it has."""
    groups = [[node] for node in heavy]
    host = {node: i for i, node in enumerate(heavy)}
    for node in calls:
        if node not in host:
            after = max((host[source] for source in node.all_input_nodes if source in host), default=-1)
            if after >= 0:
                host[node] = after
                groups[after].append(node)
            elif is_check(node) and groups:
                groups[0].insert(0, node)
    return groups


def merged(groups: list[list[fx.Node]], lasting: set[StorageWeakRef]) -> list[NodeBlock]:
    """Groups between the first that holds a storage and the last that writes to it, or reads it where it lasts, are one
    block."""
    first: dict[StorageWeakRef, int] = {}
    together = [False] * len(groups)  # with the group before
    for i, group in enumerate(groups):
        for node in group:
            read = {storage for source in node.all_input_nodes for storage in facts(source).holds & lasting}
            for storage in facts(node).writes | read | (facts(node).state & lasting):
                start = first.setdefault(storage, i)
                together[start + 1 : i + 1] = [True] * (i - start)
            for storage in facts(node).holds:
                first.setdefault(storage, i)
    blocks: list[list[fx.Node]] = []
    for group, with_last in zip(groups, together, strict=True):
        if with_last:
            blocks[-1] += group
        else:
            blocks.append(list(group))
    return [tuple(block) for block in blocks]
