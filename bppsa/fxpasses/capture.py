"""Record what a function does to tensors, as an fx graph of ATen ops, whatever the values are.

The function runs once on stand-ins (zeros of the right shape, on the CPU) under a dispatch mode that writes down every op.
Tensors it closes over are met on the way and become further inputs. Looking at a value is an error, so the graph holds for
all values. (`make_fx` over fake or meta tensors records the same, but their first use in a process imports a second's worth
of Python; a rewritten model must start in milliseconds.)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.decompose import DECOMPOSE

aten = torch.ops.aten
READS_VALUES = {aten._local_scalar_dense.default, aten.item.default, aten.is_nonzero.default, aten.nonzero.default}
LEAVES_TORCH = {Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.data_ptr, Tensor.__dlpack__}


@dataclass(frozen=True)
class Recording:
    """`graph`: a placeholder for each argument and for each captured tensor; every node has a stand-in in `meta["val"]`.
    `result`: what the function returned, with graph nodes in the place of tensors."""

    graph: fx.Graph
    arguments: tuple[fx.Node, ...]
    captured: tuple[tuple[Tensor, fx.Node], ...]
    result: Any


def record(fn: Callable[..., Any], args: Sequence[Any]) -> Recording:
    """Record `fn(*args)`; `args` is a pytree whose tensors stand for inputs (only their shape and dtype are read).

    Raises `Unsupported` where the function reads the value of a tensor or changes one in place.
    """
    recorder = Recorder()
    nodes: list[fx.Node] = []

    def stand_in(tensor: Tensor) -> Tensor:
        nodes.append(recorder.placeholder(zeros_like(tensor)))
        return nodes[-1].meta["val"]

    inputs = tree_map_only(Tensor, stand_in, tuple(args))
    with torch.enable_grad(), NoEscape(), recorder:
        result = fn(*inputs)
    result = tree_map_only(Tensor, recorder.node_of, result)
    return Recording(recorder.graph, tuple(nodes), tuple(recorder.captured), result)


def zeros_like(tensor: Tensor) -> Tensor:
    """A stand-in, made out of sight of the recorder."""
    with _disable_current_modes():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")


def geometry(tensor: Tensor) -> tuple:
    """What a tensor is a view of, and how. Nothing is mutated while recording, so equal geometry means equal values;
    autograd may hand back another Python object for one view, so identity would not do."""
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)


class NoEscape(TorchFunctionMode):
    """Refuses the calls through which a value could leave torch unseen by the dispatcher."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict | None = None) -> Any:
        if func in LEAVES_TORCH:
            raise Unsupported(Reason("hands a tensor's values to Python", op=func.__name__, mend="stay in torch ops"))
        return func(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.nodes: dict[tuple, fx.Node] = {}
        self.captured: list[tuple[Tensor, fx.Node]] = []
        self.stale = fx.Graph().placeholder("stale")

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper torch would put around the method below imports all of Dynamo on its first call

    def placeholder(self, stand_in: Tensor) -> fx.Node:
        return self.define(self.graph.placeholder(f"arg{len(self.nodes)}"), stand_in)

    def define(self, node: fx.Node, value: Tensor) -> fx.Node:
        node.meta["val"] = value
        self.nodes[geometry(value)] = node
        return node

    def node_of(self, tensor: Tensor) -> fx.Node:
        """The node that computed `tensor`; a tensor met for the first time is one the function closed over."""
        found = self.nodes.get(geometry(tensor))
        if found is self.stale:
            raise Unsupported(Reason("reads a view of what was changed in place", mend="change nothing in place"))
        if found is None:
            found = self.placeholder(zeros_like(tensor))
            self.nodes[geometry(tensor)] = found
            self.captured.append((tensor, found))
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func in READS_VALUES:
            raise Unsupported(Reason("reads the value of a tensor", op=str(func), mend="use torch.where"))
        if func._schema.is_mutable:
            return self.change_in_place(func, args, kwargs)
        if func in DECOMPOSE:
            with self:
                return DECOMPOSE[func](*args, **kwargs)
        with self:
            parts = func.decompose(*args, **kwargs)  # of an op that is nothing but a composition of others
        if parts is not NotImplemented:
            return parts
        args, kwargs = tree_map_only(Tensor, self.node_of, (tuple(args), kwargs))
        stand_ins, options = fx.node.map_arg((args, kwargs), lambda node: node.meta["val"])
        if any(argument.name == "device" for argument in func._schema.arguments):
            options = {**options, "device": "cpu"}
        out = func(*stand_ins, **options)
        node = self.graph.call_function(func, args, kwargs)
        if isinstance(out, Tensor):
            return self.define_output(node, out)
        node.meta["val"] = out
        items = [self.graph.call_function(operator.getitem, (node, i)) for i in range(len(out))]
        return [self.define_output(item, value) for item, value in zip(items, out, strict=True)]

    def change_in_place(self, func: Any, args: Sequence[Any], kwargs: dict) -> Tensor:
        """Record x.add_(y) as x.add(y), and let x stand for the result from here on."""
        changed = args[0] if args else None
        op = getattr(getattr(aten, func._opname.removesuffix("_"), None), func._overloadname, None)
        if not func._opname.endswith("_") or op is None or not isinstance(changed, Tensor):
            raise Unsupported(
                Reason("changes a tensor in place", op=str(func), mend="use the form that returns a new one")
            )
        with self:
            result = op(*args, **kwargs)
        self.forget_overlapping(changed, func)
        self.nodes[geometry(changed)] = self.nodes[geometry(result)]
        return changed

    def forget_overlapping(self, changed: Tensor, func: Any) -> None:
        """What shares memory with a tensor that was changed no longer holds what was recorded for it."""
        storage = changed.untyped_storage()
        touched = torch.zeros(storage.nbytes() // changed.element_size(), dtype=torch.bool)
        touched.as_strided(changed.shape, changed.stride(), changed.storage_offset()).fill_(True)
        for key, node in list(self.nodes.items()):
            address, offset, shape, stride, _ = key
            if address == storage._cdata and node is not self.stale and touched.as_strided(shape, stride, offset).any():
                if node.op == "placeholder":
                    raise Unsupported(
                        Reason("changes an input in place", op=str(func), mend="use the form that returns a new one")
                    )
                self.nodes[key] = self.stale

    def define_output(self, node: fx.Node, out: Tensor) -> Tensor:
        detached = not torch.is_grad_enabled()  # a torch.no_grad() block inside the function
        if detached and node.target is not aten.detach.default:
            node.meta["val"] = out
            node = self.graph.call_function(aten.detach.default, (node,))
        elif self.nodes.get(geometry(out), self.stale) is not self.stale and node.target is not aten.detach.default:
            self.graph.erase_node(node)  # a view that changes nothing
            return out
        if node.target is aten.detach.default:
            out = zeros_like(out)  # a geometry of its own, to tell it from what it was detached from
        self.define(node, out)
        return out
