"""Record what a function does to tensors, as an fx graph of ATen ops, whatever the values are.

The function runs once on stand-ins (zeros of the right shape, on the CPU) under a dispatch mode that writes down every
op. Tensors it closes over are met on the way and become further inputs. Looking at a value is an error, so the graph
holds for all values. (`make_fx` over fake or meta tensors records the same, but their first use in a process imports a
second's worth of Python; a rewritten model must start in milliseconds.)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from bppsa.chain import FILLS
from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.decompose import DECOMPOSE

aten = torch.ops.aten
READS_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
HANDS_OUT = Reason("hands a tensor's values to Python", mend="stay in torch ops")
BENDS_GRADIENT = Reason("changes what autograd does", mend="use detach() and torch ops")
STALE = "no rule for what reads a view of what was changed in place (as circular padding does)"
RETURN_NEW = "return a new tensor, as torch.cat does"
DRAW_OUTSIDE = "draw them outside and pass them in, or call model.eval() if they are a dropout's"
# Calls that the dispatcher does not see, or sees without their purpose.
REFUSED: dict[Any, Reason] = {
    **dict.fromkeys((Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.data_ptr, Tensor.__dlpack__), HANDS_OUT),
    **dict.fromkeys((Tensor.register_hook, Tensor.backward, Tensor.retain_grad), BENDS_GRADIENT),
    **dict.fromkeys((torch.autograd.grad, torch.autograd.backward), BENDS_GRADIENT),
    Tensor.data.__get__: BENDS_GRADIENT,  # type: ignore[attr-defined]
}


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
) -> Recording:
    """Record `fn(*args)`; `args` is a pytree whose tensors stand for inputs (only their shape and dtype are read).
    gradients: whether the recording must also tell what autograd would do. decompose: what to record instead of an op.
    where: names the module that runs, for each node's `meta["path"]`. recorder: another than a cell's.

    Raises `Unsupported` where the function reads the value of a tensor, has an op that fails for some values, changes
    an input in place, or has a gradient that is not that of its ops.
    """
    recorder = recorder or Recorder(decompose, where)
    nodes: list[fx.Node] = []

    def stand_in(tensor: Tensor) -> Tensor:
        value = zeros_like(tensor)
        nodes.append(recorder.placeholder(value))
        return recorder.watched(value, nodes[-1]) if gradients else value

    inputs = tree_map_only(Tensor, stand_in, tuple(args))
    recorder.gradients = gradients or torch.is_grad_enabled()
    with torch.set_grad_enabled(recorder.gradients), nothing_saved(), NoEscape(), recorder:
        result = fn(*inputs)
    check_gradients(tree_leaves(result), [tensor for tensor, _ in recorder.captured])
    result = tree_map_only(Tensor, recorder.node_of, result)
    return Recording(recorder.graph, tuple(nodes), tuple(recorder.captured), result)


def nothing_saved() -> AbstractContextManager[Any]:
    """No backward will read what autograd saves of stand-ins. Hooks around the call (a checkpoint's, which counts what
    it sees) are for the tensors of the call."""

    def forget(value: Any) -> Any:
        return None

    return saved_tensors_hooks(forget, forget)


def zeros_like(tensor: Tensor) -> Tensor:
    """A stand-in, made out of sight of the recorder."""
    with _disable_current_modes():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")


def check_gradients(results: Sequence[Any], captured: Sequence[Tensor]) -> None:
    """A torch.autograd.Function is seen as the ops of its forward; its backward would be lost."""
    seen = {tensor.grad_fn for tensor in captured}  # how these came about is no part of the function
    stack = [tensor.grad_fn for tensor in results if isinstance(tensor, Tensor)]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, BackwardCFunction):
            raise Unsupported(Reason("has a gradient of its own", op=node.name(), mend="use detach() and torch ops"))
        seen.add(node)
        stack.extend(before for before, _ in node.next_functions)


def reads_values(func: Any, args: Sequence[Any]) -> bool:
    """Whether the result, or its shape, is one of the stand-ins' and would not hold for other values."""
    if func is aten.index.Tensor:  # numbers pick rows whatever they are, a mask picks as many as it is true
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return not READS_VALUES.isdisjoint(func.tags)


def geometry(tensor: Tensor) -> tuple:
    """What a tensor is a view of, and how. Nothing is mutated while recording, so equal geometry means equal values;
    autograd may hand back another Python object for one view, so identity would not do."""
    if tensor.layout is not torch.strided:
        raise Unsupported(Reason(f"a tensor of layout {tensor.layout}", mend="use dense tensors"))
    if tensor.is_conj() or tensor.is_neg():
        raise Unsupported(Reason("a lazily conjugated or negated tensor", mend="call resolve_conj() or resolve_neg()"))
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)


class NoEscape(TorchFunctionMode):
    """Refuses what the dispatcher does not see."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict | None = None) -> Any:
        if func in REFUSED:
            raise Unsupported(replace(REFUSED[func], op=getattr(func, "__name__", str(func))))
        if kwargs and kwargs.get("out") is not None:
            raise Unsupported(Reason("writes into out=", op=func.__name__, mend="use what it returns"))
        return func(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):
    """Sees every op that the dispatcher does, runs it on stand-ins and writes it down as a node."""

    may_draw = False  # random numbers

    def __init__(self, decompose: Mapping[Any, Callable[..., Any]] = DECOMPOSE, where: Callable[[], str] = str) -> None:
        super().__init__()
        self.decompose, self.where = decompose, where
        self.graph = fx.Graph()
        self.nodes: dict[tuple, fx.Node] = {}
        self.alive: list[Tensor] = []  # a geometry is an address: it must not be given away again
        self.captured: list[tuple[Tensor, fx.Node]] = []
        self.closed_over: dict[tuple, fx.Node] = {}  # W and W.detach() share a geometry, but not a gradient
        self.stale = fx.Graph().placeholder("stale")
        self.changed_by: dict[tuple, str] = {}  # the op that made a geometry stale
        self.gradients = True  # whether grad mode is on but for what the function itself turns off

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper torch would put around the method below imports all of Dynamo on its first call

    def placeholder(self, stand_in: Tensor) -> fx.Node:
        return self.define(self.graph.placeholder(f"arg{len(self.nodes)}"), stand_in)

    def watched(self, value: Tensor, node: fx.Node) -> Tensor:
        """The placeholder's stand-in as the function gets it: autograd tells what becomes of it."""
        if not value.is_floating_point():
            return value
        with _disable_current_modes(), torch.enable_grad():
            value = value.clone().requires_grad_().clone()  # a leaf may not be changed in place
        self.stands_for(value, node)
        return value

    def define(self, node: fx.Node, value: Tensor) -> fx.Node:
        node.meta["val"] = value
        self.stands_for(value, node)
        return node

    def stands_for(self, value: Tensor, node: fx.Node) -> None:
        self.alive.append(value)
        self.nodes[geometry(value)] = node

    def node_of(self, tensor: Tensor) -> fx.Node:
        """The node that computed `tensor`; a tensor met for the first time is one the function closed over."""
        place = geometry(tensor)
        found = self.nodes.get(place) or self.closed_over.get((place, tensor.requires_grad))
        if found is self.stale:
            raise Unsupported(Reason(STALE, self.changed_by[place], RETURN_NEW, self.where()))
        if found is None:
            found = self.placeholder(zeros_like(tensor))
            self.closed_over[place, tensor.requires_grad] = found
            self.captured.append((tensor, found))
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if reads_values(func, args):
            raise Unsupported(Reason("reads the value of a tensor", op=str(func), mend="use torch.where"))
        if torch.Tag.nondeterministic_seeded in func.tags and not self.may_draw:
            raise Unsupported(Reason("draws random numbers", str(func), DRAW_OUTSIDE, self.where()))
        if func._schema.is_mutable:
            return self.change_in_place(func, args, kwargs)
        if func in self.decompose:
            with self:
                return self.decompose[func](*args, **kwargs)
        with self:
            parts = func.decompose(*args, **kwargs)  # of an op that is nothing but a composition of others
        if parts is not NotImplemented:
            return parts
        return self.write_down(func, args, kwargs)

    def write_down(self, func: Any, args: Sequence[Any], kwargs: dict) -> Any:
        """Run the op on stand-ins, and add a node for it."""
        args, kwargs = tree_map_only(Tensor, self.node_of, (tuple(args), kwargs))
        stand_ins, options = fx.node.map_arg((args, kwargs), lambda node: node.meta["val"])
        if any(argument.name == "device" for argument in func._schema.arguments):
            options = {**options, "device": "cpu"}
        try:
            out = func(*stand_ins, **options)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # zeros: its own may be regular
            raise Unsupported(Reason("fails for some values of a tensor", op=str(func))) from error
        node = self.graph.call_function(func, args, kwargs)
        node.meta["path"] = self.where()
        if isinstance(out, Tensor):
            return self.define_output(node, out)
        if not isinstance(out, (tuple, list)):
            raise Unsupported(Reason("gives no tensors", op=str(func)))
        node.meta["val"] = out
        items = [self.graph.call_function(operator.getitem, (node, i)) for i in range(len(out))]
        for item in items:
            item.meta["path"] = node.meta["path"]
        return [self.define_output(item, value) for item, value in zip(items, out, strict=True)]

    def change_in_place(self, func: Any, args: Sequence[Any], kwargs: dict) -> Any:
        """Record x.add_(y) as x.add(y), and let x stand for the result from here on."""
        changed = args[0] if args else None
        op = self.functional(func)
        if not func._opname.endswith("_") or op is None or not isinstance(changed, Tensor):
            raise Unsupported(
                Reason("changes a tensor in place", op=str(func), mend="use the form that returns a new one")
            )
        if changed.requires_grad and self.gradients and not torch.is_grad_enabled():
            what = "changes a tensor in place and keeps its gradient, under no_grad"
            raise Unsupported(Reason(what, op=str(func), mend="use the form that returns a new one"))
        with self:
            result = op(*args, **kwargs)
        self.forget_overlapping(changed, func)
        self.nodes[geometry(changed)] = self.nodes[geometry(result)]
        return changed

    def functional(self, func: Any) -> Any:
        """The op that returns what `func` writes in place; None where there is none."""
        return getattr(getattr(aten, func._opname.removesuffix("_"), None), func._overloadname, None)

    def forget_overlapping(self, changed: Tensor, func: Any) -> None:
        """What shares memory with a tensor that was changed no longer holds what was recorded for it."""
        storage = changed.untyped_storage()
        touched = torch.zeros(storage.nbytes() // changed.element_size(), dtype=torch.bool)
        touched.as_strided(changed.shape, changed.stride(), changed.storage_offset()).fill_(True)
        captured = [(place, node) for (place, _), node in self.closed_over.items()]
        for key, node in [*self.nodes.items(), *captured]:
            address, offset, shape, stride, _ = key
            if address == storage._cdata and node is not self.stale and touched.as_strided(shape, stride, offset).any():
                if node.op == "placeholder":
                    raise Unsupported(
                        Reason("changes an input in place", op=str(func), mend="use the form that returns a new one")
                    )
                self.nodes[key], self.changed_by[key] = self.stale, str(func)

    def define_output(self, node: fx.Node, out: Tensor) -> Tensor:
        detached = self.gradients and not torch.is_grad_enabled()  # a torch.no_grad() block inside the function
        if detached and node.target is not aten.detach.default:
            node.meta["val"] = out
            node = self.graph.call_function(aten.detach.default, (node,))
        elif self.nodes.get(geometry(out), self.stale) is not self.stale and node.target is not aten.detach.default:
            self.graph.erase_node(node)  # a view that changes nothing
            return out
        if node.target is aten.detach.default:
            out = zeros_like(out)  # a geometry of its own, to tell it from what it was detached from
            source = node.args[0]
            if source.target in FILLS:  # torch.zeros and its kin end in a detach
                self.graph.erase_node(node)
                node = source
        self.define(node, out)
        return out
