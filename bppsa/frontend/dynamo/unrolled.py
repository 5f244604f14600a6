"""Graphs in which Dynamo has unrolled a loop over time: the loop runs as a scan again, and the rest op by op.

Dynamo has followed the Python around the loop and guards what it read, so a graph is a function of its inputs alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import _disable_current_modes

from bppsa.codegen.cpu import build
from bppsa.codegen.cpu.progress import looking_at_loop
from bppsa.errors import Reason
from bppsa.frontend.call_log import collecting, unnoted
from bppsa.frontend.loops.call import call
from bppsa.frontend.loops.first import first_call
from bppsa.frontend.loops.key import call_of, unusual
from bppsa.frontend.loops.loop_plan import LoopPlan
from bppsa.frontend.loops.plans import FirstCall
from bppsa.frontend.loops.scans.shared import SharedSteps
from bppsa.frontend.loops.state import LoopState
from bppsa.fxpasses.lines import place_of_trace
from bppsa.fxpasses.reroll.repetition.period import LEAST_STEPS
from bppsa.fxpasses.theirs import raise_if_ours
from bppsa.plan.forward import forward_of
from bppsa.plan.strategy import strategy_of


def rerolled(graph: fx.GraphModule, strategy: str, forward: str) -> Callable[..., Any] | None:
    """What runs the graph with its loops as scans; None where it has none that can be one.

    A trial on stand-ins decides. Each kind of call is then logged and run beside PyTorch's as in `bppsa.compile`.
    """
    repeated = often(graph.graph)
    if repeated is None or build.available() is not None:
        return None
    how, place = (strategy_of(strategy), forward_of(forward)), named(repeated)
    with unnoted(), collecting(*how), looking_at_loop(place):
        if not has_scan(graph):
            return None
    state = LoopState(place, place=place)

    def run(*args: Any) -> Any:
        with collecting(*how):
            return call(nothing_else, graph.forward, state, args, {})

    return run


def nothing_else() -> None:
    """Stands for what a graph reads besides its inputs."""


def often(graph: fx.Graph) -> fx.Node | None:
    """One of the ops that a line of the user's has done most often, if that is often enough for a loop over time, and
    all that the graph reads is given to it."""
    if any(node.op in ("get_attr", "call_module") for node in graph.nodes):
        return None
    (done, times), *_ = Counter((node.target, node.stack_trace) for node in graph.nodes).most_common(1)
    return next(n for n in graph.nodes if (n.target, n.stack_trace) == done) if times >= LEAST_STEPS else None


def named(node: fx.Node) -> str:
    """ "file:line" of the user's code that a node is from; "" where it is not known."""
    place = place_of_trace(node.stack_trace or "")
    return f"{Path(place[0]).name}:{place[1]}" if place else ""


def has_scan(graph: fx.GraphModule) -> bool:
    """Whether a plan can be made for a call on stand-ins, which draw random numbers on a CPU alone."""
    given = [node.meta.get("example_value") for node in graph.graph.find_nodes(op="placeholder")]
    if not all(map(is_known, given)):
        return False
    with _disable_current_modes(), torch.random.fork_rng(devices=[]):
        args = tuple(map(stand_in, given))
        described = unusual() or call_of(nothing_else, args, {})
        if isinstance(described, Reason):
            return False
        try:
            _, plan = first_call(FirstCall(nothing_else, graph.forward, args, {}, described, "", SharedSteps()))
        except RuntimeError as error:  # as a matrix that has no inverse is
            raise_if_ours(error)
            return False
    return isinstance(plan, LoopPlan)


def is_known(value: Any) -> bool:
    """Whether it is a dense tensor on a CPU, or a number, of which the trace knows one value."""
    if not isinstance(value, Tensor):
        return number(value) is not None
    known = value.layout is torch.strided and value.device.type == "cpu"
    return known and all(number(size) is not None for size in (*value.shape, *value.stride()))


def stand_in(value: Any) -> Any:
    """Numbers between 0 and 1 of its shape and strides, or zeros of whole numbers: an index, or a probability."""
    if not isinstance(value, Tensor):
        return number(value)
    sizes, strides = ([number(size) for size in each] for each in (value.shape, value.stride()))
    reach = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True) if size)
    memory = torch.empty(reach, dtype=value.dtype, device=value.device)
    made = (memory.uniform_() if value.is_floating_point() else memory.zero_()).as_strided(sizes, strides)
    is_parameter = isinstance(value, nn.Parameter)
    return nn.Parameter(made, value.requires_grad) if is_parameter else made.requires_grad_(value.requires_grad)


def number(value: Any) -> Any:
    """The number that a size which changes from call to call was when traced; None where only a tensor's value
    tells."""
    return value.node.hint if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value
