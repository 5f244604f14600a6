"""Record what a function does to tensors, as an fx graph of ATen ops, whatever the values are.

The function runs once on stand-ins (zeros of the right shape, on the CPU) under a dispatch mode that writes down every
op. Tensors it closes over are met on the way and become further inputs. Looking at a value is an error, so the graph
holds for all values. (`make_fx` over fake or meta tensors records the same, but their first use in a process imports a
second's worth of Python; a rewritten model must start in milliseconds.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves, tree_map_only

from bppsa.errors import Unsupported
from bppsa.fxpasses.recording.decompose import DECOMPOSE
from bppsa.fxpasses.recording.recorder import Recorder
from bppsa.fxpasses.recording.refused import NoEscape
from bppsa.fxpasses.recording.stand_ins import detach_stand_ins, zeros_like
from bppsa.fxpasses.theirs import theirs
from bppsa.sparsity.rules.own_gradient import has_own_gradient


@dataclass(frozen=True)
class Recording:
    """`graph`: a placeholder for each argument and for each captured tensor; every node has a stand-in in
    `meta["val"]`. `result`: what the function returned, with graph nodes in the place of tensors."""

    graph: fx.Graph
    arguments: tuple[fx.Node, ...]
    captured: tuple[tuple[Tensor, fx.Node], ...]
    result: Any


def record(
    fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    gradients: bool = True,
    decompose: Mapping[Any, Callable[..., Any]] = DECOMPOSE,
    where: Callable[[], str] = str,
    recorder: Recorder | None = None,
    instead: Mapping[Any, Callable[..., Any]] = {},
) -> Recording:
    """Record `fn(*args)`; `args` is a pytree whose tensors stand for inputs (only their shape and dtype are read).
    gradients: whether the recording must also tell what autograd would do. decompose: what to record instead of an op.
    where: names the module that runs, for each node's `meta["path"]`. recorder: another than a cell's. instead: what to
    call for a function of PyTorch's; where it gives NotImplemented, that function itself.

    Raises `Unsupported` where the function reads the value of a tensor, changes an input in place, or has a gradient
    that is not that of its ops. An op that raises errors for some matrices does so when the graph is run.
    """
    recorder = recorder or Recorder(decompose, where)
    enabled = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(enabled):  # in which stand-ins would have no views
        return recorded_on_stand_ins(fn, args, gradients, recorder, instead)


def recorded_on_stand_ins(
    fn: Callable[..., Any],
    args: Sequence[Any],
    gradients: bool,
    recorder: Recorder,
    instead: Mapping[Any, Callable[..., Any]],
) -> Recording:
    nodes: list[fx.Node] = []

    def stand_in(tensor: Tensor) -> Tensor:
        value = zeros_like(tensor)
        nodes.append(recorder.placeholder(value))
        return recorder.watched(value, nodes[-1]) if gradients else value

    inputs = tree_map_only(Tensor, stand_in, tuple(args))
    recorder.gradients = gradients or torch.is_grad_enabled()
    refusing = NoEscape(recorder, instead)
    with torch.set_grad_enabled(recorder.gradients), saving_to(recorder), refusing, recorder:
        result = theirs(fn, *inputs)
    recorder.end_functions()
    leaves, captured = tree_leaves(result), [tensor for tensor, _ in recorder.captured]
    for leaf in leaves:
        recorder.note_gradient(leaf)
    check_gradients(leaves, captured, recorder.attached, recorder.own_gradients)
    result = tree_map_only(Tensor, recorder.node_of, result)
    detach_stand_ins(recorder.graph)
    return Recording(recorder.graph, tuple(nodes), tuple(recorder.captured), result)


def copied(recording: Recording) -> Recording:
    """The recording with a graph of its own, to be changed. Stand-ins are shared."""
    graph, own = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.graph_copy(recording.graph, own)
    captured = tuple((tensor, own[node]) for tensor, node in recording.captured)
    result = tree_map_only(fx.Node, own.__getitem__, recording.result)
    return Recording(graph, tuple(own[node] for node in recording.arguments), captured, result)


def do_the_same(one: Recording, other: Recording) -> bool:
    """Whether two recordings of one function have the same ops, but for what is detached from autograd's graph."""
    return len(one.captured) == len(other.captured) and ops_of(one) == ops_of(other)


def ops_of(recording: Recording) -> list[Any]:
    """Each op with the numbers of those that it reads; what the function closes over; what it returns."""
    numbers: dict[fx.Node, int] = {}
    ops: list[Any] = []
    for node in recording.graph.nodes:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), numbers.__getitem__)
        if node.target is torch.ops.aten.detach.default:
            numbers[node] = args[0]
        else:
            numbers[node] = len(ops)
            ops.append((node.op, node.op == "call_function" and node.target, args, kwargs))
    closed_over = [(id(tensor), numbers[node]) for tensor, node in recording.captured]
    return [*ops, closed_over, fx.node.map_arg(recording.result, numbers.__getitem__)]


def saving_to(recorder: Recorder) -> AbstractContextManager[Any]:
    """The recorder decides what is kept of what autograd saves. Hooks around the call (a checkpoint's, which counts
    what it sees) are for the tensors of the call."""
    return saved_tensors_hooks(recorder.keeping, lambda kept: kept) if recorder.keeping else without_hooks()


@contextmanager
def without_hooks() -> Iterator[None]:
    """torch.func takes no derivatives under hooks, and needs none: it keeps what it saves as it is."""
    before = torch._C._autograd._saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        torch._C._autograd._saved_tensors_hooks_set_tracing(before)


def check_gradients(
    results: Sequence[Any], captured: Sequence[Tensor], known: Collection[Any] = (), lines: Mapping[Any, str] = {}
) -> None:
    """A torch.autograd.Function is seen as the ops of its forward; its backward would be lost. known: those whose
    backward is recorded. lines: the user's, of their last ops."""
    seen = {tensor.grad_fn for tensor in captured}  # how these came about is no part of the function
    stack = [tensor.grad_fn for tensor in results if isinstance(tensor, Tensor)]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        if has_own_gradient(node) and node not in known:
            what, mend = "has a gradient of its own", "use detach() and torch ops"
            raise Unsupported(what, op=node.name(), mend=mend, path=lines.get(node, ""))
        seen.add(node)
        stack.extend(before for before, _ in node.next_functions)
