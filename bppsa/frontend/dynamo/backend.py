"""torch.compile's entry: `torch.compile(model, backend="bppsa", options={"fallback": ...})`.

Importing this file, as torch does when the name is first looked up, adds one question to three places in Dynamo: is it
this backend that compiles? If so, nn.RNN, nn.GRU and nn.LSTM are let in, torch.gru and its kin become one
`bppsa::recurrence` op each, `bppsa.scan` becomes a scan node, and hooks that come later are seen. For other backends,
and outside Dynamo, these places do what they did before. What Dynamo traced then comes to `backend`, which turns scan
nodes into `bppsa::scan` ops.

Dynamo remembers what it gave up on: after another backend compiled a model here, call torch._dynamo.reset() first.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, fx, nn
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.eval_frame import innermost_backend
from torch._dynamo.exc import ShortenTraceback, TorchRuntimeError, UncapturedHigherOrderOpError
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.nn_module import UnspecializedNNModuleVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._higher_order_ops.scan import scan as scan_node
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from bppsa.errors import StrategyError
from bppsa.frontend.cell import scanning
from bppsa.frontend.dynamo import ops as _ops  # defines torch.ops.bppsa
from bppsa.frontend.dynamo.scan_node import inline_scan
from bppsa.frontend.dynamo.unrolled import rerolled
from bppsa.fxpasses.theirs import theirs
from bppsa.plan.forward import forward_of
from bppsa.plan.strategy import strategy_of

# The default of each option.
OPTIONS: Mapping[str, str] = {"fallback": "inductor", "strategy": "auto", "forward": "sequential"}
FALLBACKS = ("inductor", "eager")
KINDS = ("gru", "lstm", "rnn_tanh", "rnn_relu")
READ = "tp_getattro_impl"  # what Dynamo reads an attribute of a module by
HOOKS = frozenset({"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"})
DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16})


class OptionError(ShortenTraceback, StrategyError):
    """A wrong option. Dynamo puts what a backend raises into an error of its own, save for this first family.

    Its text stays this one line: Dynamo would add the user's line that it traced, which is not what is wrong."""

    def __init__(self, text: str) -> None:
        super().__init__(text, first_useful_frame=sys._getframe(1))
        self.text = text

    def __str__(self) -> str:
        return self.text


def backend(
    graph: fx.GraphModule, example_inputs: list[Any], *, options: Mapping[str, str] | None = None, **others: Any
) -> Callable[..., Any]:
    """What Dynamo calls with each graph. `fallback`: who compiles all that is not a recurrence."""
    chosen = _checked({**(options or {}), **others})
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.higher_order.scan):
        inline_scan(graph, node, chosen["strategy"], chosen["forward"])
    graph.graph.lint()
    graph.recompile()
    with_scans = rerolled(graph, chosen["strategy"], chosen["forward"])
    if with_scans is not None:
        return with_scans
    kept = graph.graph.find_nodes(op="call_function", target=torch.ops.higher_order.scan)
    # Inductor (torch 2.13) fails on any scan node: it reads the number of the step as a value
    return lookup_backend("eager" if kept else chosen["fallback"])(graph, example_inputs)


def _checked(options: Mapping[str, Any]) -> dict[str, str]:
    for name in options:
        if name not in OPTIONS:
            raise OptionError(f"backend 'bppsa' has no option {name!r}; it has {', '.join(OPTIONS)}")
    chosen = {name: options.get(name, default) for name, default in OPTIONS.items()}
    if chosen["fallback"] not in FALLBACKS:
        raise OptionError(f"backend 'bppsa' has no fallback {chosen['fallback']!r}; it has {', '.join(FALLBACKS)}")
    try:
        texts = {"strategy": str(strategy_of(chosen["strategy"])), "forward": str(forward_of(chosen["forward"]))}
    except StrategyError as error:
        raise OptionError(f"backend 'bppsa': {error}") from error
    return chosen | texts


# All that follows runs while Dynamo traces. `tx` is the translator of the frame at hand.


def compiles(tx: Any) -> bool:
    """Is it this backend that the trace is for?"""
    compiler = innermost_backend(tx.output.compiler_fn)
    return getattr(compiler, "compiler_fn", compiler) is backend  # torch.compile puts our options around it


def _chosen(tx: Any) -> tuple[str, str]:
    """Strategy and forward of the options the backend will be called with."""
    given = getattr(innermost_backend(tx.output.compiler_fn), "kwargs", {})
    options = _checked(given.get("options") or {})
    return options["strategy"], options["forward"]


def _left_to_pytorch(tensor: Tensor) -> bool:
    """Is a recurrence over tensors like this one, at this point of the trace, none of ours?"""
    plain = tensor.device.type == "cpu" and tensor.dtype in DTYPES
    return _transformed() or not plain or torch.is_autocast_enabled(tensor.device.type)


def _transformed() -> bool:
    """Do torch.func or forward-mode AD look on? An op of ours would give them wrong tangents or an error."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def _admit_modules() -> None:
    """Dynamo refuses nn.RNN, nn.GRU and nn.LSTM unless `allow_rnn`: set it for no longer than one of ours is let in."""
    wrap = VariableBuilder.wrap_module

    @functools.wraps(wrap)
    def wrap_module(self: VariableBuilder, value: nn.Module) -> VariableTracker:
        ours = isinstance(value, nn.RNNBase) and compiles(self.tx) and not _left_to_pytorch(next(value.parameters()))
        with torch._dynamo.config.patch(allow_rnn=True) if ours else contextlib.nullcontext():
            return wrap(self, value)

    VariableBuilder.wrap_module = wrap_module  # type: ignore[method-assign]


def _guard_hooks() -> None:
    """Dynamo takes it that no hook comes later (`skip_nnmodule_hook_guards`), and would leave one out silently."""
    known_as = READ if hasattr(UnspecializedNNModuleVariable, READ) else "var_getattr"  # to torch 2.13
    read = getattr(UnspecializedNNModuleVariable, known_as)

    @functools.wraps(read)
    def var_getattr(self: Any, tx: Any, name: str) -> VariableTracker:
        none_yet = name in HOOKS and self.source and compiles(tx) and not getattr(self.value, name)
        if none_yet and not tx.output.side_effects.has_pending_mutation_of_attr(self, name):
            install_guard(AttrSource(self.source, name).make_guard(GuardBuilder.SEQUENCE_LENGTH))
        return theirs(read, self, tx, name)  # an error on the way is no mistake of ours

    setattr(UnspecializedNNModuleVariable, known_as, var_getattr)


def _admit(function: Callable[..., Any], handle: Callable[..., VariableTracker | None]) -> None:
    """Have Dynamo ask `handle` when it meets a call of `function`; where the answer is None it goes on as ever."""
    handlers = TorchInGraphFunctionVariable._get_handlers()
    if function in handlers:
        raise RuntimeError(f"torch {torch.__version__} traces {function} in a way of its own")
    handlers[function] = handle


def _follow(tx: Any, function: Callable[..., Any], *args: VariableTracker) -> VariableTracker:
    """Trace a call of `function`, plain Python, in place of what the frame calls."""
    return VariableTracker.build(tx, function).call_function(tx, list(args), {})


def _admit_recurrence(kind: str) -> None:
    def handle(self: Any, tx: Any, x: VariableTracker, *args: VariableTracker) -> VariableTracker | None:
        packed = args[2].python_type() is not bool  # torch.gru(data, batch_sizes, hx, weights, ...)
        if packed or not compiles(tx) or _left_to_pytorch(x.as_proxy().node.meta["example_value"]):
            return None
        constants = [VariableTracker.build(tx, value) for value in (kind, *_chosen(tx))]
        return _follow(tx, _recurrence, *constants, x, *args)

    _admit(getattr(torch, kind), handle)


def _recurrence(kind: str, strategy: str, forward: str, x: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """torch.gru(x, hx, weights, ...) as ops for the graph. x: [T, B, I] ([B, T, I] if batch_first); gives y and the
    final state or states."""
    hx, weights, _, layers, dropout, training, bidirectional, batch_first = args
    states = [hx] if isinstance(hx, Tensor) else list(hx)
    x = (x.transpose(0, 1) if batch_first else x).contiguous()  # as PyTorch's: the caller may change x meanwhile
    masks = []
    if training and dropout > 0:
        width = states[0].shape[-1] * (2 if bidirectional else 1)
        ones = x.new_ones((*x.shape[:-1], width))
        masks = [nn.functional.dropout(ones, dropout) for _ in range(layers - 1)]
    save = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *states, *weights))
    how = kind, layers, bidirectional, strategy, forward, _ops.VERSION, save
    outputs = torch.ops.bppsa.recurrence(x, states, weights, masks, *how)
    y = outputs[0].transpose(0, 1) if batch_first else outputs[0]
    return (y, *outputs[1 : 1 + len(states)])


@torch._dynamo.allow_in_graph
def scan(cell: Callable[..., Any], carry: Any, xs: Any, reverse: bool, strategy: Any, forward: Any) -> tuple[Any, Any]:
    """What `bppsa.scan` calls while Dynamo traces: a node comes in its place, or the trace breaks off and runs this."""
    return _scan_outside(cell, carry, xs, reverse, strategy, forward)


@torch._dynamo.disable(reason="bppsa.scan calls kernels; with backend='bppsa' a cell that can be captured is a node")
def _scan_outside(
    cell: Callable[..., Any], carry: Any, xs: Any, reverse: bool, strategy: Any, forward: Any
) -> tuple[Any, Any]:
    return scanning.scan(cell, carry, xs, reverse=reverse, strategy=strategy, forward=forward)


def _scan_inside(cell: Callable[..., Any], carry: Any, xs: Any, reverse: bool) -> tuple[Any, Any]:
    def own(tensor: Tensor) -> Tensor:  # a scan node allows no aliases, and a carry one memory layout
        return tensor.clone(memory_format=torch.contiguous_format)

    def step(carry: Any, x: Any) -> Any:
        return pytree.tree_map_only(Tensor, own, cell(carry, x))

    return scan_node(step, pytree.tree_map_only(Tensor, own, carry), xs, reverse=reverse)


def _admit_scan() -> None:
    def handle(self: Any, tx: Any, *args: VariableTracker) -> VariableTracker:
        *given, strategy, forward = args  # a node has those of the backend's options: one of its own stays outside
        own = not (strategy.is_constant_none() and forward.is_constant_none())
        if compiles(tx) and not _transformed() and not own:
            with contextlib.suppress(UncapturedHigherOrderOpError, TorchRuntimeError):  # no node can hold this cell
                return _follow(tx, _scan_inside, *given)
        return _follow(tx, _scan_outside, *args)

    _admit(scan, handle)


_admit_modules()
_guard_hooks()
_admit_scan()
for _kind in KINDS:
    _admit_recurrence(_kind)
