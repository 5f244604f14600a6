"""A captured graph that runs: regions on blocked images where they are predicted to gain, the rest as PyTorch does."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from bppsa.codegen.sparse_conv.native import prepare
from bppsa.decisions import Decision, warn_without_kernels
from bppsa.errors import BuildError, Unsupported
from bppsa.frontend.pruned.regions.draft import EntriesByLayer
from bppsa.frontend.pruned.regions.grow import GraphSegment, KnownValues, fits, grow, run_region
from bppsa.frontend.pruned.regions.modes import check_modes, leave_modes
from bppsa.frontend.pruned.regions.nodes import leads_out, run_node, symbols_of
from bppsa.frontend.pruned.regions.products import take_products_in
from bppsa.frontend.pruned.regions.told import How, decide, told, within
from bppsa.plan.choose import Choice
from bppsa.runtime.sparse_conv.pointwise import Dropout, Pointwise
from bppsa.runtime.untraced import untraced

MOST_PLANS = 32  # for shapes; calls of more are left to PyTorch
MOST_VALUES = 8  # of a number of the user's, each with a plan; with more, no plan knows the number
MOVED = 0.1  # of the kept weights that a plan was made for: beyond, another may gain more


class PlannedSegment(NamedTuple):
    """A segment, what is unread after it if it has a region, and what is told of its layers."""

    segment: GraphSegment
    done: list[fx.Node]
    decisions: list[Decision]


@dataclass(frozen=True, eq=False)
class GraphPlan:
    """How a graph runs for one shape of its inputs."""

    parts: list[PlannedSegment]
    told: dict[str, list[Decision]] = field(default_factory=dict)

    @functools.cached_property
    def has_regions(self) -> bool:
        return any(part.segment.region is not None for part in self.parts)

    def told_at(self, path: str) -> list[Decision]:
        """path: of the module whose graph it is."""
        if path not in self.told:
            self.told[path] = [within(path, decision) for part in self.parts for decision in part.decisions]
        return self.told[path]

    def masks(self, known: KnownValues) -> list[Tensor]:
        return [known[mask] for part in self.parts for layer in part.segment.layers for mask in layer.masks]


@dataclass(frozen=True)
class GraphRun:
    """What a call of a graph has followed; where that has no regions, the masks that might give it some."""

    plan: GraphPlan
    masks: list[Tensor]


class _ThreadRun(threading.local):
    ran: GraphRun | None = None


_thread = _ThreadRun()


def take_last_run() -> GraphRun | None:
    """The run of this thread's last call of a graph, if there was one since this was asked."""
    ran, _thread.ran = _thread.ran, None
    return ran


class DynamoGraph:
    """What TorchDynamo calls with tensors, and with sizes where these may differ between calls."""

    def __init__(self, graph: fx.Graph) -> None:
        """Raises Unsupported for a graph that cannot be run node by node."""
        check_modes(graph)
        take_products_in(graph)
        self.nodes = list(graph.nodes)
        self.names = [node for node in self.nodes if node.op == "placeholder"]
        own = graph.owning_module
        self.constants = {n: attrgetter(str(n.target))(own) for n in self.nodes if n.op == "get_attr"}
        self.varying = [i for i, node in enumerate(self.names) if varies(node)]
        self.values: dict[int, set[Any]] = {i: set() for i in numbers(self.names) if i in self.varying}
        self.brought = all_symbols(self.nodes) - all_symbols(self.names[i] for i in self.varying)  # that no plan knows
        self.unread = last_read(self.nodes)
        self.plans: dict[Any, GraphPlan] = {}
        self.entries: EntriesByLayer = {}

    @untraced
    def __call__(self, *given: Any) -> Any:
        known: KnownValues = dict(zip(self.names, given, strict=True))
        known.update(self.constants)
        key = self.key(given)
        plan, grad = self.plans.get(key), torch.is_grad_enabled()
        if plan is None and self.notice(given):
            key = self.key(given)
            plan = self.plans.get(key)
        try:
            if plan is not None:
                followed = self.run(plan, known)
            elif len(self.plans) < MOST_PLANS:
                followed = self.discover(known)
            else:
                followed = self.by_pytorch
                self.run(followed, known)
        except BaseException:
            leave_modes(known, grad)
            raise
        if followed not in (plan, self.by_pytorch):
            self.plans[key] = followed
        whole = {} if followed.has_regions else {**self.constants, **dict(zip(self.names, given, strict=True))}
        _thread.ran = GraphRun(followed, followed.masks(whole) if whole else [])
        return map_arg(self.nodes[-1].args[0], known.__getitem__)

    def key(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """What a plan is for."""
        return *(x.shape if isinstance(x := given[i], Tensor) else x for i in self.varying), torch.get_num_threads()

    def notice(self, given: Sequence[Any]) -> bool:
        """Whether a number has had so many values that there is no plan for each from now on."""
        values = self.values
        for i, seen in values.items():
            seen.add(given[i])
        many = [i for i, seen in values.items() if len(seen) > MOST_VALUES]
        if many:  # put in their places whole: other threads read them
            self.brought |= frozenset().union(*(symbols_of(self.names[i]) for i in many))
            self.values = {i: seen for i, seen in values.items() if i not in many}
            self.varying, self.plans = [i for i in self.varying if i not in many], {}
        return bool(many)

    def discover(self, known: KnownValues, before: Sequence[PlannedSegment] = ()) -> GraphPlan:
        """The plan, made while it runs: what comes out of one part says what the next is given. before: parts that have
        run."""
        parts = list(before)
        at = parts[-1].segment.stop if parts else len(self.names)
        while self.nodes[at].op != "output":
            segment = grow(self.nodes, at, known, self.entries, self.brought)
            how = How(torch.is_grad_enabled(), segment.dtype)
            choice = decide(segment, how)
            if choice.strategy == "blocked":
                choice = build(segment, choice)
            if choice.strategy == "blocked":
                run_region(segment, known)
                done = [n for n in itertools.chain(*self.unread[at : segment.stop]) if n in known]
                forget(done, known)
            else:
                segment, done = segment.without_region(max(segment.stop, at + 1)), []
                self.run_nodes(segment, known)
            parts.append(PlannedSegment(segment, done, told(segment, self.nodes, choice, how)))
            at = segment.stop
        return GraphPlan(parts)

    @functools.cached_property
    def by_pytorch(self) -> GraphPlan:
        """The plan for all shapes that are one too many."""
        why = f"more than {MOST_PLANS} shapes of input"
        whole = GraphSegment(len(self.names), len(self.nodes) - 1)
        return GraphPlan([PlannedSegment(whole, [], [Decision("", "pruned", "pytorch", why)])])

    def run(self, plan: GraphPlan, known: KnownValues) -> GraphPlan:
        """The plan that this call has followed: another where masks keep so many more or fewer that it may gain."""
        untouched = True
        for i, part in enumerate(plan.parts):
            if not masks_fit(part.segment, known):
                return self.discover(known, plan.parts[:i])
            if part.segment.region is not None and (untouched or fits(part.segment, known)):
                run_region(part.segment, known)
                forget(part.done, known)
            else:
                self.run_nodes(part.segment, known)
                untouched = False
        return plan

    def run_nodes(self, segment: GraphSegment, known: KnownValues) -> None:
        own = slice(segment.start, segment.stop)
        for node, done in zip(self.nodes[own], self.unread[own], strict=True):
            if node.op != "get_attr":
                known[node] = run_node(node, known)
            forget(done, known)


def masks_fit(segment: GraphSegment, known: KnownValues) -> bool:
    """Whether they keep about as many weights as when the plan was made; the entries follow those of this call."""
    try:
        for layer in segment.layers:
            now = layer.entries.show([known[mask] for mask in layer.masks])
            if abs(now - layer.kept) > MOVED * layer.kept:
                return False
    except Unsupported:  # another plan says so
        return False
    return True


def build(segment: GraphSegment, choice: Choice) -> Choice:
    """Make entries and kernels, the latter side by side; the choice that follows where they cannot be made."""
    assert segment.region is not None
    assert segment.dtype is not None
    steps = [node.step for node in segment.region.nodes if isinstance(node.step, (Pointwise, Dropout))]
    kernels = [k for step in steps for k in step.kernels(segment.dtype)]
    try:
        for layer in segment.layers:
            layer.entries()
        prepare([layer.window for layer in segment.layers], kernels, segment.dtype)
    except Unsupported as error:
        return Choice("pytorch", str(error.reason), {})
    except BuildError as error:
        warn_without_kernels(error)
        return Choice("pytorch", str(error), {})
    return choice


def varies(node: fx.Node) -> bool:
    """Whether calls of one graph differ in its size, or in what it is, and a plan follows from that."""
    value = node.meta.get("example_value")
    if isinstance(value, Tensor):
        return not all(type(size) is int for size in value.shape)
    return not leads_out(node)


def numbers(names: Sequence[fx.Node]) -> list[int]:
    """Places of those that are numbers of the user's, and no sizes."""
    tensors = [node for node in names if isinstance(node.meta.get("example_value"), Tensor)]
    sizes = frozenset().union(*map(symbols_of, tensors))
    return [i for i, node in enumerate(names) if node not in tensors and symbols_of(node) - sizes]


def all_symbols(nodes: Iterable[fx.Node]) -> frozenset[Any]:
    """The symbols of numbers and sizes. A number that is read from a tensor within the graph has one that no input
    has."""
    return frozenset().union(*map(symbols_of, nodes))


def forget(unread: list[fx.Node], known: KnownValues) -> None:
    for node in unread:
        known.pop(node, None)


def last_read(graph: list[fx.Node]) -> list[list[fx.Node]]:
    """Gives for each node those that nobody reads after it: what they gave need not be held on to."""
    place, last = {node: i for i, node in enumerate(graph)}, [list[fx.Node]() for _ in graph]
    for node in graph:
        last[max((place[user] for user in node.users), default=place[node])].append(node)
    return last
