"""From an order and where it is cut to modules: what each stage is sent, what it does again, and what it hands on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from torch import fx, nn
from torch.multiprocessing.reductions import StorageWeakRef

from bppsa.common.stages import INPUT, WHOLE, Stage, Stages, StageValue
from bppsa.fxpasses.partition.call.arguments import Arguments
from bppsa.fxpasses.partition.capture.graph import CapturedGraph
from bppsa.fxpasses.partition.capture.sizes import Sizes
from bppsa.fxpasses.partition.cut.modules import ROOT, first_names, names_of, stage_module
from bppsa.fxpasses.partition.cut.order import Order, is_check, overwritten
from bppsa.fxpasses.partition.cut.recomputed import CopiedNodes, NodeMarks, parts_of, recomputing
from bppsa.fxpasses.partition.ops.changes import Change, changed_by, check_statistics
from bppsa.fxpasses.partition.ops.effects import Site, facts
from bppsa.fxpasses.partition.ops.regions import copied_in_regions


@dataclass
class StagePart:
    """What one stage runs of a graph."""

    nodes: list[fx.Node]
    results: tuple[fx.Node, ...] = ()  # of the last stage: what the model returns
    received: set[fx.Node] = field(default_factory=set)
    again: set[fx.Node] = field(default_factory=set)  # light nodes of other stages

    def reads(self) -> set[fx.Node]:
        return {source for node in self.nodes for source in node.all_input_nodes} | set(self.results)


def build(
    model: nn.Module,
    traced: CapturedGraph,
    order: Order,
    ends: Sequence[int],
    arguments: Arguments,
    numbers_of_loss: Set[fx.Node] = frozenset(),
) -> Stages:
    """ends: for each stage, the index of the first block behind it. numbers_of_loss: what makes a loss of rows."""
    check_statistics(traced.graph, model)
    placed = parts(traced.graph, order, ends)
    number = {node: i for i, node in enumerate(traced.graph.nodes)}
    made = {node: s for s, part in enumerate(placed) for node in part.nodes}
    given = traced.graph.find_nodes(op="placeholder")
    readers = readers_of(given, placed)
    numbers = {node: i for i, node in enumerate(readers)}
    values = tuple(
        StageValue(node.name, made.get(node, INPUT), tuple(s), facts(node).bytes) for node, s in readers.items()
    )
    first = first_names(model)
    stages = []
    for s, part in enumerate(placed):
        received = sorted(part.received, key=numbers.__getitem__)
        handed_on = [node for node in readers if made.get(node) == s]
        results = part.results if s == len(placed) - 1 else handed_on
        marks = recomputing(part.nodes)
        graph, copied = part_graph(part, received, results, number, marks)
        module = stage_module(model, graph, traced.constants, ROOT)
        stages.append(
            Stage(
                module,
                tuple(numbers[node] for node in received),
                tuple(numbers[node] for node in handed_on),
                names_of(module, first),
                ops=sum(node not in order.light and not is_check(node) for node in part.nodes),
                flops=sum(facts(node).flops for node in part.nodes),
                cost=sum(facts(node).cost for node in part.nodes),
                changes=changed(part, traced.graph, model),
                root=ROOT,
                draws=tuple((node.name, number[node]) for node in part.nodes if facts(node).draws),
                recomputed=parts_of(copied, marks.asked),
                recomputable=parts_of(copied, marks.all),
                counts=not numbers_of_loss.isdisjoint(part.nodes),
            )
        )
    return Stages(tuple(stages), values, len(given), arguments.bind, traced.assemble)


def readers_of(given: Sequence[fx.Node], placed: Sequence[StagePart]) -> dict[fx.Node, list[int]]:
    """The stages that receive a value, for each argument and each value that goes from one stage to another."""
    readers: dict[fx.Node, list[int]] = {node: [] for node in given} | {
        node: [] for s, part in enumerate(placed) for node in part.nodes if any(node in p.received for p in placed[s:])
    }
    for s, part in enumerate(placed):
        for node in part.received:
            readers[node].append(s)
    return readers


def changed(part: StagePart, graph: fx.Graph, model: nn.Module) -> tuple[str, ...]:
    """Attributes that a stage changes in place, and what the modules that it calls change of their own."""
    sites = {storage: site for node in part.nodes for storage, site in sites_of(node).items()}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    found: dict[str, Change] = {}
    for node in graph.find_nodes(op="get_attr"):
        path = str(node.target)
        for written in facts(node).holds & sites.keys():
            found[path] = Change(path, sites[written], path in parameters)
    for node in part.nodes:
        if node.op == "call_module":
            changes = changed_by(model.get_submodule(str(node.target)), sites_of(node), f"{node.target}.")
            found |= {change: change for change in changes}
    return tuple(sorted(found.values()))


def sites_of(node: fx.Node) -> dict[StorageWeakRef, Site]:
    """Tells where a node writes to what was there before: in the code of a module that it calls, or at its own line."""
    place = node.meta.get("place", "")
    sites = facts(node).sites
    return {written: sites[written].otherwise_at(place) for written in facts(node).writes}


def parts(graph: fx.Graph, order: Order, ends: Sequence[int]) -> list[StagePart]:
    starts = [0, *ends[:-1]]
    found = [
        StagePart([node for block in order.blocks[start:end] for node in block])
        for start, end in zip(starts, ends, strict=True)
    ]
    found[-1].results = tuple(graph.output_node().args[0])
    for part in found:
        own = set(part.nodes)
        outside = part.reads() - own
        part.received = {node for node in outside if node not in order.light and node.op != "get_attr"}
        for node in graph.nodes:
            if node in outside and node in order.light:
                do_again_or_receive(part, own, node, order)
    return found


def do_again_or_receive(part: StagePart, own: set[fx.Node], node: fx.Node, order: Order) -> None:
    """Done again where it needs nothing that the stage does not have."""
    needed, stack = [], [node]
    while stack:
        one = stack.pop()
        if one in own or one in part.received or one in part.again or one.op == "get_attr":
            continue
        if one not in order.light and one.op != "placeholder":
            part.received.add(node)
            return
        needed.append(one)
        stack.extend(one.all_input_nodes)
    part.received.update(one for one in needed if one.op == "placeholder")
    part.again.update(one for one in needed if one.op != "placeholder")


def part_graph(
    part: StagePart,
    received: Sequence[fx.Node],
    results: Sequence[fx.Node],
    number: Mapping[fx.Node, int],
    marks: NodeMarks,
) -> tuple[fx.Graph, list[CopiedNodes]]:
    """A graph from what is received to a tuple of the results, and the names of its nodes.

    A region without gradients or under autocast ends where marks change: what runs again enters and leaves it by
    itself.
    """
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in received}
    changed = overwritten(part.nodes)

    def copy_of(node: fx.Node) -> fx.Node:
        if node not in copies:
            assert node.op == "get_attr", node
            copies[node] = graph.get_attr(node.target)
        return copies[node]

    def copy(node: fx.Node) -> None:
        copies[node] = graph.node_copy(node, copy_of)
        copies[node].meta = {"draws": number[node]} if facts(node).draws else {}
        copies[node].meta |= {WHOLE: True} if node in changed or node.meta.get("container") else {}

    names: list[CopiedNodes] = []
    everything = (*sorted(part.again, key=number.__getitem__), *part.nodes)
    for _, group in groupby(everything, marks.of):
        nodes, before = list(group), len(graph.nodes)
        copied_in_regions(graph, nodes, copy)
        made = list(graph.nodes)[before:]
        names.append(CopiedNodes(nodes, tuple(node.name for node in made if node.op.startswith("call_"))))
    graph.output(tuple(map(copy_of, results)))
    graph.lint()
    return graph, names


def set_sizes(stages: Stages, sizes: Sizes) -> None:
    """What the first stage checks."""
    module: Any = stages.stages[0].module
    for node in module.graph.nodes:
        if isinstance(node.target, Sizes):
            node.target = sizes
    module.recompile()
