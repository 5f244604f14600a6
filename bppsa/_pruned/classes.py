"""The class of a module whose layers are pruned: its forward runs the traced graph, regions on blocked images."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from bppsa import _calls
from bppsa._pruned.densities import Density, densities, have_moved
from bppsa._pruned.draft import KeptEntries
from bppsa._pruned.regions import Environment, Segment, Taken, grow, operands, run_node, run_region
from bppsa._pruned.rewritten import Rewritten, is_reported
from bppsa._pruned.seen import Seen
from bppsa._pruned.told import How, decide, told
from bppsa._pruned.tracing import state, trace
from bppsa._pruned.unusual import unusual
from bppsa.codegen.blocked.native import prepare
from bppsa.codegen.blocked.window import Window
from bppsa.errors import BuildError, Reason, Unsupported
from bppsa.plan.choose import Choice
from bppsa.report import Decision, warn_once
from bppsa.runtime.blocked.pointwise import Dropout, Pointwise
from bppsa.runtime.untraced import untraced

MOST_PLANS = 32  # for states and shapes; a model that needs more is left to PyTorch


@dataclass(frozen=True, eq=False)
class Plan:
    """How a graph runs for one state of its modules and one shape of its inputs."""

    graph: list[fx.Node]
    names: list[fx.Node]  # of the arguments
    segments: list[Segment]
    unread: list[list[fx.Node]]  # after each node
    decisions: list[list[Decision]]  # of each segment
    densities: list[Density]

    @functools.cached_property
    def has_regions(self) -> bool:
        return any(segment.region is not None for segment in self.segments)

    def tell(self) -> None:
        for decision in itertools.chain(*self.decisions):
            _calls.note(decision)


@dataclass(frozen=True, eq=False)
class Last:
    """The modules as the last call has found them; by form of a call its plan, by segment what regions have taken."""

    seen: Seen
    plans: dict[Any, Plan | Reason] = field(default_factory=dict)
    taken: dict[Segment, Taken] = field(default_factory=dict)


@dataclass(eq=False)
class Memo:
    """What a module has found out about itself; a copy begins with none, as programs hold addresses."""

    plans: dict[Any, Plan | Reason] = field(default_factory=dict)
    entries: dict[tuple[nn.Module, Window], KeptEntries] = field(default_factory=dict)
    last: Last | None = None

    def __reduce__(self) -> Any:
        return Memo, ()


class Pruned(Rewritten):
    """Finds everything through `self`."""

    _bppsa_path: str
    _bppsa_memo: Memo | None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return super().forward(*args, **kwargs)
        if not is_reported(self):
            return self._bppsa_call(args, kwargs)
        _calls.begin(self)
        try:
            return self._bppsa_call(args, kwargs)
        finally:
            _calls.pop()

    def _bppsa_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if reason := unusual(args, kwargs):
            note_left(self._bppsa_path, reason)
            return super().forward(*args, **kwargs)
        return self._bppsa_run(args)

    def _bppsa_plain(self, *args: Any) -> Any:
        return super().forward(*args)

    @untraced
    def _bppsa_run(self, args: tuple[Tensor, ...]) -> Any:
        memo = self.__dict__.get("_bppsa_memo")
        if memo is None:
            memo = self.__dict__["_bppsa_memo"] = Memo()
        last = memo.last
        if last is None or not last.seen.holds(self):
            last = memo.last = Last(Seen(self))
        threads = torch.get_num_threads()
        form = torch.is_grad_enabled(), threads, *((x.shape, x.dtype, x.requires_grad) for x in args)
        plan = last.plans.get(form)
        if plan is None:
            key = state(self), form
            plan = plan_of(memo, key)
            if plan is None:
                return self._bppsa_first(key, memo, args)
            if key in memo.plans:
                last.plans[form] = plan
        if isinstance(plan, Reason):
            note_left(self._bppsa_path, plan)
            return super().forward(*args)
        if plan.has_regions:
            return run(plan, self, last, args)
        plan.tell()
        return super().forward(*args)

    def _bppsa_first(self, key: Any, memo: Memo, args: tuple[Tensor, ...]) -> Any:
        """Make the plan while running it: what comes out of one part says what the next is given."""
        try:
            graph = list(trace(self).nodes)
            result, plan = discover(graph, self, memo, args)
            memo.plans[key] = plan
        except Unsupported as error:
            memo.plans[key] = error.reason
        except BuildError as error:
            warn_once(f"bppsa leaves {self._bppsa_path or 'the model'} to PyTorch: {error}")
            memo.plans[key] = Reason(str(error))
        else:
            plan.tell()
            return result
        return self._bppsa_run(args)


def plan_of(memo: Memo, key: Any) -> Plan | Reason | None:
    """None where it is to be made, for the first time or anew."""
    plan = memo.plans.get(key)
    if isinstance(plan, Plan) and have_moved(plan.densities):
        del memo.plans[key]
        plan = None
    if plan is None and len(memo.plans) >= MOST_PLANS:
        return Reason(f"more than {MOST_PLANS} shapes of input, or states of its modules")
    return plan


def note_left(path: str, reason: Reason) -> None:
    _calls.note(Decision(path, "pruned", "pytorch", str(reason)))


def begin(names: list[fx.Node], args: tuple[Tensor, ...]) -> Environment:
    """names: those of the arguments."""
    if len(args) > len(names):
        raise Unsupported(Reason("more arguments than its forward was traced with"))
    known: Environment = dict(zip(names, args, strict=False))
    for node in names[len(args) :]:
        known[node] = node.args[0] if node.args else None
    return known


def discover(graph: list[fx.Node], root: Pruned, memo: Memo, args: tuple[Tensor, ...]) -> tuple[Any, Plan]:
    names = [node for node in graph if node.op == "placeholder"]
    known, segments, decisions = begin(names, args), list[Segment](), list[list[Decision]]()
    how = How(torch.is_grad_enabled(), args[0].dtype)
    at, unread = 0, last_read(graph)
    while graph[at].op != "output":
        node = graph[at]
        if node.op == "placeholder":
            at += 1
            continue
        segment = grow(graph, at, known, root, memo.entries)
        choice = decide(segment, how)
        taken = operands(segment, known, None) if choice.strategy == "blocked" else None
        if isinstance(taken, Reason):
            choice = Choice("pytorch", str(taken), {})
        if isinstance(taken, Taken):
            build_kernels(segment, how.dtype)
            run_region(segment, known, taken)
            forget(unread[at : segment.stop], known)
        else:
            stop = max(segment.stop, at + 1)
            segment = Segment(at, stop, layers=segment.layers, ended=segment.ended)
            run_nodes(graph[at:stop], unread[at:stop], known, root)
        decisions.append(told(segment, graph, choice, root, how))
        segments.append(segment)
        at = segment.stop
    plan = Plan(graph, names, segments, unread, decisions, densities(root))
    return fx.node.map_arg(graph[at].args[0], known.__getitem__), plan


def build_kernels(segment: Segment, dtype: torch.dtype) -> None:
    """All at once, side by side. Raises BuildError."""
    assert segment.region is not None
    steps = [node.step for node in segment.region.nodes if isinstance(node.step, (Pointwise, Dropout))]
    prepare([layer.window for layer in segment.layers], [k for step in steps for k in step.kernels(dtype)], dtype)


def run(plan: Plan, root: Pruned, last: Last, args: tuple[Tensor, ...]) -> Any:
    known, as_seen = begin(plan.names, args), True
    for segment, decisions in zip(plan.segments, plan.decisions, strict=True):
        own = slice(segment.start, segment.stop)
        taken: Taken | Reason | None = None
        if segment.region is not None:
            as_seen = as_seen or last.seen.holds(root)
            taken = operands(segment, known, last.taken.get(segment) if as_seen else None)
        if isinstance(taken, Taken):
            last.taken[segment] = taken
            run_region(segment, known, taken)
            forget(plan.unread[own], known)
        else:
            run_nodes(plan.graph[own], plan.unread[own], known, root)
            as_seen = False  # a hook, or a layer of the user's, may change what comes after it
        for decision in decisions:
            left = isinstance(taken, Reason)
            _calls.note(replace(decision, strategy="pytorch", reason=str(taken)) if left else decision)
    return fx.node.map_arg(plan.graph[-1].args[0], known.__getitem__)


def run_nodes(nodes: list[fx.Node], unread: list[list[fx.Node]], known: Environment, root: nn.Module) -> None:
    for node, done in zip(nodes, unread, strict=True):
        if node.op != "placeholder":
            known[node] = run_node(node, known, root)
        forget([done], known)


def forget(unread: list[list[fx.Node]], known: Environment) -> None:
    for node in itertools.chain(*unread):
        known.pop(node, None)


def last_read(graph: list[fx.Node]) -> list[list[fx.Node]]:
    """For each node those that nobody reads after it: what they gave need not be held on to."""
    place, last = {node: i for i, node in enumerate(graph)}, [list[fx.Node]() for _ in graph]
    for node in graph:
        last[max((place[user] for user in node.users), default=place[node])].append(node)
    return last
