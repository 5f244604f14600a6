"""Whether steps of time meet nowhere but in recurrent layers: tried by running the graph whole, and in two chunks.

The trial runs a copy of the model in float64 whose weights are drawn, so that nothing comes out equal by chance, as it
would beside a weight that is still zero; what the model draws itself, such as dropout masks, is one number everywhere.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from bppsa.errors import ScheduleError
from bppsa.fxpasses.partition.effects import draws
from bppsa.fxpasses.partition.refusals import WHAT_FORWARDS_RAISE
from bppsa.stages import Axes

MEND = "cut the model into stages instead, as schedule=gpipe() does"
TOLERANCE = 1e-9  # of float64, relative to the largest


class Mixed(ScheduleError):
    """Steps meet outside of recurrent layers, with these axes."""


class NoAxis:
    """What a value is that is neither its chunks side by side nor the last chunk's."""


NO_AXIS = NoAxis()


class Trial(fx.Interpreter):
    """A run of the graph. before: the run on what comes before it in time."""

    def __init__(self, module: nn.Module, graph: fx.Graph, before: Trial | None = None) -> None:
        super().__init__(module, garbage_collect_values=False, graph=graph)
        self.before = before
        self.calls: dict[fx.Node, tuple[nn.RNNBase, Any, Any]] = {}  # of recurrent modules: module, input, states

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_module" or not isinstance(module := self.fetch_attr(str(n.target)), nn.RNNBase):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        given = dict(zip(("input", "hx"), args, strict=False)) | kwargs
        self.calls[n] = module, given["input"], given.get("hx")
        if isinstance(given["input"], PackedSequence):
            raise ScheduleError(
                f"{n.target} reads a packed sequence, whose rows end at different steps; pad it, and mask the loss"
            )
        return module(given["input"], given.get("hx") if self.before is None else self.before.env[n][1])


@dataclass(frozen=True)
class Found:
    """Of each leaf of what the graph returns, its axis of time, None where it is of the last step, and of the batch's
    rows; `rows` is None where rows meet. output: what the graph returned, in float64."""

    times: list[int | None]
    rows: list[int | None] | None
    output: Any


def tried(graph: fx.GraphModule, arguments: Sequence[Any], axes: Sequence[Axes]) -> Found:
    """axes: of each leaf of the arguments. Raises Mixed where steps meet, with the place."""
    leaves, spec = tree_flatten(list(arguments))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        module, given = drawn(graph), [random_like(leaf) for leaf in leaves]

        def run(cut: Sequence[Any], before: Trial | None = None) -> Trial:
            trial = Trial(module, graph.graph, before)
            with Certain():
                trial.run(*tree_unflatten(list(cut), spec), enable_io_processing=False)
            return trial

        whole = run(given)
        early, late = halves(given, [of.time for of in axes])
        try:
            first = run(early)
            second = run(late, first)
        except WHAT_FORWARDS_RAISE as error:
            said = str(error).strip().splitlines()[0]
            raise Mixed(f"the time axis cannot be cut: chunks of it raise {said!r}; {MEND}") from error
        times = over_chunks(graph, whole, first, second)
        few_and_rest = halves(given, [of.rows for of in axes])
        return Found(times, over_rows(whole, few_and_rest, run), whole.env[graph.graph.output_node()])


def over_rows(
    whole: Trial, parts: Sequence[Sequence[Any]], run: Callable[[Sequence[Any]], Trial]
) -> list[int | None] | None:
    if any(input.dim() == 2 for _, input, _ in whole.calls.values()):
        return None
    try:
        few, rest = map(run, parts)
    except WHAT_FORWARDS_RAISE:
        return None
    axes = [axis_of(*values) for values in zip(*map(returned, (whole, few, rest)), strict=True)]
    known = [axis for axis in axes if not isinstance(axis, NoAxis)]
    return known if len(known) == len(axes) else None


def over_chunks(graph: fx.GraphModule, whole: Trial, first: Trial, second: Trial) -> list[int | None]:
    for node, (module, input, _) in whole.calls.items():
        time = 1 if module.batch_first and input.dim() == 3 else 0
        if axis_of(input, first.calls[node][1], second.calls[node][1]) != time:
            raise mixed(f"what {node.target} reads", node, whole, first, second)
        states = zip(*(tree_leaves(trial.calls[node][2]) for trial in (whole, first, second)), strict=True)
        if not all(alike(state, early) and alike(state, late) for state, early, late in states):
            raise mixed(f"the initial state of {node.target}", node, whole, first, second)
    axes: list[int | None] = []
    end = graph.graph.output_node()
    for values in zip(*map(returned, (whole, first, second)), strict=True):
        axis = axis_of(*values)
        if isinstance(axis, NoAxis):
            shape = list(values[0].shape) if isinstance(values[0], Tensor) else values[0]
            raise mixed(f"what it returns, {shape},", end, whole, first, second)
        axes.append(axis)
    return axes


def mixed(what: str, at: fx.Node, *trials: Trial) -> Mixed:
    """Names the first op before `at` whose value is not of chunks."""
    before = ancestors(at)
    for node in trials[0].graph.nodes:
        if node in before and node.op in ("call_module", "call_function", "call_method"):
            values = zip(*(tree_leaves(trial.env[node]) for trial in trials), strict=False)
            if any(isinstance(axis_of(*of), NoAxis) for of in values):
                return Mixed(
                    f"the time axis cannot be cut: {what} is not its chunks side by side, from {place(node)} on; only "
                    f"recurrent layers may look at other steps; {MEND}"
                )
    return Mixed(f"the time axis cannot be cut: {what} has no axis of steps where it is expected; {MEND}")


def place(node: fx.Node) -> str:
    if node.op == "call_module":
        return f"module {node.target}"
    return f"{getattr(node.target, '__name__', node.target)} ({node.name})"


def ancestors(node: fx.Node) -> set[fx.Node]:
    found, stack = set(), list(node.all_input_nodes)
    while stack:
        if (one := stack.pop()) not in found:
            found.add(one)
            stack.extend(one.all_input_nodes)
    return found


def returned(trial: Trial) -> list[Any]:
    return tree_leaves(trial.env[trial.graph.output_node()])


def axis_of(whole: Any, first: Any, second: Any) -> int | NoAxis | None:
    """Along which the whole is the two parts side by side; None: the second part's value is the whole's."""
    if isinstance(whole, Tensor):
        for axis in range(whole.dim()):
            if first.dim() == second.dim() == whole.dim() and whole.shape[axis] != first.shape[axis]:
                if first.shape[axis] + second.shape[axis] != whole.shape[axis]:
                    return NO_AXIS
                return axis if is_cat(whole, first, second, axis) else NO_AXIS
    return None if alike(whole, second) else NO_AXIS


def is_cat(whole: Tensor, first: Tensor, second: Tensor, axis: int) -> bool:
    others = [{s for i, s in enumerate(t.shape) if i != axis} for t in (whole, first, second)]
    return others[0] == others[1] == others[2] and alike(whole, torch.cat([first, second], axis))


def alike(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor):
        return type(a) is type(b) and bool(a == b)
    if not isinstance(b, Tensor) or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    scale = float(a.abs().amax().nan_to_num()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=TOLERANCE * scale, equal_nan=True)


def halves(leaves: Sequence[Any], axes: Sequence[int | None]) -> list[list[Any]]:
    """Not equally long, where that can be."""

    def parts(leaf: Any, axis: int | None) -> tuple[Any, Any]:
        if axis is None or leaf.shape[axis] == 1:
            return leaf, leaf
        behind = max(1, (leaf.shape[axis] - 1) // 2)
        return leaf.narrow(axis, 0, leaf.shape[axis] - behind), leaf.narrow(axis, leaf.shape[axis] - behind, behind)

    return [list(part) for part in zip(*map(parts, leaves, axes), strict=True)]


def drawn(graph: fx.GraphModule) -> nn.Module:
    """In evaluation: what norms do in training is asked before each call."""
    module = copy.deepcopy(graph).double().eval()
    if any(parameter.is_meta for parameter in module.parameters()):
        module = module.to_empty(device="cpu")
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.fill_(1)
    for parameter in module.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    return module


def random_like(leaf: Any) -> Any:
    """Of the same kind; whole numbers among those that were given, which may be indices."""
    if not isinstance(leaf, Tensor) or leaf.numel() == 0:
        return leaf
    if leaf.is_floating_point():
        return torch.randn_like(leaf, dtype=torch.float64)
    return leaf.flatten()[torch.randint(leaf.numel(), leaf.shape, device=leaf.device)]


class Certain(TorchDispatchMode):
    """What is drawn within the block is one half, and dropout lets all through."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.native_dropout.default:
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        out = func(*args, **kwargs)
        return tree_map_only(Tensor, lambda t: t.fill_(0.5), out) if draws(func, args, kwargs) else out
