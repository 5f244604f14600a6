"""Which nodes of a stage run again before their backward: what they read has to be then what it was, and what they
change must not be changed twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

from bppsa.common.stages import RecomputedPart
from bppsa.fxpasses.partition.cut.order import is_check
from bppsa.fxpasses.partition.ops.effects import facts

Marks = Mapping[fx.Node, int]  # nodes that run again together have one number; others have none


class NodeMarks(NamedTuple):
    """Which nodes of a stage run again. asked: within calls of torch.utils.checkpoint. all: wherever it can be."""

    asked: Marks
    all: Marks

    def of(self, node: fx.Node) -> tuple[int | None, int | None]:
        return self.asked.get(node), self.all.get(node)


def recomputing(nodes: Sequence[fx.Node]) -> NodeMarks:
    asked = {node: int(node.meta["recomputed"]) for node in nodes if "recomputed" in node.meta}
    return NodeMarks(unchanged(nodes, asked), unchanged(nodes, {node: 0 for node in nodes if not is_check(node)}))


def unchanged(nodes: Sequence[fx.Node], wanted: Marks) -> Marks:
    """The marks without nodes that change, or see changed, what not only nodes of the same mark know of."""
    marks = dict(wanted)
    groups = touching(nodes)
    while True:
        mixed = [node for group, lasts in groups for node in group if lasts or len({*map(marks.get, group)}) > 1]
        if not any(node in marks for node in mixed):
            return marks
        for node in mixed:
            marks.pop(node, None)


def touching(nodes: Sequence[fx.Node]) -> list[tuple[set[fx.Node], bool]]:
    """The nodes that make, read or change each storage that is changed in place, and whether it was there before
    them."""
    written: dict[StorageWeakRef, set[fx.Node]] = {storage: set() for node in nodes for storage in facts(node).writes}
    if not written:
        return []
    own, before = set(nodes), set()
    for node in nodes:
        for source in node.all_input_nodes:
            for storage in facts(source).holds & written.keys():
                written[storage].add(node)
                if source not in own:
                    before.add(storage)
        for storage in (facts(node).holds | facts(node).writes) & written.keys():
            written[storage].add(node)
        before |= facts(node).state & written.keys()
    return [(group, storage in before) for storage, group in written.items()]


class CopiedNodes(NamedTuple):
    """Nodes of the model's graph that have the same marks, and the names of the stage's nodes that stand for them."""

    nodes: Sequence[fx.Node]
    names: tuple[str, ...]


def parts_of(groups: Sequence[CopiedNodes], marks: Marks) -> tuple[RecomputedPart, ...]:
    """groups: in the order of the stage's graph."""
    found = []
    for number, following in groupby(groups, lambda group: marks.get(group.nodes[0])):
        if number is not None:
            together = list(following)
            facts_there = [facts(node) for group in together for node in group.nodes]
            names = tuple(name for group in together for name in group.names)
            cost, products = sum(f.cost for f in facts_there), sum(f.of_products for f in facts_there)
            found.append(RecomputedPart(names, cost, products))
    return tuple(found)
